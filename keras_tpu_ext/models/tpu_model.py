"""`TPUModel`: a `keras.Model` whose step is the same at any number of replicas."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime import LossScale
from keras_tpu_ext.checks import arguments as check

Self = TypeVar("Self", bound="TPUModel")


@_runtime.keras.saving.register_keras_serializable(package="keras_tpu_ext")
class TPUModel(_runtime.TrainStep, _runtime.keras.Model):
    """A `keras.Model` that trains, evaluates and predicts on N replicas as on one device.

    However a batch is split, the loss is the mean over the whole batch: `sample_weight`, first or last batches that
    do not divide evenly, and replicas that get no examples are exact in `fit`, `evaluate` and `predict`. The
    mathematics is in `_runtime/training/denominator.py`. Build and compile it inside `strategy_scope()`;
    without one it is a `keras.Model` like any other.

    Create it like a `keras.Model`: from inputs and outputs, or by subclassing with your own `call`.
    `TPUModel.from_model(model)` makes one from an existing model, such as a `Sequential`. In your own `train_step`,
    use `global_mean` and `minimize`.

    Differences from training on one device: a `BatchNormalization` sees its replica only, as in Keras, unless it is
    made with `synchronized=True`; each replica draws its own random numbers, such as for dropout; a window of
    `gradient_accumulation_steps` weights its batches by their examples, which for masked or weighted means is the
    mean over all its batches joined only with `gradient_accumulation_weight="tokens"`; and if loss scaling skips a
    whole window, moving statistics do not change.

    Example:
        ```python
        import keras
        import numpy as np
        import keras_tpu_ext as kte

        with kte.strategy_scope(require="cpu", replicas=8) as scope:  # strategy_scope() takes the hardware there is
            inputs = keras.Input((28, 28, 1))
            outputs = keras.layers.Dense(10)(keras.layers.Flatten()(inputs))
            model = kte.TPUModel(inputs, outputs)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile("adam", loss, metrics=["accuracy"])
        images = np.random.default_rng(0).random((300, 28, 28, 1), "float32")
        labels = np.arange(300) % 10
        model.fit(images, labels, batch_size=scope.global_batch_size(16))  # batches of 128, 128 and 44
        ```
    """

    if TYPE_CHECKING:
        # Named arguments for editors and type checkers; at run time `ExactModel` takes those of the Keras in use.
        def compile(
            self,
            optimizer: Any = "rmsprop",
            loss: Any = None,
            loss_weights: Any = None,
            metrics: Any = None,
            weighted_metrics: Any = None,
            run_eagerly: bool = False,
            steps_per_execution: int | Literal["auto"] = 1,
            jit_compile: bool | Literal["auto"] = "auto",
            auto_scale_loss: bool = True,
            *,
            loss_scale: float | Literal["dynamic"] | LossScale | None = None,
            gradient_accumulation_steps: int = 1,
            gradient_accumulation_weight: Literal["examples", "tokens"] = "examples",
        ) -> None:
            """Configure the model for training; see `ExactModel.compile`."""

    @classmethod
    def from_model(cls: type[Self], model: Any) -> Self:
        """Return a `TPUModel` that shares the layers and weights of `model`; compile it before you train.

        Args:
            model: A `Sequential`, a functional or a subclassed Keras model, made inside the same
                `strategy_scope()`.

        Raises:
            ArgumentError: If `model` is not a Keras model, or is a `Sequential` that does not know its input shape.
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

    def to_keras(self) -> Any:
        """Return a plain Keras model that shares the layers and weights of this one, for use without this package.

        It uses Keras's own step, on one device; compile it before you train or evaluate. If this model was made by
        `from_model` from a subclassed one, that one is returned.

        Raises:
            ArgumentError: If this model is subclassed with its own `call`, which exists only in its class.
        """
        graph = _runtime.models.inputs_and_outputs(self)
        if graph is None:
            needed, got = "a model of inputs and outputs", f"the subclassed {type(self).__name__}"
            write = f"class {type(self).__name__}(keras.Model), which strategy_scope() makes exact as well"
            raise check.argument_error("to_keras", "self", needed, got, write)
        return _runtime.models.plain_model(*graph, name=self.name)

    def augment(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Return a training batch as the model should see it, here unchanged; override it to augment on the device.

        `train_step` calls it inside the compiled step; an override may, for example, call a `layers.MixUp` that is an
        attribute of the model, with `training=True`. `evaluate` and `predict` do not call it. With several replicas
        on TensorFlow it gets a replica's part of the batch.

        Args:
            x: The inputs.
            y: The targets.

        Returns:
            Inputs and targets, with the same number of rows.
        """
        return x, y

    @functools.cached_property
    def _kte(self) -> Any:
        return vars(_runtime.TrainStep)["_kte"].func(self, default_augment=TPUModel.augment)

    def save(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Save as `keras.Model.save` does.

        Without this package, Keras loads a functional model from a `.keras` file as a plain one. Call it on every
        process, although only the chief writes.
        """
        is_keras_file = str(filepath).endswith(".keras") or kwargs.get("save_format") == "keras"
        is_own = _runtime.keras.saving.get_registered_name(type(self)) == "keras_tpu_ext>TPUModel"
        with _runtime.models.named_as_builtin(self) if is_keras_file and is_own else contextlib.nullcontext():
            super().save(filepath, *args, **kwargs)


@_runtime.keras.saving.register_keras_serializable(package="keras_tpu_ext")
class _Wrapped(TPUModel):
    """A subclassed model, wrapped by `from_model`: its `call` under the exact step."""

    def __init__(self, model: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.model = model

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        return self.model(inputs, training=training)

    def to_keras(self) -> Any:
        return self.model

    def get_config(self) -> dict[str, Any]:
        serialized = _runtime.keras.saving.serialize_keras_object(self.model)
        return {"model": serialized, "name": self.name}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> _Wrapped:
        model = _runtime.keras.saving.deserialize_keras_object(config["model"], custom_objects=custom_objects)
        return cls(model, name=config["name"])
