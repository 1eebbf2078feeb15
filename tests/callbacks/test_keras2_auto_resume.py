"""`AutoResume` on Keras 2, where it does not work yet."""

import numpy as np
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext.errors import NotForThisKerasError
from kind_of_keras import keras

pytestmark = [pytest.mark.runtimes("keras2_tf"), pytest.mark.gate_on("keras2_tf221")]


def test_it_says_what_to_write(tmp_path):
    with kte.strategy_scope(require="cpu"):
        model = keras.Sequential([keras.layers.InputLayer((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.ones((8, 4))
    before = model.get_weights()
    with pytest.raises(
        NotForThisKerasError, match=r"works with Keras 3, and this process is on Keras 2.*Install keras>="
    ):
        model.fit(x, x[:, :1], verbose=0, callbacks=[kte.callbacks.AutoResume(tmp_path)])
    for weight, its in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, its)
    assert not list(tmp_path.iterdir())
