"""Programs that a process compiles are read by the next: whole programs in fresh processes, counted by JAX."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from keras_tpu_ext import compile_cache
from keras_tpu_ext._runtime.jax import devices

pytestmark = pytest.mark.runtimes("keras3_jax")

TRAIN = """
import collections, json, sys
import jax, keras, numpy as np
import keras_tpu_ext as kte

events = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **_: events.update([event.split("/")[-1]]))
with kte.strategy_scope(require="cpu", replicas=int(sys.argv[1]), compile_cache=sys.argv[2]):
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.3), keras.layers.BatchNormalization()]
    model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])
    model.compile("adam", "mse")
x = np.random.default_rng(0).normal(size=(37, 4)).astype("float32")
counts = kte.callbacks.Recompilations()
fitted = model.fit(x, x[:, :1], batch_size=8, verbose=0, validation_data=(x, x[:, :1]), callbacks=[counts])
kept = {"loss": fitted.history["loss"], "val_loss": fitted.history["val_loss"]}
kept["weights"] = [weights.tolist() for weights in model.get_weights()]
report = counts.report()
print(json.dumps([kept, dict(events), report.to_dict(), str(report)]))
"""


def start(replicas, folder):
    # What the environment of the tests says of a cache would be a choice of the user.
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_COMP", "JAX_PERS"))}
    return subprocess.Popen(
        [sys.executable, "-W", "error::UserWarning", "-c", TRAIN, str(replicas), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def ended(process):
    out, err = process.communicate()
    assert process.returncode == 0, err
    return *json.loads(out.splitlines()[-1]), err


@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.exhaustive), 8])
def test_the_next_process_compiles_nothing(replicas, tmp_path):
    folder = tmp_path / "programs"
    # Two write at the same time.
    first, second = (ended(process) for process in [start(replicas, folder), start(replicas, folder)])
    assert first[0] == second[0]
    moved = shutil.move(folder, tmp_path / "elsewhere")
    kept, events, report, text, said = ended(start(replicas, moved))
    assert kept == first[0]  # bit for bit
    programs = events["compile_requests_use_cache"]
    assert events["cache_hits"] == programs > 10
    assert "cache_misses" not in events
    assert report["cache_hits"] > 1
    assert report["cache_misses"] == 0
    assert f"compile cache: hits: {report['cache_hits']}, misses: 0, " in text
    assert f"compile_cache: hits: {programs}, misses: 0, " in said
    for told in (first[4], second[4]):  # each may have read what the other had written
        found = re.search(r"compile_cache: hits: (\d+), misses: (\d+), 0 s of compiling saved \((.*)\)", told)
        assert int(found[1]) + int(found[2]) == programs
        assert found[3] == str(folder)


@pytest.fixture
def use(monkeypatch):
    """A process that has not used a cache, and is put back."""
    names = ("jax_compilation_cache_dir", *devices._OPTIONS)
    before = {name: getattr(jax.config, name) for name in names}
    monkeypatch.setattr(compile_cache, "_USE", compile_cache._Use())
    yield compile_cache._open
    for name, value in before.items():
        jax.config.update(name, value)
    reset_cache()


def hits():
    """Return how many programs were read to call a function that JAX has not seen."""
    found = []

    def double(x):
        return x * 2

    jax.monitoring.register_event_listener(lambda event, **_: found.append(event.endswith("cache_hits")))
    assert float(jax.jit(double)(3.0)) == 6.0
    return sum(found)


def test_a_damaged_program_is_compiled_in_silence(use, tmp_path):
    use(str(tmp_path / "programs"))
    assert [hits(), hits()] == [0, 1]
    for path in Path(tmp_path / "programs").iterdir():
        path.write_bytes(path.read_bytes()[:-7])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [hits(), hits()] == [0, 1]


def test_what_the_user_has_set_stays(use, tmp_path):
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 7.0)
    jax.config.update("jax_persistent_cache_enable_xla_caches", "xla_gpu_per_fusion_autotune_cache_dir")
    use(str(tmp_path / "programs"))
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 7.0
    assert jax.config.jax_persistent_cache_enable_xla_caches == "none"  # else no folder could be moved
