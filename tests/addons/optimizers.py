"""How each optimizer and learning rate schedule of TensorFlow Addons is tried: six steps of a dense layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from addons.tensorflow_addons_here import tfa
from addons.trial import Trial

keras = tf.keras
of = tfa.optimizers
legacy = keras.optimizers.legacy


def words(x: Any) -> Any:
    """Return numbers from embedded words, of which most are missing in a batch: their gradients are sparse."""
    signs = keras.layers.Lambda(lambda x: tf.cast(x[:, :2] * 4, tf.int32) % 50)(x)
    return keras.layers.Dense(2)(keras.layers.Flatten()(keras.layers.Embedding(50, 2)(signs)))


def plain(make: Callable[..., Any]) -> list[Trial]:
    """Try an optimizer as it is, and clipping sparse gradients of a scaled loss."""
    return [
        Trial(optimizer=lambda model: make()),
        Trial(words, optimizer=lambda model: make(clipnorm=0.1), ours={"loss_scale": 1024}, eagerly=True),
    ]


def averaged(model: Any) -> Any:
    """Return the weights once the averages are put in their place."""
    model.optimizer.assign_average_vars(model.trainable_variables)
    return model.get_weights()


def wrapping(make: Callable[..., Any], after: Callable[[Any], Any] = lambda model: []) -> list[Trial]:
    """Try an optimizer that wraps another one: clipping gradients of a scaled loss, dense and sparse ones."""
    return [
        Trial(optimizer=lambda model: make(clipnorm=0.1), ours={"loss_scale": 1024}, after=after),
        Trial(words, optimizer=lambda model: make(global_clipnorm=0.1), after=after, eagerly=True),
    ]


def schedule(make: Callable[[], Any]) -> list[Trial]:
    return [Trial(optimizer=lambda model: keras.optimizers.SGD(make()), eagerly=True)]


def each_layer_its_own(model: Any) -> Any:
    """Return a `MultiOptimizer` with another optimizer for each of two layers."""
    first, second = [layer for layer in model.layers if layer.weights]
    return of.MultiOptimizer([(legacy.SGD(0.1), first), (legacy.Adam(0.01), [second])])


def two_layers(x: Any) -> Any:
    return keras.layers.Dense(2)(keras.layers.Dense(3)(x))


def decayed(base: Any) -> Callable[..., Any]:
    """Return a maker of `base` with decoupled weight decay, by inheritance as its documentation has it."""

    class Decayed(of.DecoupledWeightDecayExtension, base):
        def __init__(self, weight_decay: float, *args: Any, **kwargs: Any) -> None:
            super().__init__(weight_decay, *args, **kwargs)

    return lambda **options: Decayed(0.01, learning_rate=0.1, **options)


def own_average() -> Any:
    """Return an `AveragedOptimizerWrapper` that keeps the greatest of each weight."""

    class Greatest(of.AveragedOptimizerWrapper):
        def average_op(self, var: Any, average_var: Any, local_apply_state: Any) -> Any:
            return average_var.assign(tf.maximum(average_var, var))

    return Greatest


def own_optimizer() -> Any:
    """Return a `KerasLegacyOptimizer` that goes down by the sign of the gradient."""

    class Signs(of.KerasLegacyOptimizer):
        def __init__(self, name: str = "Signs", **kwargs: Any) -> None:
            super().__init__(name, **kwargs)

        def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
            return var.assign_sub(0.01 * tf.tanh(grad))

        def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any, apply_state: Any = None) -> Any:
            return self._resource_scatter_add(var, indices, -0.01 * tf.tanh(grad))

    return Signs


OPTIMIZERS: dict[str, list[Trial]] = {
    "AdaBelief": plain(lambda **options: of.AdaBelief(0.01, **options)),
    "AdamW": plain(lambda **options: of.AdamW(0.01, 0.01, **options)),
    "AveragedOptimizerWrapper": wrapping(lambda **options: own_average()(legacy.SGD(0.1), **options), averaged),
    "COCOB": [
        Trial(optimizer=lambda model: of.COCOB()),
        Trial(optimizer=lambda model: of.COCOB(clipnorm=0.1), ours={"loss_scale": 1024}, eagerly=True),
        Trial(
            words,
            optimizer=lambda model: of.COCOB(),
            eagerly=True,
            otherwise="It cannot train an `Embedding` anywhere.",
        ),
    ],
    "ConditionalGradient": plain(lambda **options: of.ConditionalGradient(0.9, 0.1, **options)),
    "CyclicalLearningRate": schedule(lambda: of.CyclicalLearningRate(0.01, 0.1, 2.0, lambda x: 0.9)),
    "DecoupledWeightDecayExtension": plain(decayed(legacy.SGD)),
    "ExponentialCyclicalLearningRate": schedule(
        lambda: of.ExponentialCyclicalLearningRate(0.01, 0.1, 2.0, scale_mode="cycle", gamma=0.9)
    ),
    "KerasLegacyOptimizer": plain(lambda **options: own_optimizer()(**options)),
    "LAMB": plain(lambda **options: of.LAMB(0.01, **options)),
    "LazyAdam": plain(lambda **options: of.LazyAdam(0.01, **options)),
    "Lookahead": wrapping(lambda **options: of.Lookahead(legacy.Adam(0.01), 2, **options)),
    "MovingAverage": wrapping(lambda **options: of.MovingAverage(legacy.SGD(0.1), 0.5, **options), averaged),
    "MultiOptimizer": [
        Trial(two_layers, optimizer=each_layer_its_own, ours={"loss_scale": 1024}),
    ],
    "NovoGrad": plain(lambda **options: of.NovoGrad(0.01, **options)),
    "ProximalAdagrad": plain(lambda **options: of.ProximalAdagrad(0.1, **options)),
    "RectifiedAdam": plain(lambda **options: of.RectifiedAdam(0.01, total_steps=6, **options)),
    "SGDW": plain(lambda **options: of.SGDW(0.01, 0.1, 0.9, **options)),
    "SWA": wrapping(lambda **options: of.SWA(legacy.SGD(0.1), 1, 2, **options), averaged),
    "Triangular2CyclicalLearningRate": schedule(lambda: of.Triangular2CyclicalLearningRate(0.01, 0.1, 2.0)),
    "TriangularCyclicalLearningRate": schedule(lambda: of.TriangularCyclicalLearningRate(0.01, 0.1, 2.0)),
    "Yogi": plain(lambda **options: of.Yogi(0.01, **options)),
    "extend_with_decoupled_weight_decay": plain(
        lambda **options: of.extend_with_decoupled_weight_decay(legacy.Adam)(
            weight_decay=0.01, learning_rate=0.01, **options
        )
    ),
}
