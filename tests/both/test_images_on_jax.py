"""On JAX `fit` trains on images that `kte.data.images` reads with TensorFlow beside it."""

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte

pytest.importorskip("tensorflow")


def test_it_trains_as_on_arrays(tmp_path, scope8):
    from sample_images import rows, write_crops

    write_crops(tmp_path, 11)
    dataset = kte.data.images(tmp_path, batch_size=8, size=16)
    kte.data.write_tfrecords(tmp_path, tmp_path / "out", shards=2, shuffle=False, progress=False)
    x, y = rows(dataset)
    shards = rows(kte.data.tfrecords(tmp_path / "out", batch_size=8, size=16))
    assert sorted(shards[1]) == sorted(y)
    inputs = keras.Input((16, 16, 3))
    outputs = keras.layers.Dense(2)(keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(inputs)))
    plain = keras.Model(inputs, outputs)
    with scope8:
        model = kte.TPUModel.from_model(keras.models.clone_model(plain))
    model.set_weights(plain.get_weights())
    histories = []
    for made, data in ((plain, {"x": x, "y": y, "batch_size": 8}), (model, {"x": dataset})):
        made.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        histories.append(made.fit(**data, shuffle=False, epochs=2, verbose=0).history["loss"])
    np.testing.assert_allclose(histories[1], histories[0], rtol=1e-4)  # float32 adds in another order on replicas
