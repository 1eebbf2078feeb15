"""What the names in `cases.py` mean: the model and the optimizer of a case, on whatever Keras there is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras_tpu_ext as kte
from keras_tpu_ext import _runtime
from kind_of_keras import IS_KERAS2
from parity.arrays import CLASSES, LENGTH, structured
from parity.cases import Case


def keras() -> Any:
    """Return the Keras of this process."""
    return _runtime.keras


def ops() -> Any:
    """Return the functions on tensors that models here are made of."""
    if IS_KERAS2:
        from parity import keras2

        return keras2.ops
    return keras().ops


def plain_class(case: Case) -> Any:
    """Return `keras.Model`; on JAX, where Keras cannot differentiate an unreduced loss, one that does as TensorFlow.

    There the gradient is that of the sum, and the history has the mean.
    """
    if case.reduction != "none" or keras().backend.backend() != "jax":
        return keras().Model

    class Summing(keras().Model):
        def compute_loss_and_updates(self, *args: Any, **kwargs: Any) -> Any:
            loss, (unscaled, *others) = super().compute_loss_and_updates(*args, **kwargs)
            return keras().ops.sum(loss), (keras().ops.mean(unscaled), *others)

    return Summing


def accumulating(case: Case, plain: Any, eagerly: bool) -> tuple[Any, dict[str, Any], bool]:
    """Return how a plain model accumulates: the class of the model, options of the optimizer, and if it is eager."""
    if IS_KERAS2:
        from parity import keras2

        return keras2.accumulating(case.window), {}, True
    return plain, {"gradient_accumulation_steps": case.window}, eagerly


def runs_eagerly(case: Case) -> bool:
    """Return how the plain model runs: the quicker way, and for several outputs on TensorFlow as the case does.

    There Keras weighs the loss of one of several outputs by the batch size when it runs eagerly, and not in a graph.
    """
    if keras().backend.backend() == "jax":
        return False
    return len(case.outputs) == 1 or case.run == "eager"


def build(case: Case, model_class: Any) -> Any:
    """Return the model of `case`, of `model_class`."""
    layers = keras().layers
    options = {"activation": "tanh", **_layer_options(case)}
    words, width = (8, 8) if case.is_sharded else (7, 4)  # one that eight devices can share
    if case.has_timesteps:
        inputs = keras().Input((LENGTH,), dtype="int32")
        hidden = layers.Embedding(words, width, mask_zero=True)(inputs)
        hidden = layers.Dense(width, **options)(hidden)
    else:
        inputs = keras().Input((6,))
        hidden = layers.Dense(6 * width if case.is_sharded else 5, **options)(inputs)
        if case.is_sharded:
            # XLA's partitioner has gradients of convolutions after each other wrong, at a length of 6 and not of 4.
            hidden = layers.Reshape((6, width))(hidden)
            for _ in range(2):
                hidden = layers.Conv1D(width, 3, padding="same", **options)(hidden)
            hidden = layers.Flatten()(hidden)
    if case.extras.startswith("add_loss"):
        hidden = _adding_layer(case)(hidden)
    outputs = {"a": layers.Dense(CLASSES if case.is_classes else 2, name="a")(hidden)}
    if len(case.outputs) == 2:
        # No layer pools a sentence without words to a number, so the output for sentences looks past the mask.
        whole = layers.Flatten()(layers.Embedding(words, 2)(inputs)) if case.has_timesteps else hidden
        outputs["b"] = layers.Dense(2, name="b")(whole)
    if case.extras == "own compute_loss":
        # The outputs of a wider model have a mean near 0: where all else weighs nothing, such a step is all rounding.
        model_class = with_own_compute_loss(model_class, 1.0 if case.is_sharded else 0.0)
    return model_class(inputs, structured(case, outputs))


def _layer_options(case: Case) -> dict[str, Any]:
    if case.extras == "regularizers":
        return {"kernel_regularizer": keras().regularizers.L2(0.1), "bias_regularizer": keras().regularizers.L1(0.1)}
    if case.extras == "activity regularizer":
        return {"activity_regularizer": keras().regularizers.L2(0.1)}
    return {}


def _adding_layer(case: Case) -> Any:
    class Adding(keras().layers.Layer):
        supports_masking = True

        def call(self, x: Any) -> Any:
            squares = ops().mean(ops().square(x), axis=-1)
            per_example = case.extras == "add_loss per example"
            if per_example and IS_KERAS2 and case.data == "padded":
                return x  # it adds numbers only, and one of a padded batch is that of its padded rows too
            self.add_loss(0.05 * squares if per_example and not IS_KERAS2 else 0.3 * ops().mean(squares))
            return x

    return Adding()


def with_own_compute_loss(model_class: Any, wanted: float) -> Any:
    """Return a subclass of `model_class` whose loss needs the predictions of the whole batch at once.

    Args:
        model_class: The class.
        wanted: What the mean of the first output is to be.
    """

    class OwnLoss(model_class):
        def compute_loss(
            self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
        ) -> Any:
            how = () if IS_KERAS2 else (training,)
            loss = super().compute_loss(x, y, y_pred, sample_weight, *how)
            first = _runtime.tree.flatten(y_pred)[0]
            return loss + ops().square(ops().mean(first) - wanted)

    return OwnLoss


def compile_options(case: Case) -> dict[str, Any]:
    """Return fresh arguments for `compile`, but for the optimizer and for what plain Keras does not know."""
    of_first = _loss(case, case.reductions[0])
    if len(case.outputs) == 1:
        options = {"loss": of_first}
    else:
        of_second = keras().losses.LogCosh(reduction=_reduction(case.reductions[1]))
        # The sum over a batch would drown the other output.
        shares = {"a": 0.7 / _size(case, 0), "b": 0.3 / _size(case, 1)}
        options = {
            "loss": structured(case, {"a": of_first, "b": of_second}),
            "loss_weights": structured(case, shares),
        }
    if case.metrics == "metrics":
        options |= {"metrics": _metrics(case), "weighted_metrics": _metrics(case)}
    return options


def _loss(case: Case, reduction: str) -> Any:
    losses, reduction = keras().losses, _reduction(reduction)
    if case.loss == "mse":
        return losses.MeanSquaredError(reduction=reduction)
    if case.loss == "huber":
        return losses.Huber(reduction=reduction)
    ignored = {"ignore_class": -1} if case.loss == "ignored classes" else {}
    return losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction, **ignored)


def _reduction(name: str) -> str:
    if IS_KERAS2:
        from parity import keras2

        return keras2.REDUCTIONS.get(name, name)
    return name


def _metrics(case: Case) -> Any:
    names = {"a": ["accuracy" if case.is_classes else "mae"], "b": ["mse"]}
    return structured(case, names)


def _size(case: Case, output: int) -> int:
    """Return how many terms the loss of one output adds up, where it adds up the terms of a batch."""
    if case.reductions[output] not in ("sum", "none"):
        return 1
    return case.batches[1] * (LENGTH if case.has_timesteps and output == 0 else 1)


def optimizer(case: Case, **more: Any) -> Any:
    """Return the optimizer of `case`.

    A step that divides by the size of a gradient would blow up the rounding of float32 where a gradient is next
    to nothing. So what stands below the line is about as large as the gradients are, here for all optimizers. And
    the rates are such that three steps move the weights by some hundredths: against a smaller update, the rounding
    of the weights themselves would show.
    """
    size = _size(case, 0) if len(case.outputs) == 1 else 1
    upkeep = _upkeep(case)

    def made(name: str) -> Any:
        if IS_KERAS2:
            from parity import keras2

            return keras2.optimizer_class(name, upkeep)
        return getattr(keras().optimizers, {"momentum": "SGD"}.get(name, name))

    options = {
        "SGD": {"learning_rate": 0.1 / size},
        "momentum": {"learning_rate": 0.05 / size, "momentum": 0.9, "nesterov": True},
        "Adam": {"learning_rate": 0.1, "epsilon": 0.03 * size},
        "Adamax": {"learning_rate": 0.01, "epsilon": 0.03 * size},
        "Nadam": {"learning_rate": 0.01, "epsilon": 0.03 * size},
        "RMSprop": {"learning_rate": 0.01, "epsilon": (0.03 * size) ** 2},
        "Adagrad": {"learning_rate": 0.1, "initial_accumulator_value": 0.1 * size**2},
        "Adadelta": {"learning_rate": 0.1, "epsilon": (0.03 * size) ** 2},
        "Ftrl": {"learning_rate": 0.01, "initial_accumulator_value": 0.1 * size**2},
        "Lamb": {"learning_rate": 0.01, "epsilon": 0.03 * size},
    }[case.optimizer]
    return made(case.optimizer)(**options, **_clip(case, size), **upkeep, **more)


def _clip(case: Case, size: int) -> dict[str, float]:
    """Return a threshold that the gradients of most cases exceed."""
    limits = {"clipnorm": 0.1, "clipvalue": 0.05, "global_clipnorm": 0.2}
    return {case.clip: limits[case.clip] * size} if case.clip in limits else {}


def _upkeep(case: Case) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if "weight decay" in case.upkeep:
        options["weight_decay"] = 0.1
    if "EMA" in case.upkeep:
        options |= {"use_ema": True, "ema_momentum": 0.5}
    if "overwriting" in case.upkeep:
        options["ema_overwrite_frequency"] = 2
    return options


SCALES: dict[str, Callable[[], dict[str, Any]]] = {
    # As arguments of Keras's LossScaleOptimizer, which is the reference for all of them.
    "1024": lambda: {"initial_scale": 1024.0},
    "dynamic": lambda: {"initial_scale": 2.0**15},
    "LossScale": lambda: {"initial_scale": 4.0, "dynamic_growth_steps": 2},
    "LossScaleOptimizer": lambda: {"initial_scale": 64.0, "dynamic_growth_steps": 2},
}


def scaled(case: Case, inner: Any) -> Any:
    """Return `inner`, in Keras's own `LossScaleOptimizer` where `case` scales its loss."""
    if case.scale == "unscaled":
        return inner
    if IS_KERAS2:
        from parity import keras2

        return keras2.loss_scaling(inner, **SCALES[case.scale]())
    return keras().optimizers.LossScaleOptimizer(inner, **SCALES[case.scale]())


def padded(parts: Any, batch_size: int) -> Any:
    """Return padded batches of `parts`, as a dataset of the kind that is at hand; weights may be missing."""
    there = [part for part in parts if part is not None]
    try:
        import tensorflow as tf
    except ImportError:
        return kte.data.pad_batches(_Batched(there, batch_size), batch_size)
    # tf.data makes a tensor of a list, and structures are tuples to it.
    there = [tuple(part) if isinstance(part, list) else part for part in there]
    dataset = tf.data.Dataset.from_tensor_slices(tuple(there))
    return kte.data.pad_batches(dataset.batch(batch_size), batch_size)


class _Batched(_runtime.PyDataset):
    """Arrays in batches."""

    def __init__(self, parts: Any, batch_size: int) -> None:
        super().__init__()
        self.parts = parts
        self.batch_size = batch_size

    def __len__(self) -> int:
        return -(-len(_runtime.tree.flatten(self.parts)[0]) // self.batch_size)

    def __getitem__(self, index: int) -> Any:
        rows = slice(index * self.batch_size, (index + 1) * self.batch_size)
        return tuple(_runtime.tree.map_structure(lambda array: array[rows], self.parts))
