"""What `preflight` asks of its arguments, and what it makes of what the compiler says; the compiler is not there."""

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext.errors import ArgumentError, MissingExtraError
from keras_tpu_ext.preflight import _compiler, _step, api
from keras_tpu_ext.preflight._compiler import Compiled
from kind_of_keras import IS_KERAS2

pytestmark = pytest.mark.gate_on("keras3_tf", "keras3_jax")

TOO_LARGE = "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used {:.2f}G of 15.75G hbm. Exceeded"


def model_of(name="small"):
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(1, name="out")(inputs), name=name)
    model.compile("sgd", "mse")
    return model


def batch(examples=64):
    return np.zeros((examples, 4), "float32"), np.zeros((examples, 1), "float32")


@pytest.fixture
def says(monkeypatch):
    """Let the compiler say what a function of the examples on a replica returns, and note what it was asked."""
    if IS_KERAS2:
        pytest.importorskip("tensorflow", minversion="2.16")  # older ones write no StableHLO
    asked = []

    def set_to(error_of):
        def compile_for(target, lowered, **options):
            asked.append(lowered.examples // target.devices)
            return Compiled("", {"versions": {}}, error_of(asked[-1]))

        monkeypatch.setattr(api, "compiler_versions", lambda target: {})
        monkeypatch.setattr(_step, "compile_for", compile_for)
        return asked

    return set_to


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"target": "v9-8"}, r"There is no TPU slice 'v9-8'; the generations are v2, .* Write target=\"v5e-8\""),
        ({"target": "v3-9"}, r"There is no TPU slice 'v3-9'"),
        ({"model": "resnet"}, r"`model` must be a compiled Keras model, or .*; got str\. Write preflight\(model, "),
        (
            {"batch": batch(63)},
            r"A batch of 63 cannot be shared evenly by the 8 replicas of v5e-8\. Write .*=7, which",
        ),
        ({"batch": (1.0, 2.0)}, r"`batch` must be of arrays; got single numbers"),
        (
            {"batch": (np.zeros((8, 4)), np.zeros((9, 1)))},
            r"of arrays with the same number of examples.*got \[8, 9\]",
        ),
        (
            {"per_replica_batch": 0},
            r"preflight: `per_replica_batch` must be an integer of at least 1; got 0\. Write per_",
        ),
        ({"timeout_s": 0}, r"`timeout_s` must be a number of seconds above 0; got 0\. Write timeout_s=600"),
    ],
)
def test_wrong_arguments_are_told(change, text, says):
    says(lambda examples: "")
    arguments = {"model": model_of(), "batch": batch(), "target": "v5e-8", **change}
    with pytest.raises(ArgumentError, match=text):
        kte.preflight(**arguments, progress=False)


def test_a_model_that_is_not_compiled_is_told(says):
    says(lambda examples: "")
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs), name="bare")
    with pytest.raises(ArgumentError, match=r"'bare', which is not\. Write model\.compile\(\"adam\", loss\) before"):
        kte.preflight(model, batch())


def test_a_dataset_is_no_batch(says):
    says(lambda examples: "")
    with pytest.raises(
        ArgumentError, match=r"got a \w+, which has many\. Write preflight\(model, next\(iter\(dataset"
    ):
        kte.preflight(model_of(), iter([batch()]))


def test_without_the_compiler_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(_compiler, "installed_version", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"has no jax\. .*pip install 'jax\[tpu\]'"):
        kte.preflight(model_of(), batch())


def test_what_the_compiler_does_not_take_is_in_the_report(says):
    says(lambda examples: 'INVALID_ARGUMENT: no such operation: op_name="jit(step)/jvp(out)/thing"')
    report = kte.preflight(model_of(), batch(), progress=False)
    assert not report.ok
    assert report.fault.layer == "out"
    assert "does not compile" in str(report)
    assert "layer 'out': INVALID_ARGUMENT: no such operation" in str(report)


def test_what_does_not_fit_is_no_fault(says):
    says(lambda examples: TOO_LARGE.format(20.0))
    report = kte.preflight(model_of(), batch(), progress=False)
    assert not report.ok
    assert report.fault is None
    assert report.memory.needed == 20 * 2**30
    assert report.largest_per_replica_batch == 6  # 8 examples on a replica take 20 of 15.75 GiB


def test_of_a_batch_with_another_size_only_the_shape_of_an_example_counts(says):
    asked = says(lambda examples: TOO_LARGE.format(20.0))
    report = kte.preflight(model_of(), batch(3), "v3-8", per_replica_batch=16, progress=False)
    assert asked[0] == 16
    assert (report.global_batch, report.per_replica_batch) == (128, 16)


@pytest.mark.parametrize("replicas", [1, 8])
def test_the_model_may_be_exact_or_kerass(says, replicas):
    says(lambda examples: TOO_LARGE.format(20.0))
    model = kte.TPUModel.from_model(model_of())
    model.compile("adam", "mse", metrics=["mae"])
    report = kte.preflight(model, batch(), f"v5e-{replicas}", progress=False)
    assert report.memory.needed == 20 * 2**30
