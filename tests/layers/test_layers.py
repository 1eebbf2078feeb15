"""What holds for every layer of the package; a new one takes part with a row in catalogue.py."""

import keras
import pytest

import keras_tpu_ext as kte
from kind_of_keras import IS_KERAS2
from layers.catalogue import LAYERS, OF_PAIRS, names, one_of_each
from layers.checks import check_layer


def test_every_layer_has_a_row():
    public = {
        value
        for value in vars(kte.layers).values()
        if isinstance(value, type) and issubclass(value, keras.layers.Layer)
    }
    assert public == {row.layer for row in LAYERS} | OF_PAIRS | ({kte.layers.Dropout} if IS_KERAS2 else set())


@pytest.mark.gate_on("keras3_tf", "keras2_tf221")
@pytest.mark.parametrize(
    "row",
    one_of_each(pytest.mark.gate_on("keras3_tf"), but=(kte.layers.RandomAffine, kte.layers.RandomErasing)),
    ids=names(LAYERS),
)
def test_a_layer_is_one_as_keras_wants_it(row, tmp_path):
    check_layer(row, tmp_path)
