"""`check_parity`: whole checks in fresh processes, and its parts without any."""

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext._runtime.common.error_messages import summary_of
from keras_tpu_ext.parity import ParityReport, ParityRow
from keras_tpu_ext.tools.parity import batches, compare
from keras_tpu_ext.tools.parity.checks import PARTS, Part, Quantity
from keras_tpu_ext.tools.parity.function_reference import FunctionReference
from keras_tpu_ext.tools.parity.inspection import Facts, disable_dropout, findings, inspect_model
from keras_tpu_ext.tools.parity.process import Outcome
from keras_tpu_ext.tools.parity.worker import perturb_weights
from kind_of_keras import IMPORT_KERAS, keras
from plain_models import batch, rows_by_key

pytestmark = pytest.mark.gate_on("keras3_tf", "keras3_jax")

ROOT = Path(__file__).resolve().parents[1]


# Where a normalisation sees its replica only, unless told; Keras on JAX, which always sees the batch, takes no word.
BY_REPLICA = keras.backend.backend() == "tensorflow"


def network(model_class, synchronized=BY_REPLICA, dropout=0.0):
    inputs = keras.Input((5,), dtype="int32")
    hidden = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(12, 6)(inputs))
    inner_in = keras.Input((6,))
    inner_out = keras.layers.BatchNormalization(synchronized=synchronized, name="norm")(inner_in)
    inner = keras.Model(inner_in, keras.layers.Dropout(dropout, name="drop")(inner_out), name="inner")
    return model_class(inputs, keras.layers.Dense(1)(inner(hidden)), name="outer")


def exact():
    model = network(kte.TPUModel, dropout=0.5)
    model.compile(
        keras.optimizers.Adam(0.05, clipnorm=0.1), "mse", metrics=["mae", keras.metrics.AUC()], loss_scale="dynamic"
    )
    return model


def broken():
    raise RuntimeError("the weights file of the user is not there")


def uncompiled():
    return network(kte.TPUModel)


@pytest.fixture(scope="module")
def exact_report():
    targets = np.random.default_rng(1).integers(0, 2, size=(43, 1)).astype("float32")
    tokens, _ = batch(43)
    weights = np.random.default_rng(2).uniform(0.1, 3.0, size=43).astype("float32")
    return kte.check_parity(exact, (tokens, targets, weights), replicas=2)


@pytest.mark.gate_on("keras3_jax")  # on TensorFlow test_keras3_tf_parity.py has a whole check
@pytest.mark.slow
def test_a_tpu_model_equals_one_device_in_all(exact_report):
    assert exact_report.ok, str(exact_report)
    assert {row.ok for row in exact_report.rows} == {True}
    metrics = ["loss", "auc", "mae"]
    state = ["weights", "non-trainable weights", "gradients"]
    assert set(rows_by_key(exact_report)) == {
        *[("one step", name) for name in metrics + state],
        *[("3 steps", name) for name in [*metrics, "weights", "non-trainable weights"]],
        *[("uneven tail, evaluate", name) for name in metrics],
        ("uneven tail, predict", "predictions"),
        *[("uneven tail, fit", name) for name in metrics + state],
        *[("an inf in one replica", name) for name in ["skipped step", "finite weights", "loss scale"]],
    }
    assert rows_by_key(exact_report)["an inf in one replica", "skipped step"].note == "the step is skipped"
    assert rows_by_key(exact_report)["an inf in one replica", "loss scale"].note == "16384 after it"
    assert str(exact_report).startswith("2 replicas equal one device: 24 of 24 quantities agree to 1e-5")
    assert "a batch of 43 examples; 3 steps" in str(exact_report)


@pytest.mark.gate_on("keras3_jax")
@pytest.mark.slow
def test_dropout_is_switched_off_and_named(exact_report):
    (finding,) = exact_report.findings
    assert finding.startswith("The rate of the layer 'drop' was set to 0 for this check: each replica draws")


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_script_can_check_its_own_builder(tmp_path):
    script = tmp_path / "my_script.py"
    script.write_text(
        textwrap.dedent(f"""
        import json
        {IMPORT_KERAS}
        import numpy as np
        import keras_tpu_ext as kte

        def build_model():
            model = kte.TPUModel.from_model(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
            model.compile("sgd", "mse")
            return model

        if __name__ == "__main__":
            x = np.ones((1, 2), "float32")
            print(json.dumps(kte.check_parity(build_model, (x, x[:, :1]), replicas=2, steps=1).to_dict()))
        """)
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout)
    assert report["ok"], done.stdout  # of one example, fewer than replicas
    assert report["batch"] == "a batch of 1 example"


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("builder", "error", "text"),
    [
        (
            broken,
            kte.errors.ParityCheckError,
            "broken failed with one device: RuntimeError: the weights file of the user is not there\n"
            "The last lines that it printed:\n",
        ),
        (
            uncompiled,
            kte.errors.ArgumentError,
            "uncompiled must return a compiled model; 'outer' is not compiled. "
            'Write model.compile("adam", loss, metrics=[...]) before `return model`.',
        ),
    ],
)
def test_a_builder_that_fails_is_told_plainly(builder, error, text):
    with pytest.raises(error) as caught:
        kte.check_parity(builder, batch(8), replicas=2)
    assert text in str(caught.value)


def test_a_process_that_takes_too_long_is_ended():
    with pytest.raises(kte.errors.ParityCheckError) as caught:
        kte.check_parity(exact, batch(8), replicas=2, timeout_s=0.2)
    assert str(caught.value).startswith("The process with one device was not done after 0.2 s. Give it more time, ")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"replicas": 1}, "check_parity: `replicas` must be an integer of at least 2; got 1. Write replicas=8."),
        ({"steps": 0}, "check_parity: `steps` must be an integer of at least 1; got 0. Write steps=3."),
        ({"tolerance": 2}, "`tolerance` must be a number above 0 and at most 1; got 2. Write tolerance=1e-5"),
        ({"backend": "torch"}, '`backend` must be None, "tensorflow" or "jax"; got \'torch\'. Write backend="jax".'),
        ({"timeout_s": 0}, "`timeout_s` must be a number of seconds above 0; got 0. Write timeout_s=600."),
        (
            {"batch": (1, 2, 3, 4)},
            "check_parity: `batch` must be one to three parts; got a tuple of 4. Write a batch as",
        ),
        ({"batch": 3.0}, "check_parity: `batch` must be arrays; got single numbers. Write"),
        ({"batch": iter([1])}, "`batch` must be one batch of arrays; got a list_iterator, which has many. Write"),
        (
            {"batch": (np.ones((3, 2)), np.ones(4))},
            "`batch` must be arrays with the same number of examples, at least 1; got [3, 4]. Write",
        ),
        ({"build_model": 3}, "`build_model` must be a function that returns a compiled Keras model; got 3. Write"),
    ],
)
def test_arguments_that_cannot_work(arguments, text):
    with pytest.raises(kte.errors.ArgumentError) as caught:
        kte.check_parity(**{"build_model": exact, "batch": batch(8)} | arguments)
    assert text in str(caught.value)


def test_a_backend_that_is_not_installed_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(kte.errors.MissingExtraError) as caught:
        kte.check_parity(exact, batch(8), backend="jax")
    assert str(caught.value) == (
        'check_parity(backend="jax") trains on JAX as well, and this Python has none. '
        "Write: pip install 'keras>=3.8' 'jax>=0.5.2'"
    )


def test_a_script_without_a_guard_is_told_so(monkeypatch):
    monkeypatch.setenv("KERAS_TPU_EXT_IN_PARITY_CHECK", "1")
    with pytest.raises(kte.errors.ArgumentError, match='Put the call under `if __name__ == "__main__":`'):
        kte.check_parity(exact, batch(8))


def test_a_function_of_a_file_is_found_by_name():
    source = FunctionReference.of(exact)
    assert (source.name, source.file, source.pickled) == ("exact", str(Path(__file__).resolve()), b"")
    found = FunctionReference(source.label, "", source.name, source.file).load()
    assert found is not exact
    assert found.__qualname__ == "exact"


def test_a_closure_travels_with_cloudpickle_or_says_that_it_needs_it(monkeypatch):
    pytest.importorskip("cloudpickle")
    kept = 41
    assert FunctionReference.of(lambda: kept + 1).load()() == 42
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(kte.errors.MissingExtraError) as caught:
        FunctionReference.of(lambda: kept)
    text = str(caught.value)
    assert "is no function that they can import" in text
    assert "Write it as `def build_model(): ...` at the top level of a file and import it from there" in text
    assert text.endswith("pip install cloudpickle")


@pytest.mark.parametrize("replicas", [2, 4, 8])
@pytest.mark.parametrize("examples", [1, 3, 7, 8, 9, 64, 103])
def test_the_tail_never_divides_and_the_first_batch_does(examples, replicas):
    places, first = batches.uneven_epoch(examples, replicas)
    assert first % replicas == 0
    assert 0 < len(places) - first <= len(places)
    assert (len(places) - first) % replicas != 0
    assert places.max() < examples
    backwards, same = batches.uneven_epoch(examples, replicas, reverse=True)
    assert same == first
    assert sorted(backwards[:first]) == sorted(places[:first])
    assert list(backwards[first:]) == list(places[first:][::-1])


@pytest.mark.parametrize(("examples", "place"), [(32, 8), (31, 8), (3, 1), (1, 1)])
def test_the_infinity_is_the_second_replicas_first_example(examples, place):
    good, bad = batches.with_infinity(batches.parse_batch(batch(examples)), 4)
    assert np.isfinite(good[2]).all()
    assert list(np.flatnonzero(np.isinf(bad[2]))) == [place]


def test_weights_move_by_half_a_unit_of_a_16_bit_dtype_and_else_not_at_all():
    weights = [np.linspace(0.5, 2, 50).astype("float32"), np.arange(3)]
    same, _ = perturb_weights(weights, ("float32",))
    moved, counts = perturb_weights(weights, ("bfloat16", "float32"))
    np.testing.assert_array_equal(same, weights[0])
    np.testing.assert_allclose(np.abs(moved / weights[0] - 1), 2.0**-9, rtol=1e-3)
    np.testing.assert_array_equal(counts, weights[1])


def vectors(*values, names=()):
    return Quantity("arrays", [np.asarray(value, "float32") for value in values], names)


def test_arrays_are_compared_as_one_vector_and_the_worst_is_named():
    found = compare.difference(vectors([3, 0], [4], names=("a", "b")), vectors([3, 0], [4.5], names=("a", "b")))
    assert found.off == pytest.approx(0.1)
    assert found.note == "most in b, which is 0.125 off"


@pytest.mark.parametrize(
    ("reference", "got", "off"),
    [
        (Quantity("series", [np.array([2.0, 4.0])]), Quantity("series", [np.array([2.0, 5.0])]), 0.25),
        (Quantity("series", [np.array([np.nan, 1.0])]), Quantity("series", [np.array([np.inf, 1.0])]), 0.0),
        (Quantity("series", [np.array([np.nan])]), Quantity("series", [np.array([1.0])]), None),
        (vectors([1, 2], [3]), vectors([1, 2], [np.nan]), None),
        (vectors([1, 2]), vectors([1, 2, 3]), None),
        (Quantity("exact", [np.array([True])]), Quantity("exact", [np.array([False])]), None),
        (Quantity("exact", [np.array([True])]), Quantity("exact", [np.array([True])]), 0.0),
        (vectors([0, 0]), vectors([0, 0]), 0.0),
    ],
)
def test_differences(reference, got, off):
    assert compare.difference(reference, got).off == off


FACTS = Facts(True, ("float32",), (), (), ())


def outcome(value, rounding=None, **parts):
    def steps(value):
        return Part({("one step", "weights"): vectors([value])})

    quiet = {name: Part(unchecked="not here") for name in PARTS} | {"steps": steps(value)} | parts
    return Outcome(FACTS, [], quiet, {} if rounding is None else {"steps": steps(rounding)})


def first_row(one, many):
    return next(row for row in compare.compare(one, many, 1e-5, 8) if row.quantity in ("weights", "all"))


@pytest.mark.parametrize(
    ("got", "rounding", "ok", "allowed"),
    [
        (1 + 5e-6, 1.0, True, 1e-5),
        (1 + 5e-5, 1.0, False, 1e-5),
        (1 + 5e-5, 1 + 2e-5, True, 8e-5),  # an optimizer that makes steps of a rounding
        (1 + 5e-3, 1 + 1e-3, False, 1e-3),  # never more than a hundred times the tolerance
        (1 + 2e-3, 1 + 1e-3, None, 1e-3),  # rounding alone does as much: nothing can be told
    ],
)
def test_what_is_off_is_judged_beside_rounding(got, rounding, ok, allowed):
    row = first_row(outcome(1.0, rounding), outcome(got))
    assert row.ok is ok
    assert row.tolerance == pytest.approx(allowed, rel=0.01)


def test_a_quantity_that_is_missing_on_replicas_differs():
    row = first_row(outcome(1.0), outcome(1.0, steps=Part({})))
    assert (row.ok, row.note) == (False, "missing on 8 replicas")


def test_a_part_that_fails_differs_and_one_that_cannot_be_run_is_not_checked():
    failed = Part(error="InvalidArgumentError: AddN")
    row = first_row(outcome(1.0), outcome(1.0, steps=failed))
    assert (row.ok, row.note) == (False, "fails on 8 replicas: InvalidArgumentError: AddN")
    row = first_row(outcome(1.0, steps=failed), outcome(1.0))
    assert (row.ok, row.note) == (None, "fails on one device: InvalidArgumentError: AddN")


@pytest.mark.parametrize(
    ("dtypes", "tolerance"), [(("float32",), 1e-5), (("bfloat16", "float32"), 2.0**-6), (("float16",), 2.0**-9)]
)
def test_the_default_tolerance_follows_the_dtype(dtypes, tolerance):
    assert compare.default_tolerance(dtypes) == tolerance
    assert compare.default_tolerance(dtypes, ("JAX", "JAX")) == tolerance
    assert compare.default_tolerance(dtypes, ("TensorFlow", "JAX")) == max(tolerance, 1e-4)


def test_layers_are_looked_at_at_any_depth():
    inputs = keras.Input((4, 3))
    hidden = keras.layers.LSTM(4, dropout=0.3, return_sequences=True)(inputs)
    hidden = keras.layers.MultiHeadAttention(2, 2, dropout=0.2, name="attention")(hidden, hidden)
    hidden = keras.layers.GaussianNoise(0.1, name="noise")(hidden)
    frozen = keras.layers.BatchNormalization(name="frozen")
    frozen.trainable = False
    inner = keras.Sequential([keras.Input((4, 4)), keras.layers.BatchNormalization(name="learns"), frozen], name="in")
    model = keras.Model(inputs, keras.layers.RandomFlip(name="flip")(inner(hidden)[..., None]))
    no_dropout = disable_dropout(model)
    facts = inspect_model(model, no_dropout)
    assert not disable_dropout(model), "a rate was left"
    assert len(facts.no_dropout) == 3
    assert ["learns" in name for name in facts.local_normalisations] == [True] * BY_REPLICA
    assert facts.random == ("'flip'",)
    assert not facts.is_exact


def test_findings_follow_what_differs():
    facts = Facts(False, ("float32",), ("'norm'",), (), ("'flip'",), plain_model="each replica is alone")
    differs = [ParityRow("one step", "loss", 0.5, 1e-5, False)]
    plain, norm, random = findings(facts, differs)
    assert plain.startswith("The model is a plain keras.Model: each replica is alone. Write kte.TPUModel(")
    assert norm.endswith("synchronized=True).")
    assert random.startswith("the layer 'flip' draws random numbers")
    (norm,) = findings(facts, [ParityRow("one step", "loss", 0.0, 1e-5, True)])
    assert "It made no difference in this check" in norm


def report(*rows, findings=()):
    return ParityReport(8, 3, 1e-5, "a batch of 64 examples", rows, findings)


GOOD = ParityRow("one step", "loss", 1.2e-7, 1e-5, True)
BAD = ParityRow("one step", "<weights>", 0.39, 1e-5, False, "a bias")
UNKNOWN = ParityRow("an inf in one replica", "all", None, 1e-5, None, "no sample weights")


def test_a_report_reads_as_a_table():
    assert str(report(GOOD, BAD, UNKNOWN, findings=("Write this.",))).splitlines() == [
        "8 replicas do not equal one device: 1 of 2 quantities differs; 1 not checked",
        "a batch of 64 examples; 3 steps; numbers agree up to a relative difference of",
        "1e-5",
        "",
        "what is done           what is compared  off by  allowed  verdict",
        "one step               loss              1.2e-7  1e-5     agrees",
        "one step               <weights>         0.39    1e-5     DIFFERS      a bias",
        "an inf in one replica  all               -       -        not checked  [1]",
        "",
        "[1] no sample weights",
        "",
        "- Write this.",
    ]


def test_a_long_note_stands_once_below_the_table_and_all_lines_have_80_columns():
    fails = "fails on 8 replicas: IndivisibleError: " + "a batch that cannot be split, " * 5
    rows = [ParityRow(f"step {i}", "all", None, 1e-5, False, fails) for i in range(3)]
    text = str(report(*rows, findings=("Write this. " * 20,)))
    assert [line[-3:] for line in text.splitlines() if line.startswith("step")] == ["[1]"] * 3
    assert text.count("IndivisibleError") == 1
    assert max(map(len, text.splitlines())) <= 80
    assert rows[0].note == fails


def wrapped_by_keras(text):
    return ValueError(
        f"Exception encountered when calling Bad.call().\n\n\x1b[1mCould not automatically infer the output shape "
        f"of 'bad'. Error encountered:\n\n{text}\x1b[0m\n\nArguments received by Bad.call():\n  • args=()"
    )


@pytest.mark.parametrize(
    ("error", "summary"),
    [
        (wrapped_by_keras("no such axis"), "ValueError: no such axis"),
        (
            ValueError("7 root error(s) found.\n  (0) INVALID_ARGUMENT:  Shapes: [4] vs. [3]\n"),
            "ValueError: Shapes: [4] vs. [3]",
        ),
        (ValueError("{{function_node __wrapped__AddN}} Sizes differ\nmore"), "ValueError: Sizes differ"),
        (ValueError("x" * 400), f"ValueError: {'x' * 299}…"),
        (KeyError(), "KeyError"),
    ],
)
def test_an_error_is_summed_up_by_its_cause(error, summary):
    assert summary_of(error) == summary


@pytest.mark.parametrize(
    ("rows", "ok", "verdict"),
    [
        ((GOOD,), True, "8 replicas equal one device: 1 of 1 quantities agree to 1e-5"),
        ((GOOD, UNKNOWN), True, "8 replicas equal one device: 1 of 1 quantities agree to 1e-5; 1 not checked"),
        ((GOOD, BAD), False, "8 replicas do not equal one device: 1 of 2 quantities differs"),
        ((UNKNOWN,), False, "Nothing could be compared between 8 replicas and one device; 1 not checked"),
    ],
)
def test_a_report_is_ok_when_something_was_compared_and_nothing_differs(rows, ok, verdict):
    assert report(*rows).ok is ok
    assert str(report(*rows)).splitlines()[0] == verdict


def test_a_report_across_frameworks_names_both():
    made = dataclasses.replace(report(GOOD), frameworks=("TensorFlow", "JAX"))
    assert str(made).startswith("8 replicas on JAX equal one device on TensorFlow: 1 of 1 quantities agree")
    assert made.to_dict()["frameworks"] == ["TensorFlow", "JAX"]


def test_a_report_as_html_escapes_and_as_a_dict_is_json():
    made = report(GOOD, BAD, UNKNOWN, findings=("a < b",))
    shown = made._repr_html_()
    assert " &lt;weights&gt; " in shown
    assert "- a &lt; b" in shown
    assert "1 of 2 quantities differs" in shown
    assert json.loads(json.dumps(made.to_dict(), allow_nan=False)) == {
        **made.to_dict(),
        "ok": False,
        "replicas": 8,
        "findings": ["a < b"],
    }
    assert made.to_dict()["rows"][2]["off"] is None
