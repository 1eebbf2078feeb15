"""The versions that this release supports (docs/versions.md), and pairs that break an installation."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from keras_tpu_ext.errors import RuntimeNotSupportedError
from keras_tpu_ext.machine.system import installed_version

# The newest libtpu with which TensorFlow for TPUs can be imported; a later one ends the process. Tried with
# tensorflow-tpu 2.20.0: 0.0.20, 0.0.24, 0.0.30 and 0.0.31 work; 0.0.32 to 0.0.51 do not.
NEWEST_LIBTPU_FOR_TENSORFLOW = (0, 0, 31)
# The oldest versions that this release supports on Keras 3. On Keras 2 TensorFlow is 2.15, or as new as with Keras 3.
OLDEST = {"keras": "3.8", "tensorflow": "2.18", "jax": "0.5.2"}
# The newest versions that this release was tested with.
NEWEST_TESTED = {"keras": "3.15.1", "tf_keras": "2.21.0", "tensorflow": "2.21.0", "jax": "0.10.2"}
# Keras before 3.10 calls `jax.spmd_mode`, which later JAX versions do not have.
NEWEST_JAX_FOR_OLD_KERAS = (0, 6, 0)

_TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tensorflow-tpu", "tensorflow-macos", "tf-nightly", "tf-nightly-cpu")


@dataclasses.dataclass(frozen=True)
class Versions:
    """Installed versions; `None` for packages that are not installed."""

    tensorflow: str | None = None  # of TensorFlow, under any package name; of `tensorflow` if several are installed
    tensorflow_cpu: str | None = None  # of `tensorflow-cpu`
    keras: str | None = None  # of `keras` or `keras-nightly`
    tf_keras: str | None = None  # of `tf-keras`
    tensorflow_tpu: str | None = None  # of `tensorflow-tpu`
    libtpu: str | None = None  # of `libtpu`
    jax: str | None = None  # of `jax`
    tensorflow_package: str = "tensorflow"  # the name of the package that `tensorflow` is the version of


def find_versions() -> Versions:
    """Return the installed versions, without importing anything."""
    tensorflow, package = _first_installed(_TENSORFLOWS)
    return Versions(
        tensorflow=tensorflow,
        tensorflow_cpu=installed_version("tensorflow-cpu"),
        keras=_first_installed(("keras", "keras-nightly"))[0],
        tf_keras=_first_installed(("tf-keras", "tf_keras"))[0],
        tensorflow_tpu=installed_version("tensorflow-tpu"),
        libtpu=installed_version("libtpu"),
        jax=installed_version("jax"),
        tensorflow_package=package,
    )


def check_versions(
    versions: Versions,
    *,
    legacy: bool = False,
    backend: str = "tensorflow",
    tensorflow_is_imported: bool = False,
) -> None:
    """Reject versions that are too old, or cannot work together."""
    problem = ""
    if versions.keras is None and not legacy:
        return  # `select` reports that there is none
    if legacy or backend == "tensorflow" or _numbers(versions.keras) < (3,):
        problem = "" if tensorflow_is_imported else problem_of_packages(versions)
        problem = problem or _problem_of_tensorflow(versions, legacy)
    elif backend == "jax":
        problem = _problem_of_jax(versions)
    if problem:
        raise RuntimeNotSupportedError(problem)


def newer_than_tested(versions: Versions, *, legacy: bool = False, backend: str = "tensorflow") -> str:
    """Return a note on versions whose minor version is newer than this release; empty if there are none."""
    names = ("tensorflow", "tf_keras") if legacy else ("keras", backend)
    newer = {
        name: version
        for name in names
        if (version := getattr(versions, name, None))
        and _numbers(version)[:2] > _numbers(NEWEST_TESTED.get(name, version))[:2]
    }
    if not newer:
        return ""
    tested = {name: NEWEST_TESTED[name] for name in newer}
    are = "is" if len(newer) == 1 else "are"
    return f"{_listed(newer)} {are} newer than what keras_tpu_ext was tested with: {_listed(tested)}"


def install_command(*names: str) -> str:
    """Return the command that installs frameworks, such as `"keras"` and `"jax"`, in versions that work here."""
    wanted = [f"'{name}>={OLDEST[name]}'" for name in names]
    return f"pip install {' '.join(wanted)}"


def how_to_get_tested_versions(versions: Versions) -> str:
    """Return how to get the versions that this release was tested with; on a TPU they must fit its libtpu."""
    if versions.libtpu:
        return "take an image of the TPU that has those versions"
    packages = {"tensorflow": versions.tensorflow_package, "tf_keras": "tf-keras"}
    wanted = [
        f"{packages.get(name, name)}=={tested}" for name, tested in NEWEST_TESTED.items() if getattr(versions, name)
    ]
    return f"write: pip install {' '.join(wanted)}"


def problem_of_packages(versions: Versions) -> str:
    """Return the problem of TensorFlow's packages, whichever Keras is used; empty if there is none."""
    if versions.tensorflow_tpu and versions.libtpu and _numbers(versions.libtpu) > NEWEST_LIBTPU_FOR_TENSORFLOW:
        newest = ".".join(map(str, NEWEST_LIBTPU_FOR_TENSORFLOW))
        return (
            f"tensorflow-tpu {versions.tensorflow_tpu} ends the process when it is imported with libtpu "
            f"{versions.libtpu}; it works with libtpu up to {newest}. Write: pip install 'libtpu=={newest}'"
        )
    full, cpu = versions.tensorflow, versions.tensorflow_cpu
    if full and cpu and full != cpu:
        return (
            f"tensorflow {full} and tensorflow-cpu {cpu} are both installed, and their files are in one folder "
            "(tf-keras asks for tensorflow). Write: pip uninstall -y tensorflow tensorflow-cpu, and then: pip "
            f"install tensorflow-cpu=={cpu}; install tf-keras with --no-deps."
        )
    return ""


def _problem_of_tensorflow(versions: Versions, legacy: bool) -> str:
    tensorflow, keras = _numbers(versions.tensorflow), _numbers(versions.keras)
    if legacy:
        return _problem_of_legacy(versions)
    if keras >= (3,) and tensorflow[:2] == (2, 15):
        return (
            f"keras {versions.keras} does not work with tensorflow {versions.tensorflow}: Keras 3 needs TensorFlow "
            f"{OLDEST['tensorflow']} or newer. Write: pip install 'keras==2.15.*', or: pip install --upgrade "
            f"'{versions.tensorflow_package}>={OLDEST['tensorflow']}'"
        )
    if keras >= (3,):
        return _too_old(versions, "keras", "tensorflow")
    if tensorflow >= (2, 16):
        return (
            f"keras {versions.keras} does not work with tensorflow {versions.tensorflow}, which needs Keras 3. "
            f"Write: pip install --upgrade 'keras>={OLDEST['keras']}' "
            f"'{versions.tensorflow_package}>={OLDEST['tensorflow']}'; for Keras 2 write: pip install --no-deps "
            f"tf-keras of the same version as TensorFlow, and set TF_USE_LEGACY_KERAS=1"
        )
    return _problem_of_keras2(versions)


def _problem_of_legacy(versions: Versions) -> str:
    tensorflow = _numbers(versions.tensorflow)
    if not tensorflow:
        return (
            f"TF_USE_LEGACY_KERAS is set, and this Python has no TensorFlow. Write: {install_command('tensorflow')} "
            "and pip install --no-deps tf-keras of the same version; "
            "or unset TF_USE_LEGACY_KERAS"
        )
    problem = _problem_of_keras2(versions)
    if not problem and versions.tf_keras is None:
        # Without its dependencies: tf-keras asks for `tensorflow`, which overwrites the files of tensorflow-cpu.
        install = f"Write: pip install --no-deps 'tf-keras=={_minor(versions.tensorflow)}.*'"
        return (
            "TF_USE_LEGACY_KERAS is set, and the package tf-keras, which is Keras 2 for tensorflow "
            f"{versions.tensorflow}, is not installed. {install}; or unset TF_USE_LEGACY_KERAS."
        )
    return problem


def _problem_of_keras2(versions: Versions) -> str:
    tensorflow = _numbers(versions.tensorflow)
    if not tensorflow or tensorflow[:2] == (2, 15) or tensorflow >= _numbers(OLDEST["tensorflow"]):
        return ""
    return (
        f"With Keras 2 this release of keras_tpu_ext works with TensorFlow 2.15, and with tf-keras on TensorFlow "
        f"{OLDEST['tensorflow']} and newer ones; this is {versions.tensorflow}. Write: pip install "
        f"'{versions.tensorflow_package}==2.15.*' 'keras==2.15.*'"
    )


def _problem_of_jax(versions: Versions) -> str:
    keras, jax = _numbers(versions.keras), _numbers(versions.jax)
    problem = _too_old(versions, "keras", "jax")
    if not problem and keras < (3, 10) and jax > NEWEST_JAX_FOR_OLD_KERAS:
        newest = ".".join(map(str, NEWEST_JAX_FOR_OLD_KERAS))
        return (
            f"keras {versions.keras} does not work with jax {versions.jax}: Keras before 3.10 needs JAX up to "
            f"{newest}. Write: pip install --upgrade 'keras>=3.10'"
        )
    return problem


def _too_old(versions: Versions, *names: str) -> str:
    """Return the problem of Keras 3 or its framework being older than the oldest; empty if there is none."""
    installed = {name: getattr(versions, name) for name in names}
    old = {
        name: version for name, version in installed.items() if version and _numbers(version) < _numbers(OLDEST[name])
    }
    if not old:
        return ""
    oldest = {name: OLDEST[name] for name in names}
    wanted = [f"'{versions.tensorflow_package if name == 'tensorflow' else name}>={OLDEST[name]}'" for name in old]
    return (
        f"{_listed(old)} {'is' if len(old) == 1 else 'are'} too old: this release of keras_tpu_ext works with "
        f"{_listed(oldest)}, and newer ones. Write: pip install --upgrade {' '.join(wanted)}"
    )


def _first_installed(packages: Sequence[str]) -> tuple[str | None, str]:
    """Return the version and the name of the first package that is installed; `None` and the first name otherwise."""
    found = ((version, package) for package in packages if (version := installed_version(package)))
    return next(found, (None, packages[0]))


def _listed(versions: dict[str, str]) -> str:
    return " and ".join(f"{name} {version}" for name, version in versions.items())


def _numbers(version: str | None) -> tuple[int, ...]:
    """Return the leading numbers of a version; none if there is no version."""
    numbers = []
    for part in (version or "").split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def _minor(version: str | None) -> str:
    return ".".join(map(str, _numbers(version)[:2]))
