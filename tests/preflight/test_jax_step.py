"""What `PreflightReport.save` compiles and tells, with a compiler of the test's own."""

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext._runtime.jax import saved_programs
from keras_tpu_ext.errors import ArgumentError
from keras_tpu_ext.preflight import _step
from keras_tpu_ext.preflight._compiler import Compiled
from keras_tpu_ext.preflight._saved import open_saved

pytestmark = pytest.mark.runtimes("keras3_jax")

SIZES = ("compile_seconds", "argument_bytes", "output_bytes", "aliased_bytes", "temporary_bytes", "code_bytes")
MACHINE = {
    "platform": "cpu",
    "build": "cpu",
    "device kind": "cpu",
    "devices": "TFRT_CPU_0 TFRT_CPU_1",
    "LIBTPU_INIT_ARGS": "",
}


@pytest.fixture
def asked(monkeypatch):
    """The names of the programs that the compiler gets, those of a call together."""
    found = []

    def compile_all(target, lowered, **options):
        found.append([one.name for one in lowered])
        facts = dict.fromkeys(SIZES, 1)
        return [
            Compiled("HloModule m", dict(facts), executable=one.digest.encode(), machine=MACHINE) for one in lowered
        ]

    monkeypatch.setattr(_step, "compile_all", compile_all)
    monkeypatch.setattr(_step, "compile_for", lambda target, one, **options: compile_all(target, [one])[0])
    return found


def report_of(*first, **options):
    with kte.strategy_scope(require="cpu"):
        layers = [keras.Input((4, 4, 1)), *first, keras.layers.Flatten(), keras.layers.Dense(1)]
        model = keras.Sequential(layers, name="small")
        model.compile("sgd", "mse", **options)
    batch = np.ones((8, 4, 4, 1), "float32"), np.ones((8, 1), "float32")
    return kte.preflight(model, batch, target="cpu-2", progress=False)


def test_a_folder_of_the_user_is_no_folder_of_that_name(asked, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    report_of().save("~/files/step.kte")
    assert [path.name for path in (tmp_path / "files").iterdir()] == ["step.kte"]
    assert not (tmp_path / "~").exists()
    assert f'compiled=("{tmp_path}/files/step.kte", ' in capsys.readouterr().out


@pytest.mark.parametrize("steps", ["auto", 3])
def test_all_programs_are_compiled_at_once_and_told(asked, tmp_path, capfd, steps):
    path = tmp_path / "step.kte"
    sha256 = report_of(steps_per_execution=steps).save(path)
    saved, (train, rest) = open_saved("test", (path, sha256)), asked
    assert train == ["train"]
    assert {name.split(",")[0] for name in rest} == {"train", "evaluate", "predict"}
    longest = 8 if steps == "auto" else 3
    assert max(program.steps for program in saved.programs) == longest
    assert {program.steps for program in saved.programs if program.name.startswith("train")} == (
        {1, 8} if steps == "auto" else {3}
    )
    names = "; ".join(program.name for program in saved.programs)
    text = f'{path} has, for cpu-2: {names}. steps_per_execution="auto" is {longest} where it is used'
    assert text in capfd.readouterr().err


def test_where_jax_does_not_tell_its_options_the_report_is_made_and_nothing_is_saved(asked, tmp_path, monkeypatch):
    monkeypatch.delattr(saved_programs._pxla, "create_compile_options")
    report = report_of()
    assert report.ok
    with pytest.raises(
        ArgumentError, match="save: this JAX does not tell what it asks its compiler for, as the log says"
    ):
        report.save(tmp_path / "step.kte")
    assert asked == [["train"]]


def test_of_a_model_that_keras_does_not_compile_nothing_is_saved(asked, tmp_path, capfd):
    report = report_of(keras.layers.RandomRotation(0.1, name="turned"))
    text = (
        "`fit` runs each operation of 'small' by itself, which is slow on a TPU: "
        "Keras does not compile 'turned'. Do that in dataset.map(...), or with kte.layers."
    )
    assert f"preflight: a compiled step is estimated, but {text}" in capfd.readouterr().err
    with pytest.raises(ArgumentError) as told:
        report.save(tmp_path / "step.kte")
    assert str(told.value) == f"save: {text}"
    assert asked == [["train"]]


def test_a_model_that_its_user_does_not_compile_is_told(asked, tmp_path):
    report = report_of(run_eagerly=True)
    with pytest.raises(ArgumentError, match="with run_eagerly=True or jit_compile=False"):
        report.save(tmp_path / "step.kte")
