"""What `migrate` writes for a function gives what TensorFlow's function, or that of old Keras, gives."""

import inspect

import jax
import keras
import libcst as cst
import numpy as np
import pytest
import tensorflow as tf

import keras_tpu_ext.dropin  # noqa: F401
from dropin import keras_backend_cases
from dropin.function_cases import CASES
from dropin.test_functions import is_array, of_tensorflow
from keras_tpu_ext.tools.migrate import migrate, templates
from keras_tpu_ext.tools.migrate.tables.tensorflow import TENSORFLOW

pytestmark = pytest.mark.runtimes("keras3_jax")

NO_CASE = ("constant", "split", "linalg.band_part", "map_fn", "cond")  # all of theirs stay on the drop-in
WITH_ROWS = sorted(name for name, row in TENSORFLOW.items() if row and not row.startswith("=") and name in CASES)


def as_code(value, arrays):
    """Return the code of an argument; an array is a name."""
    if is_array(value):
        arrays[f"array_{len(arrays)}"] = value
        return f"array_{len(arrays) - 1}"
    if isinstance(value, (list, tuple)):
        items = ", ".join(as_code(one, arrays) for one in value)
        return f"[{items}]" if isinstance(value, list) else f"({items},)"
    if isinstance(value, (tf.DType, type)):
        return f'"{tf.as_dtype(value).name}"'
    return repr(value)


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
@pytest.mark.parametrize("name", WITH_ROWS)
def test_a_function_of_tensorflow(name):
    written = 0
    for case in CASES[name]:
        arrays = {}
        args = [as_code(one, arrays) for one in case.args]
        args += [f"{key}={as_code(value, arrays)}" for key, value in case.kwargs.items()]
        made = templates.render(TENSORFLOW[name], cst.parse_expression(f"f({', '.join(args)})"))
        if made is None:
            continue
        if name == "clip_by_value" and np.any(np.asarray(case.args[1]) > np.asarray(case.args[2])):
            continue  # the lower bound is above the upper one
        written += 1
        expected = of_tensorflow(name)(*case.args, **case.kwargs)
        arrays = {key: keras.ops.convert_to_tensor(value) for key, value in arrays.items()}
        found = eval(cst.Module([]).code_for_node(made), {"keras": keras, "np": np}, arrays)
        for one, other in zip(jax.tree.leaves(found), tf.nest.flatten(expected), strict=True):
            np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=max(case.rtol, 1e-5), atol=1e-5)
    assert written or name in NO_CASE


NO_PROBABILITIES = "sparse_categorical_crossentropy"  # what its cases give it; old Keras cut off what is above 1
SOURCES = {
    name: inspect.getsource(keras_backend_cases).split(f'    "{name}": lambda K, x: ', 1)[1]
    for name, function in keras_backend_cases.CASES.items()
    if function.__name__ == "<lambda>"
}


def expression(text):
    """Return the first expression of a text, up to its comma."""
    for end in [place for place, letter in enumerate(text) if letter == ","]:
        try:
            compile(f"({text[:end]})", "", "eval")
        except SyntaxError:
            continue
        return text[:end].strip()
    raise AssertionError(text[:80])


def test_the_functions_of_the_backend(tmp_path):
    lines = ["from tensorflow.keras import backend as K", "import keras"]
    names = list(SOURCES)
    for place, name in enumerate(names):
        code = " ".join(expression(SOURCES[name]).split())
        lines.append(f"case_{place} = keras.layers.Lambda(lambda x: ({code}))")
    path = tmp_path / "cases.py"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    migrate(path, write=True)
    written = 0
    for line in path.with_suffix(".modern.py").read_text(encoding="utf-8").splitlines():
        name = names[int(line.split(" ")[0].removeprefix("case_"))] if line.startswith("case_") else ""
        if not name or "K." in line or name.startswith(NO_PROBABILITIES):
            continue
        values = {**vars(keras_backend_cases), "keras": keras}
        exec(line.replace("keras.layers.Lambda(", "found = (", 1).partition(" = ")[2], values)
        expected = keras_backend_cases.CASES[name](tf.keras.backend, tf.constant(keras_backend_cases.X))
        found = values["found"](keras.ops.convert_to_tensor(keras_backend_cases.X))
        for one, other in zip(jax.tree.leaves(found), tf.nest.flatten(expected), strict=True):
            np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-4, atol=1e-5, err_msg=name)
        written += 1
    assert written > 50
