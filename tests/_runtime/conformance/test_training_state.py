import numpy as np

import keras_tpu_ext as kte
from keras_tpu_ext import _runtime

training_state = _runtime.training_state


def test_what_was_read_is_assigned_to_another_model(make, rows):
    def fitted(scale):
        model = make(kte.TPUModel)
        model.fit(rows[0] * scale, rows[1], batch_size=4, verbose=0)
        return model

    one, other = fitted(1.0), fitted(2.0)
    saved = training_state.read(one, on_host=True)
    assert {"weight", "optimizer"} <= {variable.role for variable in saved}
    assert [variable.role for variable in saved] == [role for role, _ in training_state.all_variables(one)]
    training_state.assign(other, saved)
    for got, expected in zip(other.get_weights(), one.get_weights(), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_all_state_of_a_plain_model_is_kept(plain):
    assert training_state.not_kept(plain) == ""


def test_one_process_gathers_its_own_number(trained):
    assert training_state.all_gather_int(trained, 7) == [7]
