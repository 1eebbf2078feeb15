"""Where Keras asks for the platform: each place is known, and a new one in a new Keras fails here."""

import shutil
from pathlib import Path

import keras
import pytest

import platform_places

pytestmark = pytest.mark.gate_on("keras3_jax")
KERAS = Path(keras.__file__).parent
once = pytest.mark.runtimes("keras3_jax", "keras3_tf", reason="Keras 2 is not developed any more")


@once
def test_every_place_of_keras_is_known():
    new = sorted(platform_places.find(KERAS) - set(platform_places.PLACES))
    assert not new, (
        f"Keras {keras.__version__} asks for the platform at {new}: add it to tests/support/platform_places.py"
    )


@once
def test_a_new_place_is_found(tmp_path):
    copy = tmp_path / "keras"
    shutil.copytree(KERAS / "src" / "layers" / "core", copy / "src" / "layers" / "core")
    assert not platform_places.find(copy)
    dense = copy / "src" / "layers" / "core" / "dense.py"
    text = dense.read_text(encoding="utf-8")
    asked = text.replace(
        "    def call(self, inputs, training=None):\n",
        "    def call(self, inputs, training=None):\n"
        '        import jax\n\n        if jax.devices()[0].platform == "tpu":\n            return inputs\n',
    )
    assert asked != text
    dense.write_text(asked, encoding="utf-8")
    assert platform_places.find(copy) == {"keras.src.layers.core.dense:Dense.call"}


@once
def test_platforms_of_python_are_none(tmp_path):
    (tmp_path / "some.py").write_text('import sys\n\n\ndef windows():\n    return sys.platform == "win32"\n')
    assert not platform_places.find(tmp_path)
