"""A `train_step` of the user's own, as it is written on the runtime at hand."""

from __future__ import annotations

import keras

from keras_tpu_ext._runtime.common.select import chosen


class _OnTensorFlow(keras.Model):
    tracks = False

    def train_step(self, data):
        import tensorflow as tf

        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        if self.tracks:
            self._loss_tracker.update_state(loss)
        return {"loss": loss}


class _OnKeras2(keras.Model):
    tracks = False

    def train_step(self, data):
        import tensorflow as tf

        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((y - self(x, training=True)) ** 2)
        self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
        if self.tracks:
            self.compiled_loss._total_loss_mean.update_state(loss)
        return {"loss": loss}


class _OnJax(keras.Model):
    tracks = False

    def train_step(self, state, data):
        import jax

        trainable, non_trainable, optimizer, metrics = state
        x, y = data

        def loss_of(trainable):
            y_pred, after = self.stateless_call(trainable, non_trainable, x, training=True)
            return self.compute_loss(y=y, y_pred=y_pred), after

        (loss, non_trainable), gradients = jax.value_and_grad(loss_of, has_aux=True)(trainable)
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
        if self.tracks:
            with keras.StatelessScope(list(zip(self.metrics_variables, metrics, strict=True))) as scope:
                self._loss_tracker.update_state(loss)
            metrics = [scope.get_current_value(variable) for variable in self.metrics_variables]
        return {"loss": loss}, (trainable, non_trainable, optimizer, metrics)


_OWN = {"keras3_tf": _OnTensorFlow, "keras3_jax": _OnJax, "keras2_tf": _OnKeras2}[chosen()]


class OwnStep(_OWN):
    """A model whose step keeps Keras's loss tracker only where `tracks` is true, and then without a weight."""
