"""On Keras 3 the import of TensorFlow Addons names what Keras 3 has instead."""

import linecache

import keras
import pytest

from keras_tpu_ext import addons
from keras_tpu_ext.addons.equivalents import EQUIVALENTS, in_words
from keras_tpu_ext.errors import RuntimeNotSupportedError

pytestmark = pytest.mark.runtimes("keras3_tf", "keras3_jax")


def run(program, name):
    """Run `program` as if it were in a file of that name, as a notebook's cell is."""
    linecache.cache[name] = (len(program), None, program.splitlines(keepends=True), name)
    exec(compile(program, name, "exec"), {"__name__": "__main__"})


def test_the_error_names_what_the_program_uses():
    program = "from keras_tpu_ext.addons import tfa\ntfa.optimizers.LAMB(1e-3)\ntfa.optimizers.Yogi()\n"
    with pytest.raises(RuntimeNotSupportedError) as caught:
        run(program, "<a program with LAMB>")
    text = str(caught.value)
    assert text.startswith(f"TensorFlow Addons needs Keras 2, and this process is on Keras {keras.__version__}.")
    assert "  tfa.optimizers.LAMB: keras.optimizers.Lamb (epsilon is 1e-7 and not 1e-6; " in text
    assert "  tfa.optimizers.Yogi: Keras 3 has nothing like it; " in text
    assert "AdamW" not in text


def test_names_imported_one_by_one_are_seen():
    program = "from keras_tpu_ext.addons import tfa\nfrom tensorflow_addons.layers import GELU, Maxout as M\n"
    with pytest.raises(RuntimeNotSupportedError) as caught:
        run(program, "<a program with layers>")
    assert "  tfa.layers.GELU: keras.activations.gelu (" in str(caught.value)
    assert "  tfa.layers.Maxout: Keras 3 has nothing like it; " in str(caught.value)


def test_where_no_source_can_be_seen_all_are_named(monkeypatch):
    monkeypatch.setattr("sys.orig_argv", ["python"])
    with pytest.raises(RuntimeNotSupportedError) as caught:
        exec(compile("from keras_tpu_ext.addons import tfa", "<nowhere>", "exec"), {"__name__": "__main__"})
    assert str(caught.value).endswith(in_words([]))
    assert all(f"tfa.{symbol}: " in str(caught.value) for symbol in EQUIVALENTS)


def test_another_name_is_an_ordinary_error():
    with pytest.raises(AttributeError, match=r"module 'keras_tpu_ext.addons' has no attribute 'nothing'"):
        addons.nothing  # noqa: B018


@pytest.mark.parametrize("symbol", EQUIVALENTS)
def test_what_is_named_is_there(symbol):
    thing = keras
    for name in EQUIVALENTS[symbol].name.split(".")[1:]:
        thing = getattr(thing, name)
    assert callable(thing)
