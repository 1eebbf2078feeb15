"""The examples in the docstrings of public names: each is a program that runs as a reader would paste it.

Public is what the package and its public modules define, or import by `from ... import X as X`. An example that
imports TensorFlow runs where that is; the others run on JAX too.
"""

import ast
import inspect
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import keras_tpu_ext as kte
from keras_tpu_ext.output.display import HtmlText

ROOT = Path(__file__).parents[2]
# These are returned and not made, and the example of what returns them shows them: reports, their findings, errors.
NEED_NO_EXAMPLE = (BaseException, HtmlText, kte.precision.Finding)
# What cannot run here, and is compiled only.
COMPILED_ONLY = {"preflight": "it needs libtpu, the TPU compiler"}

pytestmark = pytest.mark.runtimes("keras3_tf", "keras3_jax", reason="the examples are about Keras 3")


def exported(module):
    """Return the names that a module defines or exports."""
    names = []
    for statement in ast.parse(inspect.getsource(module)).body:
        if isinstance(statement, ast.ImportFrom):
            names += [alias.name for alias in statement.names if alias.name == alias.asname]
        elif isinstance(statement, (ast.ClassDef, ast.FunctionDef)):
            names.append(statement.name)
    return [name for name in names if not name.startswith("_")]


def public(module=kte, prefix=""):
    """Return the public classes and functions by their qualified names."""
    found = {}
    for name in exported(module):
        value = getattr(module, name)
        if inspect.ismodule(value):
            found |= public(value, f"{prefix}{name}.")
        elif inspect.isclass(value) or inspect.isfunction(value):
            found[prefix + name] = value
    return found


def example(value):
    """Return the example of a docstring as a program; empty where there is none."""
    docstring = inspect.cleandoc(value.__doc__ or "")
    blocks = re.findall(r"^ *```python\n(.*?)^ *```$", docstring, re.MULTILINE | re.DOTALL)
    return "\n".join(textwrap.dedent(block) for block in blocks)


def needs_example(value):
    return not (inspect.isclass(value) and issubclass(value, NEED_NO_EXAMPLE))


# What an example has in it that is for one runtime.
ONE_RUNTIME = {
    "import tensorflow": "keras3_tf",
    "testing.as_on_tpu": "keras3_jax",
    "shard=": "keras3_jax",
}
PUBLIC = public()
EXAMPLES = {name: example(value) for name, value in PUBLIC.items() if example(value)}


def parameter(name):
    only = next((runtime for text, runtime in ONE_RUNTIME.items() if text in EXAMPLES[name]), None)
    return pytest.param(name, marks=[pytest.mark.runtimes(only)] if only else [])


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [parameter(name) for name in EXAMPLES if name not in COMPILED_ONLY])
def test_an_example_runs(name, tmp_path):
    program = tmp_path / "example.py"
    program.write_text(EXAMPLES[name], encoding="utf-8")
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(program)], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.gate_on("keras3_jax")
def test_an_example_that_cannot_run_here_is_python():
    for name in COMPILED_ONLY:
        compile(EXAMPLES[name], name, "exec")


@pytest.mark.gate_on("keras3_jax")
def test_every_public_name_has_a_docstring_with_an_example():
    assert [name for name, value in PUBLIC.items() if not value.__doc__] == []
    assert [name for name, value in PUBLIC.items() if needs_example(value) and name not in EXAMPLES] == []


@pytest.mark.gate_on("keras3_jax")
def test_names_in_the_lists_are_public():
    assert COMPILED_ONLY.keys() <= EXAMPLES.keys()
