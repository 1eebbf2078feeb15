"""`keras-tpu-ext`: what it prints and the status it exits with."""

import json
import sys
import textwrap

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext import _runtime, cli
from keras_tpu_ext.parity import ParityReport, ParityRow
from keras_tpu_ext.plan import PlanReport
from keras_tpu_ext.preflight.results import Fault
from keras_tpu_ext.tools.parity.batches import synthetic_batch
from kind_of_keras import IMPORT_KERAS
from preflight.reports import report

pytestmark = pytest.mark.gate_on("keras3_tf", "keras3_jax")

MODULE = """
    import keras
    import numpy as np
    import keras_tpu_ext as kte

    def model():
        inputs = keras.Input((4,), dtype="int32")
        hidden = keras.layers.Flatten()(keras.layers.Embedding(7, 3)(inputs))
        made = kte.TPUModel(inputs, keras.layers.Dense(5)(hidden))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        made.compile("adam", loss, metrics=["accuracy"])
        return made

    def with_batch():
        return model(), batch()

    def with_builder():
        return model, batch()

    def batch():
        return np.ones((3, 4), "int32"), np.zeros(3)

    def uncompiled():
        return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])

    def nothing():
        return None

    def raises():
        raise ValueError("no such file:\\nweights.h5")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "cli_models.py").write_text(textwrap.dedent(MODULE).replace("import keras\n", f"{IMPORT_KERAS}\n"))
    (tmp_path / "cli_broken.py").write_text("import no_such_package_at_all\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "cli_models", raising=False)
    return tmp_path


@pytest.fixture
def checked(monkeypatch):
    """What the command hands to the check, with one report in its place."""
    calls = []

    def check(function, batch, replicas, steps, tolerance, timeout_s, **more):
        assert more.keys() == {"backend", "as_on_tpu", "synthetic", "progress"}
        calls.append((function, batch, replicas, steps, tolerance, timeout_s, more["synthetic"], more["backend"]))
        check.as_on_tpu = more["as_on_tpu"]
        return ParityReport(replicas, steps, 1e-5, "a batch", (ParityRow("one step", "loss", 0.0, 1e-5, check.ok),))

    check.ok, check.calls = True, calls
    monkeypatch.setattr(cli, "check_function", check)
    return check


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_real_check_prints_the_report_as_json(folder, capsys, monkeypatch):
    reports = []

    def check(*args, **kwargs):
        reports.append(check_function(*args, **kwargs))
        return reports[-1]

    check_function = cli.check_function
    monkeypatch.setattr(cli, "check_function", check)
    before = list(sys.path)
    assert cli.main(["parity", "cli_models:model", "--replicas", "2", "--steps", "1", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(json.dumps(reports[0].to_dict()))
    assert printed["ok"] is True
    assert printed["batch"] == "a made-up batch of 19 examples"
    assert sys.path == before


@pytest.mark.parametrize(("flags", "as_on_tpu"), [([], False), (["--as-on-tpu"], True)])
def test_the_paths_of_a_tpu_are_asked_for(folder, checked, flags, as_on_tpu):
    assert cli.main(["parity", "cli_models:model", *flags]) == 0
    assert checked.as_on_tpu is as_on_tpu


@pytest.mark.parametrize(("ok", "status"), [(True, 0), (False, 1)])
def test_it_prints_the_text_and_exits_by_the_verdict(folder, checked, capsys, ok, status):
    checked.ok = ok
    assert (
        cli.main(["parity", "cli_models:with_batch", "--tolerance", "1e-4", "--timeout", "9", "--backend", "jax"])
        == status
    )
    assert capsys.readouterr().out.startswith(
        "8 replicas equal one device: 1 of 1" if ok else "8 replicas do not equal one device: 1 of 1"
    )
    ((source, batch, *rest),) = checked.calls
    assert (source.module, source.name) == ("cli_models", "with_batch")
    assert batch[0].shape == (3, 4)
    assert rest == [8, 3, 1e-4, 9.0, False, "jax"]


@pytest.mark.parametrize(
    "arguments", [["cli_models:with_builder"], ["cli_models:model", "--batch", "cli_models:batch"]]
)
def test_the_batch_may_come_with_a_builder_or_from_its_own_function(folder, checked, arguments):
    assert cli.main(["parity", *arguments]) == 0
    ((_, batch, *_, synthetic, _),) = checked.calls
    assert batch[0].shape == (3, 4)
    assert not synthetic


@pytest.mark.parametrize(
    ("named", "text"),
    [
        ("cli_models", "A function is named by its module and its name; got 'cli_models'. Write module:function, "),
        ("cli_nowhere:f", "There is no module 'cli_nowhere' in this folder or installed. Write module:function, "),
        ("cli_broken:f", "cli_broken cannot be imported: No module named 'no_such_package_at_all'."),
        ("cli_models:mode", "The module 'cli_models' has no function 'mode'. It has batch, model, nothing, raises, "),
        ("cli_models:uncompiled", "cli_models:uncompiled must return a compiled model; "),
        ("cli_models:nothing", "cli_models:nothing must return a compiled Keras model, (model, batch) or (build_"),
        ("cli_models:raises", "cli_models:raises failed: ValueError: no such file: weights.h5"),
    ],
)
def test_errors_are_one_sentence_and_status_2(folder, capsys, named, text):
    assert cli.main(["parity", named]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"keras-tpu-ext parity: {text}")
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_an_error_names_the_flags_of_the_command(folder, capsys, monkeypatch):
    def check(*arguments, **options):
        raise kte.errors.ParityCheckError("Give it more time, timeout_s=1200.0, or tolerance=1e-3, or a size=3.")

    monkeypatch.setattr(cli, "check_function", check)
    assert cli.main(["parity", "cli_models:with_batch"]) == 2
    text = "Give it more time, --timeout 1200.0, or --tolerance 1e-3, or a size=3."
    assert capsys.readouterr().err == f"keras-tpu-ext parity: {text}\n"


def test_what_cannot_be_written_is_one_line(folder, asked, capsys, monkeypatch):
    def plot(self, path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(kte.PreflightReport, "plot", plot)
    assert cli.main(["preflight", "cli_models:model", "--plot", "drawn.png"]) == 2
    assert capsys.readouterr().err == "keras-tpu-ext preflight: [Errno 13] Permission denied: 'drawn.png'\n"


@pytest.mark.parametrize("arguments", [[], ["parity"], ["parity", "m:f", "--replicas", "many"]])
def test_a_wrong_call_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert "usage: keras-tpu-ext" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("loss", "units", "good"),
    [
        ("sparse_categorical_crossentropy", 5, lambda y: y.shape == (9,) and set(y) <= set(range(5))),
        ("categorical_crossentropy", 5, lambda y: y.shape == (9, 5) and (y.sum(-1) == 1).all()),
        (keras.losses.BinaryCrossentropy(), 1, lambda y: y.shape == (9, 1) and set(y.ravel()) == {0.0, 1.0}),
        ("mse", 2, lambda y: y.shape == (9, 2) and y.std() > 0.1),
        (None, 2, lambda y: y is None),
    ],
)
def test_a_batch_is_made_up_for_the_loss(loss, units, good):
    inputs = {"a": keras.Input((3,), name="a"), "b": keras.Input((2,), name="b")}
    hidden = keras.layers.Embedding(4, 2)(inputs["b"])  # its input is of floats and must hold word numbers
    joined = keras.layers.Concatenate()([inputs["a"], keras.layers.Flatten()(hidden)])
    model = keras.Model(inputs, keras.layers.Dense(units)(joined))
    model.compile("sgd", loss)
    x, y = synthetic_batch(model, 9)
    assert x["a"].shape == (9, 3)
    assert set(x["b"].ravel()) <= {0, 1, 2, 3}
    assert x["a"].std() > 0.5
    assert good(y)
    np.testing.assert_array_equal(synthetic_batch(model, 9)[0]["a"], x["a"])


@pytest.mark.parametrize(
    ("shape", "dtype", "loss", "why"),
    [
        ((None, 3), "float32", "mse", "with a size that is not known"),
        ((3,), "int32", "mse", "of dtype int32, is not known"),
        ((3,), "float32", lambda y, p: p, "the loss <lambda> does not tell what targets it takes"),
    ],
)
def test_a_batch_that_cannot_be_made_up_says_what_to_write(shape, dtype, loss, why):
    inputs = keras.Input(shape, dtype=dtype)
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", loss)
    with pytest.raises(kte.errors.ArgumentError) as caught:
        synthetic_batch(model, 9)
    assert why in str(caught.value)
    assert str(caught.value).endswith(
        "Let the function return (model, batch), or name a function that returns one: --batch module:function."
    )


@pytest.fixture
def asked(monkeypatch):
    """What the command hands to `preflight`, with one report in its place."""
    calls = []

    def ask(model, batch, target, per_replica_batch, **options):
        calls.append({"model": model, "batch": batch, "target": target, "per_replica": per_replica_batch, **options})
        return report(fault=ask.fault, _save=lambda path: calls.append(path) or "ab" * 32)

    ask.fault, ask.calls = None, calls
    monkeypatch.setattr(cli, "preflight", ask)
    return ask


@pytest.mark.parametrize(
    ("arguments", "per_replica", "rows"),
    [
        (["cli_models:model"], 128, 1),
        (["cli_models:model", "--batch", "64", "--target", "v3-8"], 8, 1),
        (["cli_models:with_batch"], None, 3),
        (["cli_models:with_batch", "--batch", "64", "--target", "v3-8"], 8, 3),
    ],
)
def test_preflight_takes_the_batch_of_the_function_or_makes_one_up(
    folder, asked, capsys, arguments, per_replica, rows
):
    assert cli.main(["preflight", *arguments]) == 0
    assert capsys.readouterr().out.startswith("'resnet50' on v5e-8")
    (call,) = asked.calls
    assert (call["per_replica"], len(call["batch"][0])) == (per_replica, rows)
    assert (call["find_largest_batch"], call["timeout_s"], call["progress"]) == (False, 600.0, True)


def test_preflight_of_a_sharded_model_calls_the_function_itself(folder, asked):
    options = ["--shard", "fsdp", "--mesh", "data=2,model=4", "--batch", "64"]
    assert cli.main(["preflight", "cli_models:with_batch", *options]) == 0
    (call,) = asked.calls
    assert (call["shard"], call["mesh"], call["per_replica"]) == ("fsdp", {"data": 2, "model": 4}, 32)
    assert _runtime.models.is_compiled(call["model"]())


@pytest.mark.parametrize("function", ["model", "with_batch"])
def test_preflight_ranks_layouts_for_a_batch_that_the_chips_cannot_share(folder, asked, function):
    """Of a mesh of 1 x 8 it is all for one replica."""
    cli.main(["preflight", f"cli_models:{function}", "--target", "v5e-8", "--shard", "auto", "--batch", "4"])
    (call,) = asked.calls
    assert (call["per_replica"], {leaf.shape[0] for leaf in call["batch"] if leaf is not None}) == (None, {4})


def test_preflight_prints_json_draws_and_exits_by_the_verdict(folder, asked, capsys):
    asked.fault = Fault("no", "dense")
    options = ["--json", "--largest", "--quiet", "--timeout", "9"]
    assert cli.main(["preflight", "cli_models:model", *options]) == 1
    assert json.loads(capsys.readouterr().out)["fault"]["layer"] == "dense"
    (call,) = asked.calls
    assert (call["find_largest_batch"], call["timeout_s"], call["progress"]) == (True, 9.0, False)
    asked.fault = None
    assert cli.main(["preflight", "cli_models:model", "--plot", "drawn.png"]) == 0
    assert (folder / "drawn.png").exists()


def test_compile_writes_a_file_of_a_model_with_the_exact_step_and_json_has_its_digest(folder, asked, capsys):
    line = f'kte.strategy_scope(compiled=("step.kte", "{"ab" * 32}"))\n'
    assert cli.main(["compile", "cli_models:model"]) == 0
    assert capsys.readouterr().out.startswith(f"{line}'resnet50' on v5e-8")
    call, path = asked.calls
    assert isinstance(call["model"], _runtime.TrainStep)
    assert path == "step.kte"
    assert cli.main(["compile", "cli_models:model", "--out", "other.kte", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["compiled"] == ["other.kte", "ab" * 32]
    assert err == line.replace("step", "other")


def test_compile_writes_nothing_of_what_does_not_compile(folder, asked, capsys):
    asked.fault = Fault("no", "dense")
    assert cli.main(["compile", "cli_models:model", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["compiled"] is None
    assert len(asked.calls) == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["cli_models:model", "--batch", "63"],
            "--batch 63 cannot be shared evenly by the 8 replicas of v5e-8. Write ",
        ),
        (["cli_models:model", "--target", "v9-8"], "There is no TPU slice 'v9-8'"),
        (["cli_models:uncompiled"], "cli_models:uncompiled must return a compiled model; "),
    ],
)
def test_what_preflight_cannot_ask_is_one_sentence_and_status_2(folder, asked, capsys, arguments, text):
    assert cli.main(["preflight", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"keras-tpu-ext preflight: {text}")


def test_plan_takes_what_the_functions_return(folder, monkeypatch, capsys):
    calls = []

    def ask(model, data, **options):
        calls.append((model, data, options))
        return PlanReport("net", options["target"], 5, 1, 3, hours=options["hours"], problem="It does not fit.")

    monkeypatch.setattr(cli, "plan", ask)
    options = ["--epochs", "5", "--target", "v3-8", "--hours", "9", "--price-per-hour", "2.5", "--quiet", "--json"]
    assert cli.main(["plan", "cli_models:model", "--data", "cli_models:batch", *options]) == 1
    ((model, data, given),) = calls
    assert _runtime.models.is_compiled(model())
    assert data[0].shape == (3, 4)
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["target"], found["seconds"]) == (False, "v3-8", None)
    expected = {"epochs": 5, "target": "v3-8", "hours": 9.0, "price_per_hour": 2.5, "progress": False}
    assert {name: given[name] for name in expected} == expected
