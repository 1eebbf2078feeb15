"""What the drop-in replaces in the frameworks is in the table of patches, and it replaces nothing else."""

import json
import os
import subprocess
import sys

import pytest

from keras_tpu_ext._runtime.common.patch_table import PATCHED
from private_name_table import DROPIN
from private_names import check_import

pytestmark = pytest.mark.runtimes("keras3_jax")

# A fresh process prints which attributes that hold code are others after the import of the drop-in.
PROGRAM = """
import functools, json, sys, types
import jax, keras, tensorflow as tf
import keras._tf_keras.keras, keras.src.legacy.backend
import keras_tpu_ext

FRAMEWORKS = ("keras", "tensorflow", "jax", "jaxlib")


def owners():
    found = {}
    for path, module in list(sys.modules.items()):
        if path.partition(".")[0] not in FRAMEWORKS or not isinstance(module, types.ModuleType):
            continue
        found[id(module)] = module
        for one in list(vars(module).values()):
            if isinstance(one, type) and one.__module__.partition(".")[0] in FRAMEWORKS:
                found[id(one)] = one
    return found


def is_code(value):
    return callable(value) or isinstance(value, (property, staticmethod, classmethod))


def resolved(name):
    parts = name.replace("jax.Array", "jax._src.array.ArrayImpl").split(".")
    for i in range(1, len(parts)):
        module = sys.modules.get(".".join(parts[:i]))
        if module is not None:
            try:
                return functools.reduce(getattr, parts[i:-1], module), parts[-1]
            except AttributeError:
                pass
    return None, parts[-1]


NAMES = json.loads(sys.argv[1])
before = {key: (owner, dict(vars(owner))) for key, owner in owners().items()}
import keras_tpu_ext.dropin

places = list(map(resolved, NAMES))
allowed = {(id(owner), name) for owner, name in places}
elsewhere = {id(getattr(owner, name, None)) for owner, name in places}  # the same function under another name
changed = []
for key, (owner, members) in before.items():
    for name, old in members.items():
        new = vars(owner).get(name)
        if new is old or not is_code(old) or id(new) in elsewhere:
            continue
        # The functions of `K` are replaced in each module that has them.
        of_backend = owner.__name__ == "keras._tf_keras.keras.backend" and f"keras.src.legacy.backend.{name}" in NAMES
        if (key, name) not in allowed and not of_backend:
            of = getattr(owner, "__qualname__", "")
            changed.append(f"{getattr(owner, '__module__', owner.__name__)}.{of}.{name}")
print(json.dumps(changed))
"""


def test_all_that_is_replaced_is_in_the_table():
    names = [row.name for row in PATCHED if row.owner.startswith("dropin/") and " " not in row.name]
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, json.dumps(names)]
    environ = {**os.environ, "KERAS_BACKEND": "jax"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environ)
    assert done.returncode == 0, done.stderr[-3000:]
    changed = next(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    print("\n".join(changed))
    assert changed == []


@pytest.mark.parametrize("path", [name for name in DROPIN if ":" in name])
def test_a_private_name_is_still_there(path):
    check_import(path)
