"""Tests of a lowered program's digest: the same for the same program, and another for any other."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas
from jax.sharding import NamedSharding, PartitionSpec

from keras_tpu_ext._runtime.compat.keras3_jax import abstract_mesh
from keras_tpu_ext._runtime.jax.saved_programs import canonical_text, digest_of

pytestmark = pytest.mark.runtimes("keras3_jax")

CODE = """
def kernel(x, out):
    out[...] = x[...] * 2.0

def {name}(x):
    y = jnp.where(x > 0, x, 0.0)
    z = jnp.where(y > 1, y, 1)
    return pallas.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(z), y * jnp.arange(128.0)
"""


def lowered(function, shape=(8, 128), dtype="float32", sharding=None, **options):
    argument = jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
    return jax.jit(function, **options).trace(argument).lower(lowering_platforms=("tpu",)).compiler_ir("stablehlo")


def function_from(code, file):
    """Return the function of a code that stands in a file."""
    names = {"jax": jax, "jnp": jnp, "pallas": pallas}
    exec(compile(code, file, "exec"), names)
    return next(value for name, value in names.items() if name in ("step", "other"))


def changed(before="", after="", name="step", file="/home/ann/step.py", **options):
    code = CODE.format(name=name)
    assert before in code
    return digest_of(lowered(function_from(code.replace(before, after) if before else code, file), **options))


def test_a_program_does_not_depend_on_where_its_code_is():
    assert changed() == changed(file="/kaggle/working/main.py")
    assert changed() == changed("\ndef", "\n\n\n\ndef")
    assert changed() == changed(name="other")


def test_the_names_of_inner_functions_are_not_part_of_it():
    def renamed(name):
        def inner(x):
            return x * 2

        inner.__name__ = name
        return lambda x: jax.jit(inner)(x) + 1

    one, other = lowered(renamed("inner")), lowered(renamed("another"))
    assert "@another" in str(other)
    assert digest_of(one) == digest_of(other)


@pytest.mark.parametrize(
    "change",
    [
        {"before": "x, 0.0", "after": "x, 0.5"},
        {"before": "x[...] * 2.0", "after": "x[...] * 2.5"},  # within the kernel
        {"before": "x > 0", "after": "x >= 0"},
        {"shape": (16, 128)},
        {"dtype": "bfloat16"},
        {"donate_argnums": 0},
    ],
    ids=repr,
)
def test_any_other_program_has_another_digest(change):
    assert changed(**change) != changed()


def test_another_sharding_has_another_digest():
    mesh = abstract_mesh({"data": 2})
    shardings = None, NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    assert len({digest_of(lowered(jnp.sin, sharding=sharding)) for sharding in shardings}) == 3


def test_a_module_is_left_as_it_was():
    module = lowered(function_from(CODE.format(name="step"), "step.py"))
    before = module.operation.get_asm(enable_debug_info=True)
    text = canonical_text(module)
    assert module.operation.get_asm(enable_debug_info=True) == before
    assert "step.py" in before
    assert "step.py" not in text
    assert "memref<8x128xf32" in text


def test_a_large_constant_is_part_of_it():
    one, other = np.random.default_rng(0).normal(size=(2, 8, 128)).astype("float32")
    other[:-1], other[-1, :-1] = one[:-1], one[-1, :-1]
    digests = [digest_of(lowered(lambda x, constant=constant: x + constant)) for constant in (one, other)]
    assert len(set(digests)) == 2


PROGRAM = """{empty}
import sys; sys.path[:0] = {path!r}
import jax, test_jax_program_digest as test
print(test.changed(file=__file__))
"""


@pytest.mark.exhaustive
def test_another_process_in_another_folder_finds_the_same(tmp_path):
    file = tmp_path / "elsewhere.py"
    file.write_text(PROGRAM.format(empty="\n" * 7, path=[os.path.dirname(__file__), *sys.path]))
    environment = {**os.environ, "PYTHONHASHSEED": "17", "XLA_FLAGS": ""}
    run = subprocess.run(
        [sys.executable, file], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == [changed()]
