"""Two processes on this machine, joined by `keras.distribution.initialize`, against one."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time

import numpy as np
import pytest

from jax_processes import free_port, said, start

pytestmark = pytest.mark.runtimes("keras3_jax")

TOLERANCE = 1e-5  # float32 adds in another order
HEARTBEAT = 10  # seconds after which JAX gives up on a lost process; 100 where nobody says so
LOST_WITHIN = 60  # seconds

START = """
    import json, sys
    import keras
    import numpy as np
    import keras_tpu_ext as kte

    number, port = int(sys.argv[1]), sys.argv[2]
    if port != "alone":
        {join}
        with kte.strategy_scope():  # gives them one seed
            drawn = keras.random.normal((3,)).tolist()
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(270, 6)).astype("float32")
    y, w = x[:, :1] ** 2, rng.uniform(0.1, 3.0, 270).astype("float32")
    with kte.strategy_scope() as scope:
        hidden = keras.layers.Dense(5, activation="tanh")
        model = kte.TPUModel.from_model(keras.Sequential([keras.Input((6,)), hidden, keras.layers.Dense(1)]))
        adam = keras.optimizers.Adam(0.01)
        model.compile(adam, "mse", metrics=["mae"], loss_scale="dynamic", gradient_accumulation_steps=2)
"""
TRAIN = (
    START.replace("{join}", 'keras.distribution.initialize(f"127.0.0.1:{port}", 2, number)')
    + """
    # 101 rows: neither the batches nor the last of them can be split evenly.
    history = model.fit(x, y, sample_weight=w, batch_size=101, epochs=2, verbose=2).history
    model.save(f"{sys.argv[3]}/{number}.keras")
    kept = {"history": history, "evaluated": model.evaluate(x, y, batch_size=101, verbose=2)}
    kept["predicted"] = model.predict(x, batch_size=101, verbose=2).tolist()
    kept["weights"] = [weights.tolist() for weights in model.get_weights()]
    kept["scope"] = str(scope)
    print("KEPT", json.dumps(kept))
    """
)
SHARDED = TRAIN.replace("strategy_scope() as scope", 'strategy_scope(shard="fsdp") as scope')
FOREVER = (
    START.replace(
        "{join}",
        f"import jax; jax.distributed.initialize("
        f"'127.0.0.1:' + port, 2, number, heartbeat_timeout_seconds={HEARTBEAT})",
    )
    + """
    print("drawn", drawn, flush=True)

    class Tell(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            print("epoch", epoch, flush=True)

    model.fit(x, y, batch_size=101, epochs=10**6, verbose=0, callbacks=[Tell()])
    """
)


RESUMED = (
    START.replace(
        "{join}",
        f"import jax; jax.distributed.initialize("
        f"'127.0.0.1:' + port, 2, number, heartbeat_timeout_seconds={HEARTBEAT})",
    )
    + """
    import time

    class Tell(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            print("batch", self.model.history.epoch, batch, flush=True)
            time.sleep(0.05)

    folder = sys.argv[3]
    resume = kte.callbacks.AutoResume(folder.format(number=number), every_s=0)
    history = model.fit(
        x, y, sample_weight=w, batch_size=25, epochs=3, verbose=2, validation_data=(x, y), callbacks=[Tell(), resume]
    )
    kept = {"history": history.history, "finished": resume.finished}
    kept["weights"] = [weights.tolist() for weights in model.get_weights()]
    print("KEPT", json.dumps(kept), flush=True)
    """
)
RESUMED_SHARDED = RESUMED.replace("strategy_scope() as scope", 'strategy_scope(shard="fsdp") as scope')


def kept(process: subprocess.Popen[str]) -> tuple[dict, str]:
    """Return what a process has kept, and the lines that Keras printed."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, out + err
    lines = out.splitlines()
    found = [line for line in lines if line.startswith("KEPT ")]
    return json.loads(found[0].removeprefix("KEPT ")), "\n".join(line for line in lines if " - loss:" in line)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("program", [TRAIN, SHARDED], ids=["data", "fsdp"])
def test_two_processes_equal_one_and_only_the_chief_writes_and_prints(program, tmp_path):
    port = free_port()
    chief, other = (kept(one) for one in [start(program, number, port, str(tmp_path)) for number in (0, 1)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.keras"]
    alone = kept(start(TRAIN, 0, "alone", str(tmp_path)))
    assert chief[0]["scope"].startswith("2 replicas on CPU")
    sharded = ", sharded over a mesh of data 2" if program == SHARDED else ""
    assert chief[0]["scope"].endswith(f"(a cluster, told by keras.distribution.initialize){sharded}")
    assert chief[1]
    assert not other[1]
    for name in ("evaluated", "predicted"):
        np.testing.assert_allclose(chief[0][name], alone[0][name], rtol=TOLERANCE, atol=TOLERANCE)
        np.testing.assert_array_equal(other[0][name], chief[0][name])
    for ours, expected in zip(chief[0]["weights"], alone[0]["weights"], strict=True):
        np.testing.assert_allclose(ours, expected, rtol=TOLERANCE, atol=TOLERANCE)
    for name, values in alone[0]["history"].items():
        np.testing.assert_allclose(chief[0]["history"][name], values, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "number", "program"),
    [(0, signal.SIGKILL, RESUMED), (1, signal.SIGTERM, RESUMED), (1, signal.SIGKILL, RESUMED_SHARDED)],
    ids=["the chief is killed", "the other one is asked to leave", "the other one is killed, fsdp"],
)
def test_they_go_on_after_the_end_of_one(victim, number, program, tmp_path):
    def both(folder):
        port = free_port()
        return [start(program, process, port, str(tmp_path / folder)) for process in (0, 1)]

    whole = [kept(process)[0] for process in both("whole")]
    processes = both("killed")
    assert said(processes[victim], "batch [0] 4")
    processes[victim].send_signal(number)
    outputs = [process.communicate(timeout=LOST_WITHIN) for process in processes]
    if number == signal.SIGTERM:
        finished = [json.loads(out.partition("KEPT ")[2])["finished"] for out, _ in outputs]
        assert finished == [False, False]
        assert "AutoResume: stopped, as another process was asked to." in outputs[0][0]
    else:
        assert all(process.returncode for process in processes)
    again = [kept(process)[0] for process in both("killed")]
    assert again == whole
    assert whole[0]["finished"]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_they_do_not_go_on_from_different_checkpoints(tmp_path):
    port = free_port()
    kept(start(RESUMED, 0, "alone", str(tmp_path / "0")))
    processes = [start(RESUMED, number, port, str(tmp_path / "{number}")) for number in (0, 1)]
    for process in processes:
        out, err = process.communicate(timeout=LOST_WITHIN)
        assert process.returncode != 0, out
        assert re.search(r"AutoResume found another checkpoint in .* in one process .*: \d+ batches and none", err)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_the_loss_of_a_process_ends_the_other_one_with_an_error(victim):
    port = free_port()
    with start(FOREVER, 0, port) as chief, start(FOREVER, 1, port) as other:
        processes = chief, other
        try:
            drawn = [said(process, "drawn ") for process in processes]
            said(processes[victim], "epoch 2")
            processes[victim].send_signal(signal.SIGKILL)
            begun = time.monotonic()
            _, err = processes[1 - victim].communicate(timeout=LOST_WITHIN)
            print(f"ended after {time.monotonic() - begun:.0f} s")
        finally:
            for process in processes:
                process.kill()
    assert drawn[0]
    assert drawn[0] == drawn[1]  # one seed, also where JAX has joined them and no one gave any
    assert processes[1 - victim].returncode != 0
    assert f"ClusterError: This process ({1 - victim} of 2) can no longer reach another one" in err
