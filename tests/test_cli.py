"""`keras-tpu-ext`: what it prints and the status it exits with."""

import importlib
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
from keras_tpu_ext_command import main
from keras_tpu_ext_command.arguments import parse_arguments
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

    def batches():
        return iter([batch(), batch()])

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
    (tmp_path / "cli_trains.py").write_text(
        f"{IMPORT_KERAS}\nimport numpy\nmodel = keras.Sequential([keras.layers.Dense(1)], name='seq')\n"
        "model.compile('sgd', 'mse')\nmodel.fit(numpy.ones((4, 2)), numpy.ones((4, 1)))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "cli_models", raising=False)
    return tmp_path


@pytest.fixture
def checked(monkeypatch):
    """What the command hands to the check, with one report in its place."""
    calls = []

    def check(function, batch, replicas, *, steps, tolerance, backend, as_on_tpu, timeout_s, progress):
        calls.append((function, batch, replicas, steps, tolerance, timeout_s, backend))
        check.as_on_tpu = as_on_tpu
        return ParityReport(replicas, steps, 1e-5, "a batch", (ParityRow("one step", "loss", 0.0, 1e-5, check.ok),))

    check.ok, check.calls = True, calls
    monkeypatch.setattr(cli, "check_parity", check)
    return check


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_real_check_prints_the_report_as_json(folder, capsys, monkeypatch):
    reports = []

    def check(*args, **kwargs):
        reports.append(check_parity(*args, **kwargs))
        return reports[-1]

    check_parity = cli.check_parity
    monkeypatch.setattr(cli, "check_parity", check)
    before = list(sys.path)
    assert main(["parity", "cli_models:model", "--replicas", "2", "--steps", "1", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(json.dumps(reports[0].to_dict()))
    assert printed["ok"] is True
    assert printed["batch"] == "a made-up batch of 19 examples"
    assert sys.path == before


@pytest.mark.parametrize(("flags", "as_on_tpu"), [([], False), (["--as-on-tpu"], True)])
def test_the_paths_of_a_tpu_are_asked_for(folder, checked, flags, as_on_tpu):
    assert main(["parity", "cli_models:model", *flags]) == 0
    assert checked.as_on_tpu is as_on_tpu


@pytest.mark.parametrize(("ok", "status"), [(True, 0), (False, 1)])
def test_it_prints_the_text_and_exits_by_the_verdict(folder, checked, capsys, ok, status):
    checked.ok = ok
    assert (
        main(["parity", "cli_models:with_batch", "--tolerance", "1e-4", "--timeout", "9", "--backend", "jax"])
        == status
    )
    assert capsys.readouterr().out.startswith(
        "8 replicas equal one device: 1 of 1" if ok else "8 replicas do not equal one device: 1 of 1"
    )
    ((source, batch, *rest),) = checked.calls
    assert (source.module, source.name) == ("cli_models", "with_batch")
    assert batch is None  # it comes with the model
    assert rest == [8, 3, 1e-4, 9.0, "jax"]


def test_the_batch_may_come_from_its_own_function(folder, checked):
    assert main(["parity", "cli_models:model", "--data", "cli_models:batch"]) == 0
    ((_, batch, *_),) = checked.calls
    assert batch[0].shape == (3, 4)


@pytest.mark.parametrize(
    ("function", "made_up", "shape"), [("with_builder", False, (3, 4)), ("model", True, (35, 4))]
)
def test_check_parity_takes_the_batch_of_the_function_or_makes_one_up(folder, monkeypatch, function, made_up, shape):
    def run(task, timeout_s, *, progress):
        tasks.append(task)
        raise kte.errors.ParityCheckError("enough")

    tasks = []
    monkeypatch.setattr("keras_tpu_ext.parity.run_worker", run)
    monkeypatch.syspath_prepend(folder)
    build = getattr(importlib.import_module("cli_models"), function)
    with pytest.raises(kte.errors.ParityCheckError, match="enough"):
        kte.check_parity(build, replicas=4)
    assert (tasks[0].batch[0].shape, tasks[0].build_model.name) == (shape, function)


@pytest.mark.parametrize(
    ("named", "text"),
    [
        ("cli_models", "A function is named by its module and its name; got 'cli_models'. Write module:function, "),
        ("cli_nowhere:f", "There is no module 'cli_nowhere' in this folder or installed. Write module:function, "),
        ("cli_broken:f", "cli_broken cannot be imported: ModuleNotFoundError: No module named 'no_such_p"),
        (
            "cli_trains:f",
            "cli_trains cannot be imported: ArgumentError: Importing cli_trains trains 'seq'. Write `if",
        ),
        ("cli_model:f", "There is no module 'cli_model' in this folder or installed. Write cli_models:f, or another"),
        ("cli_models.ipynb:f", "A notebook cannot be imported; got 'cli_models.ipynb:f'. Write `%%writefile my_"),
        ("./cli_models.py:mode", "The module './cli_models.py' has no function 'mode'. It has batch, "),
        (
            "cli_models:mode",
            "The module 'cli_models' has no function 'mode'. It has batch, batches, model, nothing, raises, ",
        ),
        ("cli_models:uncompiled", "cli_models:uncompiled must return a compiled model; "),
        ("cli_models:nothing", "cli_models:nothing must return a compiled Keras model, (model, batch) or (build_"),
        ("cli_models:raises", "cli_models:raises failed: ValueError: no such file: weights.h5 (cli_models.py, line"),
    ],
)
def test_errors_are_one_sentence_and_status_2(folder, capsys, named, text):
    assert main(["parity", named]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"keras-tpu-ext parity: {text}")
    assert shown.err.count("\n") == 1
    assert shown.out == ""


@pytest.mark.parametrize(
    ("command", "text", "shown"),
    [
        (
            "parity",
            "more time, timeout_s=1200.0, or tolerance=1e-3, or a size=3.",
            "more time, --timeout 1200.0, or --",
        ),
        ("parity", 'check_parity: `as_on_tpu` is; got backend="jax".', "--as-on-tpu is; got --backend jax."),
        (
            "parity",
            "Let it return (model, batch), or batch=(x, y).",
            "Let it return (model, batch), or --data MODULE:F",
        ),
        ("preflight", "Write per_replica_batch=7, which is a batch of 56.", "Write --batch-size 56."),
        ("preflight", "find_largest_batch=True", "--largest"),
        ("preflight", 'use kte.strategy_scope(shard="fsdp", mesh=(("data", 8),))', "use kte.strategy_scope(shard="),
    ],
)
def test_advice_is_in_flags_and_python_stays(command, text, shown):
    assert cli.in_flags(text, parse_arguments([command, "m:f"])).startswith(shown)


def test_an_error_is_told_in_flags(folder, capsys):
    assert main(["preflight", "cli_models:model", "--mesh", "data=8"]) == 2
    text = "--mesh is for models that are sharded. Write --shard fsdp as well."
    assert capsys.readouterr().err == f"keras-tpu-ext preflight: {text} [KTE008]\n"


@pytest.mark.runtimes("keras3_jax")
def test_the_command_is_named_once(folder, capsys):
    assert cli.main(["doctor", "--compiled", "no.kte", "a" * 64]) == 2
    assert capsys.readouterr().err.startswith("keras-tpu-ext doctor: --compiled must be a file that is there; got ")


def test_what_cannot_be_written_is_one_line_after_the_report(folder, asked, capsys, monkeypatch):
    def plot(self, path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(kte.PreflightReport, "plot", plot)
    assert main(["preflight", "cli_models:model", "--plot", "drawn.png"]) == 2
    shown = capsys.readouterr()
    assert shown.out.startswith("'resnet50' on v5e-8")
    assert shown.err == "keras-tpu-ext preflight: [Errno 13] Permission denied: 'drawn.png'\n"


def test_an_unexpected_error_is_one_line_too(folder, asked, capsys, monkeypatch):
    def fail(*arguments, **options):
        raise ZeroDivisionError("no\nway")

    monkeypatch.setattr(cli, "preflight", fail)
    assert main(["preflight", "cli_models:model"]) == 2
    text = "ZeroDivisionError: no way. PYTHONDEVMODE=1 shows the traceback."
    assert capsys.readouterr().err == f"keras-tpu-ext preflight: {text}\n"


@pytest.mark.parametrize("arguments", [[], ["parity"], ["parity", "m:f", "--replicas", "many"]])
def test_a_wrong_call_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
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
    assert str(caught.value).endswith("Let the function return (model, batch), or give a batch: batch=(x, y).")


@pytest.fixture
def asked(monkeypatch):
    """What the command hands to `preflight`, with one report in its place."""
    calls = []

    def ask(model, batch, target, per_replica_batch, **options):
        calls.append({"model": model, "batch": batch, "target": target, "per_replica": per_replica_batch, **options})
        changes = {} if ask.fault is None else {"memory": None}
        return report(fault=ask.fault, _save=lambda path: calls.append(path) or "ab" * 32, **changes)

    ask.fault, ask.calls = None, calls
    monkeypatch.setattr(cli, "preflight", ask)
    return ask


def test_compile_writes_a_file_of_a_model_with_the_exact_step_and_json_has_its_digest(folder, asked, capsys):
    line = f'kte.strategy_scope(compiled=("step.kte", "{"ab" * 32}"))\n'
    assert main(["compile", "cli_models:model"]) == 0
    assert capsys.readouterr().out.startswith(f"{line}'resnet50' on v5e-8")
    call, path = asked.calls
    assert isinstance(call["model"], _runtime.TrainStep)
    assert path == "step.kte"
    assert main(["compile", "cli_models:model", "--out", "other.kte", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["compiled"] == ["other.kte", "ab" * 32]
    assert err == line.replace("step", "other")


def test_compile_writes_nothing_of_what_does_not_compile(folder, asked, capsys):
    asked.fault = Fault("no", "dense")
    assert main(["compile", "cli_models:model", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["compiled"] is None
    assert len(asked.calls) == 1


@pytest.mark.parametrize(
    ("arguments", "per_replica", "rows"),
    [
        (["cli_models:model"], 128, 1),
        (["cli_models.py:model", "--batch-size", "64", "--target", "v3-8"], None, 64),
        (["cli_models:with_batch"], None, 3),
        (["cli_models:with_batch", "--batch", "64"], None, 64),  # shorter, as any flag may be
        (["cli_models:model", "--data", "cli_models:batch"], None, 3),
        (["cli_models:model", "--data", "cli_models:batches"], None, 3),
    ],
)
def test_preflight_takes_the_batch_of_the_function_or_makes_one_up(
    folder, asked, capsys, arguments, per_replica, rows
):
    assert main(["preflight", *arguments]) == 0
    assert capsys.readouterr().out.startswith("'resnet50' on v5e-8")
    (call,) = asked.calls
    assert (call["per_replica"], call["batch"][0].shape) == (per_replica, (rows, 4))
    assert (call["pipeline"] is not None) == arguments[-1].endswith(":batches")
    assert (call["find_largest_batch"], call["timeout_s"], call["progress"]) == (False, 600.0, True)


def test_preflight_of_a_sharded_model_calls_the_function_itself(folder, asked):
    options = ["--shard", "fsdp", "--mesh", "data=2,model=4", "--batch-size", "64"]
    assert main(["preflight", "cli_models:with_batch", *options]) == 0
    (call,) = asked.calls
    assert (call["shard"], call["mesh"], call["batch"][0].shape) == ("fsdp", {"data": 2, "model": 4}, (64, 4))
    assert _runtime.models.is_compiled(call["model"]())


@pytest.mark.parametrize("function", ["model", "with_batch"])
def test_preflight_ranks_layouts_for_a_batch_that_the_chips_cannot_share(folder, asked, function):
    """Of a mesh of 1 x 8 it is all for one replica."""
    main(["preflight", f"cli_models:{function}", "--target", "v5e-8", "--shard", "auto", "--batch-size", "4"])
    (call,) = asked.calls
    assert (call["per_replica"], {leaf.shape[0] for leaf in call["batch"] if leaf is not None}) == (None, {4})


def test_preflight_prints_json_draws_and_exits_by_the_verdict(folder, asked, capsys):
    asked.fault = Fault("no", "dense")
    options = ["--json", "--largest", "--quiet", "--timeout", "9"]
    assert main(["preflight", "cli_models:model", *options]) == 1
    assert json.loads(capsys.readouterr().out)["fault"]["layer"] == "dense"
    (call,) = asked.calls
    assert (call["find_largest_batch"], call["timeout_s"], call["progress"]) == (True, 9.0, False)
    assert main(["preflight", "cli_models:model", "--plot", "drawn.png"]) == 1
    shown = capsys.readouterr()
    assert "does not compile" in shown.out
    assert shown.err == "no drawn.png: there is nothing to draw\n"
    assert not (folder / "drawn.png").exists()
    asked.fault = None
    assert main(["preflight", "cli_models:model", "--plot", "drawn.png"]) == 0
    assert (folder / "drawn.png").exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["cli_models:uncompiled"], "cli_models:uncompiled must return a compiled model; "),
    ],
)
def test_what_preflight_cannot_ask_is_one_sentence_and_status_2(folder, asked, capsys, arguments, text):
    assert main(["preflight", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"keras-tpu-ext preflight: {text}")


def test_plan_takes_what_the_functions_return(folder, monkeypatch, capsys):
    calls = []

    def ask(model, data, **options):
        calls.append((model, data, options))
        return PlanReport("net", options["target"], 5, 1, 3, hours=options["hours"], problem="It does not fit.")

    monkeypatch.setattr(cli, "plan", ask)
    options = ["--epochs", "5", "--target", "v3-8", "--hours", "9", "--price-per-hour", "2.5", "--quiet", "--json"]
    assert main(["plan", "cli_models:model", "--data", "cli_models:batch", *options]) == 1
    ((model, data, given),) = calls
    assert _runtime.models.is_compiled(model())
    assert data[0].shape == (3, 4)
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["target"], found["seconds"]) == (False, "v3-8", None)
    expected = {"epochs": 5, "target": "v3-8", "hours": 9.0, "price_per_hour": 2.5, "progress": False}
    assert {name: given[name] for name in expected} == expected
