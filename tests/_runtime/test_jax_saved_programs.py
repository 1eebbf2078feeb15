"""What JAX takes in place of compiling: the program, its arguments, the options and the devices decide."""

import dataclasses
import logging
import types

import jax
import keras
import numpy as np
import pytest
from jax._src.lib import xla_client

import keras_tpu_ext as kte
from keras_tpu_ext._runtime.common.saved_programs import SavedProgram, Signature, differences
from keras_tpu_ext._runtime.jax import loop, saved_programs

pytestmark = pytest.mark.runtimes("keras3_jax")

X, ROWS = np.ones((4, 2), "float32"), np.arange(16, dtype="float32").reshape(8, 2)
SAVED = "/jax/compilation_cache/compile_time_saved_sec"
SECONDS = 1000.0  # that compiling took, by the file; JAX's own cache tells of less


def step(factor=2.0):
    """Return a new function each time, for which JAX asks its compiler each time."""

    def a_step_of_this_test(weights, rows):
        return rows @ weights.T, weights - factor * weights

    return jax.jit(a_step_of_this_test)


def saved(*changes, **of_signature):
    """Return a saved program as it must be, but for changes."""
    lowered = step().lower(X, ROWS)
    signature, options = saved_programs.signature_of(lowered, 1)
    # Not `lowered.compile()`: what JAX has from its cache is not whole when a CPU's is serialised again.
    client, options = jax.devices()[0].client, saved_programs._CompileOptions.ParseFromString(options)
    program = str(lowered.compiler_ir("stablehlo"))
    if hasattr(client, "compile_and_load"):
        devices = xla_client.DeviceList(tuple(jax.devices()[:1]))
        loaded = client.compile_and_load(program, devices, options)
    else:  # JAX before 0.7
        loaded = client.compile(program, options)
    one = SavedProgram(
        "train", 3, dataclasses.replace(signature, **of_signature), SECONDS, client.serialize_executable(loaded)
    )
    return dataclasses.replace(one, **dict(changes))


@pytest.fixture
def offer(monkeypatch):
    monkeypatch.setattr(saved_programs, "_programs", {})
    saved_programs._log_once.cache_clear()

    def offer(one, **facts):
        found = {**saved_programs._facts(jax.devices()[:1]), **facts}
        saved_programs.offer([one], found)

    return offer


@pytest.fixture
def taken():
    """How often a saved program was taken."""
    found = []

    def heard(event, seconds, **_):
        if event == SAVED and seconds > SECONDS / 2:
            found.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(heard)
    yield found
    jax.monitoring.unregister_event_duration_listener(heard)


def test_a_program_that_fits_is_taken_and_computes_the_same(offer, taken, caplog):
    expected = step()(X, ROWS)
    offer(saved())
    for _ in range(2):
        jax.tree.map(np.testing.assert_array_equal, step()(X, ROWS), expected)
    assert len(taken) == 2
    assert SECONDS - 10 < taken[0] < SECONDS
    assert not caplog.messages


def test_its_steps_are_those_of_auto_from_then_on(offer):
    assert saved_programs.offered_steps() == 0
    tuner = auto().tuner
    assert (tuner.steps, tuner.settled) == (1, False)
    offer(saved())
    assert saved_programs.offered_steps() == 3
    tuner = auto().tuner
    assert (tuner.steps, tuner.settled) == (3, True)


def auto():
    """Return the schedule of a new model."""
    model = kte.TPUModel(*[keras.Input((2,))] * 2)
    model.compile("sgd", "mse", steps_per_execution="auto")
    return model._kte.schedule


def test_the_file_of_other_devices_options_arguments_or_bytes_is_told_and_not_taken(offer, taken, caplog):
    good = saved()
    cases = [
        (
            saved(arguments=("tensor<4x2xf32>", "tensor<8x2xf16>")),
            {},
            "rows: expected tensor<8x2xf16>, found tensor<8x2xf32>",
        ),
        (saved(arguments=("tensor<4x2xf32>",)), {}, "rows: expected none, found tensor<8x2xf32>"),
        (
            saved(options=good.signature.options.replace("optimization_level=", "optimization_level=1")),
            {},
            "options: expected optimization_level=1",
        ),
        (saved(("executable", b"no machine code")), {}, "could not be used: JaxRuntimeError: "),
        (good, {"platform": "tpu"}, "platform: expected tpu, found cpu"),
        (good, {"build": "Built on a Monday"}, "build: expected Built on a Monday, found cpu"),
        (good, {"device kind": "TPU v5 lite"}, "device kind: expected TPU v5 lite, found "),
        (good, {"devices": "cpu:1"}, "devices: expected cpu:1, found "),
    ]
    expected = step()(X, ROWS)
    for one, facts, text in cases:
        caplog.clear()
        offer(one, **facts)
        jax.tree.map(np.testing.assert_array_equal, step()(X, ROWS), expected)
        assert text in caplog.text
        assert not taken
    offer(good)
    step()(X, ROWS)
    assert taken


def test_the_code_of_another_program_under_this_digest_is_found_by_its_arguments(offer, taken, caplog):
    lowered = step().lower(X, ROWS[:6])
    other, _ = saved_programs.signature_of(lowered, 1)
    good = saved()
    swapped = dataclasses.replace(good, signature=dataclasses.replace(other, digest=good.signature.digest))
    offer(swapped)
    step()(X, ROWS)
    assert "in 'train', rows: expected tensor<6x2xf32>, found tensor<8x2xf32>" in caplog.text
    assert not taken


def test_another_program_is_told_once_with_what_differs(offer, taken, caplog):
    offer(saved())
    for _ in range(2):
        step()(X, ROWS[:6])
        step(3.0)(X, ROWS)
    assert caplog.messages == [
        "A step is compiled here, because the file of compiled programs differs: "
        "in 'train', rows: expected tensor<8x2xf32>, found tensor<6x2xf32>",
        "A step is compiled here, because the file of compiled programs differs: "
        "'train' has equal arguments, and another layer, loss, optimizer, constant or setting of JAX in it",
    ]
    assert not taken


def test_what_has_no_namesake_in_the_file_is_compiled_without_a_word(offer, taken, caplog):
    offer(saved(module="jit_another"))
    step()(X, ROWS)
    assert not caplog.messages
    assert not taken


def test_a_file_of_steps_of_another_kind_is_told(offer, taken, caplog):
    steps = {f"jit_{one.__name__}" for one in (loop.stateless, loop._last, loop._collected)}
    assert steps == saved_programs._STEPS - {"jit_flush"}
    offer(saved())

    def stateless(rows):
        return rows + 1

    jax.jit(stateless)(ROWS)
    assert caplog.messages == [
        "A step is compiled here, because the file of compiled programs differs: "
        "it was written with another `steps_per_execution` or `gradient_accumulation_steps`"
    ]
    assert not taken


def test_whatever_is_raised_is_told_and_the_step_is_compiled(offer, taken, monkeypatch, caplog):
    expected = step()(X, ROWS)
    offer(saved())

    def fails(module):
        raise KeyError("sym_name")

    monkeypatch.setattr(saved_programs, "_name_of", fails)
    jax.tree.map(np.testing.assert_array_equal, step()(X, ROWS), expected)
    assert "could not be used: KeyError: 'sym_name'" in caplog.text
    assert not taken


def test_the_options_of_an_older_jax_are_made_and_read(monkeypatch):
    lowered = step().lower(X, ROWS)
    signature, options = saved_programs.signature_of(lowered, 1)
    stock = saved_programs._pxla.create_compile_options

    # As in JAX 0.5.2 to 0.7.2, whose jaxlib cannot read an effort.
    def create_compile_options(
        computation, mesh, spmd_lowering, tuple_args, auto_spmd_lowering, allow_prop_to_inputs,
        allow_prop_to_outputs, backend, np_dev, pmap_nreps, compiler_options,
    ):  # fmt: skip
        assert (mesh, pmap_nreps) == (None, 1)
        return stock(
            computation, tuple_args, allow_prop_to_inputs, allow_prop_to_outputs, backend, np_dev, compiler_options
        )

    monkeypatch.setattr(saved_programs._pxla, "create_compile_options", create_compile_options)
    monkeypatch.delattr(saved_programs._pxla, "get_prop_to_input_output")
    monkeypatch.setattr(saved_programs, "_BUILD_OPTIONS", (*saved_programs._BUILD_OPTIONS, "no_such_effort"))
    monkeypatch.setitem(saved_programs._OF_GPUS, "no_such_flag", "")
    assert saved_programs.signature_of(lowered, 1) == (signature, options)


@pytest.mark.parametrize("is_gone", [True, False])
def test_of_options_that_a_newer_jax_makes_otherwise_what_is_lost_is_told(monkeypatch, caplog, is_gone):
    lowered = step().lower(X, ROWS)
    signature, _ = saved_programs.signature_of(lowered, 1)
    saved_programs._log_once.cache_clear()
    if is_gone:
        monkeypatch.delattr(saved_programs._pxla, "create_compile_options")
    else:
        monkeypatch.setattr(saved_programs._pxla, "create_compile_options", lambda a_new_argument: None)
    for _ in range(2):
        without = Signature("", signature.digest, (), "")
        assert saved_programs.signature_of(lowered, 1) == (without, b"")
    (text,) = caplog.messages
    assert text.startswith(f"JAX {jax.__version__} does not tell what it asks its compiler for (")
    assert text.endswith("of the compiler's own options, and report.save(...) writes no file")


def test_arguments_without_names_have_numbers(monkeypatch):
    block = types.SimpleNamespace(arguments=[object(), object()])  # as in jaxlib 0.5
    main = types.SimpleNamespace(regions=[types.SimpleNamespace(blocks=[block])])
    monkeypatch.setattr(saved_programs, "_main_of", lambda module: main)
    assert saved_programs._argument_names(None) == ["argument 0", "argument 1"]


def test_options_are_equal_wherever_jaxs_own_cache_is(tmp_path):
    found, before = saved().signature.options, jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    try:
        assert saved().signature.options == found
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_words_that_differ_are_told():
    expected = {"jax": "0.10.2", "processor": "x86 avx avx512f sse", "mesh": "batch=8", "same": "x", "order": "a b"}
    found = {"jax": "0.9", "processor": "x86 avx sse", "mesh": "", "same": "x", "order": "b a"}
    assert differences(expected, found) == [
        "jax: expected 0.10.2, found 0.9",
        "processor: expected avx512f, found no more",
        "mesh: expected batch=8, found none",
        "order: expected a b, found b a",
    ]


@pytest.mark.parametrize("level", [logging.WARNING])
def test_a_training_hears_of_it_by_the_log(offer, caplog, level):
    offer(saved())
    step(4.0)(X, ROWS)
    assert [(record.name, record.levelno) for record in caplog.records] == [("keras_tpu_ext", level)]
