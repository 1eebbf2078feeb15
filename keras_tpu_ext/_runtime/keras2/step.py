"""The exact step on Keras 2: what of it differs from Keras 3.

Private names of Keras that this module leans on (tests/_runtime/test_keras2_private_names.py watches them):
of `Model`: `compiled_loss`, `compiled_metrics`, `_get_optimizer`, `_validate_and_get_metrics_result`,
`_validate_target_and_loss`, `_train_counter`, `_test_counter`, `_steps_per_execution`; of layers:
`_flatten_layers`. And how `BackupAndRestore` names the folder of its checkpoints, and the epoch in them (watched
there too).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.compat.keras2 import keras
from keras_tpu_ext._runtime.keras2 import layer_losses as layer_losses
from keras_tpu_ext._runtime.keras2 import optimizer as optimizers
from keras_tpu_ext._runtime.keras2.autograph import converting
from keras_tpu_ext._runtime.keras2.batch_statistics import exclude_padding
from keras_tpu_ext._runtime.keras2.data_adapter import with_padded_batches
from keras_tpu_ext._runtime.keras2.execution_schedule import use_schedule
from keras_tpu_ext._runtime.keras2.functional import FunctionalByShape
from keras_tpu_ext._runtime.keras2.loss import ExactLosses, Shares
from keras_tpu_ext._runtime.keras2.metrics import ExactMetrics
from keras_tpu_ext._runtime.tensorflow import batch as _tf_batch
from keras_tpu_ext._runtime.tensorflow.custom_step import wrap_custom_step
from keras_tpu_ext._runtime.tensorflow.devices import is_chief, num_workers
from keras_tpu_ext._runtime.tensorflow.execution_schedule import GraphExecutionSchedule
from keras_tpu_ext._runtime.tensorflow.loop import make_steps_function, without_padded_rows
from keras_tpu_ext._runtime.tensorflow.process_group import all_gather_int, explain_peer_failure
from keras_tpu_ext._runtime.tensorflow.replicas import assign_replicated, num_replicas
from keras_tpu_ext._runtime.tensorflow.scope_checks import check_optimizer_belongs, check_variables_belong
from keras_tpu_ext._runtime.tensorflow.state import ReplicatedStepState
from keras_tpu_ext._runtime.tensorflow.step import ExactStep
from keras_tpu_ext._runtime.tensorflow.update import flush_window
from keras_tpu_ext._runtime.training.auto_steps import AutoSteps
from keras_tpu_ext._runtime.training.chief import ChiefOnly
from keras_tpu_ext._runtime.training.compile import ExactCompile, refuse_class_weight_with_padding

# Where `BackupAndRestore` keeps the number of the epoch in its checkpoint.
_SAVED_EPOCH = "ckpt_saved_epoch/.ATTRIBUTES/VARIABLE_VALUE"
_NOT_KEPT = (
    "{path} will not keep the {lost} of this model: H5 files and SavedModels keep what Keras knows. "
    'Write model.save("model.keras"), or compile the model with it again after loading'
)


class TrainStep(ExactStep, ExactCompile, ChiefOnly, AutoSteps, FunctionalByShape):
    """What turns a `tf.keras.Model` into one whose step is exact at any number of replicas."""

    _batch_facts = _tf_batch

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let H5 files find the classes of this package: they know a class by its bare name."""
        super().__init_subclass__(**kwargs)
        if cls.__module__.startswith("keras_tpu_ext."):
            keras.utils.get_custom_objects().setdefault(cls.__name__, cls)

    @property
    def steps_per_execution(self: Any) -> int:
        """Number of steps in an execution: here a number, as in Keras 3, where Keras 2 gives a variable."""
        variable = self._steps_per_execution
        return 1 if variable is None else int(variable.numpy())

    @steps_per_execution.setter
    def steps_per_execution(self: Any, value: int) -> None:
        keras.Model.steps_per_execution.fset(self, value)

    def make_train_function(self: Any, force: bool = False) -> Any:
        """Build and return the function that `fit` calls for one execution."""
        if self.train_function is None or force:
            if self.built:
                self._build_before_tracing()
                self._build_window()
            self._forget_flushes()
            step = converting(wrap_custom_step(self, self.train_step))
            self.train_function = make_steps_function(self, step, trains=True, counter=self._train_counter)
        return self.train_function

    def make_test_function(self: Any, force: bool = False) -> Any:
        """Build and return the function that `evaluate` calls for one execution."""
        if self.test_function is None or force:
            step = converting(wrap_custom_step(self, self.test_step))
            self.test_function = make_steps_function(self, step, trains=False, counter=self._test_counter)
        return self.test_function

    def make_predict_function(self: Any, force: bool = False) -> Any:
        """Build and return the function that `predict` calls for one execution."""
        if self.predict_function is None or force:
            model: Any = super()
            self.predict_function = without_padded_rows(model.make_predict_function(force))
        return self.predict_function

    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Train as `keras.Model.fit` does."""
        model: Any = super()
        refuse_class_weight_with_padding(args, kwargs)
        return model.fit(**with_padded_batches(keras.Model.fit, self, args, kwargs))

    def evaluate(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Evaluate as `keras.Model.evaluate` does."""
        model: Any = super()
        was_fitting = self._is_fitting
        self.__dict__["_is_fitting"] = False  # a callback may evaluate in the middle of a window
        try:
            with self._running():
                return model.evaluate(**with_padded_batches(keras.Model.evaluate, self, args, kwargs))
        finally:
            self.__dict__["_is_fitting"] = was_fitting

    def predict(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Predict as `keras.Model.predict` does."""
        model: Any = super()
        return model.predict(**with_padded_batches(keras.Model.predict, self, args, kwargs))

    def save(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Save as `keras.Model.save` does; say what only a `.keras` file keeps."""
        state = getattr(self, "_step_state", None)
        lost = ["loss_scale"] if state is not None and state.loss_scale is not None else []
        lost += ["gradient_accumulation_steps"] if state is not None and state.accumulation_steps > 1 else []
        if lost and not str(filepath).endswith(".keras") and kwargs.get("save_format") != "keras" and is_chief():
            warnings.warn(_NOT_KEPT.format(path=filepath, lost=" and ".join(lost)), stacklevel=2)
        model: Any = super()
        model.save(filepath, *args, **kwargs)

    def get_metrics_result(self: Any) -> Any:
        """Return the results of all metrics, as Keras does."""
        model: Any = super()
        return converting(model.get_metrics_result)()

    def compute_loss(
        self: Any, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        """Return this replica's share of the loss, regularisers and `add_loss` terms of the whole batch.

        A subclass may override it and compute what it likes from its arguments: it is then called with the batches of
        all replicas joined, and this method returns the whole loss. In a `train_step` of the user's own its value is
        that of the whole loss.
        """
        shares = Shares(self._layer_losses())
        shares += [loss / tf.cast(num_replicas(), loss.dtype) for loss in self._weight_losses()]
        return self.compiled_loss(y, y_pred, sample_weight, regularization_losses=shares)

    def _compute_loss(self: Any, *, training: bool, y: Any, **batch: Any) -> Any:
        loss = self.compute_loss(y=y, **batch)
        if training:  # Keras 2 evaluates without a loss
            self._validate_target_and_loss(y, loss)
        return loss

    def _track_loss(self, share: Any) -> None:
        """Do nothing: in Keras 2 the compiled loss tracks itself."""

    def _tracker_of_loss(self: Any) -> Any:
        """Return the metric that tracks the loss; as an attribute it would be saved, and not found again."""
        return self.compiled_loss._total_loss_mean

    def _updated_metrics(self: Any, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> dict[str, Any]:
        is_last = type(self).train_step is ExactStep.train_step and type(self).test_step is ExactStep.test_step
        if num_replicas() > 1 and is_last and not self._has_own_compute_metrics():
            # Their results, which Keras would sum over replicas in every step, are read after the last one.
            self.compiled_metrics.update_state(y, y_pred, sample_weight)
            return {}
        return super()._updated_metrics(x, y, y_pred, sample_weight)

    def _metrics_of_own_code(self: Any) -> list[Any]:
        compiled = [*self.compiled_loss.metrics, *self.compiled_metrics.metrics]  # these know of padding
        return [metric for metric in self.metrics if all(metric is not other for other in compiled)]

    def _get_optimizer(self: Any, optimizer: Any) -> Any:
        """Return the optimizer or optimizers, wrapped for mixed_float16 as by Keras where the step is not ours.

        A `train_step` of the user's own scales the loss by the methods of that wrapper, as Keras's guide says; our
        step scales it itself.
        """
        if self._leaves_scaling_to_its_optimizer() and not self._scales_by_rule:
            model: Any = super()
            return model._get_optimizer(optimizer)
        return tf.nest.map_structure(self._one_optimizer, optimizer)

    def _one_optimizer(self, optimizer: Any) -> Any:
        optimizer = keras.optimizers.get(optimizer)
        return optimizer if self._has_own_train_step() else optimizers.without_gradients_of_its_own(optimizer)

    def _leaves_scaling_to_its_optimizer(self) -> bool:
        return self._has_own_train_step()

    def _has_own_train_step(self) -> bool:
        return type(self).train_step is not ExactStep.train_step

    def _make_exact(self: Any) -> None:
        self.compiled_loss = ExactLosses.of(self.compiled_loss)
        ExactMetrics.take_over(self.compiled_metrics)

    def _validate_and_get_metrics_result(self: Any, logs: Any) -> Any:
        """Keras calls this when an epoch's batches are over and before validation: the time to end a window."""
        self._end_windows()
        model: Any = super()
        return model._validate_and_get_metrics_result(logs)

    def _running(self) -> Any:
        return use_schedule()

    def _own_scope(self: Any) -> Any:
        return self.distribute_strategy.scope()

    def _check_compiled(self: Any) -> None:
        for optimizer in tf.nest.flatten(self.optimizer):
            check_optimizer_belongs(optimizer, self.distribute_strategy)
        check_variables_belong(self, self.distribute_strategy)

    def _make_step_state(self, loss_scale: Any, accumulation_steps: int) -> ReplicatedStepState:
        return ReplicatedStepState(loss_scale, accumulation_steps)

    def _make_schedule(self) -> GraphExecutionSchedule:
        return GraphExecutionSchedule()

    def _is_one_of_several_processes(self) -> bool:
        return num_workers() > 1

    def _is_chief(self) -> bool:
        return is_chief()

    def _saves_together(self: Any) -> bool:
        """Return whether there is a variable that is summed over replicas when it is read, in several processes.

        Keras 2 saves what metrics have counted so far, too.
        """
        state = getattr(self, "_step_state", None)
        variables = [*self.variables, *(variable for metric in self.metrics for variable in metric.variables)]
        in_parts = any(v.synchronization == tf.VariableSynchronization.ON_READ for v in variables)
        return in_parts or (state is not None and bool(state.optimizers_with_open_windows()))

    def _restore_alike(self: Any, backup: Any, restore: Callable[[], None]) -> None:
        # Before anything is restored: for the variables that this makes the processes wait for each other.
        saved = tf.train.latest_checkpoint(os.path.join(backup.backup_dir, "chief"))
        self._check_same_epoch(0 if saved is None else int(tf.train.load_variable(saved, _SAVED_EPOCH)) + 1)
        restore()

    def _all_gather_int(self: Any, number: int) -> list[int]:
        return all_gather_int(self.distribute_strategy, number)

    def _explain_peer_failure(self) -> Any:
        return explain_peer_failure()

    def _unpack(self, data: Any) -> tuple[Any, Any, Any]:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        return x, y, sample_weight

    def _forward(self: Any, x: Any, *, training: bool) -> Any:
        return self(x, training=training)

    def _scaled_by(self: Any, optimizer: Any, loss: Any) -> Any:
        return optimizer.get_scaled_loss(loss) if optimizers.scales(optimizer) else loss

    def _gradients(self: Any, loss: Any, variables: Any, optimizer: Any, tape: Any) -> Any:
        gradients = super()._gradients(loss, variables, optimizer, tape)
        # An optimizer of Keras 2 that scales the loss leaves this to who takes the gradients.
        return optimizer.get_unscaled_gradients(gradients) if optimizers.scales(optimizer) else gradients

    def _apply_reduced(self: Any, optimizer: Any, gradients: Any, variables: Any) -> None:
        optimizers.apply_summed(optimizer, gradients, variables)

    def _note_skipped_by(self, optimizer: Any) -> None:
        """Count a skipped step, as Keras 2's own `LossScaleOptimizer` does."""
        assign_replicated(optimizer.iterations, tf.convert_to_tensor(optimizer.iterations) + 1)

    def _build_for(self: Any, optimizer: Any, variables: Any) -> None:
        optimizers.build(optimizer, variables)

    def _build_optimizer(self: Any) -> None:
        if tf.nest.is_nested(self.optimizer):
            return  # whose variables each of them has to update, the user's step knows
        optimizers.build(self.optimizer, self.trainable_variables)

    def _check_optimizer(self: Any, optimizer: Any) -> None:
        check_optimizer_belongs(optimizer, self.distribute_strategy)

    def _layer_losses(self: Any) -> list[Any]:
        return layer_losses.layer_losses(self._every_layer())

    def _record_layer_losses(self: Any) -> Any:
        return layer_losses.record_layer_losses(self._every_layer())

    def _set_layer_losses(self: Any, terms: Any) -> None:
        layer_losses.set_layer_losses(self._every_layer(), terms)

    def _weight_losses(self: Any) -> list[Any]:
        return layer_losses.weight_losses(self._every_layer())

    def _exclude_padding(self: Any) -> Any:
        return exclude_padding(self._every_layer())

    def _every_layer(self: Any) -> list[Any]:
        return list(self._flatten_layers())

    def _has_own_compute_loss(self) -> bool:
        return type(self).compute_loss is not TrainStep.compute_loss

    def _has_own_compute_metrics(self: Any) -> bool:
        return type(self).compute_metrics is not keras.Model.compute_metrics

    def _build_before_tracing(self: Any) -> None:
        """Make the optimizer's variables: TensorFlow traces a step that makes any twice, with and without them."""
        if getattr(self.train_step, "__func__", None) is ExactStep.train_step:
            with self.distribute_strategy.scope():
                self._build_optimizer()

    def _build_window(self: Any) -> None:
        window = None if tf.nest.is_nested(self.optimizer) else self._step_state.window(self.optimizer)
        if window is not None:
            with self.distribute_strategy.scope():
                window.build_for(self.trainable_variables)

    def _make_flush(self: Any, optimizer: Any) -> Callable[[], None]:
        @tf.function(autograph=False)
        def flush() -> None:
            self.distribute_strategy.run(flush_window, args=(self, optimizer))

        return flush
