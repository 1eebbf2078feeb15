"""Which dtype policy fits a device, setting one for a while, and what an audit finds in a model."""

import dataclasses
import json

import keras
import numpy as np
import pytest
from keras import layers

import keras_tpu_ext as kte
from keras_tpu_ext import precision
from keras_tpu_ext.errors import ArgumentError
from keras_tpu_ext.hardware import TPU_GENERATIONS, Hardware

pytestmark = pytest.mark.gate_on("keras3_tf", "keras3_jax", "keras2_tf215")


@pytest.fixture(autouse=True)
def _the_policy_is_left_as_it_was():
    before = keras.config.dtype_policy().name
    yield
    after = keras.config.dtype_policy().name
    keras.config.set_dtype_policy(before)
    assert after == before


# The policy that fits


@pytest.mark.parametrize(
    ("hardware", "expected"),
    [
        (Hardware("tpu", 8, "TPU v3-8", TPU_GENERATIONS["v3"], supports_bfloat16=True), "mixed_bfloat16"),
        (Hardware("tpu", None, "TPU"), "mixed_bfloat16"),
        (Hardware("gpu", 1, "NVIDIA A100", supports_bfloat16=True), "mixed_bfloat16"),
        (Hardware("gpu", 2, "Tesla T4", supports_bfloat16=False), "mixed_float16"),
        (Hardware("gpu", None, "AMD GPU", supports_bfloat16=None), "mixed_float16"),
        (Hardware("cpu", 1, "CPU"), "float32"),
        (Hardware("cpu", 1, "CPU", supports_bfloat16=True), "float32"),
    ],
)
def test_each_hardware_has_its_policy(hardware, expected):
    assert precision.recommended_policy(hardware) == expected
    with precision.policy_scope(expected):
        assert keras.config.dtype_policy().name == expected  # Keras knows it


def test_the_default_is_the_hardware_of_this_machine(monkeypatch):
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "v3-8")
    assert precision.recommended_policy() == "mixed_bfloat16"
    assert precision.recommended_policy() == precision.recommended_policy(kte.hardware.detect())


@pytest.mark.parametrize("value", ["tpu", 8, True])
def test_only_hardware_has_a_policy(value):
    with pytest.raises(ArgumentError) as caught:
        precision.recommended_policy(value)
    assert str(caught.value) == (
        f"recommended_policy: `hardware` must be a kte.hardware.Hardware; got {value!r}. "
        "Write recommended_policy(scope.hardware)."
    )


def test_mixed_float16_brings_a_dynamic_loss_scale():
    with precision.policy_scope("mixed_float16"):
        model = keras.Sequential([keras.Input((2,)), layers.Dense(1)])
        model.compile("sgd", "mse")
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)


# policy_scope


def test_a_policy_is_in_force_inside_and_restored():
    with precision.policy_scope("mixed_bfloat16") as name:
        assert name == keras.config.dtype_policy().name == "mixed_bfloat16"
        assert layers.Dense(1).compute_dtype == "bfloat16"
    assert keras.config.dtype_policy().name == "float32"


def test_a_policy_is_restored_on_error_which_is_not_swallowed():
    with pytest.raises(KeyError, match="mine"), precision.policy_scope("mixed_bfloat16"):
        raise KeyError("mine")
    assert keras.config.dtype_policy().name == "float32"


def test_policies_nest():
    with precision.policy_scope("mixed_bfloat16"):
        with precision.policy_scope("float32"):
            assert keras.config.dtype_policy().name == "float32"
        assert keras.config.dtype_policy().name == "mixed_bfloat16"
        with precision.policy_scope("mixed_bfloat16"):
            keras.config.set_dtype_policy("float64")  # the user's own change inside is undone, too
        assert keras.config.dtype_policy().name == "mixed_bfloat16"


def test_a_policy_object_that_was_there_before_is_restored_as_it_was():
    own = keras.dtype_policies.DTypePolicy("float64")
    keras.config.set_dtype_policy(own)
    try:
        with precision.policy_scope("float32"):
            pass
        assert keras.config.dtype_policy() is own
    finally:
        keras.config.set_dtype_policy("float32")


def test_auto_is_the_recommended_policy_of_this_machine(monkeypatch):
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "v3-8")
    with precision.policy_scope("auto") as name:
        assert name == keras.config.dtype_policy().name == "mixed_bfloat16"


@pytest.mark.parametrize(
    "name", ["mixed_bf16", "", "Float32", "bool", "string", "uint8", "complex64", "int8", None, 16]
)
def test_a_name_that_no_model_can_train_in_is_refused(name):
    with pytest.raises(ArgumentError) as caught, precision.policy_scope(name):
        pytest.fail("entered")
    assert str(caught.value) == (
        f"{name!r} is no dtype policy. Write 'mixed_bfloat16' (TPUs, newer GPUs), 'mixed_float16' (older GPUs), "
        "'float32', or 'auto'."
    )


# audit


def dense(name="out", **options):
    """Return what makes and calls the layer, so that it is made under the policy of `model_of`."""
    return lambda tensor: layers.Dense(3, name=name, **options)(tensor)


def sequence(tensor):
    return layers.Reshape((2, 2))(tensor)


def model_of(build, policy="mixed_bfloat16", kind=keras.Model, **compile_options):
    with precision.policy_scope(policy):
        inputs = keras.Input((4,))
        model = kind(inputs, build(inputs), name="model")
        if compile_options:
            model.compile("sgd", **compile_options)
    return model


def found(model):
    return [(finding.kind, finding.where, finding.dtype) for finding in precision.audit(model).findings]


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64:UserWarning")  # which JAX has only when told
@pytest.mark.parametrize("policy", ["float32", "float64"])
def test_a_model_in_full_precision_is_clean(policy):
    metrics = ["accuracy", keras.metrics.MeanSquaredError()]
    model = model_of(dense(activation="softmax"), policy, loss="categorical_crossentropy", metrics=metrics)
    assert found(model) == []
    assert precision.audit(model).ok


@pytest.mark.parametrize(("policy", "dtype"), [("mixed_bfloat16", "bfloat16"), ("mixed_float16", "float16")])
def test_a_softmax_output_in_16_bits_is_found_twice(policy, dtype):
    model = model_of(dense(activation="softmax"), policy, loss="categorical_crossentropy", metrics=["accuracy"])
    assert found(model) == [("softmax", "out", dtype), ("loss", "out", dtype)]


def test_an_output_layer_in_float32_is_right():
    def build(inputs):
        return dense(activation="softmax", dtype="float32")(dense("hidden")(inputs))

    assert found(model_of(build, loss="categorical_crossentropy", metrics=["accuracy"])) == []


def softmax_of_the_framework():
    if keras.backend.backend() == "jax":
        import jax

        return jax.nn.softmax
    import tensorflow

    return tensorflow.nn.softmax


def nested(inputs):
    inner_inputs = keras.Input((4,))
    return keras.Model(inner_inputs, dense("deep", activation="softmax")(inner_inputs), name="inner")(inputs)


@pytest.mark.parametrize(
    ("build", "where", "cure"),
    [
        (dense("out", activation="softmax"), "out", "write Dense(..., dtype='float32')"),
        (dense("out", activation=keras.ops.softmax), "out", "write Dense(..., dtype='float32')"),
        (dense("out", activation=softmax_of_the_framework()), "out", "write Dense(..., dtype='float32')"),
        (dense("out", activation="log_softmax"), "out", "write Dense(..., dtype='float32')"),
        (lambda x: layers.Activation("softmax", name="act")(x), "act", "write Activation(..., dtype='float32')"),
        (lambda x: layers.Softmax(name="soft")(x), "soft", "write Softmax(..., dtype='float32')"),
        (
            lambda x: layers.TimeDistributed(layers.Dense(3, "softmax", name="each"))(sequence(x)),
            "each",
            "write Dense(..., dtype='float32')",
        ),
        (
            lambda x: layers.Attention(name="attention")([sequence(x)] * 2),
            "attention",
            "write Attention(..., dtype='float32')",
        ),
        (
            lambda x: layers.MultiHeadAttention(2, 2, dropout=0.1, name="heads")(sequence(x), sequence(x)),
            "heads",
            "write MultiHeadAttention(..., dtype='float32')",
        ),
        (
            lambda x: layers.MultiHeadAttention(2, 2, name="heads")(
                sequence(x), sequence(x), return_attention_scores=True
            )[0],
            "heads",
            "write MultiHeadAttention(..., dtype='float32')",
        ),
        pytest.param(
            lambda x: layers.GroupQueryAttention(2, 2, 1, dropout=0.1, name="group")(sequence(x), sequence(x)),
            "group",
            "write GroupQueryAttention(..., dtype='float32')",
            marks=pytest.mark.runtimes("keras3_tf", "keras3_jax", reason="Keras 2: has no GroupQueryAttention"),
        ),
        (nested, "deep", "write Dense(..., dtype='float32')"),
    ],
)
def test_each_softmax_is_found_with_its_layer_and_its_cure(build, where, cure):
    findings = precision.audit(model_of(build)).findings
    assert findings == (precision.Finding("softmax", where, "bfloat16", cure),)


def test_an_operation_is_found_as_well():
    model = model_of(lambda x: keras.ops.softmax(dense()(x)))
    assert [kind for kind, *_ in found(model)] == ["softmax"]
    assert found(model_of(lambda x: keras.ops.softmax(keras.ops.cast(dense()(x), "float32")))) == []


@pytest.mark.parametrize("dtype", ["float32", None])
@pytest.mark.runtimes("keras3_tf", "keras3_jax", reason="Keras 2: does not fuse attention")
def test_attention_that_keras_fuses_has_its_softmax_in_float32(dtype):
    model = model_of(lambda x: layers.MultiHeadAttention(2, 2, dtype=dtype)(sequence(x), sequence(x)))
    assert found(model) == []


def test_a_shared_layer_is_found_once():
    with precision.policy_scope("mixed_bfloat16"):
        shared = layers.Dense(3, "softmax", name="out")
        inputs = keras.Input((4,))
        model = keras.Model(inputs, [shared(inputs), shared(inputs * 2)])
    assert found(model) == [("softmax", "out", "bfloat16")]


def test_a_sequential_model_is_looked_at_like_any_other():
    with precision.policy_scope("mixed_bfloat16"):
        model = keras.Sequential([keras.Input((4,)), layers.Dense(3, "softmax", name="out")])
        model.compile("sgd", "mse")
    assert found(model) == [("softmax", "out", "bfloat16"), ("loss", "out", "bfloat16")]


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__(name="subclassed")
        self.head = layers.Dense(3, activation="softmax", name="head", dtype="mixed_bfloat16")
        self.counter = keras.metrics.Mean(name="counter", dtype="bfloat16")

    def call(self, inputs):
        return self.head(inputs)


def test_a_subclassed_model_shows_its_layers_and_metrics():
    model = Subclassed()
    model.compile("sgd", "mse")
    assert found(model) == [("softmax", "head", "bfloat16"), ("metric", "counter", "bfloat16")]


@pytest.mark.runtimes("keras3_tf", "keras3_jax", reason="Keras 2: gives a loss no dtype")
def test_a_subclassed_model_shows_its_loss():
    model = Subclassed()
    model.compile("sgd", keras.losses.MeanSquaredError(dtype="bfloat16", name="own"))
    assert ("loss", "own", "bfloat16") in found(model)


def three_outputs(inputs):
    return [dense(name, dtype=dtype)(inputs) for name, dtype in (("a", "bfloat16"), ("b", "bfloat16"), ("c", None))]


def test_the_loss_is_found_by_output_and_only_where_there_is_one():
    model = model_of(three_outputs, "float32", loss={"a": "mse", "b": None, "c": "mse"})
    assert found(model) == [("loss", "a", "bfloat16")]
    model = model_of(three_outputs, "float32", loss=[None, "mse", "mse"])
    assert found(model) == [("loss", "b", "bfloat16")]
    assert found(model_of(three_outputs, "float32")) == []  # not compiled


@pytest.mark.runtimes("keras3_tf", "keras3_jax", reason="Keras 2: gives a loss no dtype")
def test_a_loss_in_16_bits_is_found():
    loss = ["mse", "mse", keras.losses.MeanSquaredError(dtype="bfloat16")]
    model = model_of(three_outputs, "float32", loss=loss)
    assert found(model) == [("loss", name, "bfloat16") for name in "abc"]
    assert precision.audit(model).findings[2].cure == "write MeanSquaredError(..., dtype='float32')"


@pytest.mark.gate_on("keras3_jax")
@pytest.mark.parametrize("kind", [keras.Model, kte.TPUModel])
@pytest.mark.parametrize("argument", ["metrics", "weighted_metrics"])
def test_a_metric_kept_in_16_bits_is_found_before_and_after_training(kind, argument):
    metric = keras.metrics.MeanSquaredError(name="own", dtype="bfloat16")
    model = model_of(dense(), "float32", kind, loss="mse", **{argument: ["mae", metric]})
    assert found(model) == [("metric", "own", "bfloat16")]
    model.fit(np.ones((4, 4)), np.ones((4, 3)), verbose=0)
    assert found(model) == [("metric", "own", "bfloat16")]


@pytest.mark.runtimes("keras3_tf", "keras3_jax", reason="Keras 2: has no such floatx")
def test_a_metric_that_takes_its_dtype_from_floatx_is_found_once_it_is_made():
    model = model_of(dense(), "float32", loss=keras.losses.MeanSquaredError(dtype="float32"), metrics=["mae"])
    keras.config.set_floatx("bfloat16")
    try:
        model.fit(np.ones((4, 4)), np.ones((4, 3)), verbose=0)
    finally:
        keras.config.set_floatx("float32")
    assert found(model) == [("metric", "mae", "bfloat16")]


@pytest.mark.parametrize("value", ["model", None, layers.Dense(1)])
def test_only_models_are_audited(value):
    with pytest.raises(ArgumentError) as caught:
        precision.audit(value)
    assert (
        str(caught.value) == f"audit: `model` must be a Keras model; got {type(value).__name__}. Write audit(model)."
    )


# The report


@pytest.fixture
def report():
    metric = keras.metrics.MeanSquaredError(name="<own>", dtype="bfloat16")
    return precision.audit(model_of(dense(activation="softmax"), loss="mse", metrics=[metric]))


def test_a_report_reads_as_text(report):
    assert not report.ok
    assert str(report) == (
        "model: 3 place(s) where 16 bits cost accuracy:\n"
        "  - softmax in bfloat16 in layer 'out': write Dense(..., dtype='float32')\n"
        "  - loss from bfloat16 values of layer 'out': give that output layer dtype='float32'\n"
        "  - metric '<own>' kept in bfloat16: write MeanSquaredError(..., dtype='float32')"
    )
    clean = precision.AuditReport("model", ())
    assert str(clean) == "model: softmax, loss and metrics are computed in full precision."


def test_a_report_is_plain_data(report):
    data = report.to_dict()
    assert json.loads(json.dumps(data)) == data
    assert (data["ok"], data["model"]) == (False, "model")
    assert data["findings"][0] == {
        "kind": "softmax",
        "where": "out",
        "dtype": "bfloat16",
        "cure": "write Dense(..., dtype='float32')",
    }
    assert precision.AuditReport("model", ()).to_dict() == {"ok": True, "model": "model", "findings": []}


def test_a_report_shows_in_a_notebook(report):
    page = report._repr_html_()
    assert '">model: 3 place(s)' in page
    assert "&lt;own&gt;" in page
    assert "<own>" not in page


def test_a_report_is_frozen(report):
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.model = "another"
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.findings[0].dtype = "float32"


def test_the_cure_cures(report):
    model = model_of(
        dense(activation="softmax", dtype="float32"),
        loss="mse",
        metrics=[keras.metrics.MeanSquaredError(name="<own>", dtype="float32")],
    )
    assert len(report.findings) == 3
    assert found(model) == []
