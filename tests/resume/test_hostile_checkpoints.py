"""Checkpoints that somebody made to do harm: each is refused, or does nothing that the file asks for.

Each is one of a real training, with another content and right digests, so that only its content can give it away.
"""

import contextlib
import dataclasses
import importlib
import os
import shutil
import subprocess
import sys
import warnings

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext.errors import CheckpointError, ResumeWarning
from keras_tpu_ext.resume import checkpoint, encoding
from keras_tpu_ext.resume.checkpoint import CheckpointFolder
from small_fits import Killed, KilledAt, X, model

pytestmark = pytest.mark.gate_on("keras3_jax")


class Mine(keras.callbacks.Callback):
    """A callback as users write them: it has a path, and deletes what is there."""

    def __init__(self, folder):
        super().__init__()
        self.best = f"{folder}/best.keras"
        self.older = [f"{folder}/1.keras", f"{folder}/2.keras"]
        self.notes = {"at": f"{folder}/notes"}
        self.names = np.array(["a", "b"])
        self.raw = b"a"
        self.scores = {"loss": 0.0}
        self.rng = np.random.default_rng(5)
        self.count = 0
        self.hook = len
        self.nothing = None

    def on_epoch_end(self, epoch, logs=None):
        self.count += 1


class Rows(keras.utils.PyDataset):
    """Reads files whose names it shuffles."""

    def __init__(self, folder):
        super().__init__()
        self.paths = [f"{folder}/{number}.npy" for number in range(4)]
        self.read = set()

    def __len__(self):
        return 4

    def __getitem__(self, index):
        self.read.add(self.paths[index])
        number = int(self.paths[index][-5])
        return X[number * 16 : (number + 1) * 16], X[number * 16 : (number + 1) * 16].sum(axis=1)

    def on_epoch_end(self):
        np.random.shuffle(self.paths)


class Outcome:
    """What came of a `fit`."""

    def __init__(self, tmp_path, killed_at=None):
        self.mine, self.rows = Mine(tmp_path), Rows(tmp_path)
        self.log = keras.callbacks.CSVLogger(tmp_path / "log.csv")
        self.stopping = keras.callbacks.EarlyStopping(monitor="loss", patience=9, min_delta=0.01)
        self.saving = keras.callbacks.ModelCheckpoint(tmp_path / "best.weights.h5", save_weights_only=True)
        callbacks = [self.mine, self.log, self.stopping, self.saving, KilledAt(killed_at)]
        resume = kte.callbacks.AutoResume(tmp_path / "checkpoints", every_s=0)
        self.model = model()
        self.methods = {callback: dict(_functions_of(callback)) for callback in callbacks}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", ResumeWarning)
            try:
                with contextlib.suppress(Killed):
                    self.model.fit(self.rows, epochs=3, verbose=0, callbacks=[*callbacks, resume])
            finally:  # Keras leaves it open
                if self.log.csv_file is not None:
                    self.log.csv_file.close()
        self.finished = resume.finished

    @property
    def weights(self):
        return [value.tobytes() for value in self.model.get_weights()]


def _functions_of(callback):
    names = [name for name in dir(callback) if callable(getattr(callback, name, None)) and not name.startswith("__")]
    return {name: getattr(callback, name) for name in names if name not in ("model", "_model", "monitor_op")}.items()


def state_of(content, name):
    return next(state for one, state in content["callbacks"] if one == name)


def put(name, **attributes):
    """Return what puts attributes into the state of a callback."""

    def change(content, folder):
        given = {key: value(folder) if callable(value) else value for key, value in attributes.items()}
        state_of(content, name).update(given)

    return change


def data(**attributes):
    def change(content, folder):
        given = {key: value(folder) if callable(value) else value for key, value in attributes.items()}
        content["data_state"][0][1].update(given)

    return change


def place(**values):
    return lambda content, folder: content["place"].update(values)


def top(**values):
    return lambda content, folder: content.update(values)


def variable(**values):
    return lambda content, folder: content["variables"][0].update(values)


def raw(**tag):
    """Return what puts a kind of value into a state that nobody writes."""
    return put("EarlyStopping", best=lambda folder: Tag(tag))


class Tag:
    def __init__(self, tag):
        self.tag = tag


ORDER = "paths of a PyDataset"  # which then come in another order
NO_EFFECT = {
    "a method": put("EarlyStopping", on_epoch_end=1),
    "a method that is an array": put("Mine", on_train_batch_end=np.ones(3)),
    "set_model": put("EarlyStopping", set_model="x"),
    "the model": put("Mine", model=None),
    "the model under its private name": put("Mine", _model=3),
    "params": put("Mine", params={"steps": 0}),
    "the class": put("Mine", __class__="CSVLogger"),
    "the dict": put("Mine", __dict__={}),
    "a new attribute": put("Mine", evil=1),
    "a function's place": put("Mine", hook=1),
    "the direction of EarlyStopping": put("EarlyStopping", monitor_op="greater"),
    "the file of a CSVLogger": put("CSVLogger", filename=lambda folder: f"{folder}/stolen.csv"),
    "the open file of a CSVLogger": put("CSVLogger", csv_file=lambda folder: f"{folder}/stolen.csv"),
    "the writer of a CSVLogger": put("CSVLogger", writer=1),
    "the separator of a CSVLogger": put("CSVLogger", sep=";"),
    "the file of a ModelCheckpoint": put("ModelCheckpoint", filepath=lambda folder: f"{folder}/stolen.weights.h5"),
    "a path": put("Mine", best=lambda folder: f"{folder}/stolen"),
    "a path in a list": put("Mine", older=lambda folder: [f"{folder}/stolen"]),
    "a path in a dict": put("Mine", notes=lambda folder: {"at": f"{folder}/stolen"}),
    "a path in an array": put("Mine", names=np.array(["stolen"])),
    "a path in bytes": put("Mine", raw=b"stolen"),
    "a path where there was nothing": put("Mine", nothing=lambda folder: f"{folder}/stolen"),
    "a list for a number": put("Mine", count=[1]),
    "an array for a number": put("Mine", count=np.ones(3)),
    "an array for a number of Keras's": put("EarlyStopping", wait=np.ones(3)),
    "a path in a key": put("Mine", scores=lambda folder: {f"{folder}/stolen": 1e9}),
    "a number for a generator": put("Mine", rng=3),
    "a state of a generator that NumPy would read beyond": put(
        "Mine", rng={"bit_generator": "MT19937", "state": {"key": np.zeros(624, "uint32"), "pos": 10**9}}
    ),
    "texts without number": put("Mine", nothing=np.arange(10).astype("S4")),
    ORDER: data(paths=lambda folder: [f"{folder}/stolen{number}.npy" for number in range(4)]),
    "a method of a PyDataset": data(on_epoch_end=1),
    "callbacks that are not there": lambda content, folder: content["callbacks"].append(["os.system", {"x": "y"}]),
}
REFUSED = {
    "a function": raw(function="keras.src.utils.file_utils:os.system"),
    "a function of NumPy": raw(function="numpy:f2py.subprocess.Popen"),
    "the command": raw(function="keras_tpu_ext.__main__:x"),
    "a module": raw(module="this"),
    "a pickle": raw(pickle="gASVIQAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOU"),
    "an object": raw(**{"py/object": "os.system"}),
    "Keras's own form": raw(class_name="Lambda", config={"function": "os.system"}),
    "a path for bytes": raw(file="/etc/passwd"),
    "an order beyond the data": place(iterator=[0, 1, 2, 10**9]),
    "an order of texts": place(iterator=["os", "system", "x", "y"]),
    "an order that is a dict": place(iterator={"../../stolen": b"x"}),
    "batches without end": place(batch=2**60),
    "passes without end": place(passes=2**60),
    "iterators without end": place(unread=2**60),
    "rows that are a text": place(rows="many"),
    "a role of a variable": variable(role="code"),
    "the name of a variable": variable(path="other/kernel"),
    "a name with control characters": variable(path="\x1b[2J\x07"),
    "the dtype of a variable": variable(value=np.ones((4, 1), "int32")),
    "no array": variable(value="os.system"),
    "replicas of a number": variable(value=np.float32(1)[()], per_replica=True),
    "an epoch before the first": top(epoch=-5),
    "best weights of another model": put("EarlyStopping", best_weights=[np.ones(3)], best=-1e9),
    "a time beyond all": top(time=10**400),
    "an integer beyond all": put("EarlyStopping", wait=10**400),
    "keys with one hash": put("EarlyStopping", best={k * (2**61 - 1): 0 for k in range(100)}),
    "a history of texts": top(history="os.system"),
    "a key of its own": top(on_load="os.system"),
    "batches beyond the data": top(batch=2**40, batches=2**50),
    "all batches beyond the data": lambda content, folder: (
        top(batches=2**62)(content, folder),
        place(batch=2**62)(content, folder),
    ),
    "another Keras": top(keras="\x1b]0;stolen\x07"),
}


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return Outcome(tmp_path_factory.mktemp("whole")).weights


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("killed")


@pytest.fixture(scope="module")
def killed(folder, tmp_path_factory):
    """The checkpoints of a killed training in `folder`."""
    Outcome(folder, killed_at=6)
    return shutil.copytree(folder / "checkpoints", tmp_path_factory.mktemp("kept") / "checkpoints")


@pytest.fixture
def attacked(folder, killed, monkeypatch):
    """A function that changes all checkpoints of a killed training and goes on; nothing may be called or imported."""
    shutil.rmtree(folder)
    shutil.copytree(killed, folder / "checkpoints")

    def forbidden(*args, **kwargs):
        raise AssertionError(f"the file got {args}")

    for module, name in ((os, "system"), (subprocess, "Popen"), (importlib, "import_module")):
        monkeypatch.setattr(module, name, forbidden)
    checkpoints = CheckpointFolder(str(folder / "checkpoints"))

    def attack(change):
        stock = encoding.encode
        monkeypatch.setattr(checkpoint, "encode", lambda value, arrays: _encoded(stock, value, arrays))
        for found in checkpoints.find():
            content = checkpoint.read(checkpoints.folder, found.name).to_content()
            content["callbacks"] = [[name, dict(state)] for name, state in content["callbacks"]]
            content["data_state"] = [[name, dict(state)] for name, state in content["data_state"]]
            change(content, folder)
            checkpoint.write(checkpoints.folder, found.name, _Content(content))
        monkeypatch.setattr(checkpoint, "encode", stock)
        return Outcome(folder)

    return attack


@dataclasses.dataclass
class _Content:
    content: dict

    def to_content(self):
        return self.content


def _encoded(stock, value, arrays):
    """Encode values, with those tags that nothing writes as they are."""
    tags = []

    def out(one):
        if isinstance(one, Tag) or (type(one) is int and abs(one) > 2**62):
            tags.append(one.tag if isinstance(one, Tag) else one)
            return f"tag {len(tags) - 1}"
        if type(one) in (list, tuple):
            return type(one)(map(out, one))
        return {out(name): out(inner) for name, inner in one.items()} if type(one) is dict else one

    def back(one):
        if isinstance(one, str) and one.startswith("tag "):
            return tags[int(one[4:])]
        if isinstance(one, list):
            return list(map(back, one))
        return {name: back(inner) for name, inner in one.items()} if isinstance(one, dict) else one

    return back(stock(out(value), arrays))


def check_harmless(outcome, before, folder):
    for callback, functions in outcome.methods.items():
        assert dict(_functions_of(callback)) == functions
    assert not [name for name in os.listdir(folder) if "stolen" in name]
    assert not {name for name in set(sys.modules) - before if "keras" not in name and "jax" not in name}
    assert outcome.rows.paths == sorted(outcome.rows.paths) or set(outcome.rows.paths) == set(Rows(folder).paths)
    fresh = Mine(folder)
    for name in ("best", "older", "notes", "raw", "nothing", "hook", "scores"):
        assert getattr(outcome.mine, name) == getattr(fresh, name)
    assert outcome.mine.names.tolist() == fresh.names.tolist()
    assert outcome.mine.model is outcome.model
    assert outcome.log.filename == str(folder / "log.csv")
    assert outcome.log.sep == ","


def all_of_them(content, folder):
    for kind, change in NO_EFFECT.items():
        if kind != ORDER:
            change(content, folder)


@pytest.mark.parametrize(
    "change",
    [all_of_them, *(pytest.param(change, marks=pytest.mark.exhaustive) for change in NO_EFFECT.values())],
    ids=["all of them", *NO_EFFECT],
)
def test_it_has_no_effect(change, attacked, expected, folder):
    before = set(sys.modules)
    outcome = attacked(change)
    check_harmless(outcome, before, folder)
    assert outcome.finished
    if change is not NO_EFFECT[ORDER]:
        assert outcome.weights == expected


@pytest.mark.parametrize("kind", REFUSED)
def test_it_is_refused(kind, attacked, expected, folder, capfd):
    before = set(sys.modules)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            outcome = attacked(REFUSED[kind])
        except CheckpointError as error:
            text = str(error)
        else:
            check_harmless(outcome, before, folder)
            text = "\n".join(str(one.message) for one in told)
            assert "are damaged, so this begins anew" in text or outcome.weights == expected
    assert not {name for name in set(sys.modules) - before if "keras" not in name and "jax" not in name}
    assert "\x1b" not in text + capfd.readouterr().out
