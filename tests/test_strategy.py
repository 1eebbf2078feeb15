"""What `strategy_scope` chooses and says, and what its `Scope` does and undoes."""

import contextlib
import copy
import dataclasses
import html
import logging
import pickle
import threading
import warnings

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.values import OpenedStrategy
from keras_tpu_ext.errors import (
    ArgumentError,
    HardwareNotFoundError,
    HardwareUnusableWarning,
    KteError,
    ScopeError,
    TpuUnusableError,
)
from keras_tpu_ext.output.announce import _print_once
from kind_of_keras import IS_KERAS2
from sources import regression

pytestmark = pytest.mark.gate_on("keras3_tf", "keras3_jax", "keras2_tf215")

VARIABLES = (
    "TPU_NAME",
    "COLAB_TPU_ADDR",
    "TPU_GRPC_URL",
    "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS",
    "TPU_ACCELERATOR_TYPE",
    "TPU_WORKER_ID",
)


class Machine:
    """A machine as the seam shows it: how many GPUs, and a TPU that answers or fails."""

    def __init__(self):
        self.gpus = 0
        self.gpu_bfloat16 = True
        self.tpu_error = None
        self.tpu_asked = []

    def count_gpus(self):
        return self.gpus

    def open_gpus(self, count):
        return OpenedStrategy(f"strategy over {count} GPUs", count, "NVIDIA Test", self.gpu_bfloat16)

    def open_tpu(self, address):
        self.tpu_asked.append(address)
        if self.tpu_error is not None:
            raise self.tpu_error
        return OpenedStrategy(f"strategy over {address}", 8, "TPU", True)


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    machine = Machine()
    for verb in ("count_gpus", "open_gpus", "open_tpu"):
        monkeypatch.setattr(_runtime.devices, verb, getattr(machine, verb))
    return machine


def in_force():
    """Return the strategy that the framework works under, or `None`."""
    if keras.backend.backend() == "jax":
        return keras.distribution.distribution()
    import tensorflow as tf

    return tf.distribute.get_strategy() if tf.distribute.has_strategy() else None


def unusable():
    return TpuUnusableError("It is broken. What to do: mend it.")


# The choice


def test_with_nothing_there_it_is_the_cpu():
    scope = kte.strategy_scope()
    assert (scope.hardware.kind, scope.num_replicas) == ("cpu", 1)


def test_a_gpu_goes_before_the_cpu_and_a_tpu_before_a_gpu(machine, monkeypatch):
    machine.gpus = 1
    assert kte.strategy_scope().hardware.kind == "gpu"
    monkeypatch.setenv("TPU_NAME", "local")
    assert kte.strategy_scope().hardware.kind == "tpu"


@pytest.mark.parametrize("require", ["tpu", "gpu", "cpu"])
@pytest.mark.parametrize("tpu", [False, True])
@pytest.mark.parametrize("gpus", [0, 1])
def test_require_accepts_nothing_else(machine, monkeypatch, require, tpu, gpus):
    machine.gpus = gpus
    if tpu:
        monkeypatch.setenv("TPU_NAME", "local")
    if {"tpu": tpu, "gpu": gpus, "cpu": True}[require]:
        assert kte.strategy_scope(require=require).hardware.kind == require
    else:
        with pytest.raises(HardwareNotFoundError):
            kte.strategy_scope(require=require)
    assert machine.tpu_asked == (["local"] if require == "tpu" and tpu else [])  # the others start no TPU


def test_a_missing_tpu_is_told_with_what_was_looked_for_what_was_found_and_what_to_run():
    with pytest.raises(HardwareNotFoundError) as caught:
        kte.strategy_scope(require="tpu")
    text = str(caught.value)
    assert text.startswith('strategy_scope(require="tpu") looked for a TPU in TPU_NAME')
    assert all(place in text for place in (*VARIABLES, "/dev/accel*", "/dev/vfio"))
    assert f"and found none. This machine is: {kte.hardware.detect()}." in text
    assert (
        'What to do: switch the notebook\'s accelerator to a TPU, or name one, strategy_scope(require="tpu", ' in text
    )
    assert text.endswith("or rehearse: strategy_scope(replicas=8).")
    assert isinstance(caught.value, KteError)


def test_a_missing_gpu_is_told_with_what_was_looked_for_what_was_found_and_what_to_run():
    with pytest.raises(HardwareNotFoundError) as caught:
        kte.strategy_scope(require="gpu")
    text = str(caught.value)
    assert text.startswith(
        'strategy_scope(require="gpu") looked for a GPU among the framework\'s devices, and found none'
    )
    assert f"This machine is: {kte.hardware.detect()}." in text
    assert "What to do: switch the accelerator to a GPU" in text
    assert {"tensorflow": "'tensorflow[and-cuda]'", "jax": "'jax[cuda12]'"}[keras.backend.backend()] in text


@pytest.mark.parametrize("tpu", ["local", "my-tpu", "grpc://10.0.0.2:8470"])
def test_a_tpu_named_by_hand_goes_before_the_environment(machine, monkeypatch, tpu):
    monkeypatch.setenv("TPU_NAME", "another")
    scope = kte.strategy_scope(tpu=tpu)
    assert machine.tpu_asked == [tpu]
    assert scope.strategy == f"strategy over {tpu}"
    assert scope.hardware.found_by == (f"tpu={tpu!r}",)


def test_tpu_false_uses_none_and_says_nothing(machine, monkeypatch):
    monkeypatch.setenv("TPU_NAME", "local")
    machine.tpu_error = unusable()
    assert kte.strategy_scope(tpu=False).hardware.kind == "cpu"  # a warning would be an error
    assert machine.tpu_asked == []


def test_a_tpu_scope_tells_its_hardware(monkeypatch):
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "v3-8")
    scope = kte.strategy_scope()
    assert scope.num_replicas == 8
    assert scope.hardware.generation is kte.hardware.TPU_GENERATIONS["v3"]
    assert scope.hardware.found_by == ("TPU_ACCELERATOR_TYPE=v3-8",)
    assert str(scope) == "8 replicas on TPU v3-8 (found by TPU_ACCELERATOR_TYPE=v3-8)"


# A TPU that cannot be used


@pytest.mark.parametrize(("gpus", "next_best"), [(0, "cpu"), (2, "gpu")])
def test_an_unusable_tpu_is_a_warning_with_cause_and_cure(machine, monkeypatch, gpus, next_best):
    monkeypatch.setenv("TPU_NAME", "local")
    machine.tpu_error, machine.gpus = unusable(), gpus
    with pytest.warns(HardwareUnusableWarning) as caught:
        scope = kte.strategy_scope()
    assert scope.hardware.kind == next_best
    assert [one.message.args[0] for one in caught] == [
        "The TPU found by TPU_NAME=local cannot be used, so the next best device is taken. It is broken. "
        'What to do: mend it. To make this an error, write strategy_scope(require="tpu"); to silence it, '
        "strategy_scope(tpu=False)."
    ]
    assert caught[0].filename == __file__  # it points at the user's line


def test_an_unusable_tpu_is_an_error_where_a_tpu_is_required(machine, monkeypatch):
    monkeypatch.setenv("TPU_NAME", "local")
    machine.tpu_error = unusable()
    with pytest.raises(HardwareNotFoundError, match=r"It is broken\. What to do: mend it\.") as caught:
        kte.strategy_scope(require="tpu")
    assert caught.value is machine.tpu_error


@pytest.mark.parametrize("tpu", ["local", "my-tpu", "grpc://10.0.0.2:8470"])
def test_a_tpu_that_is_named_is_required(machine, tpu):
    machine.tpu_error = unusable()
    with pytest.raises(HardwareNotFoundError, match=r"It is broken\. What to do: mend it\."):  # and no warning
        kte.strategy_scope(tpu=tpu)


@pytest.mark.gate_on("keras3_jax")
def test_a_rehearsal_that_is_too_late_does_not_blame_a_tpu_that_was_not_tried():
    with pytest.raises(ScopeError) as caught:
        kte.strategy_scope(replicas=9)
    assert "TPU" not in str(caught.value)


# Replicas


@pytest.mark.parametrize(
    ("there", "replicas", "expected"), [(1, None, 1), (4, None, 4), (4, 1, 1), (4, 2, 2), (4, 4, 4)]
)
def test_all_gpus_train_unless_fewer_are_asked_for(machine, there, replicas, expected):
    machine.gpus = there
    scope = kte.strategy_scope(replicas=replicas)
    assert scope.strategy == f"strategy over {expected} GPUs"
    assert (scope.num_replicas, scope.hardware.num_devices) == (expected, expected)
    assert scope.hardware.name == "NVIDIA Test"


@pytest.mark.parametrize(("there", "words"), [(1, "1 GPU."), (2, "2 GPUs.")])
def test_more_replicas_than_gpus_is_an_error_that_offers_a_rehearsal(machine, there, words):
    machine.gpus = there
    with pytest.raises(ArgumentError) as caught:
        kte.strategy_scope(replicas=8)
    assert str(caught.value) == (
        f"replicas=8 was asked for, but this machine has {words} Write replicas={there}, "
        'or rehearse on the CPU: strategy_scope(require="cpu", replicas=8).'
    )


def test_a_tpu_trains_on_all_its_cores(monkeypatch):
    monkeypatch.setenv("TPU_NAME", "local")
    assert kte.strategy_scope(replicas=8).num_replicas == 8
    with pytest.raises(ArgumentError) as caught:
        kte.strategy_scope(replicas=4)
    assert str(caught.value) == (
        "replicas=4 was asked for, but this TPU has 8 cores, and all of them train. Leave `replicas` out, or "
        'rehearse on the CPU: strategy_scope(require="cpu", replicas=4).'
    )


def test_a_mesh_that_the_hardware_does_not_have_is_named_as_such(machine, monkeypatch):
    mesh = {"shard": "fsdp", "mesh": {"data": 2, "model": 2}}
    rehearsed = r'strategy_scope\(require="cpu", shard="fsdp", mesh=\(\("data", 2\), \("model", 2\)\)\)\.'
    machine.gpus = 2
    needed = (
        r"^a mesh of 4 devices was asked for, but this machine has 2 GPUs\. Write a mesh of 2, or rehearse on the "
    )
    with pytest.raises(ArgumentError, match=f"{needed}CPU: {rehearsed}(\n|$)"):
        kte.strategy_scope(**mesh)
    monkeypatch.setenv("TPU_NAME", "local")
    needed = r"^a mesh of 4 devices was asked for, but this TPU has 8 cores, and all of them train\. Leave `mesh` out"
    with pytest.raises(ArgumentError, match=f"{needed}, or rehearse on the CPU: {rehearsed}(\n|$)"):
        kte.strategy_scope(**mesh)


def test_a_rehearsal_on_the_cpu_is_possible_next_to_gpus_and_tpus(machine, monkeypatch):
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "v3-8")
    machine.gpus = 2
    scope = kte.strategy_scope(require="cpu", replicas=8)
    assert (scope.hardware.kind, scope.num_replicas, machine.tpu_asked) == ("cpu", 8, [])
    assert str(scope) == f"8 replicas on {scope.hardware.name} (a rehearsal: virtual CPU devices)"


# Arguments


@pytest.mark.parametrize("value", [True, False, 0, -1, 8.0, "8", [8]])
def test_replicas_must_be_a_positive_integer(value):
    with pytest.raises(ArgumentError) as caught:
        kte.strategy_scope(replicas=value)
    assert (
        str(caught.value)
        == f"strategy_scope: `replicas` must be an integer of at least 1; got {value!r}. Write replicas=8."
    )


@pytest.mark.parametrize("value", ["TPU", "", "cuda", 1, True, ["tpu"]])
def test_require_must_be_one_of_three_words(value):
    with pytest.raises(ArgumentError) as caught:
        kte.strategy_scope(require=value)
    assert str(caught.value) == (
        f'strategy_scope: `require` must be None, "tpu", "gpu" or "cpu"; got {value!r}. Write require="tpu".'
    )


@pytest.mark.parametrize("value", ["", "  ", True, None, 0, 8])
def test_tpu_must_be_a_place_or_false(value):
    with pytest.raises(ArgumentError) as caught:
        kte.strategy_scope(tpu=value)
    text = str(caught.value)
    assert f"got {value!r}" in text
    assert 'Write tpu="auto"' in text


def test_requiring_a_tpu_and_using_none_contradict_each_other():
    with pytest.raises(ArgumentError, match=r'require="tpu" and tpu=False contradict each other'):
        kte.strategy_scope(require="tpu", tpu=False)


@pytest.mark.parametrize("value", ["mixed_bf16", "", "int8", 16])
def test_a_wrong_policy_is_told_before_any_hardware_is_started(machine, monkeypatch, value):
    monkeypatch.setenv("TPU_NAME", "local")
    with pytest.raises(ArgumentError) as caught:
        kte.strategy_scope(precision=value)
    assert str(caught.value).startswith(f"{value!r} is no dtype policy. Write 'mixed_bfloat16'")
    assert machine.tpu_asked == []


def test_options_are_keywords():
    with pytest.raises(TypeError):
        kte.strategy_scope("tpu")


# The log line


def test_where_nobody_has_set_up_logging_the_choice_is_printed_once(capsys, monkeypatch):
    logger = logging.getLogger("keras_tpu_ext")
    _print_once.cache_clear()
    monkeypatch.setattr(logging.root, "level", logging.WARNING)
    logger.manager._clear_cache()
    scopes = [kte.strategy_scope(replicas=8) for _ in range(2)]
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"strategy_scope: {scopes[0]}\n")


def test_who_wants_no_such_line_says_so_to_the_logger(capsys):
    _print_once.cache_clear()
    logger = logging.getLogger("keras_tpu_ext")
    logger.setLevel(logging.WARNING)
    try:
        kte.strategy_scope(replicas=8)
    finally:
        logger.setLevel(logging.NOTSET)
    assert capsys.readouterr().err == ""


def test_a_notebook_shows_scope_hardware_and_verdict_as_they_are_printed():
    scope = kte.strategy_scope(replicas=8)
    verdict = kte.callbacks.InputVerdict(0.5, 0.02, 0.01, None)
    for shown in (scope, scope.hardware, verdict):
        assert shown._repr_html_() == (
            f'<pre style="font-family: monospace; white-space: pre-wrap">{html.escape(str(shown))}</pre>'
        )


@pytest.mark.parametrize("precision", [None, "mixed_bfloat16"])
def test_the_choice_is_logged_in_one_line(caplog, precision):
    with caplog.at_level(logging.INFO, logger="keras_tpu_ext"):
        scope = kte.strategy_scope(replicas=8, precision=precision)
    assert [record.getMessage() for record in caplog.records] == [f"strategy_scope: {scope}"]
    assert "\n" not in caplog.records[0].getMessage()
    assert str(scope) == (
        f"8 replicas on {scope.hardware.name} (a rehearsal: virtual CPU devices)"
        + (f", {precision}" if precision else "")
    )


def test_one_replica_is_singular():
    scope = kte.strategy_scope()
    assert str(scope) == f"1 replica on {scope.hardware.name}"


# The scope


@pytest.mark.parametrize("replicas", [1, 8])
def test_a_second_call_gives_the_same_strategy(replicas):
    first = kte.strategy_scope(replicas=replicas)
    again = kte.strategy_scope(replicas=replicas)
    assert first.strategy is again.strategy
    assert first == again
    assert hash(first) == hash(again)


def test_a_scope_is_frozen(scope8):
    with pytest.raises(dataclasses.FrozenInstanceError):
        scope8.num_replicas = 4


def test_a_replaced_scope_is_a_scope_of_its_own(scope8):
    other = dataclasses.replace(scope8, precision="mixed_bfloat16")
    with scope8, other:
        assert keras.config.dtype_policy().name == "mixed_bfloat16"
    assert keras.config.dtype_policy().name == "float32"
    assert scope8.precision is None


@pytest.mark.parametrize(("replicas", "expected"), [(1, 32), (8, 256)])
def test_the_global_batch_is_that_of_all_replicas(replicas, expected):
    assert kte.strategy_scope(replicas=replicas).global_batch_size(32) == expected


@pytest.mark.parametrize("value", [0, -32, 32.0, "32", True, None])
def test_a_per_replica_batch_must_be_a_positive_integer(scope8, value):
    with pytest.raises(ArgumentError) as caught:
        scope8.global_batch_size(value)
    assert (
        str(caught.value)
        == f"global_batch_size: `per_replica` must be an integer of at least 1; got {value!r}. Write per_replica=8."
    )


def test_inside_is_the_strategy_and_outside_is_not(scope8):
    with scope8 as entered:
        assert entered is scope8
        assert in_force() is scope8.strategy
    assert in_force() is None


def test_a_scope_is_entered_again_and_again_also_inside_itself(scope8):
    for _ in range(2):
        with scope8:
            with scope8:
                assert in_force() is scope8.strategy
            assert in_force() is scope8.strategy
        assert in_force() is None


def test_an_error_inside_leaves_the_scope_and_is_not_swallowed(scope8):
    scope = dataclasses.replace(scope8, precision="mixed_bfloat16")
    error = KeyError("the user's own")
    with pytest.raises(KeyError) as caught, scope:
        raise error
    assert caught.value is error
    assert in_force() is None
    assert keras.config.dtype_policy().name == "float32"


def test_what_was_entered_last_is_left_first(scope8, monkeypatch):
    events = []

    @contextlib.contextmanager
    def noted(name, inner):
        events.append(f"enter {name}")
        with inner:
            yield
        events.append(f"exit {name}")

    scope_of, policy_of = _runtime.devices.scope, kte.precision.policy_scope
    monkeypatch.setattr(_runtime.devices, "scope", lambda strategy: noted("strategy", scope_of(strategy)))
    monkeypatch.setattr(kte.precision, "policy_scope", lambda name: noted("policy", policy_of(name)))
    with dataclasses.replace(scope8, precision="mixed_bfloat16"):
        events.append("inside")
    assert events == ["enter policy", "enter strategy", "inside", "exit strategy", "exit policy"]


def test_threads_enter_one_scope_each_for_itself(scope8):
    seen = []
    together = threading.Barrier(3, timeout=30)

    def enter():
        with scope8:
            together.wait()
            seen.append(in_force() is scope8.strategy)
            together.wait()
        seen.append(in_force() is None)

    threads = [threading.Thread(target=enter) for _ in range(2)]
    for thread in threads:
        thread.start()
    with scope8:
        together.wait()
        together.wait()
    for thread in threads:
        thread.join()
    assert seen == [True] * 4


def test_a_scope_inside_another_one_is_refused_with_both_named(scope8):
    one = dataclasses.replace(kte.strategy_scope(), precision="mixed_bfloat16")
    with (
        scope8,
        pytest.raises(
            ScopeError,
            match=r"A block for 1 replica \(\w+\) was opened inside a block for 8 replicas \(\w+\)"
            r".*Leave the outer block first",
        ),
        one,
    ):
        pytest.fail("entered")
    with scope8:
        with pytest.raises(ScopeError), one:
            pytest.fail("entered")
        assert keras.config.dtype_policy().name == "float32"  # what was entered before the refusal is undone
        assert in_force() is scope8.strategy
    assert in_force() is None


def test_asking_inside_a_block_gives_the_same_strategy_as_outside(scope8):
    default = kte.strategy_scope().strategy
    with scope8:
        assert kte.strategy_scope(require="cpu", replicas=8).strategy is scope8.strategy
        assert kte.strategy_scope().strategy is default


# Precision


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16", "float32"])
def test_the_policy_is_set_inside_and_restored(precision):
    keras.config.set_dtype_policy("float64")
    try:
        with kte.strategy_scope(precision=precision) as scope:
            assert keras.config.dtype_policy().name == scope.precision == precision
            with scope:
                assert keras.config.dtype_policy().name == precision
            assert keras.config.dtype_policy().name == precision
        assert keras.config.dtype_policy().name == "float64"
    finally:
        keras.config.set_dtype_policy("float32")


def test_no_precision_leaves_the_policy_alone():
    with kte.precision.policy_scope("mixed_float16"), kte.strategy_scope() as scope:
        assert scope.precision is None
        assert keras.config.dtype_policy().name == "mixed_float16"


@pytest.mark.parametrize(
    ("kind", "bfloat16", "expected"),
    [
        ("tpu", None, "mixed_bfloat16"),
        ("gpu", True, "mixed_bfloat16"),
        ("gpu", False, "mixed_float16"),
        ("gpu", None, "mixed_float16"),
        ("cpu", None, "float32"),
    ],
)
def test_auto_precision_fits_the_hardware_that_was_chosen(machine, monkeypatch, kind, bfloat16, expected):
    if kind == "tpu":
        monkeypatch.setenv("TPU_NAME", "local")
    machine.gpus, machine.gpu_bfloat16 = int(kind == "gpu"), bfloat16
    assert kte.strategy_scope(precision="auto").precision == expected


# Data and training


@pytest.mark.parametrize("kind", [keras.Model, kte.TPUModel])
def test_a_model_built_inside_trains_distributed_outside(kind):
    scope = kte.strategy_scope(require="cpu", replicas=2)
    with scope:
        inputs = keras.Input((3,))
        model = kind(inputs, keras.layers.Dense(1, kernel_initializer="zeros")(inputs))
        model.compile(keras.optimizers.SGD(0.1), "mse")
    assert in_force() is None
    assert _runtime.devices.num_replicas(model) == 2
    x, y = regression()
    history = model.fit(x, y, batch_size=64, epochs=3, verbose=0).history["loss"]
    assert parts_of(model.layers[-1].kernel, scope.strategy) == 2
    # One device with the same global batch; float32 sums in another order differ by about 1e-7.
    reference = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    reference.compile(keras.optimizers.SGD(0.1), "mse")
    expected = reference.fit(x, y, batch_size=64, epochs=3, verbose=0).history["loss"]
    np.testing.assert_allclose(history, expected, rtol=1e-5)
    assert _runtime.devices.num_replicas(reference) == 1


def parts_of(variable, strategy):
    """Return on how many devices a variable lies."""
    if keras.backend.backend() == "jax":
        return len(variable.value.sharding.device_set)
    return len(strategy.experimental_local_results(variable if IS_KERAS2 else variable.value))


def test_warnings_are_only_given_where_something_is_wrong(machine):
    machine.gpus = 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kte.strategy_scope()
        kte.strategy_scope(require="cpu", replicas=8)


# Several processes


@pytest.mark.parametrize("gpus", [0, 2])
def test_a_cluster_told_by_tf_config_trains_together(machine, monkeypatch, gpus):
    machine.gpus = gpus
    monkeypatch.setattr(_runtime.devices, "num_workers", lambda: 3)
    opened = OpenedStrategy("over the cluster", 3 * max(gpus, 1), configured_by="TF_CONFIG")
    monkeypatch.setattr(_runtime.devices, "open_workers", lambda: opened)
    scope = kte.strategy_scope(require="gpu" if gpus else None)
    assert (scope.strategy, scope.num_replicas) == ("over the cluster", 3 * max(gpus, 1))
    assert scope.hardware.kind == ("gpu" if gpus else "cpu")
    assert str(scope).endswith("(a cluster, told by TF_CONFIG)")
    with pytest.raises(ArgumentError, match=r"replicas=2 was asked for, but the cluster of TF_CONFIG has"):
        kte.strategy_scope(replicas=2)


def test_a_cluster_without_gpus_is_none_where_a_gpu_is_required(monkeypatch):
    monkeypatch.setattr(_runtime.devices, "num_workers", lambda: 3)
    monkeypatch.setattr(_runtime.devices, "open_workers", lambda: pytest.fail("opened"))
    with pytest.raises(HardwareNotFoundError, match='require="gpu"'):
        kte.strategy_scope(require="gpu")


@pytest.mark.parametrize("chief", [True, False])
def test_only_the_chief_logs_the_choice(caplog, monkeypatch, chief):
    monkeypatch.setattr(_runtime.devices, "is_chief", lambda: chief)
    with caplog.at_level(logging.INFO, logger="keras_tpu_ext"):
        kte.strategy_scope()
    assert len(caplog.records) == int(chief)


def test_a_scope_is_copied_as_itself_and_not_pickled(scope8):
    assert scope8.num_replicas_in_sync == 8
    assert copy.copy(scope8) is scope8
    assert copy.deepcopy({"scope": scope8})["scope"] is scope8
    with pytest.raises(TypeError, match=r"cannot be pickled: it holds devices .* Write kte\.strategy_scope"):
        pickle.dumps(scope8)
