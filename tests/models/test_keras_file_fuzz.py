"""`.keras` files of `TPUModel` whose content is nearly right: Keras reads them, and calls what this package adds.

What is loaded predicts and trains; else an error comes of this package or of Keras, and nothing is imported.
"""

import json
import traceback
import zipfile

import keras
import numpy as np
import pytest
from hypothesis import strategies as st

import keras_tpu_ext as kte
from fuzzing import Tally, each, mutated

pytestmark = [pytest.mark.runtimes("keras3_jax"), pytest.mark.filterwarnings("ignore::UserWarning")]  # of Keras
X = np.ones((4, 3), "float32")


def saved(path):
    inputs = keras.Input((3,))
    model = kte.TPUModel(inputs, keras.layers.Dense(2, name="dense")(inputs))
    model.compile("sgd", "mse", loss_scale=kte.LossScale(initial=8.0), gradient_accumulation_steps=2)
    model.save(path)
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write(path, members, config):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, json.dumps(config) if name == "config.json" else content)


def outcome_of(path, members, config):
    write(path, members, config)
    try:
        model = keras.saving.load_model(path)
    except kte.errors.KteError:
        return "refused by this package"
    except Exception as error:
        refusal = error
    else:
        refusal = None
    if refusal is not None:
        *_, last = traceback.walk_tb(refusal.__traceback__)
        assert not last[0].f_globals["__name__"].startswith("keras_tpu_ext"), refusal
        return "refused by Keras"
    if isinstance(model, kte.TPUModel) and model.built and model.inputs[0].shape == (None, 3):
        assert np.isfinite(model.predict(X, verbose=0)).all()
    return "loaded"


def test_mutated_files(tmp_path, pytestconfig):
    path = tmp_path / "files" / "model.keras"
    path.parent.mkdir()
    members = saved(path)
    config = json.loads(members["config.json"])
    outcome_of(path, members, config)  # imports what Keras imports
    tally = Tally(".keras files", tmp_path, ["files"])
    compiled = mutated(config["compile_config"]).map(lambda value: {**config, "compile_config": value})
    each(
        pytestconfig,
        mutated(config) | st.one_of(compiled),
        tally,
        lambda value: outcome_of(path, members, value),
        in_gate=30,
    )
    assert tally.counts["loaded"]
    assert tally.counts["refused by Keras"]
