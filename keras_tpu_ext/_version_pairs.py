"""Pairs of package versions that break an installation, checked before they are imported."""

from __future__ import annotations

import dataclasses

from keras_tpu_ext.errors import RuntimeNotSupportedError

# The newest libtpu that TensorFlow for TPUs imports with; with a later one it ends the process. Tried with
# tensorflow-tpu 2.20.0: 0.0.20, 0.0.24, 0.0.30 and 0.0.31 work; 0.0.32 to 0.0.51 do not.
NEWEST_LIBTPU_FOR_TENSORFLOW = (0, 0, 31)


@dataclasses.dataclass(frozen=True)
class Versions:
    """Installed versions; `None` for what is not there.

    Attributes:
        tensorflow: Of TensorFlow, whatever its package is called; of `tensorflow` where there are several.
        tensorflow_cpu: Of `tensorflow-cpu`.
        keras: Of `keras`.
        tf_keras: Of `tf-keras`.
        tensorflow_tpu: Of `tensorflow-tpu`.
        libtpu: Of `libtpu`.
    """

    tensorflow: str | None = None
    tensorflow_cpu: str | None = None
    keras: str | None = None
    tf_keras: str | None = None
    tensorflow_tpu: str | None = None
    libtpu: str | None = None


def check_pairs(versions: Versions, *, legacy: bool) -> None:
    """Refuse versions that cannot work together.

    Args:
        versions: What is installed.
        legacy: Whether the user set `TF_USE_LEGACY_KERAS`.

    Raises:
        RuntimeNotSupportedError: With the pair that was found and the pair that works.
    """
    problem = _problem(versions, legacy)
    if problem:
        raise RuntimeNotSupportedError(problem)


def problem_of_packages(versions: Versions) -> str:
    """Return the problem of the packages of TensorFlow, whichever Keras is used; empty where there is none."""
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


def _problem(versions: Versions, legacy: bool) -> str:
    tensorflow, keras = _numbers(versions.tensorflow), _numbers(versions.keras)
    problem = problem_of_packages(versions)
    if problem:
        return problem
    if legacy:
        return _problem_of_legacy(versions)
    if tensorflow and keras and tensorflow < (2, 16) and keras >= (3,):
        return (
            f"keras {versions.keras} does not work with tensorflow {versions.tensorflow}: Keras 3 needs TensorFlow "
            f"2.16 or newer. Write: pip install 'keras=={_minor(versions.tensorflow)}.*', or: "
            "pip install 'tensorflow>=2.16'"
        )
    if tensorflow and keras and tensorflow >= (2, 16) and keras < (3,):
        return (
            f"keras {versions.keras} does not work with tensorflow {versions.tensorflow}, which needs Keras 3. "
            "Write: pip install 'keras>=3'; for Keras 2 on this TensorFlow write: "
            f"pip install --no-deps 'tf-keras=={_minor(versions.tensorflow)}.*', and set TF_USE_LEGACY_KERAS=1"
        )
    return ""


def _problem_of_legacy(versions: Versions) -> str:
    tensorflow = _numbers(versions.tensorflow)
    if not tensorflow:
        return (
            "TF_USE_LEGACY_KERAS is set, and this Python has no TensorFlow. Write: "
            "pip install 'keras-tpu-ext[tensorflow]' and pip install --no-deps tf-keras of the same version; "
            "or unset TF_USE_LEGACY_KERAS"
        )
    # Without its dependencies: tf-keras asks for `tensorflow`, which overwrites the files of tensorflow-cpu.
    install = f"Write: pip install --no-deps 'tf-keras=={_minor(versions.tensorflow)}.*'"
    if tensorflow >= (2, 16) and versions.tf_keras is None:
        return (
            "TF_USE_LEGACY_KERAS is set, and the package tf-keras, which is Keras 2 for tensorflow "
            f"{versions.tensorflow}, is not installed. {install}; or unset TF_USE_LEGACY_KERAS to use Keras 3."
        )
    return ""


def _numbers(version: str | None) -> tuple[int, ...]:
    """Return the leading numbers of a version; none where there is no version."""
    numbers = []
    for part in (version or "").split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def _minor(version: str | None) -> str:
    return ".".join(map(str, _numbers(version)[:2]))
