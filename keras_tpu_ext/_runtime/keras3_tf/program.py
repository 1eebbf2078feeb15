"""The exact step on Keras 3 and TensorFlow, with any of its optimizers, and the methods that it calls by name."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_tpu_ext._runtime.common.missing_names import override, private
from keras_tpu_ext._runtime.common.padding import without_own_weights
from keras_tpu_ext._runtime.common.patches import Patch, install, patched
from keras_tpu_ext._runtime.common.types import Layer, Metric, Model, Nest, Optimizer, Variable
from keras_tpu_ext._runtime.compat.keras3 import DIVIDES_REGULARIZERS, moments_patches, regularizer_patches
from keras_tpu_ext._runtime.compat.keras3_tensorflow import count_step
from keras_tpu_ext._runtime.keras3.data_adapter import enumerate_executions
from keras_tpu_ext._runtime.keras3.models import own_layers, reduced
from keras_tpu_ext._runtime.keras3.program import Keras3Program
from keras_tpu_ext._runtime.keras3_tf.training_state import read_in_passes
from keras_tpu_ext._runtime.tensorflow import batch as _batch
from keras_tpu_ext._runtime.tensorflow.batch import (
    BATCH,
    KERAS_PATCHES,
    averaging,
    has_any_example,
    regularizer_of_examples,
    regularizer_of_whole_batch,
    synchronizes,
    unscaled_if_local,
    valid_rows_of,
    weighted_moments,
    weights_of,
    zero_invalid_rows,
)
from keras_tpu_ext._runtime.tensorflow.custom_step import wrap_custom_step
from keras_tpu_ext._runtime.tensorflow.loop import hide_uneven_sizes_from, make_predict_function, make_steps_function
from keras_tpu_ext._runtime.tensorflow.program import ReplicatedModel, TensorFlowProgram
from keras_tpu_ext._runtime.tensorflow.replicas import (
    assign_replicated,
    cross_replica_cond,
    handle_in_replicas,
    is_per_replica,
    number_of_replicated,
    split_batch,
    with_none,
)
from keras_tpu_ext._runtime.tensorflow.scope import distributing_all, in_order
from keras_tpu_ext._runtime.tensorflow.update import Gradient
from keras_tpu_ext._runtime.training.fit_call import FitCall
from keras_tpu_ext._runtime.training.model import is_own_step

TFOptimizer: Any = private("keras.src.backend.tensorflow.optimizer:TFOptimizer")
losses: Any = private("keras.src.losses.loss")
_ALL_REDUCE = "keras.src.backend.tensorflow.optimizer.TFOptimizer._all_reduce_sum_gradients"
KERAS_PATCHES += [
    (TFOptimizer, _ALL_REDUCE, averaging),
    (losses, "keras.src.losses.loss.scale_loss_for_distribution", unscaled_if_local),
    (losses, "keras.src.losses.loss.unscale_loss_for_distribution", unscaled_if_local),
]
install([(keras.Variable, "keras.Variable.__int__", functools.partial(number_of_replicated, int))])
install([(keras.Variable, "keras.Variable.__float__", functools.partial(number_of_replicated, float))])
install([(keras.Variable, "keras.Variable.handle", handle_in_replicas)])


class Keras3TensorFlowProgram(TensorFlowProgram, Keras3Program):
    """The `ExactProgram` of Keras 3 on TensorFlow."""

    facts = _batch

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
                specs = tf.nest.map_structure(_spec_of, data_batch)
                if any(
                    isinstance(spec, (tf.SparseTensorSpec, tf.RaggedTensorSpec)) for spec in tf.nest.flatten(specs)
                ):
                    self._build_from(specs)
                elif is_own_step(model.train_step) and is_own_step(model.test_step):
                    raise
                # A user's own step may do without `call`, or call it with something else than the data; it creates
                # the variables itself.

    def _build_from(self, specs: Nest) -> None:
        """Build as Keras does, which tries dense tensors in place of sparse and ragged ones."""
        with keras.StatelessScope(), tf.__internal__.FuncGraph("kte_build").as_default():
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(tf.nest.map_structure(_placeholder, specs))
            y_pred = self.forward(x, training=False)
            self.model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
            self.model._compute_loss(x, y, y_pred, sample_weight=sample_weight, training=False)

    def _move_variables(self) -> None:
        """Move the variables of layers that were built by a call after the block, outside of the strategy."""
        strategy = self.model._distribute_strategy
        if strategy is not None and self.model.built:
            with strategy.scope():
                _make_again(self.model.variables, strategy)

    def own_layers(self) -> list[str]:
        """Return the names of layers and operations that are not known to process each example independently."""
        return own_layers(self.model)

    def has_partial_variables(self) -> bool:
        """Return whether any saved variable is summed over replicas when it is read."""
        optimizer = getattr(self.model, "optimizer", None)  # a model that was never compiled has no attribute
        variables = [*self.model.variables, *getattr(optimizer, "variables", ())]
        return any(map(is_per_replica, variables))

    def forward(self, x: Nest, *, training: bool) -> Nest:
        """Return the predictions of the model."""
        return self.model(x, training=training) if self.model._call_has_training_arg else self.model(x)

    def loss_of_model(self, *, y: Nest, training: bool, **batch: Nest) -> tf.Tensor | None:
        """Call `compute_loss` of the model, which need not accept `training`."""
        return self.model._compute_loss(y=y, training=training, **batch)

    def custom_metrics(self) -> list[Metric]:
        """Return all metrics: those of `compile` know about padding."""
        return list(self.model.metrics)

    @contextlib.contextmanager
    def exclude_padding(self) -> Iterator[None]:
        """Within the block, layers learn only from the examples of the batch."""
        layers = list(self.model._flatten_layers())
        patches = moments_patches(layers, functools.partial(_moments, self.model))
        if not DIVIDES_REGULARIZERS:
            patches += regularizer_patches(layers, regularizer_of_whole_batch)
        elif BATCH.valid is not None:
            patches += regularizer_patches(layers, regularizer_of_examples)
        with patched(patches):
            yield

    def layer_losses(self) -> list[tf.Tensor]:
        """Return the current `add_loss` terms of layers."""
        return [loss for layer in self.model._flatten_layers() for loss in layer._get_own_losses()]

    @contextlib.contextmanager
    def record_layer_losses(self) -> Iterator[None]:
        """Within the block, `add_loss` terms of this replica are added to `BATCH.layer_losses`."""
        # A layer keeps its terms until its next call, which may be another replica's: replicas take turns at every
        # sum over replicas, and a synchronized batch normalization has one in the middle of the forward pass.
        BATCH.layer_losses = []
        with patched([_recording_patch(layer) for layer in self.model._flatten_layers()]):
            yield

    def set_layer_losses(self, losses: Sequence[tuple[Layer, tf.Tensor]]) -> None:
        """Set the `add_loss` terms of layers for the next reading of `losses`."""
        for layer, _ in losses:
            layer._losses.clear()
        for layer, loss in losses:
            layer._losses.append(loss)

    def weight_losses(self) -> list[tf.Tensor]:
        """Return the losses of regularizers."""
        return list(self.model._get_regularization_losses())

    def scale_loss(self, optimizer: Optimizer, loss: tf.Tensor) -> tf.Tensor:
        """Return the loss times the scale of the optimizer."""
        return optimizer.scale_loss(loss)

    def build_for(self, optimizer: Optimizer, variables: Sequence[Variable]) -> None:
        """Create the variables of `optimizer` before the graph, which would be traced twice, into a condition."""
        if not optimizer.built:
            with tf.init_scope():
                optimizer.build(variables)

    def apply_gradients(
        self, optimizer: Optimizer, gradients: Sequence[Gradient], variables: Sequence[Variable]
    ) -> None:
        """Let `optimizer` clip and apply gradients that are already summed over replicas."""
        view = without_all_reduce(optimizer)
        view.apply_gradients(zip(gradients, variables, strict=True))
        _overwrite_with_averages(view)


def _accumulate_or_apply(
    view: keras.Optimizer, gradients: Sequence[tf.Tensor], variables: Sequence[Variable]
) -> None:
    """Do what Keras's own method does; its condition is inside the replicas, where MirroredStrategy fails."""
    steps = view.gradient_accumulation_steps
    if not steps:
        super(type(view), view)._backend_apply_gradients(gradients, variables)
        return
    sums = [view._accumulated_gradients[view._get_variable_index(variable)] for variable in variables]

    def apply(*gradients: tf.Tensor) -> None:
        means = [(total + gradient) / steps for total, gradient in zip(sums, gradients, strict=True)]
        means = view._clip_gradients(means)
        view._apply_weight_decay(variables)
        view._backend_update_step(means, variables, view.learning_rate)
        for total in sums:
            assign_replicated(total, tf.zeros(total.shape, total.dtype))

    def add(*gradients: tf.Tensor) -> None:
        for total, gradient in zip(sums, gradients, strict=True):
            assign_replicated(total, total + gradient)

    is_last = tf.equal((tf.convert_to_tensor(view._iterations) + 1) % steps, 0)
    cross_replica_cond(is_last, apply, add, *gradients)
    if view.use_ema:
        view._update_model_variables_moving_average(view._trainable_variables)
    count_step(view)


_VIEW_MEMBERS = {
    "_all_reduce_sum_gradients": lambda self, grads_and_vars: grads_and_vars,
    "_backend_apply_gradients": _accumulate_or_apply,
    # A condition that updates variables must be outside the replicas; see `_overwrite_with_averages`.
    "ema_overwrite_frequency": property(lambda self: None),
}


def without_all_reduce(optimizer: Optimizer) -> Optimizer:
    """Return a view of `optimizer`, with its state, that does not sum gradients over replicas inside `apply`."""
    # It can go when `apply` has an argument for this, as in Keras 2 (`skip_gradients_aggregation`).
    optimizer_class: Any = type(optimizer)
    view = object.__new__(_view_class(optimizer_class))
    object.__setattr__(view, "__dict__", optimizer.__dict__)
    return view


@functools.cache
def _view_class(optimizer_class: Any) -> Any:
    for name in (name for name in _VIEW_MEMBERS if name.startswith("_")):
        getattr(optimizer_class, name)  # if one is gone, Keras would not call ours
    members: dict[str, Any] = dict(_VIEW_MEMBERS)
    if issubclass(optimizer_class, keras.optimizers.LossScaleOptimizer):
        members["inner_optimizer"] = property(lambda self: without_all_reduce(self.__dict__["inner_optimizer"]))
    return type(optimizer_class.__name__, (optimizer_class,), members)


def _overwrite_with_averages(view: Any) -> None:
    """Overwrite the variables with their moving averages when the optimizer's `ema_overwrite_frequency` says so."""
    view = getattr(view, "inner_optimizer", view)
    every = view.__dict__.get("ema_overwrite_frequency")
    if not (view.use_ema and every):
        return

    def overwrite() -> None:
        for variable, average in zip(view._trainable_variables, view._model_variables_moving_average, strict=True):
            if average is not None:
                assign_replicated(variable, tf.convert_to_tensor(average))

    steps = (tf.convert_to_tensor(view._iterations) - 1) // (view.gradient_accumulation_steps or 1) + 1
    cross_replica_cond(tf.equal(steps % every, 0), overwrite, lambda: None)


def _recording_patch(layer: Layer) -> Patch:
    def make(add_loss: Any) -> Any:
        def add_and_record(loss: tf.Tensor) -> None:
            before = len(layer._losses)
            add_loss(loss)
            BATCH.layer_losses += [(layer, added) for added in layer._losses[before:]]

        return add_and_record

    return layer, "a layer's add_loss", make


def _moments(
    model: Model, layer: Layer, stock: Any, inputs: tf.Tensor, mask: tf.Tensor | None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return mean and variance; on a replica without examples, values that change nothing."""
    valid = valid_rows_of(inputs)
    if synchronizes(model, layer):
        weights = weights_of(inputs)  # if there is a mask, Keras looks at one replica only
        weights = weights if mask is None else weights * tf.cast(mask, inputs.dtype)[..., tf.newaxis]
        return weighted_moments(inputs, layer._reduction_axes, weights, of_all_replicas=True)[:2]
    if valid is None:
        mean, variance = stock(inputs, mask)
    elif mask is None:
        axes = layer._reduction_axes
        mean, variance, _ = weighted_moments(inputs, axes, weights_of(inputs), of_all_replicas=False)
    else:
        mean, variance = stock(inputs, zero_invalid_rows(mask))
    has_any = has_any_example()
    if has_any is None:
        return mean, variance

    def or_moving(value: tf.Tensor, moving: keras.Variable) -> tf.Tensor:
        return tf.where(has_any, value, tf.reshape(tf.cast(moving.value, value.dtype), tf.shape(value)))

    return or_moving(mean, layer.moving_mean), or_moving(variance, layer.moving_variance)


def _make_again(variables: Sequence[Variable], strategy: tf.distribute.Strategy) -> None:
    """Create variables again on `strategy`, with their current values."""
    for variable in variables:
        if not strategy.extended.variable_created_in_scope(variable.value):
            variable._initialize(variable.numpy())


def _spec_of(leaf: Any) -> Any:
    return leaf if leaf is None or isinstance(leaf, tf.TypeSpec) else tf.type_spec_from_value(leaf)


def _placeholder(spec: Any) -> Nest:
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.compat.v1.sparse_placeholder(spec.dtype, spec.shape)
    if isinstance(spec, tf.RaggedTensorSpec):
        inner = spec.shape[spec.ragged_rank + 1 :]
        return tf.compat.v1.ragged.placeholder(spec.dtype, spec.ragged_rank, inner)
    return spec if spec is None else tf.compat.v1.placeholder(spec.dtype, spec.shape)


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


class TrainStep(ReplicatedModel):
    """The mixin that makes the step of a `keras.Model` exact for any number of replicas."""

    _kte = functools.cached_property(Keras3TensorFlowProgram)

    def __reduce__(self: Any) -> tuple[Any, ...]:
        """Pickle and copy through a saved model, as Keras does, since the class of `self` is known only here."""
        model: Any = super()
        return reduced(model.__reduce__())

    def predict_on_batch(self: Any, x: Nest) -> Nest:
        """Return predictions for one batch, which is split over the replicas rather than repeated on each."""
        self.make_predict_function()
        outputs = self.predict_function([split_batch(self.distribute_strategy, (x,))])
        return keras.tree.map_structure(lambda value: value.numpy(), outputs)

    def _maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        self._kte.symbolic_build(iterator, data_batch)

    def _get_metrics_result_or_logs(self: Any, logs: Any) -> Any:
        model: Any = super()
        return self._kte.metrics_result_or_logs(model._get_metrics_result_or_logs, logs)
