"""The exact step on Keras 3 and TensorFlow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.missing_names import override
from keras_tpu_ext._runtime.common.padding import without_own_weights
from keras_tpu_ext._runtime.common.patches import patched
from keras_tpu_ext._runtime.common.types import Nest, Variable
from keras_tpu_ext._runtime.keras3.execution_schedule import enumerate_executions
from keras_tpu_ext._runtime.keras3.tpu_operations import tpu_operations
from keras_tpu_ext._runtime.keras3_tf.adapter import Keras3TensorFlowAdapter
from keras_tpu_ext._runtime.keras3_tf.training_state import read_in_passes
from keras_tpu_ext._runtime.tensorflow import batch as _batch
from keras_tpu_ext._runtime.tensorflow.custom_step import wrap_custom_step
from keras_tpu_ext._runtime.tensorflow.loop import (
    hide_uneven_sizes_from,
    make_predict_function,
    make_steps_function,
)
from keras_tpu_ext._runtime.tensorflow.program import TensorFlowProgram
from keras_tpu_ext._runtime.tensorflow.replicas import with_none
from keras_tpu_ext._runtime.tensorflow.scope import distributing_all, in_order
from keras_tpu_ext._runtime.training.fit_call import FitCall
from keras_tpu_ext._runtime.training.model import is_own_step


class Keras3TensorFlowProgram(TensorFlowProgram):
    """The `ExactProgram` of Keras 3 on TensorFlow."""

    adapter = Keras3TensorFlowAdapter()
    facts = _batch
    tpu_operations = staticmethod(tpu_operations)

    def make_train_function(self) -> Callable[..., Any]:
        """Return the function that `fit` calls for one execution."""
        if self.model.built:
            self.build_accumulator()
        self.reset_flushes()
        self._leave_out_xla()
        return make_steps_function(self.model, wrap_custom_step(self.model, self.model.train_step), trains=True)

    def make_test_function(self) -> Callable[..., Any]:
        """Return the function that `evaluate` calls for one execution."""
        self._leave_out_xla()
        return make_steps_function(self.model, wrap_custom_step(self.model, self.model.test_step), trains=False)

    def make_predict_function(self, stock: Callable[[], object]) -> Callable[..., Any]:
        """Return the function that `predict` calls for one execution."""
        self._leave_out_xla()
        stock()
        predict = hide_uneven_sizes_from(self.model, self.model.predict_function)
        return make_predict_function(self.model, predict)

    def _leave_out_xla(self) -> None:
        """Undo `jit_compile`, by argument or attribute: XLA in `strategy.run` breaks variables (keras#19448)."""
        if self.model._distribute_strategy is not None:
            self.model.jit_compile = False

    def attach(self) -> None:
        """Make the variables of a model that was made elsewhere again, on the strategy of the open block."""
        if not tf.distribute.has_strategy():
            return
        model, strategy = self.model, tf.distribute.get_strategy()
        override(model, "_distribute_strategy", strategy)
        model.train_function = model.test_function = model.predict_function = None
        _make_again(model.variables, strategy)
        optimizer = getattr(model, "optimizer", None)
        while optimizer is not None:
            _make_again(optimizer.variables, strategy)
            override(optimizer, "_distribution_strategy", strategy)
            trained = getattr(optimizer, "_trainable_variables", [])
            indices = {optimizer._var_key(v): i for i, v in enumerate(trained)}
            override(optimizer, "_trainable_variables_indices", indices)
            optimizer = getattr(optimizer, "inner_optimizer", None)

    def loop(self) -> contextlib.AbstractContextManager[None]:
        """Return the context in which Keras's own loops run: every dataset is distributed."""
        strategy = self.model.distribute_strategy
        return patched([(strategy, "a strategy's experimental_distribute_dataset", distributing_all)])

    def prepare(self, call: FitCall) -> None:
        """Let the predictions of `predict` come in the order of the data."""
        if call.method == "predict":
            self._move_variables()
            call.arguments["x"] = in_order(self.model.distribute_strategy, call.arguments["x"])

    def symbolic_build(self, iterator: Any, data_batch: Any) -> None:
        """Build from the specs of the data: Keras averages the first batch, which must then divide evenly."""
        model = self.model
        if iterator is not None:
            enumerate_executions(model, iterator)
            read_in_passes(model, iterator)
        if model._distribute_strategy is None:
            return
        self._move_variables()
        if iterator is not None:
            data_batch = without_own_weights(_element_spec(iterator._distributed_dataset, model._distribute_strategy))
        with model._distribute_strategy.scope():
            try:
                model._symbolic_build(data_batch=data_batch)
            except (RuntimeError, TypeError, ValueError):
                if is_own_step(model.train_step) and is_own_step(model.test_step):
                    raise
                # A user's own step may do without `call`, or call it with something else than the data; it creates
                # the variables itself.

    def _move_variables(self) -> None:
        """Move the variables of layers that were built by a call after the block, outside of the strategy."""
        strategy = self.model._distribute_strategy
        if strategy is not None and self.model.built:
            with strategy.scope():
                _make_again(self.model.variables, strategy)


def _make_again(variables: Sequence[Variable], strategy: tf.distribute.Strategy) -> None:
    """Create variables again on `strategy`, with their current values."""
    for variable in variables:
        if not strategy.extended.variable_created_in_scope(variable.value):
            variable._initialize(variable.numpy())


def _element_spec(dataset: Any, strategy: tf.distribute.Strategy) -> Nest:
    """Return the shapes and dtypes of a batch of all replicas; an unknown size stays `None`."""

    def whole(spec: Any) -> Nest:
        parts = getattr(spec, "_value_specs", None)
        if not parts:
            return spec
        part = parts[0]
        if not isinstance(part, tf.TensorSpec) or not part.shape.rank or part.shape[0] is None:
            return part
        return tf.TensorSpec([part.shape[0] * strategy.num_replicas_in_sync, *part.shape[1:]], part.dtype)

    return with_none(tf.nest.map_structure(whole, dataset.element_spec))
