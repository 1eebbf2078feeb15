"""The equivalents of TensorFlow Addons in Keras 3, and how they differ.

Compared from the sources of TensorFlow Addons 0.23 and Keras 3.15; tests look every name up on both sides.
"""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import NamedTuple

_USE = re.compile(r"\b(?:tfa|tensorflow_addons)\.([a-z_0-9]+)\.([A-Za-z_0-9]+)")
_IMPORT = re.compile(r"from\s+(?:keras_tpu_ext\.addons\.tfa|tensorflow_addons)\.([a-z_0-9]+)\s+import\s+([\w, ]+)")
_PACKAGE = "keras_tpu_ext.addons"


class Equivalent(NamedTuple):
    """The equivalent of a symbol."""

    name: str  # what to write, such as `"keras.optimizers.Lamb"`; empty if Keras 3 has no equivalent
    differs: str  # the differences, or what else can be done


_PHRASES = {
    "decay": "its weight_decay is multiplied by the learning rate: write weight_decay / learning_rate",
    "focal": "means over the last axis where TFA sums, and over the batch where TFA does not reduce",
    "same": "the same mathematics",
}
_TABLE = """
optimizers.LAMB: keras.optimizers.Lamb: epsilon is 1e-7 and not 1e-6; weight_decay is applied beside the trust ratio
    and not inside it; variables are left out by optimizer.exclude_from_weight_decay(...), and none from the layer
    adaptation
optimizers.AdamW: keras.optimizers.AdamW: {decay}
optimizers.SGDW: keras.optimizers.SGD: write SGD(..., weight_decay=...); {decay}
optimizers.DecoupledWeightDecayExtension: keras.optimizers.Optimizer: every optimizer takes weight_decay; {decay}
optimizers.extend_with_decoupled_weight_decay: keras.optimizers.Optimizer: every optimizer takes weight_decay;
    {decay}
optimizers.MovingAverage: keras.optimizers.Optimizer: every optimizer takes use_ema=True, ema_momentum=average_decay;
    fit ends with the averages in the weights, and keras.callbacks.SwapEMAWeights evaluates with them
optimizers.SWA: keras.callbacks.SwapEMAWeights: an exponential average, made by use_ema=True in the optimizer, and
    not an equal one from a step on
optimizers.MultiOptimizer: keras.optimizers.MultiOptimizer: pairs optimizers with variables and not with layers;
    needs a late Keras 3
optimizers.LazyAdam: keras.optimizers.Adam: moves all rows of an embedding, and not only those used
optimizers.ProximalAdagrad: keras.optimizers.Ftrl: has l1 and l2 regularisation of this kind, in another formula
optimizers.COCOB: keras.optimizers.ScheduleFreeAdamW: needs no schedule, but a learning rate
losses.SigmoidFocalCrossEntropy: keras.losses.BinaryFocalCrossentropy: write apply_class_balancing=True; {focal}
losses.sigmoid_focal_crossentropy: keras.losses.binary_focal_crossentropy: write apply_class_balancing=True; {focal}
metrics.F1Score: keras.metrics.F1Score: takes no num_classes
metrics.FBetaScore: keras.metrics.FBetaScore: takes no num_classes
metrics.RSquare: keras.metrics.R2Score: averages outputs by class_aggregation, not multioutput
metrics.PearsonsCorrelation: keras.metrics.PearsonCorrelation: one correlation along an axis of each batch, and the
    mean of them
metrics.MeanMetricWrapper: keras.metrics.MeanMetricWrapper: {same}
layers.GroupNormalization: keras.layers.GroupNormalization: 32 groups by default, as there
layers.InstanceNormalization: keras.layers.GroupNormalization: write groups=-1
layers.SpectralNormalization: keras.layers.SpectralNormalization: {same}
layers.MultiHeadAttention: keras.layers.MultiHeadAttention: key_dim for head_size; takes query, value, key and not
    one list
layers.GELU: keras.activations.gelu: write Activation('gelu')
layers.Sparsemax: keras.activations.sparsemax: write Activation('sparsemax')
layers.EmbeddingBag: keras.layers.Embedding: sum or average its rows by keras.ops afterwards
activations.gelu: keras.activations.gelu: approximate=False by default, where TFA says True
activations.hardshrink: keras.activations.hard_shrink: threshold for lower and upper
activations.softshrink: keras.activations.soft_shrink: threshold for lower and upper
activations.tanhshrink: keras.activations.tanh_shrink: {same}
activations.mish: keras.activations.mish: {same}
activations.sparsemax: keras.activations.sparsemax: {same}
callbacks.AverageModelCheckpoint: keras.callbacks.SwapEMAWeights: before a ModelCheckpoint, with use_ema=True in the
    optimizer
callbacks.TQDMProgressBar: keras.callbacks.ProgbarLogger: fit shows one: verbose=1
"""


def _equivalents() -> Iterator[tuple[str, Equivalent]]:
    for row in _TABLE.replace("\n    ", " ").strip().splitlines():
        symbol, name, differs = row.split(": ", 2)
        yield symbol, Equivalent(name, differs.format_map(_PHRASES))
    for pooling in (f"Adaptive{kind}Pooling{n}D" for kind in ("Average", "Max") for n in (1, 2, 3)):
        yield f"layers.{pooling}", Equivalent(f"keras.layers.{pooling}", "needs a late Keras 3")


EQUIVALENTS: dict[str, Equivalent] = dict(_equivalents())


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
