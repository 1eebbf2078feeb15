"""The exact step on Keras 2: the methods that Keras calls by name."""

from __future__ import annotations

import contextlib
import functools
import re
import warnings
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.missing_names import override
from keras_tpu_ext._runtime.common.patches import patched
from keras_tpu_ext._runtime.common.types import Model, Nest, Optimizer
from keras_tpu_ext._runtime.compat.keras2 import keras
from keras_tpu_ext._runtime.keras2 import optimizer as optimizers
from keras_tpu_ext._runtime.keras2.adapter import Keras2Adapter
from keras_tpu_ext._runtime.keras2.autograph import with_autograph
from keras_tpu_ext._runtime.keras2.data_adapter import replace_padded_batches
from keras_tpu_ext._runtime.keras2.execution_schedule import use_data_handlers
from keras_tpu_ext._runtime.keras2.functional import FunctionalByShape
from keras_tpu_ext._runtime.keras2.loss import Shares
from keras_tpu_ext._runtime.tensorflow import batch as _batch
from keras_tpu_ext._runtime.tensorflow.custom_step import wrap_custom_step
from keras_tpu_ext._runtime.tensorflow.loop import kind_of_batches, make_predict_function, make_steps_function
from keras_tpu_ext._runtime.tensorflow.replicas import num_replicas
from keras_tpu_ext._runtime.tensorflow.scope import distributing_all
from keras_tpu_ext._runtime.tensorflow.step import ExactStep
from keras_tpu_ext._runtime.training.clear_session import reopened_by_clear_session
from keras_tpu_ext._runtime.training.fit_call import FitCall
from keras_tpu_ext.errors import ScopeError

_NOT_KEPT = (
    "{path} will not keep the {lost} of this model: H5 files and SavedModels keep what Keras knows. "
    'Write model.save("model.keras"), or compile the model with it again after loading'
)


class TrainStep(ExactStep, FunctionalByShape):
    """The mixin that makes the step of a `tf.keras.Model` exact for any number of replicas."""

    _kte_adapter = Keras2Adapter()
    _batch_facts = _batch

    @property
    def steps_per_execution(self: Any) -> int:
        """Number of steps in an execution: an int, as in Keras 3, instead of Keras 2's variable."""
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
                self._build_accumulator()
            self._reset_flushes()
            step = with_autograph(wrap_custom_step(self, self.train_step))
            self.train_function = make_steps_function(self, step, trains=True, counter=self._train_counter)
        return self.train_function

    def make_test_function(self: Any, force: bool = False) -> Any:
        """Build and return the function that `evaluate` calls for one execution."""
        if self.test_function is None or force:
            step = with_autograph(wrap_custom_step(self, self.test_step))
            self.test_function = make_steps_function(self, step, trains=False, counter=self._test_counter)
        return self.test_function

    def make_predict_function(self: Any, force: bool = False) -> Any:
        """Build and return the function that `predict` calls for one execution."""
        if self.predict_function is None or force:
            model: Model = super()
            # Made now: its loop depends on `steps_per_execution`, which is smaller for the last batches of `predict`.
            predict = model.make_predict_function(force)

            @functools.cache
            def predict_of(kind: type) -> Any:
                return predict if self.run_eagerly else tf.function(predict.python_function, reduce_retracing=True)

            self.predict_function = make_predict_function(
                self, lambda iterator: predict_of(kind_of_batches(iterator))(iterator)
            )
        return self.predict_function

    def save(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Save as `keras.Model.save` does; warn about what only a `.keras` file keeps."""
        state = self.__dict__.get("_step_state")
        lost = ["loss_scale"] if state is not None and state.loss_scaler else []
        lost += ["gradient_accumulation_steps"] if state is not None and state.accumulation_steps > 1 else []
        is_keras_file = str(filepath).endswith(".keras") or kwargs.get("save_format") == "keras"
        if lost and not is_keras_file and self._kte_process_group().is_chief():
            warnings.warn(_NOT_KEPT.format(path=filepath, lost=" and ".join(lost)), stacklevel=2)
        model: Model = super()
        model.save(filepath, *args, **kwargs)

    def get_metrics_result(self: Any) -> Any:
        """Return the results of all metrics, as Keras does."""
        model: Model = super()
        return with_autograph(model.get_metrics_result)()

    def compute_loss(
        self: Any, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        """Return this replica's share of the loss, regularisers and `add_loss` terms of the whole batch.

        A subclass may override it and compute anything from its arguments: it is then called with the joined batches
        of all replicas, and this method returns the whole loss. In a user's own `train_step`, its value is that of
        the whole loss.
        """
        shares = Shares(self._kte_adapter.layer_losses(self))
        shares += [loss / tf.cast(num_replicas(), loss.dtype) for loss in self._kte_adapter.weight_losses(self)]
        return self.compiled_loss(y, y_pred, sample_weight, regularization_losses=shares)

    def _track_loss(self, share: tf.Tensor) -> None:
        """Do nothing: in Keras 2 the compiled loss tracks itself."""

    def _updated_metrics(self: Any, x: Nest, y: Nest, y_pred: tf.Tensor, sample_weight: tf.Tensor) -> dict[str, Any]:
        is_last = type(self).train_step is ExactStep.train_step and type(self).test_step is ExactStep.test_step
        if num_replicas() > 1 and is_last and not self._kte_adapter.has_custom_compute_metrics(self):
            # Their results, which Keras would sum over replicas in every step, are read after the last step.
            self.compiled_metrics.update_state(y, y_pred, sample_weight)
            return {}
        return super()._updated_metrics(x, y, y_pred, sample_weight)

    def _get_optimizer(self: Any, optimizer: Optimizer) -> Any:
        """Return the optimizer or optimizers, wrapped for mixed_float16 as by Keras if the step is not ours.

        A user's own `train_step` scales the loss by the methods of that wrapper, as Keras's guide says; our step
        scales it itself.
        """
        if self._leaves_scaling_to_its_optimizer() and not self._scales_by_rule:
            model: Model = super()
            return model._get_optimizer(optimizer)
        return tf.nest.map_structure(self._one_optimizer, optimizer)

    def _one_optimizer(self, optimizer: Optimizer) -> Optimizer:
        optimizer = keras.optimizers.get(optimizer)
        return optimizer if self._has_own_train_step() else optimizers.without_gradients_of_its_own(optimizer)

    def _leaves_scaling_to_its_optimizer(self) -> bool:
        return self._has_own_train_step()

    def _has_own_train_step(self) -> bool:
        return type(self).train_step is not ExactStep.train_step

    def _validate_compile(self: Any, optimizer: Any, metrics: Any, **kwargs: Any) -> None:
        model: Model = super()
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
        self._end_windows()
        model: Model = super()
        return model._validate_and_get_metrics_result(logs)

    @contextlib.contextmanager
    def _kte_loop(self: Any) -> Iterator[None]:
        handlers = contextlib.nullcontext() if self._kte_call.method == "predict" else use_data_handlers()
        distributes = self.distribute_strategy, "experimental_distribute_dataset", distributing_all
        # Keras's loops are in the strategy's scope.
        with reopened_by_clear_session(self._own_scope), handlers, patched([distributes]):
            yield

    def _kte_adopt(self: Any) -> None:
        strategy = tf.distribute.get_strategy()
        if not all(strategy.extended.variable_created_in_scope(variable) for variable in self.variables):
            raise ScopeError(
                f"{self.name!r} was made outside the block, and its variables live on one device only. Write: with "
                "scope: model = ... around the lines that make it, or `with scope: model = "
                "keras.models.clone_model(model)` and then copy the weights, clone.set_weights(model.get_weights())."
            )
        override(self, "_distribution_strategy", strategy)

    def _kte_prepare(self, call: FitCall) -> None:
        replace_padded_batches(call)

    def _build_before_tracing(self: Any) -> None:
        """Make the optimizer's variables: TensorFlow traces a step that creates any twice, with and without them."""
        if getattr(self.train_step, "__func__", None) is ExactStep.train_step:
            with self.distribute_strategy.scope():
                self._kte_adapter.build_optimizer(self)


TrainStep._kte_adapter.exact_compute_loss = TrainStep.compute_loss
