"""The equivalents of TensorFlow Addons in Keras 3, and how they differ.

Compared from the sources of TensorFlow Addons 0.23 and Keras 3.15; tests look every name up on both sides.
"""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NamedTuple

_USE = re.compile(r"\b(?:tfa|tensorflow_addons)\.([a-z_0-9]+)\.([A-Za-z_0-9]+)")
_IMPORT = re.compile(r"from\s+(?:keras_tpu_ext\.addons\.tfa|tensorflow_addons)\.([a-z_0-9]+)\s+import\s+([\w, ]+)")
_PACKAGE = "keras_tpu_ext.addons"


class Equivalent(NamedTuple):
    """The equivalent of a symbol.

    Attributes:
        name: What to write, such as `"keras.optimizers.Lamb"`; empty if Keras 3 has no equivalent.
        differs: The differences, or what else can be done.
    """

    name: str
    differs: str


_DECAY = "its weight_decay is multiplied by the learning rate: write weight_decay / learning_rate"
_FOCAL = "means over the last axis where TFA sums, and over the batch where TFA does not reduce"
_SAME = "the same mathematics"

EQUIVALENTS: dict[str, Equivalent] = {
    "optimizers.LAMB": Equivalent(
        "keras.optimizers.Lamb",
        "epsilon is 1e-7 and not 1e-6; weight_decay is applied beside the trust ratio and not inside it; variables "
        "are left out by optimizer.exclude_from_weight_decay(...), and none from the layer adaptation",
    ),
    "optimizers.AdamW": Equivalent("keras.optimizers.AdamW", _DECAY),
    "optimizers.SGDW": Equivalent("keras.optimizers.SGD", f"write SGD(..., weight_decay=...); {_DECAY}"),
    "optimizers.DecoupledWeightDecayExtension": Equivalent(
        "keras.optimizers.Optimizer", f"every optimizer takes weight_decay; {_DECAY}"
    ),
    "optimizers.extend_with_decoupled_weight_decay": Equivalent(
        "keras.optimizers.Optimizer", f"every optimizer takes weight_decay; {_DECAY}"
    ),
    "optimizers.MovingAverage": Equivalent(
        "keras.optimizers.Optimizer",
        "every optimizer takes use_ema=True, ema_momentum=average_decay; fit ends with the averages in the weights, "
        "and keras.callbacks.SwapEMAWeights evaluates with them",
    ),
    "optimizers.SWA": Equivalent(
        "keras.callbacks.SwapEMAWeights",
        "an exponential average, made by use_ema=True in the optimizer, and not an equal one from a step on",
    ),
    "optimizers.MultiOptimizer": Equivalent(
        "keras.optimizers.MultiOptimizer", "pairs optimizers with variables and not with layers; needs a late Keras 3"
    ),
    "optimizers.LazyAdam": Equivalent(
        "keras.optimizers.Adam", "moves all rows of an embedding, and not only those used"
    ),
    "optimizers.ProximalAdagrad": Equivalent(
        "keras.optimizers.Ftrl", "has l1 and l2 regularisation of this kind, in another formula"
    ),
    "optimizers.COCOB": Equivalent("keras.optimizers.ScheduleFreeAdamW", "needs no schedule, but a learning rate"),
    "losses.SigmoidFocalCrossEntropy": Equivalent(
        "keras.losses.BinaryFocalCrossentropy", f"write apply_class_balancing=True; {_FOCAL}"
    ),
    "losses.sigmoid_focal_crossentropy": Equivalent(
        "keras.losses.binary_focal_crossentropy", f"write apply_class_balancing=True; {_FOCAL}"
    ),
    "metrics.F1Score": Equivalent("keras.metrics.F1Score", "takes no num_classes"),
    "metrics.FBetaScore": Equivalent("keras.metrics.FBetaScore", "takes no num_classes"),
    "metrics.RSquare": Equivalent("keras.metrics.R2Score", "averages outputs by class_aggregation, not multioutput"),
    "metrics.PearsonsCorrelation": Equivalent(
        "keras.metrics.PearsonCorrelation", "one correlation along an axis of each batch, and the mean of them"
    ),
    "metrics.MeanMetricWrapper": Equivalent("keras.metrics.MeanMetricWrapper", _SAME),
    "layers.GroupNormalization": Equivalent("keras.layers.GroupNormalization", "32 groups by default, as there"),
    "layers.InstanceNormalization": Equivalent("keras.layers.GroupNormalization", "write groups=-1"),
    "layers.SpectralNormalization": Equivalent("keras.layers.SpectralNormalization", _SAME),
    "layers.MultiHeadAttention": Equivalent(
        "keras.layers.MultiHeadAttention", "key_dim for head_size; takes query, value, key and not one list"
    ),
    "layers.GELU": Equivalent("keras.activations.gelu", "write Activation('gelu')"),
    "layers.Sparsemax": Equivalent("keras.activations.sparsemax", "write Activation('sparsemax')"),
    "layers.EmbeddingBag": Equivalent("keras.layers.Embedding", "sum or average its rows by keras.ops afterwards"),
    "activations.gelu": Equivalent("keras.activations.gelu", "approximate=False by default, where TFA says True"),
    "activations.hardshrink": Equivalent("keras.activations.hard_shrink", "threshold for lower and upper"),
    "activations.softshrink": Equivalent("keras.activations.soft_shrink", "threshold for lower and upper"),
    "activations.tanhshrink": Equivalent("keras.activations.tanh_shrink", _SAME),
    "activations.mish": Equivalent("keras.activations.mish", _SAME),
    "activations.sparsemax": Equivalent("keras.activations.sparsemax", _SAME),
    "callbacks.AverageModelCheckpoint": Equivalent(
        "keras.callbacks.SwapEMAWeights", "before a ModelCheckpoint, with use_ema=True in the optimizer"
    ),
    "callbacks.TQDMProgressBar": Equivalent("keras.callbacks.ProgbarLogger", "fit shows one: verbose=1"),
    **{
        f"layers.Adaptive{kind}Pooling{n}D": Equivalent(
            f"keras.layers.Adaptive{kind}Pooling{n}D", "needs a late Keras 3"
        )
        for kind in ("Average", "Max")
        for n in (1, 2, 3)
    },
}


def in_words(symbols: Sequence[str]) -> str:
    """Return the equivalents of `symbols`, such as `"optimizers.LAMB"`, as text; without any, all of them."""
    if not symbols:
        lines = [_line(symbol, equivalent) for symbol, equivalent in EQUIVALENTS.items()]
        return "What Keras 3 has instead:\n" + "\n".join(lines)
    return "Instead write:\n" + "\n".join(_line(symbol, EQUIVALENTS.get(symbol)) for symbol in symbols)


def _line(symbol: str, equivalent: Equivalent | None) -> str:
    if equivalent is None:
        return f"  tfa.{symbol}: Keras 3 has nothing like it; stay on Keras 2 for it, or write your own."
    return f"  tfa.{symbol}: {equivalent.name} ({equivalent.differs})."


def imported_symbols() -> list[str]:
    """Return the symbols that the importing code uses, in order of first use; empty if its source is not known."""
    source = _importer_source()
    found = [f"{module}.{name}" for module, name in _USE.findall(source)]
    for module, names in _IMPORT.findall(source):
        found += [f"{module}.{name.split()[0]}" for name in names.split(",") if name.strip()]
    return list(dict.fromkeys(found))


def _importer_source() -> str:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_import_machinery(frame):
        frame = frame.f_back
    if frame is None:
        return ""
    lines = linecache.getlines(frame.f_code.co_filename, frame.f_globals)
    return "".join(lines) or " ".join(sys.orig_argv)  # with `python -c` the program is there


def _is_import_machinery(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__", "").startswith((_PACKAGE, "importlib"))
