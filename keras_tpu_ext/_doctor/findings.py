"""What is to be mended before a machine trains on its TPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from keras_tpu_ext._doctor.machine import Holder
from keras_tpu_ext._doctor.report import Finding
from keras_tpu_ext._version_pairs import NEWEST_LIBTPU_FOR_TENSORFLOW, Versions, problem_of_packages
from keras_tpu_ext.hardware import Hardware

_LIBTPU = ".".join(map(str, NEWEST_LIBTPU_FOR_TENSORFLOW))


def finding_of(problem: str) -> Finding:
    """Return a problem from a text that says behind "Write:" what to write."""
    cause, _, write = " ".join(problem.split()).partition(" Write: ")
    return Finding("problem", cause.rstrip("."), write)


def of_pairs(versions: Mapping[str, str]) -> Iterator[Finding]:
    """Yield packages whose import ends the process, or which overwrite each other, whoever imports them."""
    found = Versions(
        tensorflow=versions.get("tensorflow"),
        tensorflow_cpu=versions.get("tensorflow-cpu"),
        tensorflow_tpu=versions.get("tensorflow-tpu"),
        libtpu=versions.get("libtpu"),
    )
    problem = problem_of_packages(found)
    if problem:
        yield finding_of(problem)


def of_tpu(framework: str, versions: Mapping[str, str], address: str) -> Iterator[Finding]:
    """Yield what keeps the framework from a TPU at `address`."""
    if framework == "JAX":
        if address != "local":
            yield Finding(
                "problem",
                f"JAX reaches the TPU of its own machine only, and this one is at {address}",
                "os.environ['KERAS_BACKEND'] = 'tensorflow' before the first import of keras, or work on the TPU VM",
            )
        elif "libtpu" not in versions:
            yield Finding("problem", "a TPU is there, and JAX has no libtpu to use it with", "pip install 'jax[tpu]'")
    elif address == "local" and "tensorflow-tpu" not in versions:
        installed = " and ".join(name for name in versions if name.startswith("tensorflow")) or "TensorFlow"
        yield Finding(
            "problem",
            f"a TPU is there, and {installed} from PyPI has no kernels for TPUs",
            "KERAS_BACKEND=jax with pip install 'jax[tpu]', or: pip install tensorflow-tpu "
            f"'libtpu=={_LIBTPU}' -f https://storage.googleapis.com/libtpu-tf-releases/index.html",
        )


def of_holders(found: Sequence[Holder]) -> Iterator[Finding]:
    """Yield who holds the chip."""
    for holder in found:
        yield Finding(
            "problem",
            f"process {holder.pid} ({holder.command}) holds the TPU, and one process at a time can",
            f"kill {holder.pid}, or restart that notebook's kernel",
        )


def of_paths(paths: Sequence[str], address: str) -> Iterator[Finding]:
    """Yield the paths that a TPU behind a network cannot read or write."""
    if address in ("", "local"):
        return
    for path in paths:
        if not str(path).startswith("gs://"):
            yield Finding(
                "problem",
                f"the TPU at {address} reads and writes by itself and cannot reach {path} on this machine's disk",
                f"gs://BUCKET/{str(path).strip('/').rsplit('/', 1)[-1]} instead; or for checkpoints "
                "tf.train.CheckpointOptions(experimental_io_device='/job:localhost')",
            )


def of_policy(policy: str, recommended: str, hardware: Hardware) -> Iterator[Finding]:
    """Yield what another dtype policy would bring."""
    if policy != recommended and hardware.kind != "cpu":
        yield Finding(
            "advice",
            f"the dtype policy is {policy}, and this hardware is made for {recommended}",
            'with kte.strategy_scope(precision="auto") as scope: ...',
        )


def of_gpus(hardware: Hardware, visible: int, no_gpu: str) -> Iterator[Finding]:
    """Yield that the framework sees no GPU where there is one."""
    if hardware.kind == "gpu" and not visible:
        yield Finding("problem", "a GPU is there, and the framework sees none", no_gpu)
