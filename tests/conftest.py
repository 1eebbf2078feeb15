"""What the tests share: tiers, runtimes, virtual CPU devices, and the folder of real data.

Which tests run where stands at the tests, in three marks:

- `runtimes("keras3_jax", ...)`: what the test is about is on these runtimes only. A file that imports a framework
  says so for the whole of itself, `pytestmark = pytest.mark.runtimes(...)`: it is then not even imported elsewhere.
  A prefix of its name, `test_jax_` say, tells the reader the same; tests/support/marks.py has them.
- `gate_on("keras3_tf", ...)`: `make test` runs it on these runtimes only; of several such marks the closest counts.
- `exhaustive`: `make test` runs it nowhere.

`pytest` runs what `make test` runs on the runtime at hand, the gate; `pytest --tier=exhaustive` runs everything, and
`--tier=short` a few tests of everything: `make versions` runs it on each version, and `make test` on Keras 2. The
runtimes are `keras3_tf`, `keras3_jax`, and `keras2_tf`, which is both `keras2_tf215` and `keras2_tf221`.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from pathlib import Path

import hypothesis
import pytest

import keras_tpu_ext as kte
import marks
from kind_of_keras import RUNTIMES
from kind_of_keras import keras as keras  # what the tests mean by `import keras`

REPLICAS = 8

# The short tier: parts of the names of its tests, which are in the gate.
SHORT = (
    "conformance",
    "private_names",
    "missing_names",
    "test_jax_attention.py",
    "test_jax_attention_kernel.py::test_without_dropout_it_is_the_attention_of_keras",
    "test_parity_suite",
    "test_throughput",
    "test_versions",
    # A sharded model, what only LoRA trains, and a training that goes on.
    "test_a_sharded_model_trains",
    "test_it_trains_as_on_one_device",
    "test_it_goes_on_in_the_middle[arrays",
    "test_it_goes_on_in_the_middle[tf.data",
)

collect_ignore_glob = []
if "keras3_jax" not in RUNTIMES or importlib.util.find_spec("tensorflow") is None:
    collect_ignore_glob.append("both/*")  # these are about JAX with TensorFlow beside it
    if "keras2_tf215" not in RUNTIMES:  # on which old programs run as they are
        collect_ignore_glob.append("dropin")  # and not only its files: its conftest.py imports the drop-in
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


def pytest_addoption(parser):
    parser.addoption(
        "--tier", choices=["short", "gate", "exhaustive"], default="gate", help="what to run: see tests/conftest.py"
    )


def pytest_configure(config):
    if config.getoption("tier") == "gate":
        # TensorFlow takes up to half a minute to free the graphs of many tests; those of the gate fit into 10 GB.
        gc.disable()
    if "tensorflow" in sys.modules:
        # Tests are about numbers and not about speed: TensorFlow is not to optimize each function that it has traced.
        sys.modules["tensorflow"].config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    # Before anything makes a tensor: virtual devices cannot be added afterwards.
    kte.strategy_scope(require="cpu", replicas=REPLICAS)


def pytest_sessionfinish(session):
    gc.freeze()  # Python collects once more when it ends


def pytest_ignore_collect(collection_path):
    """Leave out a file that is about other runtimes, without importing it."""
    if collection_path.suffix != ".py":
        return None  # others may have reasons
    about = marks.of_file(collection_path)
    return None if about is None or RUNTIMES & _known(about) else True


def pytest_collection_modifyitems(config, items):
    """Leave out what is about other runtimes, and what is not in the tier that was asked for."""
    is_in_tier = {"short": _is_short, "gate": _is_in_gate, "exhaustive": lambda item: True}[config.getoption("tier")]
    kept = [item for item in items if _is_about_this(item) and is_in_tier(item)]
    config.hook.pytest_deselected(items=list(set(items) - set(kept)))
    items[:] = kept


def _is_about_this(item):
    return all(RUNTIMES & _known(mark.args) for mark in item.iter_markers("runtimes"))


def _is_in_gate(item):
    of_case = [mark for mark in getattr(getattr(item, "callspec", None), "marks", ()) if mark.name == "gate_on"]
    gates = of_case or [mark for mark in [item.get_closest_marker("gate_on")] if mark]
    return item.get_closest_marker("exhaustive") is None and all(RUNTIMES & _known(mark.args) for mark in gates)


def _is_short(item):
    return _is_in_gate(item) and any(name in item.nodeid for name in SHORT)


def _known(names):
    """Return `names` of runtimes as a set; a test under a name that nobody knows would run nowhere."""
    names = set(names)
    if unknown := names - {"keras3_tf", "keras3_jax", "keras2_tf", "keras2_tf215", "keras2_tf221"}:
        raise pytest.UsageError(
            f"a mark has names of runtimes that are none: {sorted(unknown)}; see tests/conftest.py"
        )
    return names


@pytest.fixture(autouse=True)
def seeded():
    """Start every test from the same random state: initial weights and orders are those of the last run."""
    kte._runtime.keras.utils.set_random_seed(int(os.environ.get("KTE_TEST_SEED", "0")))


@pytest.fixture
def garbage_of_this_test_only():
    """What many tests before have left takes TensorFlow minutes to free, and any collection a second to look at."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def scope8():
    """The rehearsal on eight replicas; a test enters it itself, `with scope8:`."""
    return kte.strategy_scope(require="cpu", replicas=REPLICAS)


@pytest.fixture
def scope3():
    """The rehearsal on three replicas, for what does not ask for more: TensorFlow traces a step for each of them.

    Three are enough for one that has a full part of a short batch, one that has less and one that has none.
    """
    return kte.strategy_scope(require="cpu", replicas=3)


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


_MOST_MAPS = 30_000  # of the 65,530 that Linux lets a process have


@pytest.fixture(autouse=True, scope="module")
def _forget_compiled_programs():
    """Each program that JAX has compiled for CPUs takes memory maps, and without one left the process dies."""
    maps = Path("/proc/self/maps")
    if "jax" in sys.modules and maps.exists() and maps.read_bytes().count(b"\n") > _MOST_MAPS:
        sys.modules["jax"].clear_caches()
        gc.collect()
