"""Layouts ranked by what the compiler says of them; the compiler is not there, and says what a test wants."""

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from fit_programs import text_of
from keras_tpu_ext.errors import ArgumentError, PreflightError
from keras_tpu_ext.preflight import _step, _text, api
from keras_tpu_ext.preflight._compiler import Compiled

pytestmark = pytest.mark.runtimes("keras3_jax", reason="models are sharded on JAX")

GIB = 2**30
HLO = """\
ENTRY %main (p: f32[8]) -> f32[8] {{
  %p = f32[8]{{0}} parameter(0)
  ROOT %n = f32[8]{{0}} negate(%p), backend_config={{"window_config":{{"estimated_cycles":"{}"}}}}
}}
"""


@keras.saving.register_keras_serializable("test_jax_ranking")
class Block(keras.layers.Layer):
    """Two layers, of which a decoder may have many."""

    def __init__(self, **options):
        super().__init__(**options)
        self.up, self.down = keras.layers.Dense(64), keras.layers.Dense(32)

    def call(self, x):
        return x + self.down(self.up(x))


def blocks():
    tokens = keras.Input((128,), dtype="int32")
    x = keras.layers.Embedding(512, 32)(tokens)
    x = Block(name="block_b")(Block(name="block_a")(x))
    model = keras.Model(tokens, keras.layers.Dense(512)(x), name="decoder")
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def batch(examples=16):
    return np.zeros((examples, 128), "int32"), np.zeros((examples, 128), "int32")


@pytest.fixture
def compiler(monkeypatch):
    """Let the compiler say, by the mesh, how many cycles a step takes and how many GiB, or raise."""
    asked = []

    def set_to(says):
        def compile_for(target, lowered, **options):
            rematerialized = "optimization_barrier" in text_of(lowered)
            specs = {axis for row in lowered.layouts for axis in row.spec} - {None}
            name = " ".join(sorted(specs)) + (" remat" if rematerialized else "")
            asked.append(name)
            cycles, gib = says(name)
            sizes = dict.fromkeys(("output_bytes", "aliased_bytes", "code_bytes"), 0)
            facts = {"argument_bytes": GIB, "temporary_bytes": int((gib - 1) * GIB), "compile_seconds": 1.0, **sizes}
            return Compiled(HLO.format(cycles), facts)

        monkeypatch.setattr(api, "compiler_versions", lambda target: {})
        monkeypatch.setattr(_step, "compile_for", compile_for)
        return asked

    return set_to


def ask(model=blocks, **options):
    return kte.preflight(model, batch(), "v5e-8", shard="auto", progress=False, **options)


def test_the_fastest_that_fits_comes_first_and_the_report_is_of_it(compiler):
    compiler(lambda name: {"data": (300, 4), "data model": (200, 5), "model": (100, 17), "": (400, 3)}[name])
    report = ask()
    names = [candidate.name for candidate in report.candidates]
    assert names[:2] == ["data 4 x model 2", "data 2 x model 4"]
    assert names[2:] == ["data 8", "not sharded", "model 8"]
    assert report.ok
    assert report.mesh == {"data": 4, "model": 2}
    assert report.candidates[0].code == 'kte.strategy_scope(shard="fsdp", mesh=(("data", 4), ("model", 2),))'
    assert [candidate.fits for candidate in report.candidates] == [True] * 4 + [False]
    times = [candidate.step_seconds for candidate in report.candidates]
    assert times[0] == report.step_seconds < times[2] < times[3]
    text = str(report)
    assert "does not fit" in text
    assert "To use the first one: kte.strategy_scope(" in text
    assert report.tokens_per_sec == pytest.approx(report.samples_per_sec * 128)


def test_where_none_fits_blocks_compute_twice_and_the_report_says_by_which_policy(compiler):
    asked = compiler(lambda name: (100, 8) if name.endswith("remat") else (50, 20))
    mesh = {"data": 2, "model": 4}
    report = ask(mesh=mesh)
    assert report.ok
    policies = [candidate.remat for candidate in report.candidates if candidate.fits]
    assert sorted(policies) == ["dots_with_no_batch_dims_saveable", "nothing_saveable"]
    assert sum(name.endswith("remat") for name in asked) == 2
    assert f'and, once it is built: kte.layers.remat(model, policy="{policies[0]}")' in _text.report_text(
        report, width=10_000
    )
    asked.clear()
    assert not ask(blocks(), mesh=mesh).ok  # a model cannot be made again
    assert not any(name.endswith("remat") for name in asked)


def test_where_one_fits_nothing_is_computed_twice(compiler):
    asked = compiler(lambda name: (100, 8 if name == "data" else 20))
    assert ask().candidates[0].name == "data 8"
    assert not any(name.endswith("remat") for name in asked)


def test_of_one_mesh_only_that_is_asked_about(compiler):
    asked = compiler(lambda name: (100, 8))
    report = ask(mesh={"data": 2, "model": 4})
    assert asked == ["data model"]
    assert [candidate.mesh for candidate in report.candidates] == [{"data": 2, "model": 4}]


def test_the_axis_of_batches_stays_however_small_and_whatever_its_name(compiler):
    asked = compiler(lambda name: (100, 8))
    report = ask(mesh=(("batch", 1), ("model", 8)))
    assert asked == ["model"]
    assert report.per_replica_batch == 16
    assert report.candidates[0].code == 'kte.strategy_scope(shard="fsdp", mesh=(("batch", 1), ("model", 8),))'


def test_one_device_has_one_layout(compiler):
    asked = compiler(lambda name: (100, 8))
    report = kte.preflight(blocks, batch(), "v5e-1", shard="auto", progress=False)
    assert (asked, [candidate.code for candidate in report.candidates]) == ([""], ["kte.strategy_scope()"])


def test_likely_mistakes_stand_below_the_verdict(compiler):
    compiler(lambda name: (100, 8))
    shard, mesh = {"gone/kernel": ("model",)}, {"data": 2, "model": 4}
    text = str(kte.preflight(blocks, batch(), "v5e-8", shard=shard, mesh=mesh, progress=False))
    assert text.splitlines()[1] == "  ! the pattern 'gone/kernel' of `shard` matches no variable"


def test_what_cannot_be_asked_about_is_told_and_comes_last(compiler):
    def says(name):
        if name == "data":
            raise PreflightError("The compiler was not done for v5e-8 after 1 s. Give it more time.\nmore")
        return 100, 8

    compiler(says)
    report = kte.preflight(blocks, batch(4), "v5e-8", shard="auto", progress=False)
    last = {candidate.name: candidate.note for candidate in report.candidates[-2:]}
    assert last == {
        "data 8": "8 replicas cannot share 4 examples evenly",
        "not sharded": "8 replicas cannot share 4 examples evenly",
    }
    assert "cannot share 4 examples evenly" in str(report)
    notes = [candidate.note for candidate in ask().candidates]
    assert notes[-1] == "The compiler was not done for v5e-8 after 1 s. Give it more time."


def test_where_nothing_can_be_asked_about_that_is_an_error(compiler):
    def says(name):
        raise PreflightError("stopped")

    compiler(says)
    with pytest.raises(PreflightError, match=r"No layout could be asked about: stopped"):
        ask(mesh={"data": 2, "model": 4})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shard": "zero"}, r'preflight: `shard` must be "fsdp", "auto", a dict of patterns, or'),
        ({"mesh": {"data": 8}}, r'preflight: `mesh` is for models that are sharded\. Write shard="fsdp" as well'),
        (
            {"shard": "fsdp", "mesh": {"data": 4}},
            r"preflight: `mesh` must be as many devices as there are, 8; got .*, which has 4\. Write mesh=",
        ),
        (
            {"shard": {"kernel": ("model",)}},
            r"preflight: `shard` names the axis 'model' by 'kernel', and the mesh has",
        ),
        ({"model": lambda: 3}, r"or a function without arguments that returns one; got a function that returned int"),
        ({"model": keras.Sequential}, r"`model` must be compiled, because its optimizer and losses"),
    ],
)
def test_what_cannot_work_is_an_error(compiler, options, message):
    compiler(lambda name: (100, 8))
    asked = {"model": blocks, "batch": batch(), "target": "v5e-8", "progress": False} | options
    with pytest.raises(ArgumentError, match=message):
        kte.preflight(**asked)
