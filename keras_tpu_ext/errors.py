"""The errors this package raises; each says what was needed, what was given and what to write instead."""

from __future__ import annotations

from keras_tpu_ext_command.explanations import code_of


class _Coded:
    """An error or warning with a code, for `keras-tpu-ext explain`."""

    args: tuple[object, ...]

    @property
    def code(self) -> str:
        """The code, such as `"KTE402"`: `keras-tpu-ext explain KTE402` says more."""
        return code_of([one.__name__ for one in type(self).__mro__], " ".join(map(str, self.args)))


class KteError(_Coded, Exception):
    """Base class of every error that `keras_tpu_ext` raises on purpose."""

    def __new__(cls, *args: object) -> KteError:
        """Add the code below the traceback, from Python 3.11 on."""
        error = super().__new__(cls, *args)
        if hasattr(error, "add_note"):
            error.add_note(f"[{error.code}] keras-tpu-ext explain {error.code}")
        return error


class RuntimeNotSupportedError(KteError, ImportError):
    """This release cannot run, or cannot do what was asked, with the Keras of this process."""


class NotForThisKerasError(RuntimeNotSupportedError):
    """Something exists only for another Keras than that of this process."""


class HardwareNotFoundError(KteError, RuntimeError):
    """The requested hardware is not there, or cannot be used."""


class TpuUnusableError(HardwareNotFoundError):
    """A TPU is there, but this process cannot use it; the message says why and what to do."""


class ScopeError(KteError, RuntimeError):
    """A strategy scope was opened too late, twice in different ways, or left out."""


class ClusterError(KteError, RuntimeError):
    """The processes that train together did not connect, or one of them was lost."""


class ArgumentError(KteError, ValueError):
    """An argument is invalid."""


class MissingExtraError(KteError, ImportError):
    """Something needs an optional package that is not installed."""


class NothingMeasuredError(KteError, RuntimeError):
    """A result was requested before there was anything to compute it from."""


class RecompilationError(KteError, RuntimeError):
    """A step was compiled again in a `fit` in which it must not be; the message says why."""


class DeviceMemoryError(KteError, RuntimeError):
    """The memory of a device is full, or fills up with arrays that something keeps."""


class NotFiniteError(KteError, FloatingPointError):
    """A loss or a weight is NaN or infinite; the message has the step, and the layer if it is known."""


class ParityCheckError(KteError, RuntimeError):
    """A parity check could not be carried out: one of its processes failed, or took too long."""


class PreflightError(KteError, RuntimeError):
    """A preflight could not be carried out: the compiler was missing, crashed, or took too long."""


class CheckpointError(KteError, RuntimeError):
    """A checkpoint is damaged, belongs to another model, or cannot be written."""


class KteWarning(_Coded, UserWarning):
    """Base class of every warning that `keras_tpu_ext` gives."""

    def __str__(self) -> str:
        return f"{super().__str__()} [{self.code}]"


class HardwareUnusableWarning(KteWarning):
    """A TPU is there but cannot be used; the message says why and what to do."""


class AddonsWarning(KteWarning):
    """TensorFlow Addons is used with a TensorFlow that it was not made for."""


class CustomStepWarning(KteWarning):
    """A custom step is no faster on replicas than on one device, or computes something else there."""


class MixedExamplesWarning(KteWarning):
    """A model combines the examples of a batch, and is no faster on replicas than on one device."""


class LayoutWarning(KteWarning):
    """A sharded model has a layout that is likely a mistake, such as a large weight on every device."""


class FromLogitsWarning(KteWarning):
    """A loss that expects logits gets probabilities, so the model may hardly learn."""


class ResumeWarning(KteWarning):
    """A training resumes after an interruption, and something differs from a training without one."""


class CompiledFileWarning(KteWarning):
    """A file of compiled programs does not fit this machine; the message says what differs."""


class UntestedVersionWarning(KteWarning):
    """A framework is newer than what this release was tested with."""
