"""What one of several processes does to the callbacks of a call; no other process is started here."""

import contextlib

import keras
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext._runtime.training.fit_call import FitCall
from keras_tpu_ext._runtime.training.process_group import ProcessGroup


class Two(ProcessGroup):
    """One of two processes; `epochs` are those of the backups that both have found."""

    def __init__(self, number, epochs=(0, 0)):
        self.number, self.epochs = number, epochs

    def size(self):
        return 2

    def is_chief(self):
        return self.number == 0

    def all_gather_int(self, number):
        return list(self.epochs)

    def explain_peer_failure(self):
        return contextlib.nullcontext()


def taking_part(number, callbacks, epochs=(0, 0)):
    """Return the call, and the context of one of two processes."""
    model = kte.TPUModel.from_model(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
    call = FitCall("fit", model, (), {"callbacks": callbacks, "verbose": 2})
    return call, Two(number, epochs).take_part(call, model._kte.backup_epoch, model._kte.write_patches)


def made(tmp_path):
    return [
        keras.callbacks.CSVLogger(str(tmp_path / "log.csv")),
        keras.callbacks.ReduceLROnPlateau(verbose=1),
        keras.callbacks.History(),
    ]


@pytest.mark.parametrize("listed", [False, True])
def test_another_process_than_the_chief_neither_writes_nor_prints_and_gets_its_callbacks_back(tmp_path, listed):
    callbacks = made(tmp_path)
    _, plateau, history = callbacks
    given = keras.callbacks.CallbackList(callbacks, add_history=False, add_progbar=False) if listed else callbacks
    call, within = taking_part(1, given)
    with within:
        assert call.callbacks == [plateau, history]
        assert (plateau.verbose, call.arguments["verbose"]) == (0, 0)
    assert plateau.verbose == 1
    assert (given.callbacks if listed else given) == callbacks


def test_the_chief_keeps_all(tmp_path):
    callbacks = made(tmp_path)
    call, within = taking_part(0, callbacks)
    with within:
        assert call.callbacks == callbacks
        assert (callbacks[1].verbose, call.arguments["verbose"]) == (1, 2)


def test_backups_of_other_epochs_are_refused_before_anything_is_restored(tmp_path):
    backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))
    _, within = taking_part(0, [backup], epochs=(0, 3))
    with within, pytest.raises(kte.errors.ClusterError, match="they would go on after 0 and 3 epochs"):
        backup.on_train_begin()
