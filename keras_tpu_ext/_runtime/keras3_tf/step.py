"""The exact step on Keras 3: what of it differs from Keras 2.

Private names of Keras that this module leans on (tests/_runtime/test_tf_private_names.py watches them):
of `Trainer`: `_symbolic_build`, `_maybe_symbolic_build`, `_distribute_strategy`, `_compute_loss`,
`_call_has_training_arg`; of layers: `_get_own_losses`, `_get_regularization_losses`, `_flatten_layers`; of
`TFEpochIterator`: `_distributed_dataset`; of TensorFlow's `PerReplicaSpec`: `_value_specs`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_tpu_ext._runtime.common.padding import without_own_weights
from keras_tpu_ext._runtime.keras3.chief import Keras3ChiefOnly
from keras_tpu_ext._runtime.keras3.compile import ExactKeras3Compile
from keras_tpu_ext._runtime.keras3.execution_schedule import enumerate_by_schedule
from keras_tpu_ext._runtime.keras3.functional import FunctionalByShape
from keras_tpu_ext._runtime.keras3_tf.batch_statistics import exclude_padding
from keras_tpu_ext._runtime.keras3_tf.layer_losses import record_layer_losses, set_layer_losses
from keras_tpu_ext._runtime.keras3_tf.optimizer import apply_summed
from keras_tpu_ext._runtime.tensorflow import batch as _tf_batch
from keras_tpu_ext._runtime.tensorflow.custom_step import wrap_custom_step
from keras_tpu_ext._runtime.tensorflow.devices import is_chief, num_workers
from keras_tpu_ext._runtime.tensorflow.execution_schedule import GraphExecutionSchedule
from keras_tpu_ext._runtime.tensorflow.loop import make_steps_function, without_padded_rows
from keras_tpu_ext._runtime.tensorflow.process_group import all_gather_int, explain_peer_failure
from keras_tpu_ext._runtime.tensorflow.replicas import split_batch
from keras_tpu_ext._runtime.tensorflow.scope import in_order
from keras_tpu_ext._runtime.tensorflow.scope_checks import check_optimizer_belongs, check_variables_belong
from keras_tpu_ext._runtime.tensorflow.state import ReplicatedStepState
from keras_tpu_ext._runtime.tensorflow.step import ExactStep
from keras_tpu_ext._runtime.tensorflow.update import flush_window
from keras_tpu_ext._runtime.training.auto_steps import AutoSteps


class TrainStep(ExactStep, ExactKeras3Compile, Keras3ChiefOnly, AutoSteps, FunctionalByShape):
    """What turns a `keras.Model` into one whose step is exact at any number of replicas."""

    _batch_facts = _tf_batch

    def compile(self: Any, *args: Any, **kwargs: Any) -> None:
        """Configure the model as `ExactCompile.compile` does."""
        model: Any = super()
        model.compile(*args, **kwargs)
        if self._distribute_strategy is not None:
            self.jit_compile = False  # XLA inside strategy.run breaks Keras's own variables: keras#19448

    def predict(self: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Predict as `keras.Model.predict` does."""
        model: Any = super()
        return model.predict(in_order(self.distribute_strategy, x), *args, **kwargs)

    def make_train_function(self: Any, force: bool = False) -> None:
        """Build the function that `fit` calls for one execution."""
        if self.train_function is None or force:
            if self.built:
                self._build_window()
            self._forget_flushes()
            self.train_function = make_steps_function(self, wrap_custom_step(self, self.train_step), trains=True)

    def make_test_function(self: Any, force: bool = False) -> None:
        """Build the function that `evaluate` calls for one execution."""
        if self.test_function is None or force:
            self.test_function = make_steps_function(self, wrap_custom_step(self, self.test_step), trains=False)

    def make_predict_function(self: Any, force: bool = False) -> None:
        """Build the function that `predict` calls for one execution."""
        if self.predict_function is None or force:
            model: Any = super()
            model.make_predict_function(force)
            self.predict_function = without_padded_rows(self.predict_function)

    def predict_on_batch(self: Any, x: Any) -> Any:
        """Return predictions for one batch, which is split over the replicas and not repeated on each."""
        self.make_predict_function()
        outputs = self.predict_function([split_batch(self.distribute_strategy, (x,))])
        return keras.tree.map_structure(lambda value: value.numpy(), outputs)

    def _own_scope(self: Any) -> Any:
        return self.distribute_strategy.scope()

    def _check_compiled(self: Any) -> None:
        check_optimizer_belongs(self.optimizer, self.distribute_strategy)
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
        """Return whether there is a variable that is summed over replicas when it is read, in several processes."""
        state = getattr(self, "_step_state", None)
        variables = [*self.variables, *getattr(self.optimizer, "variables", ())]
        in_parts = any(variable.synchronization == "on_read" for variable in variables)
        return in_parts or (state is not None and bool(state.optimizers_with_open_windows()))

    def _all_gather_int(self: Any, number: int) -> list[int]:
        return all_gather_int(self.distribute_strategy, number)

    def _explain_peer_failure(self) -> Any:
        return explain_peer_failure()

    def _unpack(self, data: Any) -> tuple[Any, Any, Any]:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        return x, y, sample_weight

    def _forward(self: Any, x: Any, *, training: bool) -> Any:
        return self(x, training=training) if self._call_has_training_arg else self(x)

    def _apply_reduced(self: Any, optimizer: Any, gradients: Any, variables: Any) -> None:
        apply_summed(optimizer, gradients, variables)

    def _build_for(self: Any, optimizer: Any, variables: Any) -> None:
        """Make the optimizer's variables before the graph.

        In a graph TensorFlow would trace twice and keep both behind a condition; in a loop they would have no shape.
        """
        if not optimizer.built:
            with tf.init_scope():
                optimizer.build(variables)

    def _scaled_by(self: Any, optimizer: Any, loss: Any) -> Any:
        return optimizer.scale_loss(loss)

    def _check_optimizer(self: Any, optimizer: Any) -> None:
        check_optimizer_belongs(optimizer, self.distribute_strategy)

    def _layer_losses(self: Any) -> list[Any]:
        return [loss for layer in self._flatten_layers() for loss in layer._get_own_losses()]

    def _record_layer_losses(self: Any) -> Any:
        return record_layer_losses(self._flatten_layers())

    def _exclude_padding(self: Any) -> Any:
        return exclude_padding(self._flatten_layers())

    def _set_layer_losses(self: Any, layer_losses: Any) -> None:
        set_layer_losses(layer_losses)

    def _weight_losses(self: Any) -> list[Any]:
        return list(self._get_regularization_losses())

    def _tracker_of_loss(self: Any) -> Any:
        return self._loss_tracker

    def _metrics_of_own_code(self: Any) -> list[Any]:
        return list(self.metrics)

    def _has_own_compute_loss(self) -> bool:
        return type(self).compute_loss is not ExactStep.compute_loss

    def _has_own_compute_metrics(self: Any) -> bool:
        return type(self).compute_metrics is not keras.Model.compute_metrics

    def _build_window(self: Any) -> None:
        window = self._step_state.window(self.optimizer)
        if window is not None:
            with self.distribute_strategy.scope():
                window.build_for(self.trainable_variables)

    def _make_flush(self: Any, optimizer: Any) -> Callable[[], None]:
        @tf.function(autograph=False)
        def flush() -> None:
            self.distribute_strategy.run(flush_window, args=(self, optimizer))

        return flush

    def _maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        """Build from one replica's part of the data's description, before any batch is taken.

        Keras takes the first batch and averages it over the replicas, which fails when it does not divide.
        """
        if iterator is not None:
            enumerate_by_schedule(self, iterator)
        if self._distribute_strategy is None:
            return
        if iterator is not None:
            data_batch = without_own_weights(_element_spec_of_one_replica(iterator._distributed_dataset))
        with self._distribute_strategy.scope():
            self._symbolic_build(data_batch=data_batch)


def _element_spec_of_one_replica(dataset: Any) -> Any:
    """Return the shapes and dtypes of the first replica's part of a batch; an unknown size stays `None`."""

    def first(spec: Any) -> Any:
        parts = getattr(spec, "_value_specs", None)
        return parts[0] if parts else spec

    specs = tf.nest.map_structure(first, dataset.element_spec)
    return tf.nest.map_structure(lambda spec: None if isinstance(spec, tf.OptionalSpec) else spec, specs)
