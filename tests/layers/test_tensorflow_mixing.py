"""Who is mixed with whom on replicas of `tf.distribute`, whose parts may be even or odd, and static or not."""

import numpy as np
import pytest
import tensorflow as tf

import keras_tpu_ext as kte
import plain_augmentation as plain

pytestmark = [pytest.mark.runtimes("keras3_tf", "keras2_tf"), pytest.mark.gate_on("keras3_tf")]

PLAIN = {kte.layers.MixUp: plain.mix_up, kte.layers.CutMix: plain.cut_mix}


@pytest.mark.parametrize(
    "layer_class", [kte.layers.MixUp, pytest.param(kte.layers.CutMix, marks=pytest.mark.exhaustive)]
)
@pytest.mark.parametrize("is_static", [True, False])
@pytest.mark.parametrize(
    ("count", "replicas"),
    [
        pytest.param(16, 8, marks=pytest.mark.exhaustive),
        pytest.param(16, 2, marks=pytest.mark.exhaustive),
        pytest.param(24, 8, marks=pytest.mark.exhaustive),
        (6, 2),
    ],
)
def test_an_example_is_mixed_if_its_neighbour_is_on_its_replica(layer_class, is_static, count, replicas):
    images, classes = plain.digits(count)
    labels, rows = plain.one_hot(classes), count // replicas
    scope = kte.strategy_scope(require="cpu", replicas=replicas)
    with scope:
        layer = layer_class(alpha=1.0, seed=3)
        layer.build([(None, 8, 8, 1), (None, 10)])
    seen = []

    def of_replica(images, labels):
        seen.append(images.shape[0])
        return layer((images, labels), training=True)

    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).batch(count, drop_remainder=is_static)
    batch = next(iter(scope.strategy.experimental_distribute_dataset(dataset)))
    step = tf.function(lambda x, y: scope.strategy.run(of_replica, (x, y)))
    if not is_static:
        step = tf.function(
            step.python_function, input_signature=scope.strategy.experimental_distribute_dataset(dataset).element_spec
        )
    got, got_labels = (
        np.concatenate([part.numpy() for part in scope.strategy.experimental_local_results(values)])
        for values in step(*batch)
    )
    assert set(seen) == {rows if is_static else None}
    expected, expected_labels = PLAIN[layer_class](layer, images, labels, 0)
    for n in range(count):
        if (n ^ 1) // rows != n // rows:  # its neighbour is elsewhere
            expected[n], expected_labels[n] = images[n], labels[n]
    np.testing.assert_allclose(got, expected, atol=1e-4)  # the quantiles are off by up to 1e-6
    np.testing.assert_allclose(got_labels, expected_labels, atol=1e-5)
    assert int(layer.calls.numpy()) == 1
