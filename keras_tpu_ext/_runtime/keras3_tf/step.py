"""The exact step on Keras 3 and TensorFlow: the methods that Keras calls by name."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_tpu_ext._runtime.common.missing_names import override
from keras_tpu_ext._runtime.common.padding import without_own_weights
from keras_tpu_ext._runtime.common.patches import patched
from keras_tpu_ext._runtime.common.types import Model, Nest, Variable
from keras_tpu_ext._runtime.keras3.adapter import ExactKeras3Model
from keras_tpu_ext._runtime.keras3.execution_schedule import enumerate_executions
from keras_tpu_ext._runtime.keras3.functional import FunctionalByShape
from keras_tpu_ext._runtime.keras3_tf.adapter import Keras3TensorFlowAdapter
from keras_tpu_ext._runtime.keras3_tf.training_state import read_in_passes
from keras_tpu_ext._runtime.tensorflow import batch as _batch
from keras_tpu_ext._runtime.tensorflow.custom_step import is_exact, wrap_custom_step
from keras_tpu_ext._runtime.tensorflow.loop import (
    hide_uneven_sizes_from,
    make_predict_function,
    make_steps_function,
)
from keras_tpu_ext._runtime.tensorflow.replicas import split_batch, with_none
from keras_tpu_ext._runtime.tensorflow.scope import distributing_all, in_order
from keras_tpu_ext._runtime.tensorflow.step import ExactStep
from keras_tpu_ext._runtime.training.fit_call import FitCall


class TrainStep(ExactStep, ExactKeras3Model, FunctionalByShape):
    """The mixin that makes the step of a `keras.Model` exact for any number of replicas."""

    _kte_adapter = Keras3TensorFlowAdapter()
    _batch_facts = _batch

    def _leave_out_xla(self: Any) -> None:
        """Undo `jit_compile`, by argument or attribute: XLA in `strategy.run` breaks variables (keras#19448)."""
        if self._distribute_strategy is not None:
            self.jit_compile = False

    def make_train_function(self: Any, force: bool = False) -> None:
        """Build the function that `fit` calls for one execution."""
        if self.train_function is None or force:
            if self.built:
                self._build_accumulator()
            self._reset_flushes()
            self._leave_out_xla()
            self.train_function = make_steps_function(self, wrap_custom_step(self, self.train_step), trains=True)

    def make_test_function(self: Any, force: bool = False) -> None:
        """Build the function that `evaluate` calls for one execution."""
        if self.test_function is None or force:
            self._leave_out_xla()
            self.test_function = make_steps_function(self, wrap_custom_step(self, self.test_step), trains=False)

    def make_predict_function(self: Any, force: bool = False) -> None:
        """Build the function that `predict` calls for one execution."""
        if self.predict_function is None or force:
            self._leave_out_xla()
            model: Model = super()
            model.make_predict_function(force)
            predict = hide_uneven_sizes_from(self, self.predict_function)
            self.predict_function = make_predict_function(self, predict)

    def predict_on_batch(self: Any, x: Nest) -> Any:
        """Return predictions for one batch, which is split over the replicas rather than repeated on each."""
        self.make_predict_function()
        outputs = self.predict_function([split_batch(self.distribute_strategy, (x,))])
        return keras.tree.map_structure(lambda value: value.numpy(), outputs)

    def _kte_adopt(self: Any) -> None:
        if not tf.distribute.has_strategy():
            return
        strategy = tf.distribute.get_strategy()
        override(self, "_distribute_strategy", strategy)
        self.train_function = self.test_function = self.predict_function = None
        _make_again(self.variables, strategy)
        optimizer = getattr(self, "optimizer", None)
        while optimizer is not None:
            _make_again(optimizer.variables, strategy)
            override(optimizer, "_distribution_strategy", strategy)
            trained = getattr(optimizer, "_trainable_variables", [])
            indices = {optimizer._var_key(v): i for i, v in enumerate(trained)}
            override(optimizer, "_trainable_variables_indices", indices)
            optimizer = getattr(optimizer, "inner_optimizer", None)

    def _kte_loop(self: Any) -> contextlib.AbstractContextManager[None]:
        return patched([(self.distribute_strategy, "experimental_distribute_dataset", distributing_all)])

    def _kte_prepare(self: Any, call: FitCall) -> None:
        if call.method == "predict":
            call.arguments["x"] = in_order(self.distribute_strategy, call.arguments["x"])

    def _maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        """Build from one replica's part of the data's specs, before any batch is taken.

        Keras takes the first batch and averages it over the replicas, which fails if it does not divide evenly.
        """
        if iterator is not None:
            enumerate_executions(self, iterator)
            read_in_passes(self, iterator)
        if self._distribute_strategy is None:
            return
        if iterator is not None:
            data_batch = without_own_weights(_element_spec_of_one_replica(iterator._distributed_dataset))
        with self._distribute_strategy.scope():
            try:
                self._symbolic_build(data_batch=data_batch)
            except RuntimeError:
                if is_exact(self.train_step) and is_exact(self.test_step):
                    raise
                # A user's own step may do without `call`; it creates the variables itself.


def _make_again(variables: Sequence[Variable], strategy: tf.distribute.Strategy) -> None:
    """Create variables again on `strategy`, with their current values."""
    for variable in variables:
        if not strategy.extended.variable_created_in_scope(variable.value):
            variable._initialize(variable.numpy())


def _element_spec_of_one_replica(dataset: Any) -> Any:
    """Return the shapes and dtypes of the first replica's part of a batch; an unknown size stays `None`."""

    def first(spec: Any) -> Any:
        parts = getattr(spec, "_value_specs", None)
        return parts[0] if parts else spec

    return with_none(tf.nest.map_structure(first, dataset.element_spec))
