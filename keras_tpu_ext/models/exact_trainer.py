"""The exact step of Keras models: that of `TPUModel` and of every plain model in a scope."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from keras_tpu_ext import _arguments as check
from keras_tpu_ext import _runtime
from keras_tpu_ext._schema import shown
from keras_tpu_ext.errors import ArgumentError, FromLogitsWarning
from keras_tpu_ext.models.logits_check import probabilities_taken_for_logits
from keras_tpu_ext.models.loss_scale import LossScale, resolve_loss_scale

_KEY = "keras_tpu_ext"
_DEFAULTS = {"loss_scale": None, "gradient_accumulation_steps": 1, "steps_per_execution": 1, "auto_scale_loss": True}


class ExactTrainer(_runtime.TrainStep):
    """A mixin for `keras.Model` that trains, evaluates and predicts on N replicas as on one device."""

    _own_compile_config: Mapping[str, Any] = MappingProxyType({})

    def compile(
        self,
        *args: Any,
        loss_scale: float | str | LossScale | None = None,
        gradient_accumulation_steps: int = 1,
        **kwargs: Any,
    ) -> None:
        """Configure the model for training, with all the arguments of `keras.Model.compile` and two more.

        Call it inside the scope that the model was built in, or after that scope. A softmax (or sigmoid) output whose
        loss has `from_logits=True` causes a `FromLogitsWarning`: such a model may hardly learn. (Keras repairs this
        if it can see the softmax: in float32 on TensorFlow, but not under a mixed policy.)

        Args:
            *args: Arguments of `keras.Model.compile`.
            loss_scale: `None` (default) does not scale the loss, except under `mixed_float16`, where it means
                `"dynamic"`; a positive number is a fixed scale; `"dynamic"` is `LossScale()`; or a `LossScale`. With
                loss scaling, a step whose gradients are not all finite is skipped. A `LossScaleOptimizer` that you
                pass does the scaling itself. On Keras 2 under `mixed_float16`, the optimizer of a model with its own
                `train_step` is wrapped in one, as Keras does.
            gradient_accumulation_steps: Number of batches whose gradients make one step, each weighted by its number
                of examples; the last window of an epoch may have fewer batches. Defaults to 1. The argument of the
                same name of a Keras optimizer works as in Keras: its windows weight batches equally and continue
                across the end of an epoch.
            **kwargs: Further arguments of `keras.Model.compile`. `steps_per_execution` also accepts `"auto"`: it then
                grows in the first epochs of `fit` until one execution takes 0.2 to 1 second. Results do not change,
                and an execution never crosses the end of an epoch. It stays at 1 if a callback overrides a batch hook
                (a class attribute `wants_every_batch = False` in the callback says that it need not see every batch),
                with `run_eagerly`, in `predict`, and if several processes train together.

        Raises:
            ArgumentError: If one of these is invalid, or contradicts the optimizer.
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
        self._own_compile_config = {name: value for name, value in own.items() if value != _DEFAULTS[name]}
        for message in probabilities_taken_for_logits(self):
            warnings.warn(message, FromLogitsWarning, stacklevel=2)

    def get_compile_config(self) -> dict[str, Any]:
        """Return the serialized arguments of `compile`; those unknown to Keras are stored with the optimizer's.

        Keras ignores them there, so it can load the file without this package.
        """
        serialize = _runtime.keras.saving.serialize_keras_object
        config, own = super().get_compile_config(), serialize(dict(self._own_compile_config))
        if not own or self.optimizer is None:
            return config
        if isinstance(self.optimizer, list):  # a list has no place for them
            return {**config, **own}
        config["steps_per_execution"] = self.steps_per_execution
        config["optimizer"] = {**serialize(self.optimizer), _KEY: own}  # Keras 2 may have kept a name
        return config

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compile the model as when it was saved.

        Raises:
            ArgumentError: If what a file says of it is nothing that this package writes.
        """
        optimizer = config.get("optimizer") if isinstance(config, dict) else None
        own = optimizer.get(_KEY, {}) if isinstance(optimizer, dict) else {}
        if not (isinstance(config, dict) and isinstance(own, dict) and own.keys() <= _DEFAULTS.keys()):
            raise ArgumentError(
                f"the file's arguments of compile must be an object, and ours {', '.join(_DEFAULTS)}; got "
                f"{shown(config if optimizer is None else own)}. Load it with compile=False, and compile it anew."
            )
        super().compile_from_config({**config, **own})


class PlainTrainer(ExactTrainer):
    """The trainer of plain Keras models in a scope; it adopts what was made outside, if that can be exact."""

    _is_for_one_device = True

    def _check_compiled(self) -> None:
        self._kte_adopt()
        super()._check_compiled()


def _resolve_accumulation(steps: Any, optimizer: Any) -> int:
    """Return the number of batches that this package accumulates; an optimizer's own accumulation is left to it.

    Raises:
        ArgumentError: If `steps` is not a positive integer, or the optimizer accumulates too.
    """
    steps = check.integer("compile", "gradient_accumulation_steps", steps, example="4, or leave it out")
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    by_optimizer = getattr(inner, "gradient_accumulation_steps", None) or 1
    if steps != 1 and by_optimizer != 1:
        raise ArgumentError(
            f"gradient_accumulation_steps={steps} was given, and the optimizer says {by_optimizer}. "
            "Leave one of them out."
        )
    return steps


def _resolve_steps_per_execution(steps: Any) -> tuple[int, bool]:
    """Return the initial number of steps in an execution, and whether to tune it.

    Raises:
        ArgumentError: If `steps` is neither a positive integer nor `"auto"`.
    """
    if isinstance(steps, str) and steps == "auto":
        return 1, True
    what, example = '"auto" or an integer', '"auto", or leave it out'
    return check.integer("compile", "steps_per_execution", steps, what=what, example=example), False
