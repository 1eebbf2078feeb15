"""Keras's own test of a layer, for every layer of the package."""

import pytest
from keras.src import testing
from keras.src.utils import traceback_utils

from layers.catalogue import LAYERS, names, one_of_each

pytestmark = pytest.mark.runtimes("keras3_tf", "keras3_jax")


@pytest.fixture
def keras_test():
    """Yield a test case of Keras as it is between `setUp` and `tearDown`."""
    filtered = traceback_utils.is_traceback_filtering_enabled()
    case = testing.TestCase()
    case.setUp()
    yield case
    case.doCleanups()
    if filtered:
        traceback_utils.enable_traceback_filtering()


# Keras's test gives `fit` a generator, and lets it shuffle; some of the layers have nothing to train.
@pytest.mark.gate_on("keras3_tf")
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed, but will be ignored:UserWarning")
@pytest.mark.filterwarnings("ignore:The model does not have any trainable weights.:UserWarning")
@pytest.mark.parametrize("row", one_of_each(pytest.mark.exhaustive), ids=names(LAYERS))
def test_keras_finds_nothing_in_a_layer(keras_test, row):
    keras_test.run_layer_test(
        row.layer,
        init_kwargs=row.options,
        input_shape=row.shape,
        input_dtype=row.dtype,
        call_kwargs=row.call,
        expected_output_shape=row.output_shape or row.shape,
        expected_num_trainable_weights=row.trainable,
        expected_num_non_trainable_weights=row.non_trainable,
        expected_num_seed_generators=int(row.draws),
        expected_num_losses=0,
        supports_masking=row.masks,
    )
