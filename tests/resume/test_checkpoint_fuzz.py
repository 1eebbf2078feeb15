"""Checkpoints whose content is nearly right: each is read as it stands, or refused by an error of this package."""

import copy
import io
import json
import tracemalloc
from pathlib import Path

import keras
import numpy as np
import pytest
from hypothesis import strategies as st

from fuzzing import Tally, each, mutated
from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.values import Place, SavedVariable
from keras_tpu_ext.errors import CheckpointError
from keras_tpu_ext.resume import checkpoint, tensor_file
from keras_tpu_ext.resume.callback_state import OF_KERAS, CallbackStates, _texts
from keras_tpu_ext.resume.checkpoint import CheckpointFolder
from keras_tpu_ext.resume.report import resume_report
from small_fits import X, model
from some_checkpoint import some_checkpoint

pytestmark = pytest.mark.runtimes("keras3_jax")  # the same code reads them everywhere
NAME = "checkpoint-000000.safetensors"
MEMORY = 100  # bytes that a byte of a file may take, and
LEAST_MEMORY = 2_000_000  # of any file


def forged(parts, arrays):
    """Return a file of mutated parts with right digests."""
    text = json.dumps({"arrays": parts["arrays"], "content": parts["content"]})
    table = parts["table"]
    metadata = {"keras_tpu_ext": text, "keras_tpu_ext.sha256": tensor_file._digest(text, table)}
    header = json.dumps({"__metadata__": metadata, **(table if isinstance(table, dict) else {})}).encode()
    return len(header).to_bytes(8, "little") + header + arrays


def parts_of(folder):
    """Return the parts of the checkpoint in a folder, and the bytes of its arrays."""
    with folder.open(NAME) as file:
        whole = file.read()
    length = int.from_bytes(whole[:8], "little")
    table = json.loads(whole[8 : 8 + length])
    text = json.loads(table.pop("__metadata__")["keras_tpu_ext"])
    return {**text, "table": table}, whole[8 + length :]


class Mine(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.count, self.best, self.names, self.hook = 0, None, ["a", "b"], len


@pytest.fixture(scope="module")
def trained():
    made = model()
    made.fit(X, X.sum(axis=1), batch_size=16, verbose=0)
    return made


def saved_of(made):
    variables = [
        SavedVariable(one.role, one.path, np.asarray(one.value), one.per_replica)
        for one in _runtime.training_state.read(made, on_host=True)
    ]
    callbacks = [("Mine", {"count": 3, "best": [np.ones(2, "float32")], "names": ["b", "a"]})]
    return some_checkpoint(variables=variables, callbacks=callbacks, place=Place(7, 7, [2, 0, 1], None, None))


def outcome_of(folder, made, parts, arrays):
    content = forged(parts, arrays)
    Path(folder.folder.path_of(NAME)).write_bytes(content)
    before = [value.copy() for value in made.get_weights()]
    tracemalloc.start()
    report = resume_report(folder.path)
    try:
        found = checkpoint.read(folder.folder, NAME)
    except CheckpointError:
        outcome = "refused when they were read"
    else:
        outcome = _assigned(made, found)
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert taken < MEMORY * len(content) + LEAST_MEMORY
    assert report.ok == (outcome != "refused when they were read")
    if outcome != "taken":
        for value, old in zip(made.get_weights(), before, strict=True):
            np.testing.assert_array_equal(value, old)
    return outcome


def _assigned(made, found):
    mine = Mine()
    states = CallbackStates([mine], but=OF_KERAS)
    try:
        _runtime.training_state.assign(made, found.variables)
    except CheckpointError:
        return "of another model"
    states.assign(found.callbacks)
    assert mine.hook is len
    assert set(vars(mine)) == set(vars(Mine()))
    assert _texts(mine.names)[0] <= {"a", "b"}
    return "taken"


def test_mutated_checkpoints(trained, tmp_path, pytestconfig):
    folder = CheckpointFolder(str(tmp_path / "checkpoints"))
    folder.write(saved_of(trained))
    parts, arrays = parts_of(folder.folder)
    tally = Tally("checkpoints", tmp_path, ["checkpoints"])
    values = mutated(parts) | mutated(_part(parts, "variables")) | mutated(_part(parts, "callbacks"))
    values |= st.sampled_from(range(len(_part(parts, "variables")[1]))).flatmap(lambda at: renamed(parts, at))
    each(pytestconfig, values, tally, lambda value: outcome_of(folder, trained, _parts(parts, value), arrays))
    assert min(tally.counts[one] for one in ("taken", "of another model", "refused when they were read")) > 0


def _part(parts, name):
    """Return one entry of what a checkpoint holds."""
    return next(pair for pair in parts["content"]["checkpoint"]["dict"] if pair[0] == name)


def renamed(parts, at):
    """Return a strategy of the variables, of which one has another role, path or number of replicas."""

    def change(value):
        variables = copy.deepcopy(_part(parts, "variables"))
        pairs = variables[1][at]["dict"]
        pairs[:] = [[name, value.get(name, old)] for name, old in pairs]
        return variables

    return st.fixed_dictionaries(
        {},
        optional={
            "role": st.sampled_from(["weight", "metric"]),
            "path": st.text(max_size=9),
            "per_replica": st.booleans(),
        },
    ).map(change)


def _parts(parts, value):
    """Return the parts of a file, whatever became of them, or those with another entry of the content."""
    if isinstance(value, list):
        name = value[0] if value and value[0] in ("variables", "callbacks") else "callbacks"
        parts = copy.deepcopy(parts)
        _part(parts, name)[:] = value
        return parts
    value = value if isinstance(value, dict) else {}
    return {name: value.get(name) for name in ("content", "arrays", "table")}


def test_a_file_of_random_bytes(tmp_path):
    rng = np.random.default_rng(0)
    for length in range(0, 400, 3):
        content = rng.bytes(length)
        for start in (b"", (length // 2).to_bytes(8, "little"), (2).to_bytes(8, "little") + b"{}"):
            whole = start + content
            with pytest.raises(tensor_file.MismatchError):
                tensor_file.TensorFile(io.BytesIO(whole))
