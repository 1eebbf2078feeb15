"""What a case means on Keras 2 that has no such thing: the nearest, for the reference and `TPUModel` alike."""

from __future__ import annotations

import types
from typing import Any

import tensorflow as tf

# Keras 2 has two kinds of mean, which are one.
REDUCTIONS = {"mean": "auto", "mean_with_sample_weight": "sum_over_batch_size"}

ops = types.SimpleNamespace(mean=tf.reduce_mean, square=tf.square, convert_to_numpy=lambda value: value.numpy())

# Of these the old kind is taken, unless there is upkeep, which it knows nothing of.
_LEGACY = {"momentum": "SGD", "Nadam": "Nadam", "Adagrad": "Adagrad"}


def optimizer_class(name: str, upkeep: dict[str, Any]) -> Any:
    """Return the class that a case means by an optimizer's name; LAMB is that of TensorFlow Addons if it is there."""
    optimizers = tf.keras.optimizers
    if name == "Nadam" and upkeep:  # the new one counts in Python: another one in a graph, and on several replicas
        name = "AdamW"
    if name in _LEGACY and not upkeep:
        return getattr(optimizers.legacy, _LEGACY[name])
    if name == "Lamb":
        return _lamb if _addons() is not None else optimizers.AdamW
    return getattr(optimizers, {"momentum": "SGD"}.get(name, name))


def _lamb(learning_rate: float, epsilon: float, **options: Any) -> Any:
    upkeep = {name: options.pop(name, None) for name in ("use_ema", "ema_momentum", "ema_overwrite_frequency")}
    options["weight_decay"] = options.pop("weight_decay", 0.0)
    made = _addons().optimizers.LAMB(learning_rate, epsilon=epsilon, **options)
    return _addons().optimizers.MovingAverage(made, average_decay=0.5) if upkeep["use_ema"] else made


def _addons() -> Any:
    try:
        from keras_tpu_ext.addons import tfa
    except ImportError:
        return None
    return tfa


def loss_scaling(inner: Any, initial_scale: float, dynamic_growth_steps: int = 2000) -> Any:
    """Return `inner` within Keras's own loss scaling."""
    return tf.keras.mixed_precision.LossScaleOptimizer(
        inner, initial_scale=initial_scale, dynamic_growth_steps=dynamic_growth_steps
    )


def accumulating(window: int) -> Any:
    """Return a `Model` that takes a step on the mean gradient of `window` batches; run it eagerly."""

    class Accumulating(tf.keras.Model):
        _seen = 0

        def train_step(self, data: Any) -> Any:
            x, y, sample_weight = tf.keras.utils.unpack_x_y_sample_weight(data)
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                loss = self.compute_loss(x, y, y_pred, sample_weight)
                scales = isinstance(self.optimizer, tf.keras.mixed_precision.LossScaleOptimizer)
                scaled = self.optimizer.get_scaled_loss(loss) if scales else loss
            gradients = tape.gradient(scaled, self.trainable_variables)
            if scales:
                gradients = self.optimizer.get_unscaled_gradients(gradients)
            dense = [tf.convert_to_tensor(gradient) / window for gradient in gradients]
            if self._seen % window:
                dense = [a + b for a, b in zip(self._sums, dense, strict=True)]
            self.__dict__["_sums"] = dense
            self.__dict__["_seen"] = self._seen + 1
            if self._seen % window == 0:
                self.optimizer.apply_gradients(zip(dense, self.trainable_variables, strict=True))
            return self.compute_metrics(x, y, y_pred, sample_weight)

    return Accumulating
