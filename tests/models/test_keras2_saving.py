"""A `TPUModel` in the three formats that Keras 2 saves in."""

import contextlib

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte

pytestmark = [pytest.mark.runtimes("keras2_tf"), pytest.mark.gate_on("keras2_tf215")]

FILES = {"keras": "model.keras", "h5": "model.h5", "tf": "model"}
NOT_KEPT = (
    "will not keep the loss_scale and gradient_accumulation_steps of this model: H5 files and SavedModels keep "
)
X, Y = np.ones((8, 6), "float32"), np.ones((8, 1), "float32")


def functional():
    inputs = keras.Input((6,))
    return kte.TPUModel(inputs, keras.layers.Dense(1)(inputs))


@keras.saving.register_keras_serializable("tests")
class SubclassedOnKeras2(kte.TPUModel):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file:UserWarning")
@pytest.mark.parametrize(
    ("build", "save_format"),
    [
        pytest.param(functional, "keras", marks=pytest.mark.exhaustive),  # test_tpu_model.py has it
        (functional, "h5"),
        pytest.param(functional, "tf", marks=pytest.mark.exhaustive),
        pytest.param(SubclassedOnKeras2, "keras", marks=pytest.mark.exhaustive),
        (SubclassedOnKeras2, "tf"),
    ],
)
def test_it_loads_as_itself_and_goes_on_training(tmp_path, scope3, build, save_format):
    with scope3:
        model = build()
        model.compile("adam", "mse", loss_scale="dynamic", gradient_accumulation_steps=2)
    model.fit(X, Y, batch_size=2, verbose=0)
    path = str(tmp_path / FILES[save_format])
    keeps_all = save_format == "keras"
    with contextlib.nullcontext() if keeps_all else pytest.warns(UserWarning, match=NOT_KEPT) as caught:
        model.save(path, save_format=save_format)
    if not keeps_all:
        assert [warning.filename for warning in caught if "will not keep" in str(warning.message)] == [__file__]
    loaded = keras.models.load_model(path)
    assert isinstance(loaded, kte.TPUModel)
    assert type(loaded) is type(model)
    np.testing.assert_allclose(loaded.predict(X, verbose=0), model.predict(X, verbose=0), rtol=1e-5)
    # What `compile` of a TPUModel adds is in .keras files only.
    assert loaded._kte.state.accumulation_steps == (2 if save_format == "keras" else 1)
    loaded.fit(X, Y, batch_size=2, verbose=0)
