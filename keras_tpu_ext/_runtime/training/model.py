"""The methods that Keras calls by name on a model with an exact step: each asks the model's `ExactProgram`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from keras_tpu_ext._runtime.common.types import Model, Nest, Optimizer, Tensor
from keras_tpu_ext._runtime.compat import Functional, functional_members, keras
from keras_tpu_ext._runtime.training.program import ExactProgram

# The method of a model, by the model's id and its name, that this thread goes through: from `keras.Model`'s to ours,
# with the rest of it, or from ours to `keras.Model`'s, with `None`.
_PASSED: ContextVar[tuple[int, str, Any]] = ContextVar("_PASSED", default=(0, "", None))


def call_exact(trainer: type, name: str, stock: Callable[..., Nest], model: Model, *args: Any, **kwargs: Any) -> Nest:
    """Call a method of `trainer`, a mixin like `ExactModel`, from `keras.Model`'s, whose remaining part is `stock`.

    What somebody has wrapped round `keras.Model`'s is not called a second time.
    """
    token = _PASSED.set((id(model), name, stock))
    try:
        return getattr(trainer, name, stock)(model, *args, **kwargs)
    finally:
        _PASSED.reset(token)


def stock_of(model: Model, parent: Any, name: str) -> Callable[..., Any]:
    """Return Keras's own method of `model`, given `super()`: at the beginning of the method that overrides it."""
    *passed, stock = _PASSED.get()
    if passed == [id(model), name] and stock is not None:
        _PASSED.set((0, "", None))
        return functools.partial(stock, model)
    _PASSED.set((id(model), name, None))
    return getattr(parent, name)


def comes_from_exact(model: Model, name: str) -> bool:
    """Return whether `keras.Model`'s method is called by ours, as `stock_of` told; asked once for a call."""
    came = _PASSED.get() == (id(model), name, None)
    if came:
        _PASSED.set((0, "", None))
    return came


class ExactModel:
    """A mixin for `keras.Model` that trains, evaluates and predicts on N replicas as on one device.

    What it does and knows is in `_kte`; a class of the user's comes first, so no other name of this package may be in
    his model. The runtime's `TrainStep` inherits from it.
    """

    _kte: functools.cached_property[ExactProgram]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _become_functional(self, args, kwargs)
        super().__init__(*args, **kwargs)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Register this package's classes for H5 files, which look up a class by its bare name."""
        super().__init_subclass__(**kwargs)
        if cls.__module__.startswith("keras_tpu_ext."):
            keras.saving.get_custom_objects().setdefault(cls.__name__, cls)

    def compile(
        self: Any,
        *args: Any,
        loss_scale: Any = None,
        gradient_accumulation_steps: int = 1,
        gradient_accumulation_weight: str = "examples",
        **kwargs: Any,
    ) -> None:
        """Configure the model for training, with all the arguments of `keras.Model.compile` and three more.

        Call it inside the scope that the model was built in, or after that scope. A softmax (or sigmoid) output whose
        loss has `from_logits=True` causes a `FromLogitsWarning`: such a model may hardly learn. (Keras repairs this
        if it can see the softmax: in float32 on TensorFlow, but not under a mixed policy.)

        Args:
            *args: Arguments of `keras.Model.compile`.
            loss_scale: `None` (default) does not scale the loss, except under `mixed_float16`, where it means
                `"dynamic"`; a positive number is a fixed scale; `"dynamic"` is `LossScale()`; or a `LossScale`. With
                loss scaling, a step whose gradients are not all finite is skipped. A `LossScaleOptimizer` that you
                pass does the scaling itself. On JAX and Keras 2 under `mixed_float16`, the optimizer of a model with
                its own `train_step` is wrapped in one, as Keras does.
            gradient_accumulation_steps: Number of batches whose gradients make one step; the last window of an epoch
                may have fewer batches. Defaults to 1. The argument of the same name of a Keras optimizer works as in
                Keras: its windows weight batches equally and continue across the end of an epoch.
            gradient_accumulation_weight: What weights the gradient of each batch in a window. `"examples"` (default)
                is its number of examples. `"tokens"` is what Keras divides its loss by: the number of elements, of
                unmasked ones if the output has a mask, or the sum of the weights if the loss has the reduction
                `"mean_with_sample_weight"`. The step is then that of one batch of the whole window, with
                regularisers of weights, loss scaling and clipping. (The words are those of sequence models, which
                average over tokens or over sequences.) Losses with other reductions or denominators that differ,
                layers with `add_loss` or an activity regularizer, and a `compute_loss` or a call of `minimize` of
                your own have no such weight: they are errors.
            **kwargs: Further arguments of `keras.Model.compile`. `steps_per_execution` also accepts `"auto"`: it then
                grows in the first epochs of `fit` until one execution takes 0.2 to 1 second. Results do not change,
                and an execution never crosses the end of an epoch. It stays at 1 if a callback overrides a batch hook
                (a class attribute `wants_every_batch = False` in the callback says that it need not see every batch),
                with `run_eagerly`, in `predict`, and if several processes train together.

        Raises:
            ArgumentError: If one of these is invalid, or contradicts the optimizer; on JAX in the first step, if that
                is a `train_step` of your own that does not call `super().train_step`, and so scales or accumulates
                nothing.
            ScopeError: If the optimizer, or a layer, was made outside the model's `strategy_scope()`.
        """
        own = {
            "loss_scale": loss_scale,
            "gradient_accumulation_steps": gradient_accumulation_steps,
            "gradient_accumulation_weight": gradient_accumulation_weight,
        }
        self._kte.compile(stock_of(self, super(), "compile"), own, args, kwargs)

    def get_compile_config(self: Any) -> dict[str, Any]:
        """Return the serialized arguments of `compile`."""
        model: Any = super()
        config: dict[str, Any] = self._kte.compile_config(model.get_compile_config())
        return config

    def compile_from_config(self: Any, config: dict[str, Any]) -> None:
        """Compile the model as when it was saved.

        Raises:
            ArgumentError: If what a file says of it is nothing that this package writes.
        """
        model: Any = super()
        self._kte.compile_from_config(model.compile_from_config, config)

    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Train as `keras.Model.fit` does; with several processes, only the chief prints and writes."""
        stock = stock_of(self, super(), "fit")
        with self._kte.running_call("fit", args, kwargs) as call:
            stock(*call.args, **call.kwargs)
        return self.history  # even if a callback has ended it between two steps

    def evaluate(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Evaluate as `keras.Model.evaluate` does; with several processes, only the chief prints and writes."""
        stock = stock_of(self, super(), "evaluate")
        with self._kte.running_call("evaluate", args, kwargs) as call:
            return stock(*call.args, **call.kwargs)

    def predict(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Predict as `keras.Model.predict` does, for all of the data on every process; only the chief prints."""
        stock = stock_of(self, super(), "predict")
        with self._kte.running_call("predict", args, kwargs) as call:
            return stock(*call.args, **call.kwargs)

    def save(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Save as `keras.Model.save` does; call it on every process, although only the chief writes."""
        model: Any = super()
        self._kte.write(model.save, filepath, args, kwargs)

    def save_weights(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Save as `keras.Model.save_weights` does; call it on every process, although only the chief writes."""
        model: Any = super()
        self._kte.write(model.save_weights, filepath, args, kwargs)

    def train_step(self: Any, *args: Any) -> Any:
        """Take one optimizer step.

        Args:
            *args: On TensorFlow `data`, one replica's part of the batch, which may be empty; on JAX `state` and
                `data`, the batch of all replicas. `data` is `x`, `(x, y)` or `(x, y, sample_weight)`.

        Returns:
            The metrics by name; on JAX also the next state. On TensorFlow, inside `fit`, `evaluate` and the
            `*_on_batch` methods, metrics are then read again over all replicas.
        """
        return self._kte.train_step(*args)

    def test_step(self: Any, *args: Any) -> Any:
        """Evaluate one batch; arguments and results are like those of `train_step`."""
        return self._kte.test_step(*args)

    def global_mean(self: Any, per_example: Tensor, sample_weight: Any = None) -> Any:
        """Return the mean over the whole batch of values of which, on TensorFlow, this replica has a part.

        For a `train_step` of your own. On TensorFlow call it inside its `GradientTape`, and then `minimize`. The
        value is the same on every replica, so it can be returned as a log; any function of it may be minimised.

        Args:
            per_example: Tensor whose first dimension is the batch; on TensorFlow this replica's part of it, which may
                be empty.
            sample_weight: Weights to multiply it by, with the same leading dimensions. As in Keras, the denominator
                is the number of elements, not the sum of the weights.

        Returns:
            A scalar tensor.
        """
        return self._kte.global_mean(per_example, sample_weight)

    def minimize(self: Any, loss: Tensor, variables: Any, optimizer: Optimizer, tape: Any) -> None:
        """Take one step of `optimizer` on a loss computed from `global_mean`, in a `train_step` on TensorFlow.

        In the order of `train_step`: scale, gradient, sum over replicas, unscale, check, clip, apply.

        Args:
            loss: Scalar tensor, computed inside `tape` from values of `global_mean`, including regularisers:
                `self.global_mean(sum(network.losses))`.
            variables: The variables to update.
            optimizer: A Keras optimizer, made inside the model's `strategy_scope()`. There may be several.
            tape: The `tf.GradientTape` that watched.

        Under `loss_scale` every call is checked separately: an inf in one network's gradients skips only that
        network's update. All optimizers share one scale, for which every call counts as a step: with two
        optimizers, `LossScale(growth_steps=4000)` grows as often as the default does with one optimizer.

        Under `gradient_accumulation_steps` each optimizer has its own window, which counts its calls.

        Raises:
            ScopeError: If `optimizer` was made outside the model's `strategy_scope()`.
            ArgumentError: On JAX, where a step returns its gradients' effect as a state.
        """
        self._kte.minimize(loss, variables, optimizer, tape)

    def make_train_function(self: Any, force: bool = False) -> Any:
        """Build the function that `fit` calls for one execution; Keras 2 wants it returned."""
        if self.train_function is None or force:
            self._kte.compiled_state()
            self.train_function = self._kte.make_train_function()
        return self.train_function

    def make_test_function(self: Any, force: bool = False) -> Any:
        """Build the function that `evaluate` calls for one execution; Keras 2 wants it returned."""
        if self.test_function is None or force:
            self._kte.compiled_state()
            self.test_function = self._kte.make_test_function()
        return self.test_function

    def make_predict_function(self: Any, force: bool = False) -> Any:
        """Build the function that `predict` calls for one execution; Keras 2 wants it returned."""
        if self.predict_function is None or force:
            model: Any = super()
            self.predict_function = self._kte.make_predict_function(
                functools.partial(model.make_predict_function, force)
            )
        return self.predict_function


def is_own_step(step: object) -> bool:
    """Return whether a bound `train_step` or `test_step`, or the function, is this package's own."""
    function = getattr(step, "__func__", step)
    if getattr(function, "__name__", "") == "predict_step":
        return str(function.__module__).startswith(("keras.", "tf_keras.", "keras_tpu_ext."))
    return function in (ExactModel.train_step, ExactModel.test_step)


def _become_functional(model: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    """Let a new model be a functional one if the arguments of its `__init__` are inputs and outputs.

    When `Sub(inputs, outputs)` is called for a subclass of `keras.Model`, Keras swaps `Model` for `Functional` in the
    bases of `Sub` and of every class above it. A class that is both used like this and subclassed in the classic way,
    as `TPUModel` is, then breaks: `class Mine(TPUModel)` suddenly requires inputs and outputs. Here the single object
    gets its own class instead, and `Sub` is unchanged.
    """
    has_both = len(args) == 2 or ("outputs" in kwargs and (len(args) == 1 or "inputs" in kwargs))
    if has_both and not isinstance(model, Functional):
        cls: Any = type(model)
        model.__class__ = _functional_variant(cls)


@functools.cache
def _functional_variant(cls: type[Model]) -> type[Model]:
    """Return a subclass of `cls` and `Functional` with the name of `cls`, in code and in saved files."""
    members = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    variant = type(cls.__name__, (cls, Functional), {**members, **functional_members(cls)})
    package, separator, name = keras.saving.get_registered_name(cls).rpartition(">")
    if separator:
        register = keras.saving.register_keras_serializable(package=package, name=name)
        register(variant)
        register(cls)  # both save under the name, and it loads `cls`, which becomes the variant by its arguments
    return variant
