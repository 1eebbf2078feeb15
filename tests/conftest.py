"""What the tests share: eight virtual CPU devices, and the folder of real data."""

from __future__ import annotations

import importlib.util
import os
import zlib
from pathlib import Path

import hypothesis
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext._runtime.common.select import chosen
from kind_of_keras import keras as keras  # what the tests mean by `import keras`

REPLICAS = 8

# A file with a framework's name in its own is about that framework, with Keras 3 on it where that name is short; all
# others run on every runtime.
_ABOUT = {
    "keras3_tf": ("*test_tf_*.py", "*test_keras3_*.py", "*test_tensorflow_*.py"),
    "keras3_jax": ("*test_jax_*.py", "*test_keras3_*.py"),
    "keras2_tf": ("*test_keras2_*.py", "*test_tensorflow_*.py"),
}
_OWN = _ABOUT[chosen()]
collect_ignore_glob = [glob for globs in _ABOUT.values() for glob in globs if glob not in _OWN]
if chosen() != "keras3_jax" or importlib.util.find_spec("tensorflow") is None:
    collect_ignore_glob.append("both/*")  # these are about JAX with TensorFlow beside it
if importlib.util.find_spec("libtpu") is None:
    collect_ignore_glob.append("compiler/*")  # these ask the TPU compiler

# No test is about time, and one that failed once must fail again.
hypothesis.settings.register_profile("kte", deadline=None, derandomize=True)
hypothesis.settings.load_profile("kte")


# Files whose tests share what takes long to make; of all others each test may run in any process.
_SHARING = ("test_tensorflow_two_processes.py", "test_parity.py")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Share tests out one by one, but for those of `_SHARING` (pytest 9.2 with xdist 3.8 heeds no xdist_group)."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.split("::")[0]
            return file if file.endswith(_SHARING) else nodeid

    return Scheduling(config, log)


def pytest_configure(config):
    # Before anything makes a tensor: virtual devices cannot be added afterwards.
    kte.strategy_scope(require="cpu", replicas=REPLICAS)


def pytest_collection_modifyitems(config, items):
    """Leave out what is not in `KTE_SHARE`, and skip on Keras 2 what is about something that Keras 2 has not."""
    left_out = [item for item in items if not _is_in_share(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
    for item in items:
        mark = item.get_closest_marker("keras3")
        if mark is not None and chosen() == "keras2_tf":
            item.add_marker(pytest.mark.skip(reason=f"Keras 2: {mark.args[0]}"))


def _is_in_share(item):
    """Return whether the share of the tests that `KTE_SHARE` names, as in 1/4, has this one; without it all have."""
    share = os.environ.get("KTE_SHARE")
    if not share:
        return True
    if item.get_closest_marker("exhaustive"):
        return False
    # Of what is about TensorFlow JAX has no share.
    no_one_else_has_it = chosen() == "keras3_tf" and item.path.name.startswith("test_tensorflow_")
    number, of = map(int, share.split("/"))
    return (
        not item.get_closest_marker("spread")
        or no_one_else_has_it
        or zlib.crc32(item.nodeid.encode()) % of == number - 1
    )


@pytest.fixture(autouse=True)
def seeded():
    """Start every test from the same random state: initial weights and orders are those of the last run."""
    kte._runtime.keras.utils.set_random_seed(int(os.environ.get("KTE_TEST_SEED", "0")))


@pytest.fixture
def scope8():
    """The rehearsal on eight replicas; a test enters it itself, `with scope8:`."""
    return kte.strategy_scope(require="cpu", replicas=REPLICAS)


@pytest.fixture
def scope4():
    """The rehearsal on four replicas, for what does not ask for more: TensorFlow traces a step for each of them.

    Four are enough for one that has a full part of a short batch, one that has less and two that have none.
    """
    return kte.strategy_scope(require="cpu", replicas=4)


_SHARED_DATA = Path(os.environ.get("KTE_SHARED_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with the real data sets; the test is skipped where it is not."""
    if not _SHARED_DATA.is_dir():
        pytest.skip(f"no real data: {_SHARED_DATA} is not there; point KTE_SHARED_DATA at the folder")
    return _SHARED_DATA


@pytest.fixture(scope="session")
def shared_data_or_none() -> Path | None:
    """The folder with the real data sets, for a test that has others to run on where it is not."""
    return _SHARED_DATA if _SHARED_DATA.is_dir() else None
