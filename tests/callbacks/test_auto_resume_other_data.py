"""A training that is started again with other data, another model, in another folder, or that has diverged."""

import collections
import importlib.util
import os
import random
import time
import warnings

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext.errors import CheckpointError, ResumeWarning
from keras_tpu_ext.resume.lock import FolderLock
from keras_tpu_ext.resume.report import resume_report
from keras_tpu_ext.resume.saver import Saver
from keras_tpu_ext.resume.storage import folder_of
from kind_of_keras import IS_KERAS2
from small_fits import Calling, Killed, kill

pytestmark = pytest.mark.gate_on("keras3_jax")
X = np.random.default_rng(0).normal(size=(96, 4)).astype("float32")
HAS_TENSORFLOW = importlib.util.find_spec("tensorflow") is not None


@pytest.fixture(autouse=True)
def _every_save_is_whole_before_the_next(monkeypatch):
    """Which of them are made does not depend on the speed of the disk."""
    is_writing = Saver.is_writing

    def wait(saver):
        while is_writing(saver):
            time.sleep(0.001)
        return False

    monkeypatch.setattr(Saver, "is_writing", wait)


def model(first="first", second="second", rate=0.1, dtype=None):
    keras.utils.set_random_seed(3)
    with kte.strategy_scope(require="cpu", replicas=2):
        made = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(4, name=first, dtype=dtype), keras.layers.Dense(4, name=second)]
        )
        made.compile(keras.optimizers.SGD(rate), "mse")
    return made


def arrays(x=X, batch_size=16, **options):
    return {"x": x, "y": x, "batch_size": batch_size, **options}


class Batches(keras.utils.PyDataset):
    def __init__(self, size=16, number=6, parts=1):
        super().__init__()
        self.size, self.number, self.parts = size, number, parts

    def __len__(self):
        return self.number

    def __getitem__(self, index):
        rows = X[np.arange(index * self.size, (index + 1) * self.size) % len(X)]
        return (rows,) * (1 + self.parts)


def tf_data(size=16, rows=96, repeats=False):
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices((X[:rows], X[:rows]))
    return (data.repeat() if repeats else data).batch(size)


def generated(size=16, batches=None):
    number = 0
    while batches is None or number < batches:
        yield X[:size] + number % 3, X[:size]
        number += 1


def train(directory, data, killed_at=None, made=None, epochs=3, callbacks=(), **resume):
    made = model() if made is None else made
    resume = kte.callbacks.AutoResume(directory, **{"every_s": 0, **resume})
    callbacks = [*callbacks, Calling(999 if killed_at is None else killed_at, kill), resume]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`shuffle=True` was passed", UserWarning)
        warnings.filterwarnings("ignore", "Your input ran out of data", UserWarning)
        made.fit(**data, epochs=epochs, verbose=0, callbacks=callbacks)
    return resume, made


OTHER = {
    "twice the rows": (arrays, lambda: arrays(np.concatenate([X, X])), "96 rows, now 192"),
    "fewer rows": (arrays, lambda: arrays(X[:32]), "6 batches, now 2; 96 rows, now 32"),
    "another batch size": (arrays, lambda: arrays(batch_size=32), "batches of 16 rows, now 32"),
    "other values": (arrays, lambda: arrays(X + 1), "a first batch with the digest"),
    "a part for validation": (arrays, lambda: arrays(validation_split=0.5), "96 rows, now 48"),
    "another dtype": (arrays, lambda: arrays(X.astype("float64")), "parts of a batch"),
    "other steps": (
        lambda: arrays(steps_per_epoch=6),
        lambda: arrays(steps_per_epoch=3),
        "steps_per_epoch=6, now 3",
    ),
    "batches by index for arrays": (arrays, lambda: {"x": Batches()}, "data of the kind 'arrays', now 'Batches'"),
    "fewer batches by index": (lambda: {"x": Batches()}, lambda: {"x": Batches(number=2)}, "6 batches, now 2"),
    "a generator that ends": (
        lambda: {"x": generated(), "steps_per_epoch": 6},
        lambda: {"x": generated(batches=5), "steps_per_epoch": 6},
        "the data have ended after 5 batches",
    ),
}
if HAS_TENSORFLOW:
    OTHER |= {
        "fewer rows of tf.data": (
            lambda: {"x": tf_data()},
            lambda: {"x": tf_data(rows=48)},
            "6 batches, now 3",
        ),
    }


@pytest.mark.parametrize("kind", OTHER)
def test_other_data_are_refused(kind, tmp_path):
    before, after, message = OTHER[kind]
    with pytest.raises(Killed):
        train(tmp_path, before(), 9)
    names = sorted(os.listdir(tmp_path))
    with pytest.raises(
        CheckpointError, match=rf"the data are others than when it was saved: .*({message})"
    ) as caught:
        train(tmp_path, after())
    assert 'with these, write AutoResume(..., on_changed_data="restart_epoch"); to start anew, give it' in str(
        caught.value
    )
    assert sorted(os.listdir(tmp_path)) == names
    assert train(tmp_path, before())[0].finished, "nothing was lost"


@pytest.mark.parametrize("kind", ["twice the rows", "another batch size", "fewer rows"])
def test_it_goes_on_with_other_data_at_the_start_of_the_epoch_if_asked_to(kind, tmp_path):
    before, after, message = OTHER[kind]
    with pytest.raises(Killed):
        train(tmp_path, before(), 9)
    newest = resume_report(str(tmp_path)).newest
    told = rf"the data are others than when this was saved \(.*{message}.*\), so it begins the epoch anew"
    with pytest.warns(ResumeWarning, match=told):
        resume, made = train(tmp_path, after(), on_changed_data="restart_epoch")
    assert resume.finished
    rows, size = len(after()["x"]), after()["batch_size"]
    assert int(np.asarray(made.optimizer.iterations)) == newest.batches + (3 - newest.epoch) * (rows // size)
    assert made.history.epoch == [0, 1, 2]
    resume, again = train(tmp_path, after())
    assert resume.finished
    assert [value.tobytes() for value in again.get_weights()] == [value.tobytes() for value in made.get_weights()]


def test_the_last_batch_of_a_pass_may_be_shorter(tmp_path):
    """It warns of nothing: a warning is an error here."""
    for killed_at in (5, 6):
        with pytest.raises(Killed):
            train(tmp_path / str(killed_at), arrays(X[:90]), killed_at)
        assert train(tmp_path / str(killed_at), arrays(X[:90]))[0].finished


@pytest.mark.parametrize("killed_at", [3, 9])
@pytest.mark.parametrize("sizes", [(4, 12, 8, 16, 20, 6), (16, 16, 16, 8, 8, 8), (8, 8, 8, 16, 16, 16)])
def test_batches_may_have_different_sizes(sizes, killed_at, tmp_path):
    """Also in runs, as of sequences that are sorted by length."""

    class Buckets(Batches):
        def __getitem__(self, index):
            rows = X[: sizes[index]]
            return rows, rows

    data = {"shuffle": False}
    with pytest.raises(Killed):
        train(tmp_path, {"x": Buckets(), **data}, killed_at)
    assert train(tmp_path, {"x": Buckets(), **data})[0].finished


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"first": "other"}, "it has .*first/kernel where this model has .*other/kernel"),
        ({"first": "second", "second": "first"}, "it has .*first/kernel where this model has .*second/kernel"),
    ],
)
def test_a_model_of_other_layers_is_refused(other, message, tmp_path):
    with pytest.raises(Killed):
        train(tmp_path, arrays(), 9)
    made = model(**other, rate=0.3)
    with pytest.raises(CheckpointError, match=rf"of another model in .*: {message}"):
        train(tmp_path, arrays(), made=made)
    assert float(np.asarray(made.optimizer.learning_rate)) == pytest.approx(0.3)


def test_names_that_keras_counts_may_have_other_counts(tmp_path):
    with pytest.raises(Killed):
        train(tmp_path, arrays(), 9, made=model(None, None))
    keras.layers.Dense(2), keras.Sequential()
    assert train(tmp_path, arrays(), made=model(None, None))[0].finished


def test_layers_in_another_order_are_refused_though_they_are_counted(tmp_path):
    with pytest.raises(Killed):
        train(tmp_path, arrays(), 9, made=model("block_1", "block_2"))
    with pytest.raises(CheckpointError, match="of another model"):
        train(tmp_path, arrays(), made=model("block_2", "block_1"))


def test_a_variable_of_another_dtype_is_refused(tmp_path):
    with pytest.raises(Killed):
        train(tmp_path, arrays(), 9)
    with pytest.raises(CheckpointError, match=r"its .*kernel is of float32, where this model has .* of float16"):
        train(tmp_path, arrays(), made=model(dtype="float16"))


def test_a_callback_may_change_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(Killed):
        train("checkpoints", arrays(), 9, callbacks=[Calling(2, lambda: os.chdir(tmp_path / "elsewhere"))])
    assert not os.listdir(tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path)
    assert len(resume_report("checkpoints").checkpoints) == 2
    assert train("checkpoints", arrays(), callbacks=[Calling(999, kill)])[0].finished


def test_a_loss_that_is_no_number_is_told_and_the_checkpoint_before_it_is_kept(tmp_path):
    made = model()
    spoiling = Calling(8, lambda: made.layers[0].kernel.assign(np.full((4, 4), np.nan)))
    if not IS_KERAS2 and keras.backend.backend() == "jax":  # whose step has weights of its own

        class Spoilt(Batches):
            def __getitem__(self, index):
                x, y = super().__getitem__(index)
                made.spoilt = getattr(made, "spoilt", 0) + 1
                return (x * np.nan if made.spoilt > 8 else x), y

        data, spoiling = {"x": Spoilt()}, Calling(99, lambda: None)
    else:
        data = arrays()
    with pytest.warns(ResumeWarning, match="the loss is no finite number any more; checkpoint-") as told:
        train(tmp_path, data, made=made, epochs=4, callbacks=[spoiling])
    (told,) = [str(one.message) for one in told if "no finite" in str(one.message)]
    report = resume_report(str(tmp_path))
    assert [one.diverged for one in report.checkpoints] == [True, True, False]
    kept = os.path.basename(report.checkpoints[-1].path)
    assert f"{kept} is the last checkpoint with a finite one, and is kept: to go on from it, remove the later" in told
    for one in report.checkpoints[:2]:
        os.remove(one.path)
    made.spoilt = -1000
    resume, again = train(tmp_path, data, epochs=4, callbacks=[Calling(99, kill)])
    assert resume.finished
    assert np.isfinite(again.history.history["loss"]).all()


@pytest.mark.parametrize("mode", ["min", "auto"])
def test_a_least_improvement_is_that_of_before(mode, tmp_path):
    """Keras changes its sign in the first epoch."""

    def trained(directory, killed_at=None):
        stopping = keras.callbacks.EarlyStopping(monitor="loss", mode=mode, min_delta=1e-4, patience=1)
        with warnings.catch_warnings():
            warnings.simplefilter("error", ResumeWarning)
            _, made = train(directory, arrays(), killed_at, epochs=6, callbacks=[stopping])
        return stopping, made.history.history

    expected, history = trained(tmp_path / "whole")
    with pytest.raises(Killed):
        trained(tmp_path / "killed", 9)
    stopping, again = trained(tmp_path / "killed")
    assert again == history
    assert (stopping.min_delta, stopping.best, stopping.wait) == (expected.min_delta, expected.best, expected.wait)


def test_a_second_training_in_the_folder_is_refused(tmp_path):
    first = FolderLock(folder_of(str(tmp_path)))
    first.acquire()
    who = rf"process {os.getpid()} on .+, since \d{{4}}-.+"
    with pytest.raises(CheckpointError, match=rf"cannot write into .*: {who} does so\. Two trainings cannot share"):
        train(tmp_path, arrays())
    first.release()
    assert train(tmp_path, arrays())[0].finished
    assert not [name for name in os.listdir(tmp_path) if "lock" in name]


def test_a_finished_training_is_none_of_other_data(tmp_path):
    """As in a loop over folds that forgot to give each its folder."""
    assert train(tmp_path, arrays(X[:48]))[0].finished
    with pytest.raises(CheckpointError, match="the data are others than when it was saved"):
        train(tmp_path, arrays(X[48:]))


def test_a_notebook_cell_with_a_nested_model_that_runs_again(tmp_path):
    def nested():
        layers = [keras.layers.Dense(4) for _ in range(2)]
        with kte.strategy_scope(require="cpu", replicas=2):
            inner = [keras.Sequential([layer]) for layer in layers[::-1]]
            made = keras.Sequential([keras.Input((4,)), *inner])
            made.compile("adam", "mse")
        return made

    with pytest.raises(Killed):
        train(tmp_path, arrays(), 9, made=nested())
    assert train(tmp_path, arrays(), made=nested())[0].finished


GENERATORS = {
    "Generator": lambda: np.random.default_rng(0),
    "RandomState": lambda: np.random.RandomState(0),
    "Random": lambda: random.Random(0),
    "Mersenne Twister": lambda: np.random.Generator(np.random.MT19937(0)),
}


@pytest.mark.parametrize("kind", GENERATORS)
def test_data_that_draw_from_a_generator_of_their_own(kind, tmp_path):
    class Drawing(Batches):
        def __init__(self):
            super().__init__()
            self.rows, self.rng = list(range(len(X))), GENERATORS[kind]()

        def __getitem__(self, index):
            rows = X[self.rows[index * 16 : (index + 1) * 16]]
            return rows, rows

        def on_epoch_end(self):
            self.rng.shuffle(self.rows)

    with pytest.raises(Killed):
        train(tmp_path / "killed", {"x": Drawing()}, 9)
    _, again = train(tmp_path / "killed", {"x": Drawing()})
    _, whole = train(tmp_path / "whole", {"x": Drawing()})
    assert [value.tobytes() for value in again.get_weights()] == [value.tobytes() for value in whole.get_weights()]


class Sampler:
    def __init__(self):
        self.order = [1, 2, 3]


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda: collections.Counter(), lambda value: value.update("a")),
        (lambda: collections.deque([1]), lambda value: value.append(2)),
        (lambda: np.array(["a", None], object), lambda value: value.__setitem__(0, "b")),
        (Sampler, lambda value: value.order.reverse()),
    ],
    ids=["Counter", "deque", "array of objects", "an object of its own"],
)
def test_what_changes_in_place_and_cannot_be_kept_is_told(make, change, tmp_path):
    class Having(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.kept = make()

        def on_epoch_end(self, epoch, logs=None):
            change(self.kept)

    with pytest.warns(ResumeWarning, match="Having keeps kept, which no checkpoint can hold"):
        train(tmp_path, arrays(), callbacks=[Having()])


def test_what_is_made_at_the_beginning_of_each_epoch_is_not_told(tmp_path):
    """It warns of nothing: a warning is an error here."""

    class History(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.logs = []

        def on_epoch_begin(self, epoch, logs=None):
            self.begun = time.time()

        def on_epoch_end(self, epoch, logs=None):
            self.logs.append({name: float(value) for name, value in logs.items()})

    class Stopping(keras.callbacks.EarlyStopping):
        pass

    def callbacks():
        return [History(), Stopping(monitor="loss", min_delta=0.01)]

    with pytest.raises(Killed):
        train(tmp_path, arrays(), 9, callbacks=callbacks())
    history, stopping = callbacks()
    train(tmp_path, arrays(), callbacks=[history, stopping])
    assert [list(one) for one in history.logs] == [["loss"]] * 3
