"""The drop-in's functions give what TensorFlow's give: values, dtypes and gradients, traced by `jax.jit`."""

import functools
import random

import jax
import jax.numpy as jnp
import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.util import tf_export

from dropin.function_cases import CASES, OUT_OF_REACH, RANDOM
from dropin.tiers import mostly_exhaustive
from keras_tpu_ext.dropin.errors import OutOfReachError
from keras_tpu_ext.dropin.functions import ROOMS, TABLE

pytestmark = pytest.mark.runtimes("keras3_jax")


def of_tensorflow(name):
    return functools.reduce(getattr, name.split("."), tf)


def is_array(value):
    return isinstance(value, np.ndarray)


def is_float(value):
    return np.dtype(getattr(value.dtype, "as_numpy_dtype", value.dtype)).kind == "f"


def arrays_of(case):
    return [leaf for leaf in jax.tree.leaves(case[:2]) if is_array(leaf)]


def called(function, case, arrays):
    """Return the leaves of the result, with these arrays in the place of the case's."""
    rest = iter(arrays)
    args, kwargs = jax.tree.map(lambda leaf: next(rest) if is_array(leaf) else leaf, case[:2])
    return jax.tree.leaves(function(*args, **kwargs))


def weighted(outputs, reduce_sum):
    """Return a number that depends on every float of the outputs."""
    floats = [output for output in outputs if is_float(output)]
    return sum(reduce_sum(output * weights_like(output)) for output in floats) if floats else None


def weights_like(output):
    shape = tuple(output.shape)
    dtype = getattr(output.dtype, "as_numpy_dtype", output.dtype)
    return np.cos(np.arange(np.prod(shape))).reshape(shape).astype(dtype)


def expected(name, case):
    """Return TensorFlow's outputs and gradients, the latter None where there is none to compare."""
    tensors = [tf.constant(array) for array in arrays_of(case)]
    floats = [tensor for tensor in tensors if tensor.dtype.is_floating]
    with tf.GradientTape() as tape:
        tape.watch(floats)
        outputs = called(of_tensorflow(name), case, tensors)
        outputs = [tf.convert_to_tensor(output) for output in outputs]
        total = weighted(outputs, tf.reduce_sum) if case.gradient else None
    if total is None or not floats:
        return [output.numpy() for output in outputs], None
    gradients = tape.gradient(total, floats, unconnected_gradients="zero")
    return [output.numpy() for output in outputs], [tf.convert_to_tensor(gradient).numpy() for gradient in gradients]


def close(ours, theirs, case):
    assert [output.dtype for output in ours] == [jax.dtypes.canonicalize_dtype(each.dtype) for each in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == other.shape
        one, other = (one, other) if case.signs else (np.abs(one), np.abs(other))
        np.testing.assert_allclose(one, other, rtol=case.rtol, atol=case.rtol, err_msg=str(case[:2]))


def traced(function, cases):
    """Return what TensorFlow's function gives in one trace of JAX; what gets no array, the table's."""
    ours = [of_tensorflow(function) if arrays_of(case) else TABLE[function] for case in cases]

    @jax.jit
    def all_cases(arrays):
        return [
            list(map(jnp.asarray, called(function, case, of_case)))
            for function, case, of_case in zip(ours, cases, arrays, strict=True)
        ]

    return all_cases([arrays_of(case) for case in cases])


@pytest.mark.parametrize("name", CASES)
def test_it_gives_what_tensorflow_gives(name):
    wanted = [expected(name, case._replace(gradient=False))[0] for case in CASES[name]]
    for case, ours, theirs in zip(CASES[name], traced(name, CASES[name]), wanted, strict=True):
        close(ours, theirs, case)


def gradients_of(name, case, arrays):
    places = [place for place, array in enumerate(arrays) if is_float(array)]

    def total(floats):
        replaced = list(arrays)
        for place, value in zip(places, floats, strict=True):
            replaced[place] = value
        return weighted([jnp.asarray(output) for output in called(TABLE[name], case, replaced)], jnp.sum)

    return jax.grad(total)([arrays[place] for place in places])


# In the gate: what has a corner, and what has a gradient of its own.
GRADIENTS = """math.abs math.maximum math.multiply_no_nan math.reduce_max math.l2_normalize math.xlogy nn.relu6
    nn.selu clip_by_norm nn.conv2d_transpose nn.moments nn.softmax_cross_entropy_with_logits nn.max_pool gather"""


@pytest.mark.parametrize("name", mostly_exhaustive(CASES, GRADIENTS.split()))
def test_its_gradient_is_tensorflows(name):
    wanted = [(case, gradients) for case in CASES[name] if (gradients := expected(name, case)[1]) is not None]
    arrays = [arrays_of(case) for case, _ in wanted]

    @jax.jit
    def all_cases(arrays):
        return [gradients_of(name, case, of) for (case, _), of in zip(wanted, arrays, strict=True)]

    for ours, (case, theirs) in zip(all_cases(arrays), wanted, strict=True):
        close(ours, theirs, case)


def in_bfloat16(case):
    def lower(leaf):
        return leaf.astype(ml_dtypes.bfloat16) if is_array(leaf) and leaf.dtype == "float32" else leaf

    return case._replace(**dict(zip(("args", "kwargs"), jax.tree.map(lower, case[:2]), strict=True)))


def expected_or_none(name, case):
    try:
        return expected(name, case._replace(gradient=False))[0]
    except (tf.errors.OpError, TypeError, ValueError):
        return None  # TensorFlow cannot do this in bfloat16


@pytest.mark.parametrize(
    "name",
    mostly_exhaustive([name for name in CASES if name != "print"], ["math.add", "math.reduce_mean", "nn.moments"]),
)
def test_bfloat16_stays_what_it_is_in_tensorflow(name):
    cases = [in_bfloat16(case) for case in CASES[name] if any(map(is_float, arrays_of(case)))]
    cases = [(case, want) for case in cases if (want := expected_or_none(name, case)) is not None]
    for ours, (case, theirs) in zip(traced(name, [case for case, _ in cases]), cases, strict=True):
        assert [output.dtype for output in ours] == [jax.dtypes.canonicalize_dtype(each.dtype) for each in theirs]
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(
                *(np.asarray(each, "complex64") for each in (one, other)), rtol=0.03, atol=0.03, err_msg=str(case[:2])
            )


def test_print_prints_what_is_computed(capfd):
    jax.jit(lambda x: TABLE["print"]("{x}", x + 1, sep=": "))(np.ones(2, "float32"))
    jax.effects_barrier()
    assert "{x}: [2. 2.]" in capfd.readouterr().out


@pytest.mark.parametrize("name", OUT_OF_REACH)
def test_what_depends_on_data_is_told(name):
    for case in OUT_OF_REACH[name]:
        with pytest.raises(OutOfReachError, match=r"(?s)cannot run on JAX: .*Write instead: "):
            jax.jit(lambda arrays, case=case: called(TABLE[name], case, arrays))(arrays_of(case))


@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_have_the_distribution(name):
    case = RANDOM[name]
    (ours,) = called(TABLE[name], case, [jnp.asarray(array) for array in arrays_of(case)])
    (theirs,) = called(of_tensorflow(name), case, [tf.constant(array) for array in arrays_of(case)])
    assert ours.shape == theirs.shape
    assert ours.dtype == jax.dtypes.canonicalize_dtype(theirs.dtype.as_numpy_dtype)
    ours, theirs = np.asarray(ours, "float32"), theirs.numpy().astype("float32")
    np.testing.assert_allclose(ours.mean(), theirs.mean(), atol=0.15)
    np.testing.assert_allclose(ours.std(), theirs.std(), atol=0.15)


class Noise(keras.layers.Layer):
    def __init__(self, only_in_training=False):
        super().__init__()
        self.only_in_training = only_in_training

    def call(self, x, training=False):
        if self.only_in_training and not training:
            return x
        return x + TABLE["random.normal"]([x.shape[0], 2])


def noise_model(*layers):
    inputs = keras.Input((2,), 4)
    outputs = inputs
    for layer in layers:
        outputs = layer(outputs)
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse")
    return model


def losses(model, count=3):
    zeros = np.zeros((4, 2), "float32")
    return [float(model.train_on_batch(zeros, zeros)) for _ in range(count)]


@pytest.mark.parametrize("layers", [1, 2])
def test_a_model_draws_new_numbers_in_each_step(layers):
    model = noise_model(*[Noise() for _ in range(layers)])
    assert len(set(losses(model))) == 3
    first, second = (model.predict(np.zeros((4, 2)), verbose=0) for _ in range(2))
    assert not np.allclose(first, second)
    assert len(np.unique(first)) == 8


def test_a_subclassed_model_draws_new_numbers_in_each_step():
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.noise = Noise()

        def call(self, x):
            return self.noise(x)

    model = Model()
    model.compile("sgd", "mse")
    zeros = np.zeros((8, 2), "float32")
    history = model.fit(zeros, zeros, 4, epochs=3, verbose=0, shuffle=False).history["loss"]
    assert len(set(history)) == 3


def test_numbers_that_would_be_the_same_in_each_step_are_told():
    with keras.StatelessScope(), pytest.raises(OutOfReachError, match="same numbers in each step"):
        TABLE["random.normal"]([2])


def test_a_layer_draws_in_training_only():
    state = random.getstate()
    model = noise_model(Noise(only_in_training=True))
    assert random.getstate() == state
    assert len(set(losses(model))) == 3


NAMES = {name for room in ROOMS for name in room.FUNCTIONS}


def test_every_function_has_a_case():
    assert set(CASES) | set(OUT_OF_REACH) | set(RANDOM) == NAMES
    assert len(NAMES) >= 230


def test_keys_are_canonical_names():
    names = {name: tf_export.get_canonical_name_for_symbol(of_tensorflow(name)) for name in NAMES}
    assert names == {name: name for name in NAMES}
