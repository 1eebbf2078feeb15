"""`TPUModel`: a `keras.Model` whose step is the same at any number of replicas."""

from __future__ import annotations

import warnings
from typing import Any, TypeVar

from keras_tpu_ext import _arguments as check
from keras_tpu_ext import _runtime
from keras_tpu_ext.errors import ArgumentError, FromLogitsWarning
from keras_tpu_ext.models.logits_check import probabilities_taken_for_logits
from keras_tpu_ext.models.loss_scale import LossScale, resolve_loss_scale

Self = TypeVar("Self", bound="TPUModel")


@_runtime.keras.saving.register_keras_serializable(package="keras_tpu_ext")
class TPUModel(_runtime.TrainStep, _runtime.keras.Model):
    """A `keras.Model` that trains, evaluates and predicts on N replicas as on one device.

    Whatever way a batch is split, the loss is the mean over the whole batch: `sample_weight`, last batches that
    do not divide, an uneven first batch and replicas that get nothing are exact in `fit`, `evaluate` and
    `predict`. The mathematics is in `keras_tpu_ext/_runtime/common/global_mean.py`. Build and compile it inside
    `strategy_scope()`; without one it is a `keras.Model` like any other.

    It takes what `keras.Model` takes: inputs and outputs, or it is subclassed with a `call` of your own.
    `TPUModel.from_model(model)` makes one from a model that you have, a `Sequential` for instance. For a `train_step`
    of your own there are `global_mean` and `minimize`.

    What is not that of one device: a `BatchNormalization` sees its replica only, as in Keras, unless it is made with
    `synchronized=True`; each replica draws its own random numbers, for dropout say; a window of
    `gradient_accumulation_steps` weighs its batches by their examples, which for masked or weighted means is not the
    mean over all its batches joined; and where loss scaling skips a whole window, moving statistics stay.

    Example:
        ```python
        with kte.strategy_scope(replicas=8) as scope:
            inputs = keras.Input((28, 28, 1))
            outputs = keras.layers.Dense(10)(keras.layers.Flatten()(inputs))
            model = kte.TPUModel(inputs, outputs)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile("adam", loss, metrics=["accuracy"])
        model.fit(images, labels, batch_size=scope.global_batch_size(16))
        ```
    """

    @classmethod
    def from_model(cls: type[Self], model: Any) -> Self:
        """Return a `TPUModel` that shares the layers and weights of `model`; compile it before you train.

        Args:
            model: A `Sequential`, a functional or a subclassed Keras model, made inside the same
                `strategy_scope()`.

        Raises:
            ArgumentError: If `model` is no Keras model, or a `Sequential` that does not know its input shape.
        """
        if not isinstance(model, _runtime.keras.Model):
            write = "TPUModel.from_model(keras.Sequential([...]))"
            raise check.argument_error("from_model", "model", "a Keras model", type(model).__name__, write)
        graph = _runtime.models.inputs_and_outputs(model)
        if graph is not None:
            return cls(*graph, name=model.name)
        if isinstance(model, _runtime.keras.Sequential):
            write = "keras.Sequential([keras.Input((28, 28, 1)), ...]), or call model.build(shape) first"
            needed, got = "a model that knows its input shape", f"{model.name!r}, which is not built"
            raise check.argument_error("from_model", "model", needed, got, write)
        return _Wrapped(model, name=model.name)

    def compile(
        self,
        *args: Any,
        loss_scale: float | str | LossScale | None = None,
        gradient_accumulation_steps: int = 1,
        **kwargs: Any,
    ) -> None:
        """Configure the model for training, with all the arguments of `keras.Model.compile` and two more.

        It may be called inside the scope that the model was built in or after it. A softmax (or sigmoid) output
        that meets a loss with `from_logits=True` is a `FromLogitsWarning`: such a model may hardly learn. (Keras
        repairs it where it can see the softmax: in float32 on TensorFlow, but not under a mixed policy.)

        Args:
            *args: What `keras.Model.compile` takes.
            loss_scale: `None` (default) does not scale the loss, but under `mixed_float16` is `"dynamic"`; a
                positive number is a fixed scale; `"dynamic"` is `LossScale()`; or a `LossScale`. With any of
                them a step whose gradients are not all finite is skipped. A `LossScaleOptimizer` that you pass
                does the scaling itself. On Keras 2 a model with a `train_step` of its own, and an optimizer, gets
                one under `mixed_float16`, as Keras gives it.
            gradient_accumulation_steps: Number of batches whose gradients make one step, each counted by its
                number of examples; the last window of an epoch may have fewer. Defaults to 1.
            **kwargs: What `keras.Model.compile` takes. `steps_per_execution` also accepts `"auto"`: executions
                then grow in the first epochs of `fit` until one takes 0.2 to 1 second. What is computed does
                not change, and an execution never reaches over the end of an epoch. It stays at 1 where a
                callback overrides a batch hook (a class attribute `wants_every_batch = False` in the callback
                says that it need not see every batch), in `run_eagerly`, in `predict`, and where several
                processes train together.

        Raises:
            ArgumentError: If one of these has a value that cannot work, or contradicts the optimizer.
            ScopeError: If the optimizer, or a layer, was made outside the model's `strategy_scope()`.
        """
        given = _runtime.models.compile_arguments(args, kwargs)
        own = {
            "loss_scale": loss_scale,
            "gradient_accumulation_steps": gradient_accumulation_steps,
            "steps_per_execution": given.pop("steps_per_execution", 1),
        }
        own.update({name: given[name] for name in ("auto_scale_loss",) if name in given})
        optimizer = given.get("optimizer")
        steps_per_execution, auto_steps = _resolve_steps_per_execution(own["steps_per_execution"])
        auto = own.get("auto_scale_loss", True) and (optimizer is None or not self._leaves_scaling_to_its_optimizer())
        super().compile(
            loss_scale=resolve_loss_scale(loss_scale, optimizer, self.dtype_policy.name, auto),
            gradient_accumulation_steps=_resolve_accumulation(gradient_accumulation_steps, optimizer),
            steps_per_execution=steps_per_execution,
            auto_steps=auto_steps,
            **given,
        )
        self._own_compile_config = own
        for message in probabilities_taken_for_logits(self):
            warnings.warn(message, FromLogitsWarning, stacklevel=2)

    def get_compile_config(self) -> dict[str, Any]:
        """Return the arguments of `compile`, serialized."""
        own = _runtime.keras.saving.serialize_keras_object(dict(getattr(self, "_own_compile_config", {})))
        return {**super().get_compile_config(), **own}


@_runtime.keras.saving.register_keras_serializable(package="keras_tpu_ext")
class _Wrapped(TPUModel):
    """A subclassed model, wrapped by `from_model`: its `call` under the exact step."""

    def __init__(self, model: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.model = model

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        return self.model(inputs, training=training)

    def get_config(self) -> dict[str, Any]:
        serialized = _runtime.keras.saving.serialize_keras_object(self.model)
        return {"model": serialized, "name": self.name}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> _Wrapped:
        model = _runtime.keras.saving.deserialize_keras_object(config["model"], custom_objects=custom_objects)
        return cls(model, name=config["name"])


def _resolve_accumulation(steps: Any, optimizer: Any) -> int:
    """Return the number of batches in a step, the optimizer's own where it has one.

    Raises:
        ArgumentError: If `steps` is no positive integer, or the optimizer has another number.
    """
    steps = check.integer("compile", "gradient_accumulation_steps", steps, example="4, or leave it out")
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    by_optimizer = getattr(inner, "gradient_accumulation_steps", None) or 1
    if steps != 1 and by_optimizer not in (1, steps):
        raise ArgumentError(
            f"gradient_accumulation_steps={steps} was given, and the optimizer says {by_optimizer}. "
            "Leave one of them out."
        )
    return max(steps, int(by_optimizer))


def _resolve_steps_per_execution(steps: Any) -> tuple[int, bool]:
    """Return the first number of steps in an execution, and whether to tune it.

    Raises:
        ArgumentError: If `steps` is neither a positive integer nor `"auto"`.
    """
    if isinstance(steps, str) and steps == "auto":
        return 1, True
    what, example = '"auto" or an integer', '"auto", or leave it out'
    return check.integer("compile", "steps_per_execution", steps, what=what, example=example), False
