"""Accelerators are hidden from a TensorFlow beside JAX, whenever it is imported."""

import importlib
import sys
import types

import pytest

from keras_tpu_ext._runtime.jax import devices as module
from keras_tpu_ext.errors import HardwareUnusableWarning

pytestmark = pytest.mark.runtimes("keras3_jax")


class Config:
    """What is asked of `tf.config`; of the kinds in `started` the devices are in use already."""

    def __init__(self, started=()):
        self.started = started
        self.hidden = []

    def set_visible_devices(self, devices, kind):
        assert devices == []
        if kind in self.started:
            raise RuntimeError("Visible devices cannot be modified after being initialized")
        self.hidden.append(kind)

    def get_visible_devices(self, kind):
        return [f"{kind}:0"] if self.started.get(kind) else []


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    before = [finder for finder in sys.meta_path if finder is not module._HIDE_ON_IMPORT]
    sys.meta_path[:] = before
    yield
    sys.meta_path[:] = before


def imported(monkeypatch, config):
    module = types.ModuleType("tensorflow")
    module.config = config
    module.__spec__ = types.SimpleNamespace(_initializing=False)
    monkeypatch.setitem(sys.modules, "tensorflow", module)
    return config


def test_one_that_is_there_loses_sight_of_tpus_and_gpus(monkeypatch):
    config = imported(monkeypatch, Config())
    module.hide_accelerators()
    assert config.hidden == ["TPU", "GPU"]
    assert module._HIDE_ON_IMPORT not in sys.meta_path


def test_one_that_has_started_them_is_told_about(monkeypatch):
    imported(monkeypatch, Config(started={"GPU": True}))
    with pytest.warns(HardwareUnusableWarning) as told:
        module.hide_accelerators()
    assert [warning.message.args[0] for warning in told] == [
        "TensorFlow has started the GPUs of this machine, and Keras trains on JAX: only one framework can have them. "
        'Before the first line that uses TensorFlow, write: tf.config.set_visible_devices([], "GPU"), or open '
        "strategy_scope() earlier."
    ]


def test_one_that_has_started_and_holds_none_is_no_matter(monkeypatch):
    config = imported(monkeypatch, Config(started={"GPU": False, "TPU": False}))
    module.hide_accelerators()  # a warning would be an error
    assert config.hidden == []


def test_one_that_comes_later_is_hidden_from_at_the_first_import_after_it(monkeypatch, tmp_path):
    package = tmp_path / "tensorflow"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import tensorflow.part\nhidden = []\n"
        "class config:\n    set_visible_devices = staticmethod(lambda devices, kind: hidden.append(kind))\n"
        "import tensorflow.another\nwhile_it_was_imported = list(hidden)\n"
    )
    for name in ("part", "another", "lazy"):
        (package / f"{name}.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    module.hide_accelerators()
    module.hide_accelerators()
    assert sys.meta_path.count(module._HIDE_ON_IMPORT) == 1
    try:
        tensorflow = importlib.import_module("tensorflow")
        assert tensorflow.while_it_was_imported == []
        importlib.import_module("tensorflow.lazy")
        assert tensorflow.hidden == ["TPU", "GPU"]
        assert module._HIDE_ON_IMPORT not in sys.meta_path
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "tensorflow"]:
            del sys.modules[name]


def test_other_imports_before_it_find_what_they_find():
    module.hide_accelerators()
    sys.modules.pop("colorsys", None)
    assert importlib.import_module("colorsys").__name__ == "colorsys"
    assert module._HIDE_ON_IMPORT in sys.meta_path
