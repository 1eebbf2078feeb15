"""Everything that is patched is in the table, and is taken back when the table says so."""

import ast
import functools
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext._runtime.common.patch_table import LIFETIMES, PATCHED
from keras_tpu_ext._runtime.training.model import ExactModel
from kind_of_keras import IMPORT_KERAS, IS_KERAS2

pytestmark = pytest.mark.gate_on("keras3_tf", "keras3_jax", "keras2_tf221")
once = pytest.mark.gate_on("keras3_jax")  # about the package's own text
FILES = Path(kte.__file__).parent
MODEL = kte._runtime.keras.Model
OF_SCOPES = [row for row in PATCHED if not row.owner.startswith("dropin/")]
X, Y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")
EAGERLY = keras.backend.backend() == "tensorflow"  # which traces long, and it is about methods

# A fresh process prints which attributes that hold code are others after scopes than before the import of this
# package, and what is still patched.
PROGRAM = """
import json, os, sys, tempfile, types
import numpy as np

X, Y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")


def is_of_framework(name):
    return name.partition(".")[0] in ("keras", "tf_keras", "tensorflow", "jax")


def attributes():
    found = {}
    for path, module in list(sys.modules.items()):
        if is_of_framework(path) and isinstance(module, types.ModuleType):
            found[path] = dict(vars(module))
            for one in found[path].values():
                if isinstance(one, type) and is_of_framework(one.__module__):
                    found[f"{one.__module__}.{one.__qualname__}"] = dict(vars(one))
    return found


def use():
    model = keras.Sequential([keras.layers.Dense(1, input_shape=(3,))])
    model.compile("sgd", "mse", metrics=["mae"])
    model.fit(X, Y, verbose=0)
    model.evaluate(X, Y, verbose=0)
    model.predict(X, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        model.save(os.path.join(folder, "model.keras"))
        keras.models.load_model(os.path.join(folder, "model.keras"))
    keras.backend.clear_session()
    return model


def is_code(value):
    return callable(value) or isinstance(value, (property, staticmethod, classmethod))


before = attributes()
import keras_tpu_ext as kte
from keras_tpu_ext._runtime.common import patches

scope = kte.strategy_scope(require="cpu", replicas=2)
with scope:
    model = use()
    with scope:
        model.fit(X, Y, verbose=0)
model.fit(X, Y, verbose=0)
after = attributes()
others = []
for owner, members in before.items():
    for name in {**members, **after[owner]}:
        one, two = members.get(name), after[owner].get(name)
        if one is not two and (is_code(one) or is_code(two)):
            others.append(f"{owner}.{name}")
inside = [attribute.name for attribute in patches._ATTRIBUTES.values() if attribute.inside]
print(json.dumps([others, inside]))
"""


def own_name(name):
    """Return the name that an attribute has by its module or class itself; `None` if this runtime has none."""
    path, _, attribute = name.rpartition(".")
    if IS_KERAS2:
        path = re.sub("^keras", kte._runtime.keras.Model.__module__.partition(".")[0], path)
    parts = path.split(".")
    for i in range(len(parts), 0, -1):
        try:
            owner = functools.reduce(getattr, parts[i:], sys.modules[".".join(parts[:i])])
        except (AttributeError, KeyError):
            continue
        if isinstance(owner, type):
            return f"{owner.__module__}.{owner.__qualname__}.{attribute}"
        return f"{owner.__name__}.{attribute}"
    return None


def test_after_scopes_only_what_stays_for_the_process_is_patched():
    command = [sys.executable, "-W", "ignore", "-c", f"{IMPORT_KERAS}\n{PROGRAM}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    others, inside = json.loads(done.stdout.splitlines()[-1])
    staying = [row.name for row in OF_SCOPES if row.lifetime == "process" and " " not in row.name]
    assert set(others) <= {own_name(name) for name in staying}
    assert set(inside) <= {name.rpartition(".")[2] for name in staying}


def members():
    return {**vars(MODEL), "build": vars(keras.Sequential).get("build"), "clear": keras.backend.clear_session}


@pytest.fixture
def put_back():
    """Leave `keras.Model` as it was."""
    before = dict(vars(MODEL))
    yield
    for name in ("__new__", "compile", "fit"):
        if name in before:
            setattr(MODEL, name, before[name])
        elif name in vars(MODEL):
            delattr(MODEL, name)


def wrap_all(calls):
    """Put a wrapper round each of three methods, as an autologger does; return them by name."""

    def wrapper_of(name, stock):
        @functools.wraps(stock)
        def wrapper(*args, **kwargs):
            calls[name] += 1
            return stock(*args, **kwargs)

        return wrapper

    wrappers = {name: wrapper_of(name, getattr(MODEL, name)) for name in ("__new__", "compile", "fit")}
    for name, wrapper in wrappers.items():
        setattr(MODEL, name, staticmethod(wrapper) if name == "__new__" else wrapper)
    return wrappers


class Own(MODEL):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        return self.dense(inputs)


def used(model=None):
    model = Own() if model is None else model
    model.compile("sgd", "mse", run_eagerly=EAGERLY)
    model.fit(X, Y, verbose=0)
    return model


@pytest.mark.usefixtures("garbage_of_this_test_only")
def test_a_wrapper_that_was_put_round_a_method_inside_a_block_stays(scope3, put_back):
    calls, older = Counter(), Own()
    older(X)
    with scope3:
        wrappers = wrap_all(calls)
        assert isinstance(used(), ExactModel)
        assert calls == {"__new__": 1, "compile": 1, "fit": 1}
        with scope3:
            assert isinstance(used(), ExactModel)
    assert calls == {"__new__": 2, "compile": 2, "fit": 2}
    assert {name: getattr(MODEL, name) for name in wrappers} == wrappers
    assert not isinstance(used(), ExactModel)
    assert calls == {"__new__": 3, "compile": 3, "fit": 3}
    with scope3:
        assert isinstance(used(), ExactModel)
        keras.backend.clear_session()
        assert isinstance(used(), ExactModel)
    assert calls == {"__new__": 5, "compile": 5, "fit": 5}
    assert {name: getattr(MODEL, name) for name in wrappers} == wrappers


@pytest.mark.gate_on("keras3_tf", "keras3_jax")
@pytest.mark.runtimes("keras3_tf", "keras3_jax", reason="Keras 2: a model that was made before a block stays there")
def test_a_wrapper_is_called_once_for_a_model_that_the_block_adopts(scope3, put_back):
    calls, older, trained = Counter(), Own(), used()
    older(X)
    with scope3:
        wrap_all(calls)
        assert isinstance(used(older), ExactModel)
        assert calls == {"compile": 1, "fit": 1}
        trained.fit(X, Y, verbose=0)
        assert isinstance(trained, ExactModel)
        assert calls["fit"] == 2


def test_an_error_in_a_block_takes_the_patches_back(scope3):
    before = members()

    def fail():
        with scope3, scope3:
            assert members() != before
            used()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert members() == before
    assert not isinstance(Own(), ExactModel)


def text_of_owner(owner):
    """Return what a file says; of a package in the drop-in, what all its files say."""
    path = (FILES if owner.startswith("dropin/") else FILES / "_runtime") / owner
    files = path.parent.glob("*.py") if path.name == "__init__.py" else [path]
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


@once
def test_rows_are_complete():
    assert {row.lifetime for row in PATCHED} == set(LIFETIMES)
    # What is replaced for good, by the drop-in or by the runtime, a patch of a block may go round.
    rows = {(row.name, row.owner.startswith("dropin/"), row.lifetime == "process") for row in PATCHED}
    assert len(rows) == len(PATCHED)
    texts = {row.owner: text_of_owner(row.owner) for row in PATCHED}
    lost = [row for row in PATCHED if re.split("[. ]", row.name)[-1] not in texts[row.owner]]
    assert not lost
    assert all(row.reason and len(row.reason) < 90 for row in PATCHED)


@once
def test_nothing_else_sets_attributes_of_the_frameworks():
    found = []
    for path in sorted(FILES.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        private = {
            ast.unparse(target)
            for node in ast.walk(tree)
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and "private(" in ast.unparse(node.value or node.target)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        }
        for node in ast.walk(tree):
            targets = node.targets if isinstance(node, ast.Assign) else []
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "setattr":
                targets = [ast.Attribute(node.args[0], "", ast.Store())]
            owners = [ast.unparse(one.value) for one in targets if isinstance(one, ast.Attribute)]
            found += [f"{path}: {one}" for one in owners if one.split(".")[0] in {"keras", "tf", "jax", *private}]
    assert not found
