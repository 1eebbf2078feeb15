"""The private names that the package uses: they stand in one table, and a release that moves one fails here."""

import ast
import re
from pathlib import Path

import pytest

import keras_tpu_ext as kte
import private_name_table
from keras_tpu_ext import errors
from keras_tpu_ext._runtime.common import missing_names
from keras_tpu_ext.machine import versions
from private_names import IMPORTED, PACKAGE, check_import, files, last, trees

once = pytest.mark.gate_on("keras3_jax")  # about the package's own text
PRIVATE_MODULE = re.compile(r"(keras|tf_keras)\.src|jax\._src|tensorflow\.(python|compiler|core|tsl)")
EVERY = set(private_name_table.EVERY)
# With an underscore, and documented: of Python and of named tuples.
DOCUMENTED = {"_asdict", "_fields", "_replace", "_exit", "_getframe", "_current_frames", "_initializing"}


@pytest.mark.parametrize("path", IMPORTED)
def test_it_is_still_there(path):
    check_import(path)


def text_of(node):
    """Return a call of a plain function, or an attribute of what one returns, as source; all else is empty."""
    call = node.value if isinstance(node, ast.Attribute) else node
    return ast.unparse(node) if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else ""


def private_imports(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and PRIVATE_MODULE.match(node.module or ""):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if PRIVATE_MODULE.match(alias.name))
        elif match := re.fullmatch(r"private\('([\w.:]+)'\)(\.\w+)?", text_of(node)):
            path = f"{match[1]}{match[2] or ''}".replace(":", ".")
            yield path if PRIVATE_MODULE.match(path) else f"keras.src.{path}"  # see compat/keras2.py


@once
def test_every_private_import_stands_in_the_table():
    known = {name.replace(":", ".") + "." for name in EVERY}
    missing = {
        f"{file}: {path}"
        for file, tree in trees()
        for path in private_imports(tree)
        if not any(name.startswith(path + ".") for name in known)
    }
    assert not missing


def own_names():
    """Return every name that the package gives to something of its own."""
    found = {part for path in PACKAGE.rglob("*.py") for part in path.relative_to(PACKAGE).with_suffix("").parts}
    for _, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found |= {node.attr} if ast.unparse(node.value) == "self" else set()
    return found


def foreign_attributes(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif match := re.match(r"(?:get|has|set)attr\(.+?, '(\w+)'", text_of(node)):
            yield match[1]


@once
def test_every_foreign_attribute_with_an_underscore_stands_in_the_table():
    known = own_names() | {part for name in EVERY for part in re.split("[.:]", name)} | DOCUMENTED
    missing = {
        f"{file}: {name}"
        for file, tree in trees()
        for name in foreign_attributes(tree)
        if re.match("_[a-zA-Z]", name) and name not in known
    }
    assert not missing


@once
def test_every_name_of_the_table_is_used():
    assert not [name for name in sorted(EVERY) if "'" not in name and not files(name)]


@once
def test_the_tested_versions_are_those_of_the_environments():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    pinned = set(re.findall(r'"([a-z-]+)==([0-9.]+)"', text))
    names = {"tensorflow": "tensorflow-cpu", "tf_keras": "tf-keras"}
    assert {(names.get(package, package), version) for package, version in versions.NEWEST_TESTED.items()} <= pinned


@pytest.mark.runtimes("keras3_tf", "keras3_jax", reason="it names what Keras 3 has")
@once
def test_what_users_see_when_a_private_name_is_gone():
    gone = missing_names.private("keras.src.trainers:Gone")
    with pytest.raises(errors.RuntimeNotSupportedError) as caught:
        gone()
    text = str(caught.value)
    assert text.startswith(
        "`keras.src.trainers:Gone` is gone, a private name that keras_tpu_ext uses. Installed: keras 3."
    )
    assert "This release was tested up to keras 3." in text
    write = r"write: pip install keras==3\.[\d.]+( [\w-]+==[\d.]+)+"
    on_a_tpu = "take an image of the TPU that has those versions"  # libtpu is there
    assert re.search(rf"Upgrade this package, or ({write}|{on_a_tpu})$", text)
    assert isinstance(caught.value.__cause__, AttributeError)


@pytest.mark.runtimes("keras3_tf", "keras3_jax", reason="it names what Keras 3 has")
@once
def test_an_override_of_what_keras_has_no_more_is_told(monkeypatch):
    import keras

    model = kte.TPUModel.from_model(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
    model.compile("sgd", "mse")
    monkeypatch.setattr(kte._runtime.training.model.ExactModel, "_renamed", lambda self: None, raising=False)
    with pytest.raises(errors.RuntimeNotSupportedError, match=r"`Model\._renamed` is gone"):
        model.compile("sgd", "mse")


@once
def test_private_names_are_imported_by_the_function_that_explains_one_that_is_gone():
    """But for the process of the compiler, which imports nothing of this package, and the drop-in."""
    direct = re.compile(r"^\s*(from|import) (keras\.src|tf_keras\.src|tensorflow\.(python|compiler)|jax\._src)", re.M)
    paths = [path for path in PACKAGE.rglob("*.py") if "dropin" not in path.parts]
    found = [path.name for path in paths if direct.search(path.read_text(encoding="utf-8"))]
    assert found == ["_compile_worker.py"]


def test_what_keras_would_not_read_is_not_set():
    class Trainer:
        _distribute_strategy = None

    trainer = Trainer()
    missing_names.override(trainer, "_distribute_strategy", 1)
    assert trainer._distribute_strategy == 1
    with pytest.raises(errors.RuntimeNotSupportedError, match=r"`Trainer\._compile_loss` is gone"):
        missing_names.override(trainer, "_compile_loss", 1)


def test_names_are_split_into_their_parts():
    assert last("keras.src.losses.loss:apply_mask") == "apply_mask"
    assert last("Trainer._compile_loss") == "_compile_loss"
