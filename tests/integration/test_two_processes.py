"""Two processes on this machine train together: what one process would compute, one voice, and no hang.

The programs know nothing of a cluster. An `Engine` tells a framework of it, from outside.
"""

import contextlib
import dataclasses
import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
MENTIONED = ("TPU", "KERAS", "KTE", "TF_", "CUDA", "KUBE")
PATIENCE = 240  # seconds; two processes that only start take 20 on two idle cores

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
    return {"TF_CONFIG": json.dumps(config), "TF_CPP_MIN_LOG_LEVEL": "3"}


ENGINES = {
    "keras3_tf": Engine(tf_config, ("arrays", "accumulation", "eager", "batches", "dataset", "files")),
}


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
                [sys.executable, "-W", "error:::keras_tpu_ext", "-c", textwrap.dedent(program), *map(str, arguments)],
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
        if kte._runtime.is_chief():
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
        weights = model.get_weights() + [variable.numpy() for variable in model.optimizer.variables]
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


@pytest.mark.parametrize("case", ENGINES["keras3_tf"].cases)
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


def test_each_example_comes_once_in_an_epoch_also_where_no_one_gave_a_seed(results):
    mean = float(np.mean(np.arange(270.0) ** 2))
    for one in results:
        np.testing.assert_allclose(one["whole_epoch"], [mean] * 3, rtol=TOLERANCE)


# One of them prints and writes

CHIEF = """
    import json, logging, pathlib, sys
    import keras, numpy as np
    import keras_tpu_ext as kte

    class Stepwise(keras.layers.Layer):
        def build(self, shape):
            self.seen = self.add_weight(name="seen", shape=(), trainable=False, synchronization=SYNC, aggregation="sum")
        def call(self, x):
            return x
    callbacks = keras.callbacks
    folder, own = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    logging.getLogger("keras_tpu_ext").setLevel(logging.INFO)
    logging.getLogger("keras_tpu_ext").addHandler(logging.StreamHandler(sys.stdout))
"""
