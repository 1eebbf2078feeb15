"""The errors this package raises; each says what was needed, what came and what to write instead."""


class KteError(Exception):
    """Base class of every error that `keras_tpu_ext` raises on purpose."""


class RuntimeNotSupportedError(KteError, ImportError):
    """The Keras that this process has chosen is not one this release can run on."""


class NotForThisKerasError(RuntimeNotSupportedError):
    """Something exists for another Keras than that of this process."""


class HardwareNotFoundError(KteError, RuntimeError):
    """The hardware that was asked for is not there, or is there and cannot be used."""


class TpuUnusableError(HardwareNotFoundError):
    """A TPU is there, but this process cannot use it; the message says why and what to do."""


class ScopeError(KteError, RuntimeError):
    """A strategy scope was opened too late, twice in different ways, or left out."""


class ClusterError(KteError, RuntimeError):
    """The processes that train together did not come together, or one of them was lost."""


class ArgumentError(KteError, ValueError):
    """An argument has a value that cannot work."""


class MissingExtraError(KteError, ImportError):
    """Something was asked for that needs an optional package, and that package is not installed."""


class NothingMeasuredError(KteError, RuntimeError):
    """A result was asked for before there was anything to make it from."""


class ParityCheckError(KteError, RuntimeError):
    """A parity check could not be carried out: a process of it failed, or took too long."""


class PreflightError(KteError, RuntimeError):
    """A preflight could not be carried out: the compiler was not there, failed in itself, or took too long."""


class CheckpointError(KteError, RuntimeError):
    """A checkpoint is damaged, is of another model, or cannot be written."""


class HardwareUnusableWarning(UserWarning):
    """A TPU is there but cannot be used; the message says why and what to do."""


class AddonsWarning(UserWarning):
    """TensorFlow Addons is used on a TensorFlow that it was not made for."""


class CustomStepWarning(UserWarning):
    """A step of the user's own is no faster on replicas than on one device, or means something else there."""


class MixedExamplesWarning(UserWarning):
    """A model looks at the examples of a batch together, and is no faster on replicas than on one device."""


class LayoutWarning(UserWarning):
    """A sharded model has a layout that is surely not meant, such as a large weight on every device."""


class FromLogitsWarning(UserWarning):
    """A probability output meets a loss that expects logits, so the model may hardly learn."""


class ResumeWarning(UserWarning):
    """A training goes on after an interruption, and something is not as if there had been none."""


class UntestedVersionWarning(UserWarning):
    """A framework is newer than what this release was tested with."""
