"""The exact step on Keras 2, with any of its optimizers, and the methods that it calls by name."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.missing_names import override
from keras_tpu_ext._runtime.common.patches import patched
from keras_tpu_ext._runtime.common.types import Callback, Layer, Metric, Model, Nest, Optimizer, Variable
from keras_tpu_ext._runtime.common.user_frame import warn
from keras_tpu_ext._runtime.compat.autograph import as_keras_traces
from keras_tpu_ext._runtime.compat.keras2 import LossScaleOptimizer, keras, private
from keras_tpu_ext._runtime.keras2 import batch_statistics
from keras_tpu_ext._runtime.keras2.compile_utils import ExactLosses, ExactMetrics, LocalLosses
from keras_tpu_ext._runtime.keras2.data_adapter import replace_padded_batches, use_data_handlers
from keras_tpu_ext._runtime.tensorflow import batch as _batch
from keras_tpu_ext._runtime.tensorflow.batch import BATCH, KERAS_PATCHES, averaging, is_mean_local, valid_fraction
from keras_tpu_ext._runtime.tensorflow.custom_step import wrap_custom_step
from keras_tpu_ext._runtime.tensorflow.loop import kind_of_batches, make_predict_function, make_steps_function
from keras_tpu_ext._runtime.tensorflow.program import ReplicatedModel, TensorFlowProgram
from keras_tpu_ext._runtime.tensorflow.replicas import is_per_replica, num_replicas
from keras_tpu_ext._runtime.tensorflow.scope import distributing_all
from keras_tpu_ext._runtime.tensorflow.update import Gradient, divide
from keras_tpu_ext._runtime.training.clear_session import reopened_by_clear_session
from keras_tpu_ext._runtime.training.compile_utils import is_known, layer_is_known
from keras_tpu_ext._runtime.training.fit_call import FitCall
from keras_tpu_ext._runtime.training.model import is_own_step
from keras_tpu_ext.errors import ArgumentError, ScopeError

# Packages whose optimizers override how gradients are computed, but work without that.
_KNOWN = ("keras", "tf_keras", "tensorflow_addons")
_NOT_KEPT = (
    "{path} will not keep the {lost} of this model: H5 files and SavedModels keep what Keras knows. "
    'Write model.save("model.keras"), or compile the model with it again after loading'
)


# The key of the epoch's number in a checkpoint of `BackupAndRestore`.
_SAVED_EPOCH = "ckpt_saved_epoch/.ATTRIBUTES/VARIABLE_VALUE"


def _reducing(stock: Callable[[Any], str]) -> Callable[[Any], str]:
    """Wrap the method of losses that returns their reduction: Keras refuses to take a mean on replicas."""

    def reduction_of(loss: Any) -> str:
        if not is_mean_local():
            return stock(loss)
        reductions = keras.losses.Reduction
        return str(reductions.SUM_OVER_BATCH_SIZE if loss.reduction == reductions.AUTO else loss.reduction)

    return reduction_of


_Optimizer: Any = private("optimizers.optimizer:Optimizer")
_Legacy: Any = keras.optimizers.legacy.Optimizer
KERAS_PATCHES += [
    (_Optimizer, "keras.src.optimizers.optimizer.Optimizer.aggregate_gradients", averaging),
    (_Legacy, "keras.optimizers.legacy.Optimizer._aggregate_gradients", averaging),
    (keras.losses.Loss, "keras.losses.Loss._get_reduction", _reducing),
]


class Keras2Program(TensorFlowProgram):
    """The `ExactProgram` of Keras 2."""

    facts = _batch

    def make_train_function(self) -> Callable[..., Any]:
        """Return the function that `fit` calls for one execution."""
        model = self.model
        if model.built:
            self._build_before_tracing()
            self.build_accumulator()
        self.reset_flushes()
        step = as_keras_traces(wrap_custom_step(model, model.train_step))
        return make_steps_function(model, step, trains=True, counter=model._train_counter)

    def make_test_function(self) -> Callable[..., Any]:
        """Return the function that `evaluate` calls for one execution."""
        model = self.model
        step = as_keras_traces(wrap_custom_step(model, model.test_step))
        return make_steps_function(model, step, trains=False, counter=model._test_counter)

    def make_predict_function(self, stock: Callable[[], Any]) -> Callable[..., Any]:
        """Return the function that `predict` calls for one execution."""
        # Made now: its loop depends on `steps_per_execution`, which is smaller for the last batches of `predict`.
        predict = stock()

        @functools.cache
        def predict_of(kind: type) -> Any:
            is_eager = self.model.run_eagerly
            return predict if is_eager else tf.function(predict.python_function, reduce_retracing=True)

        return make_predict_function(self.model, lambda iterator: predict_of(kind_of_batches(iterator))(iterator))

    def warn_of_what_is_not_saved(self, filepath: Any, save_format: Any) -> None:
        """Warn about what only a `.keras` file keeps."""
        lost = ["loss_scale"] if self.state is not None and self.state.loss_scaler else []
        lost += [name for name in self._given if name.startswith("gradient_accumulation")]
        is_keras_file = str(filepath).endswith(".keras") or save_format == "keras"
        if lost and not is_keras_file and self.process_group().is_chief():
            warn(_NOT_KEPT.format(path=filepath, lost=" and ".join(lost)))

    def compute_loss(self, x: Nest, y: Nest, y_pred: Nest, sample_weight: Nest, training: bool) -> tf.Tensor | None:
        """Return this replica's share of the loss, regularisers and `add_loss` terms of the whole batch."""
        losses = LocalLosses(self.layer_losses())
        losses += [loss / tf.cast(num_replicas(), loss.dtype) for loss in self.weight_losses()]
        return self.model.compiled_loss(y, y_pred, sample_weight, regularization_losses=losses)

    def _track_loss(self, share: tf.Tensor) -> None:
        """Do nothing: in Keras 2 the compiled loss tracks itself."""

    def _updated_metrics(self, x: Nest, y: Nest, y_pred: tf.Tensor, sample_weight: tf.Tensor) -> dict[str, Any]:
        is_last = is_own_step(type(self.model).train_step) and is_own_step(type(self.model).test_step)
        if num_replicas() > 1 and is_last and not self.has_custom_compute_metrics():
            # Their results, which Keras would sum over replicas in every step, are read after the last step.
            self.model.compiled_metrics.update_state(y, y_pred, sample_weight)
            return {}
        return super()._updated_metrics(x, y, y_pred, sample_weight)

    def optimizers(self, stock: Callable[[Any], Any], optimizer: Optimizer) -> Any:
        """Return the optimizer or optimizers, wrapped by Keras for mixed_float16 if a user's step scales the loss."""
        if self.leaves_scaling_to_its_optimizer() and not self.scales_loss:
            return stock(optimizer)
        return tf.nest.map_structure(self._one_optimizer, optimizer)

    def _one_optimizer(self, optimizer: Optimizer) -> Optimizer:
        optimizer = keras.optimizers.get(optimizer)
        if not self.leaves_scaling_to_its_optimizer():
            _check_computes_no_gradients(optimizer)
        return optimizer

    def leaves_scaling_to_its_optimizer(self) -> bool:
        """Return whether the model has a `train_step` of its own."""
        return not is_own_step(type(self.model).train_step)

    @contextlib.contextmanager
    def loop(self) -> Iterator[None]:
        """Return the context in which Keras's own loops run."""
        predicts = self.running is not None and self.running.method == "predict"
        handlers = contextlib.nullcontext() if predicts else use_data_handlers()
        strategy = self.model.distribute_strategy
        distributes = strategy, "a strategy's experimental_distribute_dataset", distributing_all
        # Keras's loops are in the strategy's scope.
        with reopened_by_clear_session(self.own_scope), handlers, patched([distributes]):
            yield

    def attach(self) -> None:
        """Bind the model to the strategy of the open block, if it was made on it."""
        model, strategy = self.model, tf.distribute.get_strategy()
        _check_variables(model, strategy)
        override(model, "_distribution_strategy", strategy)

    def prepare(self, call: FitCall) -> None:
        """Let Keras read padded batches as such; refuse layers that were built by a call after the block."""
        _check_variables(self.model, self.model.distribute_strategy)
        replace_padded_batches(call)

    def _build_before_tracing(self) -> None:
        """Make the optimizer's variables: TensorFlow traces a step that creates any twice, with and without them."""
        if is_own_step(self.model.train_step):
            with self.model.distribute_strategy.scope():
                self.build_optimizer()

    def exclude_padding(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which layers learn statistics only from the examples of the batch."""
        return batch_statistics.exclude_padding(self.model)

    def make_exact(self) -> None:
        """Replace the compiled loss and metrics by exact ones."""
        self.model.compiled_loss = ExactLosses.of(self.model.compiled_loss)
        ExactMetrics.attach(self.model.compiled_metrics)

    def build_optimizer(self) -> None:
        """Make the optimizer's variables; with several optimizers, only the user's step knows which each updates."""
        if not tf.nest.is_nested(self.model.optimizer):
            self.build_for(self.model.optimizer, self.model.trainable_variables)

    def backup_epoch(self, backup: Callback) -> int:
        """Return the number of epochs after which a `BackupAndRestore` resumes training."""
        saved = tf.train.latest_checkpoint(os.path.join(backup.backup_dir, "chief"))
        return 0 if saved is None else int(tf.train.load_variable(saved, _SAVED_EPOCH)) + 1

    def has_partial_variables(self) -> bool:
        """Return whether any saved variable is summed over replicas; the variables of metrics are saved too."""
        variables = [
            *self.model.variables,
            *(variable for metric in self.model.metrics for variable in metric.variables),
        ]
        return any(map(is_per_replica, variables))

    def own_layers(self) -> list[str]:
        """Return the names of layers and operations that are not known to process each example independently."""
        inner = self.inner
        if not all(is_known(function) for function in (type(inner).call, type(self.model).predict_step)):
            return [self.model.name]
        return [layer.name for layer in inner._flatten_layers(include_self=False) if not layer_is_known(layer)]

    def forward(self, x: Nest, *, training: bool) -> Nest:
        """Return the predictions of the model."""
        return self.model(x, training=training)

    def loss_of_model(self, *, y: Nest, training: bool, **batch: Nest) -> tf.Tensor | None:
        """Call `compute_loss` of the model; Keras 2 trains only with a loss, and evaluates without one too."""
        loss = self.model.compute_loss(y=y, **batch)
        if training:
            self.model._validate_target_and_loss(y, loss)
        return loss

    def custom_metrics(self) -> list[Metric]:
        """Return the metrics other than those of `compile`, which know about padding."""
        compiled = [*self.model.compiled_loss.metrics, *self.model.compiled_metrics.metrics]
        return [metric for metric in self.model.metrics if all(metric is not other for other in compiled)]

    def layer_losses(self) -> list[tf.Tensor]:
        """Return the current `add_loss` terms of layers."""
        return [loss for layer in self.model._flatten_layers() for loss in layer._eager_losses]

    @contextlib.contextmanager
    def record_layer_losses(self) -> Iterator[None]:
        """After the block, `BATCH.layer_losses` has the `add_loss` terms; every replica, a thread, has its own."""
        yield
        BATCH.layer_losses = [(layer, loss) for layer in self.model._flatten_layers() for loss in layer._eager_losses]
        unreduced = [loss for _, loss in BATCH.layer_losses if loss.shape.rank]
        BATCH.layer_loss_elements = _elements_of_examples(unreduced[0]) if unreduced else None

    def set_layer_losses(self, losses: Sequence[tuple[Layer, tf.Tensor]]) -> None:
        """Set the `add_loss` terms of layers for the next reading of `losses`."""
        for layer in self.model._flatten_layers():
            layer._eager_losses = [loss for owner, loss in losses if owner is layer]

    def weight_losses(self) -> list[tf.Tensor]:
        """Return the losses of regularizers, and of functions passed to `add_loss`."""
        losses = [loss() for layer in self.model._flatten_layers() for loss in layer._callable_losses]
        return [loss for loss in losses if loss is not None]

    def scale_loss(self, optimizer: Optimizer, loss: tf.Tensor) -> tf.Tensor:
        """Return the loss times the scale of an optimizer that scales it."""
        return optimizer.get_scaled_loss(loss) if isinstance(optimizer, LossScaleOptimizer) else loss

    def unscale_gradients(self, optimizer: Optimizer, gradients: Sequence[tf.Tensor]) -> Sequence[Any]:
        """Undo `scale_loss`, which an optimizer of Keras 2 leaves to whoever computes the gradients."""
        return optimizer.get_unscaled_gradients(gradients) if isinstance(optimizer, LossScaleOptimizer) else gradients

    def build_for(self, optimizer: Optimizer, variables: Sequence[Variable]) -> None:
        """Create an optimizer's variables, once; those of `optimizers.legacy` create their own, before any graph."""
        if not is_legacy(optimizer):
            with tf.init_scope():
                optimizer.build(variables)

    def apply_gradients(
        self, optimizer: Optimizer, gradients: Sequence[Gradient], variables: Sequence[Variable]
    ) -> None:
        """Let `optimizer` clip and apply gradients that are already summed over replicas.

        Optimizers of both kinds have an argument that says so: `experimental_aggregate_gradients` of
        `optimizers.legacy`, on which TensorFlow Addons builds, which new optimizers accept too.
        """
        pairs = list(zip(gradients, variables, strict=True))
        if _takes_summed(optimizer):
            optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)
            return
        # A user's own optimizer without such an argument sums over replicas again.
        optimizer.apply_gradients([(None if g is None else divide(g, num_replicas()), v) for g, v in pairs])


def _check_computes_no_gradients(optimizer: Optimizer) -> None:
    """Refuse an optimizer that overrides how gradients are computed."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    for name in ("compute_gradients", "_compute_gradients", "minimize"):
        owner = next((base for base in type(inner).__mro__ if name in vars(base)), None)
        if owner is not None and owner.__module__.split(".")[0] not in _KNOWN:
            raise ArgumentError(
                f"TPUModel takes the gradients itself, so that they are those of all replicas; {owner.__name__} "
                f"overrides {name}(), which would not be called. Write in its place: def apply_gradients(self, "
                "grads_and_vars, **kwargs), which gets the gradients of the whole batch."
            )


def _takes_summed(optimizer: Optimizer) -> bool:
    parameters = inspect.signature(optimizer.apply_gradients).parameters.values()
    return any(p.name == "experimental_aggregate_gradients" or p.kind is p.VAR_KEYWORD for p in parameters)


def is_legacy(optimizer: Optimizer) -> bool:
    """Return whether an optimizer is one of `optimizers.legacy`, like those of TensorFlow Addons."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return isinstance(inner, keras.optimizers.legacy.Optimizer)


def _elements_of_examples(unreduced: tf.Tensor) -> tf.Tensor:
    elements = tf.cast(tf.size(unreduced), tf.float32) * valid_fraction()
    return elements if BATCH.has_any is None else tf.where(BATCH.has_any, elements, 0.0)


def _check_variables(model: Model, strategy: tf.distribute.Strategy) -> None:
    if not all(strategy.extended.variable_created_in_scope(variable) for variable in model.variables):
        raise ScopeError(
            f"{model.name!r} was made outside the block, or first called there, and its variables live on one device "
            "only. Write: with scope: model = ... around the lines that make it and call it first, or `with scope: "
            "model = keras.models.clone_model(model)` and then copy the weights, "
            "clone.set_weights(model.get_weights())."
        )


class TrainStep(ReplicatedModel):
    """The mixin that makes the step of a `tf.keras.Model` exact for any number of replicas."""

    _kte = functools.cached_property(Keras2Program)

    @property
    def steps_per_execution(self: Any) -> int:
        """Number of steps in an execution: an int, as in Keras 3, instead of Keras 2's variable."""
        variable = self._steps_per_execution
        return 1 if variable is None else int(variable.numpy())

    @steps_per_execution.setter
    def steps_per_execution(self: Any, value: int) -> None:
        keras.Model.steps_per_execution.fset(self, value)

    def save(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Save as `keras.Model.save` does; warn about what only a `.keras` file keeps."""
        self._kte.warn_of_what_is_not_saved(filepath, kwargs.get("save_format"))
        super().save(filepath, *args, **kwargs)

    def get_metrics_result(self: Any) -> Any:
        """Return the results of all metrics, as Keras does."""
        model: Any = super()
        return as_keras_traces(model.get_metrics_result)()

    def _get_optimizer(self: Any, optimizer: Optimizer) -> Any:
        model: Any = super()
        return self._kte.optimizers(model._get_optimizer, optimizer)

    def _validate_compile(self: Any, optimizer: Any, metrics: Any, **kwargs: Any) -> None:
        model: Any = super()
        try:
            model._validate_compile(optimizer, metrics, **kwargs)
        except ValueError as error:
            if "distribution strategy scope" not in str(error):
                raise
            part = re.sub(r"\s+", " ", str(error))[:60]
            raise ScopeError(
                f"All of {self.name!r} must be made inside its strategy_scope(); this was made outside: {part}... "
                "Write: with scope: ... around the lines that make the layers, the optimizer and the metrics."
            ) from error

    def _validate_and_get_metrics_result(self: Any, logs: Any) -> Any:
        """Keras calls this after an epoch's batches and before validation: the time to end a window."""
        self._kte.end_windows()
        model: Any = super()
        return model._validate_and_get_metrics_result(logs)
