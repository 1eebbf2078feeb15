"""One process compiles and saves, another compiles no step: by JAX's own events, and with the same numbers."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.runtimes("keras3_jax")

# Trains with validation, evaluates and predicts, and prints the numbers and what JAX tells of its compiler.
PROGRAM = """
import collections, json, sys
import jax, keras, numpy as np
import keras_tpu_ext as kte

scope, options, sha256 = json.loads(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
events = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **_: events.update([event]))
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, fun_name="", **_: events.update([f"{event} {fun_name}"])
)
compiled = None if sha256 == "save" else ("step.kte", sha256)
with kte.strategy_scope(require="cpu", compiled=compiled, **scope):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((4,))
    x = keras.layers.Dropout(0.5)(keras.layers.Dense(64, activation="relu")(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.BatchNormalization()(x)))
    model.compile("adam", "mse", metrics=["mae"], **options)
if sha256 == "save":
    batch = np.zeros((32, 4), "float32"), np.zeros((32, 1), "float32")
    target = f"cpu-{scope.pop('replicas', 8)}"
    sha256 = kte.preflight(model, batch, target=target, progress=False, **scope).save("step.kte")
    keras.utils.set_random_seed(0)
    events.clear()
data = np.random.default_rng(0).normal(size=(138, 5)).astype("float32")
x, y = data[:, :4], data[:, 4:]
history = model.fit(x, y, batch_size=32, epochs=2, validation_data=(x[:70], y[:70]), shuffle=False, verbose=0)
answers = model.predict(x[:40], batch_size=32, verbose=0)
weights = [np.asarray(weight).astype("float64").tolist() for weight in model.get_weights()]
numbers = [history.history, answers.astype("float64").tolist(), weights]
print(json.dumps({"sha256": sha256, "numbers": numbers, "events": events}))
"""
HITS, COMPILES = "/jax/compilation_cache/cache_hits", "/jax/core/compile/backend_compile_duration jit("


def run(folder, scope, options, sha256):
    arguments = json.dumps(scope), json.dumps(options), sha256
    command = [sys.executable, "-W", "error::UserWarning", "-c", PROGRAM, *arguments]
    environment = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    steps = {name[len(COMPILES) : -1] for name in found["events"] if name.startswith(COMPILES)}
    steps &= {"stateless", "_last", "_collected", "flush"}
    return found, sum(found["events"][f"{COMPILES}{step})"] for step in steps), done.stderr


@pytest.mark.parametrize(
    ("scope", "options"),
    [
        # "auto" has more steps than there are batches.
        pytest.param({"replicas": 8}, {"steps_per_execution": "auto"}, marks=pytest.mark.exhaustive),
        ({"replicas": 8}, {"steps_per_execution": 2}),
        pytest.param({"replicas": 1}, {}, marks=pytest.mark.exhaustive),
        pytest.param({"shard": "fsdp", "mesh": {"data": 4, "model": 2}}, {}, marks=pytest.mark.exhaustive),
        pytest.param(
            {"replicas": 8}, {"loss_scale": "dynamic", "gradient_accumulation_steps": 2}, marks=pytest.mark.exhaustive
        ),
    ],
)
def test_a_step_that_was_compiled_before_is_not_compiled_again(tmp_path, scope, options):
    first, compiled, _ = run(tmp_path, scope, options, "save")
    second, asked, said = run(tmp_path, scope, options, first["sha256"])
    assert first["events"].get(HITS, 0) == 0
    assert compiled >= 3  # of fit, evaluate and predict
    assert second["events"][HITS] == asked
    # Without a file "auto" tries several numbers of steps.
    assert asked == (3 if "auto" in options.values() else compiled)
    assert "compiled here" not in said
    assert second["numbers"] == first["numbers"]
