"""Two processes on this machine train together: what one process would compute, one voice, and no hang.

The programs know nothing of a cluster. An `Engine` tells a framework of it, from outside.
"""

import contextlib
import dataclasses
import json
import os
import re
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from keras_tpu_ext._runtime.common.select import chosen
from kind_of_keras import IS_KERAS2

pytestmark = [
    pytest.mark.runtimes("keras3_tf", "keras2_tf"),
    pytest.mark.exhaustive,  # minutes; tests/integration/test_jax_two_processes.py has one for the gate
]

ROOT = Path(__file__).resolve().parents[2]
MENTIONED = ("TPU", "KERAS", "KTE", "TF_", "CUDA", "KUBE")
PATIENCE = 400  # seconds, for a machine that is busy with other things

# Float32 adds in another order in two processes, see tests/models/conftest.py.
TOLERANCE = 1e-5


@dataclasses.dataclass(frozen=True)
class Engine:
    """How a framework is told of a cluster, and what its data may be.

    Attributes:
        environ: Returns the environment variables for the process of a number, given the addresses of all.
        cases: Names of the cases of `EQUAL` that it can run.
    """

    environ: Callable[[int, list[str]], dict[str, str]]
    cases: tuple[str, ...]


def tf_config(index, addresses):
    config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    which_keras = {name: os.environ[name] for name in ("TF_USE_LEGACY_KERAS",) if name in os.environ}
    return {"TF_CONFIG": json.dumps(config), "TF_CPP_MIN_LOG_LEVEL": "3", **which_keras}


CASES = ("arrays", "accumulation", "eager", "batches", "dataset", "files")
ENGINES = {chosen(): Engine(tf_config, CASES)}
# What the programs mean by `import keras`, as in conftest.py.
KERAS = """
import sys
sys.path.append({tests!r})
import keras2_facade
sys.modules["keras"] = keras2_facade.keras3_names()
"""
BEFORE = KERAS.format(tests=str(ROOT / "tests" / "support")) if IS_KERAS2 else ""


@pytest.fixture(params=ENGINES, scope="module")
def engine(request):
    return ENGINES[request.param]


class Process:
    """A program in a Python of its own, whose output goes to files."""

    def __init__(self, program, folder, name, arguments, environ):
        plain = {key: value for key, value in os.environ.items() if not any(word in key for word in MENTIONED)}
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        self.out, self.err = folder / f"{name}.out", folder / f"{name}.err"
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-W",
                    "error:::keras_tpu_ext",
                    "-c",
                    BEFORE + textwrap.dedent(program),
                    *map(str, arguments),
                ],
                env={**plain, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **environ},
                stdout=out,
                stderr=err,
                cwd=folder,
            )

    def wait(self, seconds=PATIENCE):
        """Return the exit status."""
        return self.process.wait(seconds)

    def lines(self):
        return self.out.read_text().splitlines()

    def errors(self):
        return self.err.read_text()

    def wait_for_line(self, line):
        end = time.monotonic() + PATIENCE
        while line not in self.lines():
            assert self.process.poll() is None, self.errors()[-3000:]
            assert time.monotonic() < end, f"{line!r} never came; there is {self.lines()}"
            time.sleep(0.05)


@contextlib.contextmanager
def started(engine, program, folder, arguments=((), ()), which=(0, 1), **environ):
    """Yield the processes of a cluster of two, or those of `which`; no process is left behind."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    processes = []
    try:
        for index in which:
            variables = {**engine.environ(index, addresses), **environ}
            processes.append(Process(program, folder, f"process{index}", arguments[index], variables))
        yield addresses, processes
    finally:
        for one in processes:
            one.process.kill()
            one.process.wait()


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


# Two processes compute what one does

EQUAL = """
    import json, pathlib, sys
    import keras, numpy as np
    import keras_tpu_ext as kte

    out, cases, folder = pathlib.Path(sys.argv[1]), sys.argv[2].split(","), pathlib.Path(sys.argv[3])
    scope = kte.strategy_scope()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(270, 6)).astype("float32")
    y, w = rng.integers(0, 3, 270), rng.uniform(0.1, 3.0, 270).astype("float32")

    def build(normalised=False, **options):
        with scope:
            inputs = keras.Input((6,))
            hidden = keras.layers.Dense(8, activation="tanh", kernel_regularizer="l2")(inputs)
            if normalised:
                hidden = keras.layers.BatchNormalization(synchronized=True)(hidden)
            model = kte.TPUModel(inputs, keras.layers.Dense(3)(keras.layers.Dropout(0.0)(hidden)))
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(
                keras.optimizers.Adam(0.03), loss, metrics=["accuracy"],
                weighted_metrics=["sparse_categorical_crossentropy"], loss_scale="dynamic", **options,
            )
        shapes = [value.shape for value in model.get_weights()]
        start = np.random.default_rng(1)
        model.set_weights([start.uniform(0.1, 0.9, shape).astype("float32") for shape in shapes])
        return model

    def arrays():
        model = build()
        history = model.fit(
            x, y, batch_size=100, epochs=2, sample_weight=w, validation_data=(x[:50], y[:50], w[:50])
        )
        evaluation = model.evaluate(x, y, batch_size=100, sample_weight=w, return_dict=True)
        return model, history.history, evaluation, model.predict(x, batch_size=100)

    def accumulation():
        # The last of three batches has one example: one of two processes gets none, and the window is incomplete.
        model = build(gradient_accumulation_steps=2, steps_per_execution=2)
        some = x[:201], y[:201]
        history = model.fit(*some, batch_size=100, epochs=2, sample_weight=w[:201], shuffle=False)
        evaluation = model.evaluate(*some, batch_size=100, return_dict=True)
        return model, history.history, evaluation, model.predict(some[0], batch_size=100)

    def eager():
        model = build(run_eagerly=True)
        history = model.fit(x[:101], y[:101], batch_size=100, shuffle=False)
        evaluation = model.evaluate(x[:101], y[:101], batch_size=100, return_dict=True)
        return model, history.history, evaluation, model.predict(x[:101], batch_size=100)

    def batches():
        model = build()
        logs = [model.train_on_batch(x[:n], y[:n], return_dict=True) for n in (5, 6, 1)]
        evaluation = model.test_on_batch(x[:7], y[:7], return_dict=True)
        return model, {key: [log[key] for log in logs] for key in logs[0]}, evaluation, model.predict_on_batch(x[:5])

    def dataset():
        import tensorflow as tf

        model = build(normalised=True)
        data = tf.data.Dataset.from_tensor_slices((x, y, w)).shuffle(270).batch(100)
        history = model.fit(data, epochs=2)
        evaluation = model.evaluate(data, return_dict=True)
        return model, history.history, evaluation, model.predict(tf.data.Dataset.from_tensor_slices(x).batch(100))

    def files():
        # Three files for two processes, of different lengths. Left to itself, tf.data gives a process whole files.
        import tensorflow as tf

        model = build()
        names = [folder / "a.csv", folder / "b.csv", folder / "c.csv"]
        if kte._runtime.devices.is_chief():
            for name, rows in zip(names, (x[:17], x[17:80], x[80:])):
                name.write_text("".join(",".join(str(value) for value in row) + "\\n" for row in rows))
        model.evaluate(x, y, batch_size=270)  # which both take part in, so the files are there
        lines = tf.data.TextLineDataset([str(name) for name in names])
        data = lines.map(lambda line: tf.stack(tf.io.decode_csv(line, [0.0] * 6))).batch(100)
        return model, {}, {}, model.predict(data)

    def whole_epoch():
        # No weight changes and no seed is given: the loss of an epoch is that of all examples, if each comes once.
        with scope:
            inputs = keras.Input((1,))
            model = kte.TPUModel(inputs, keras.layers.Dense(1, kernel_initializer="zeros")(inputs))
            model.compile(keras.optimizers.SGD(0.0), "mae")
        values = np.arange(270, dtype="float32")[:, None] ** 2
        return model.fit(values, values, batch_size=100, epochs=3).history["loss"]

    def plain(thing):
        return keras.tree.map_structure(lambda leaf: np.asarray(leaf, "float64").tolist(), thing)

    results = {"whole_epoch": whole_epoch()}
    keras.utils.set_random_seed(5)
    for case in cases:
        model, history, evaluation, predictions = globals()[case]()
        weights = model.get_weights()
        if history:
            weights += [variable.numpy() for variable in model.optimizer.variables]
        results[case] = plain([history, evaluation, predictions, weights])
    out.write_text(json.dumps(results))
"""


@pytest.fixture(scope="module")
def results(engine, tmp_path_factory):
    """What one process computes, then what each of two that train together does."""
    folder = tmp_path_factory.mktemp("equal")
    names = [folder / f"{name}.json" for name in ("alone", "first", "second")]
    cases = ",".join(engine.cases)
    environ = {key: value for key, value in engine.environ(0, []).items() if key != "TF_CONFIG"}
    alone = Process(EQUAL, folder, "alone", (names[0], cases, folder), environ)
    try:
        assert alone.wait() == 0, alone.errors()[-3000:]
    finally:
        alone.process.kill()
    arguments = [(name, cases, folder) for name in names[1:]]
    with started(engine, EQUAL, folder, arguments) as (_, processes):
        for one in processes:
            assert one.wait() == 0, one.errors()[-3000:]
    return [json.loads(name.read_text()) for name in names]


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", CASES)
def test_two_processes_compute_what_one_does(engine, results, case):
    alone, *together = results
    for one in together:
        for part, expected, got in zip(
            ("history", "evaluation", "predictions", "weights"), alone[case], one[case], strict=True
        ):
            assert_same(part, expected, got)


def assert_same(part, expected, got):
    if isinstance(expected, dict):
        assert list(got) == list(expected)
        expected, got = list(expected.values()), list(got.values())
    assert len(got) == len(expected), part
    for one, other in zip(expected, got, strict=True):
        np.testing.assert_allclose(other, one, rtol=TOLERANCE, atol=TOLERANCE, err_msg=part)


@pytest.mark.exhaustive
def test_each_example_comes_once_in_an_epoch_also_where_no_one_gave_a_seed(results):
    mean = float(np.mean(np.arange(270.0) ** 2))
    for one in results:
        np.testing.assert_allclose(one["whole_epoch"], [mean] * 3, rtol=TOLERANCE)


# One of them prints and writes

CHIEF = """
    import json, logging, pathlib, sys
    import keras, numpy as np, tensorflow as tf
    import keras_tpu_ext as kte

    index, shared, is_keras2 = int(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3] == "True"
    own = shared / str(index)
    own.mkdir()
    logger = logging.getLogger("keras_tpu_ext")
    logger.setLevel(logging.INFO)
    logger.addHandler(logging.StreamHandler(sys.stdout))
    scope = kte.strategy_scope()

    class Counts(keras.layers.Layer):
        # A variable of which every process has a part: it is read by all of them together.
        def build(self, shape):
            zero = keras.ops.zeros(())
            self.calls = keras.Variable(zero, trainable=False, synchronization="on_read", aggregation="sum")
        def call(self, x):
            if not tf.distribute.in_cross_replica_context():  # where Keras 2 asks for the shape of the output
                self.calls.assign_add(1.0)
            return x

    class Board(keras.callbacks.TensorBoard):
        # It writes, without the package tensorboard.
        def on_test_end(self, logs=None):
            pass
        def on_train_batch_end(self, batch, logs=None):
            pass
        def on_epoch_end(self, epoch, logs=None):
            (own / "board" / "event").write_text("")

    def build(counts, **options):
        keras.utils.set_random_seed(1)
        with scope:
            inputs = keras.Input((4,))
            outputs = keras.layers.Dense(1)(Counts()(inputs) if counts else inputs)
            model = kte.TPUModel(inputs, outputs)
            model.compile(keras.optimizers.SGD(0.01), "mse", **options)
        return model

    rng = np.random.default_rng(0)
    x = rng.normal(size=(270, 4)).astype("float32")
    y = x[:, :1].copy()
    y[99] = np.inf  # in the half of the first batch that the second process has

    def callbacks(backup):
        made = keras.callbacks
        return [
            kte.callbacks.Throughput(), kte.callbacks.LossScaleMonitor(), made.CSVLogger(str(own / "log.csv")),
            Board(str(own / "board")), made.EarlyStopping("loss", patience=9, verbose=1),
            made.ModelCheckpoint(str(own / "checkpoints" / "{epoch}.keras"), verbose=1),
            made.ModelCheckpoint(
                str(own / "weights" / "{batch}.weights.h5"), save_weights_only=True, save_freq=1, verbose=1
            ),
            made.BackupAndRestore(str(own / backup), delete_checkpoint=False),
            made.ReduceLROnPlateau("loss", patience=0, min_delta=9.0, verbose=1),
        ]

    model = build(counts=False, loss_scale="dynamic", gradient_accumulation_steps=2)
    listed = callbacks("backup")
    history = model.fit(x, y, batch_size=100, epochs=2, shuffle=False, callbacks=listed)
    listed[0].plot(own / "plot.png")
    model.evaluate(x[:99], y[:99])
    model.predict(x[:99])
    model.save(own / "model.keras")
    model.save_weights(str(own / "model.weights.h5"))
    if index == 0 or is_keras2:  # which saves what metrics of all processes have counted
        model.save(shared / "one_process_alone.keras")
    together = build(counts=True)
    together.fit(x[:50], x[:50, :1], batch_size=20, verbose=2, callbacks=callbacks("other"))
    together.save(own / "together.keras")

    # A window that is not full yet, saved by all and loaded again.
    windowed = build(counts=False, gradient_accumulation_steps=2)
    windowed.train_on_batch(x[:7], x[:7, :1])
    windowed.save(own / "window.keras")
    loaded = shared / "0" / "window.keras"
    windowed.evaluate(x[:9], x[:9, :1])  # which both take part in, so the file is there
    with scope:
        again = keras.saving.load_model(loaded)
    for one in (windowed, again):
        one.train_on_batch(x[100:120], x[100:120, :1])

    # All of them go on where the chief's backup says.
    restored = build(counts=False, loss_scale="dynamic", gradient_accumulation_steps=2)
    backup = keras.callbacks.BackupAndRestore(str(shared / "0" / "backup"))
    seen = []
    tell = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: seen.append(restored.get_weights()))
    restored.fit(x[:99], y[:99], batch_size=100, epochs=3, verbose=0, callbacks=[backup, tell])

    # Each looks into a folder of its own: a mistake, as on machines that share no storage. It comes last: in Keras 2
    # restoring is something that all do together, so processes that restore other things go on in no step.
    mistaken = build(counts=True)
    try:
        mistaken.fit(x[:50], x[:50, :1], epochs=3, callbacks=[keras.callbacks.BackupAndRestore(str(own / "other"))])
        refused = ""
    except kte.errors.ClusterError as error:
        refused = str(error)

    with open(shared / f"result{index}.json", "w") as file:
        json.dump({
            "chief": kte._runtime.devices.is_chief(),
            "refused": refused,
            "logs": sorted(history.history),
            "overflows": [list(overflow)[:2] for overflow in listed[1].overflows],
            "names": [listed[5].filepath, listed[5].verbose, "_save_model" in vars(listed[7])],
            "at_backup": np.concatenate([v.ravel() for v in model.get_weights()]).tolist(),
            "restored": [np.concatenate([v.ravel() for v in weights]).tolist() for weights in seen],
            "windows": [np.concatenate([v.ravel() for v in m.get_weights()]).tolist() for m in (windowed, again)],
        }, file)
"""

WRITTEN = [
    "backup/latest.weights.h5",
    "backup/training_metadata.json",
    "board/event",
    "checkpoints/1.keras",
    "checkpoints/2.keras",
    "log.csv",
    "model.keras",
    "model.weights.h5",
    "plot.png",
    "together.keras",
    "weights/1.weights.h5",
    "weights/3.weights.h5",
    "window.keras",
]


@dataclasses.dataclass(frozen=True)
class Ran:
    """What the two processes of `CHIEF` printed, wrote and found."""

    lines: list[list[str]]
    folder: Path
    results: list[dict]


@pytest.fixture(scope="module")
def chief_and_other(engine, tmp_path_factory):
    folder = tmp_path_factory.mktemp("chief")
    shared = folder / "shared"
    shared.mkdir()
    with started(engine, CHIEF, folder, [(index, shared, IS_KERAS2) for index in (0, 1)]) as (_, processes):
        for one in processes:
            assert one.wait() == 0, one.errors()[-3000:]
        lines = [one.lines() for one in processes]
    results = [json.loads((shared / f"result{index}.json").read_text()) for index in (0, 1)]
    return Ran(lines, shared, results)


def test_one_process_is_the_chief(chief_and_other):
    assert [one["chief"] for one in chief_and_other.results] == [True, False]


def test_only_the_chief_prints(chief_and_other):
    chief, other = chief_and_other.lines
    assert other == []
    text = "\n".join(chief)
    for sign in (
        "strategy_scope: 2 replicas on",
        "Epoch 1/2",
        "step - ",
        "LossScaleMonitor: epoch 1 skipped 1 step",
        "saving model to",
        "ReduceLROnPlateau reducing learning rate",
    ):
        assert sign in text
    assert len([line for line in chief if line.startswith("strategy_scope:")]) == 1


def test_only_the_chief_writes(chief_and_other):
    chief, other = (chief_and_other.folder / index for index in ("0", "1"))
    # Keras 2 writes on every process, into a folder that it makes and empties again.
    assert [path for path in other.rglob("*") if path.is_file() or not IS_KERAS2] == []
    before_the_restore = [name for name in WRITTEN if not name.startswith("backup")]
    assert [name for name in before_the_restore if not (chief / name).exists()] == []
    assert (chief_and_other.folder / "one_process_alone.keras").exists()


def test_callbacks_are_as_they_were_after_the_fit(chief_and_other):
    for index, one in enumerate(chief_and_other.results):
        path = chief_and_other.folder / str(index) / "checkpoints" / "{epoch}.keras"
        assert one["names"] == [str(path), 1, False]


def test_every_process_has_all_logs_and_knows_every_replica(chief_and_other):
    chief, other = chief_and_other.results
    assert chief["logs"] == other["logs"]
    assert {"loss", "loss_scale/value", "loss_scale/skipped_steps", "throughput/samples_per_sec"} <= set(
        chief["logs"]
    )
    assert chief["overflows"] == other["overflows"]
    assert {replica for _, replica in chief["overflows"]} == {1}


def test_a_backup_of_the_chief_restores_every_process_and_is_deleted_by_the_chief(chief_and_other):
    for one in chief_and_other.results:
        assert len(one["restored"]) == 1  # of three epochs two were done
        np.testing.assert_array_equal(one["restored"][0], chief_and_other.results[0]["at_backup"])
    backup = chief_and_other.folder / "0" / "backup"
    assert not (backup / "chief" if IS_KERAS2 else backup).exists()


def test_backups_that_are_not_the_same_are_told(chief_and_other):
    for one in chief_and_other.results:
        assert one["refused"].startswith(
            "BackupAndRestore found another backup in one process than in another: they would go on after 1 and 0 "
            "epochs. All of them must see the folder that the chief writes. What to do: "
        )


def test_a_window_of_two_processes_is_saved_and_loaded_whole(chief_and_other):
    for one in chief_and_other.results:
        went_on, loaded = one["windows"]
        np.testing.assert_allclose(loaded, went_on, rtol=TOLERANCE, atol=TOLERANCE)


# A process that is lost, or never comes

LONG = """
    import time
    import keras, numpy as np
    import keras_tpu_ext as kte

    with kte.strategy_scope():
        inputs = keras.Input((4,))
        model = kte.TPUModel(inputs, keras.layers.Dense(1)(inputs))
        model.compile("sgd", "mse")

    def tell(batch, logs):
        time.sleep(0.02)
        if batch == 5:
            print("in the middle", flush=True)

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=tell)
    x = np.ones((1_000_000, 4), "float32")
    model.fit(x, x[:, :1], batch_size=10, verbose=0, callbacks=[callback])
"""
LOST_WITHIN = 60  # seconds
LOSSES = {"the chief is killed": 0, "the other is killed": 1}


@pytest.fixture(scope="module")
def survivors(engine, tmp_path_factory, pytestconfig):
    """For each of `LOSSES`, all at once: the survivor's seconds to its end, its status and its errors.

    In the gate it is the first of them.
    """
    found = {}
    losses = LOSSES if pytestconfig.getoption("tier") == "exhaustive" else dict([*LOSSES.items()][:1])
    with contextlib.ExitStack() as stack:
        pairs = {}
        for name in losses:
            folder = tmp_path_factory.mktemp("lost")
            pairs[name] = stack.enter_context(started(engine, LONG, folder))[1]
        for pair in pairs.values():
            for one in pair:
                one.wait_for_line("in the middle")
        begin = time.monotonic()
        for name, victim in losses.items():
            pairs[name][victim].process.kill()
        waiting = {name: pairs[name][1 - victim] for name, victim in losses.items()}
        while waiting and time.monotonic() < begin + LOST_WITHIN:
            time.sleep(0.1)
            for name in [name for name, one in waiting.items() if one.process.poll() is not None]:
                one = waiting.pop(name)
                found[name] = (time.monotonic() - begin, one.process.returncode, one.errors())
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "loss", ["the chief is killed", pytest.param("the other is killed", marks=pytest.mark.exhaustive)]
)
def test_a_process_that_is_lost_ends_the_other_with_an_error(survivors, loss):
    assert loss in survivors, f"the survivor was still there after {LOST_WITHIN} s"
    seconds, status, errors = survivors[loss]
    print(f"{loss}: the survivor ended after {seconds:.1f} s with {status}")
    assert status > 0  # by an error, not by a signal
    who = "The chief|Worker 0" if LOSSES[loss] == 0 else "Worker 1"
    assert re.search(rf"ClusterError: ({who}) of the cluster has ended or cannot be reached, so this process", errors)


@pytest.mark.exhaustive
def test_a_process_that_never_starts_is_named(engine, tmp_path):
    program = "import keras_tpu_ext as kte; kte.strategy_scope()"
    for index in (0, 1):
        (tmp_path / str(index)).mkdir()
    with (
        started(engine, program, tmp_path / "0", which=[0], KTE_START_TIMEOUT="4") as (first, [chief]),
        started(engine, program, tmp_path / "1", which=[1], KTE_START_TIMEOUT="4") as (second, [other]),
    ):
        assert [chief.wait(), other.wait()] == [1, 1]
    cure = "What to do: start the same program once for every address in TF_CONFIG"
    assert (
        "ClusterError: 1 of the 2 processes that TF_CONFIG names did not start within 4 seconds: no one answers for "
        f"worker 1 at {first[1]}. {cure}"
    ) in chief.errors()
    assert f"ClusterError: The chief, worker 0 at {second[0]}, was not ready within 4 seconds" in other.errors()
    assert cure in other.errors()
