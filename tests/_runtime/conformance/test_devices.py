import types

import keras
import numpy as np
import pytest

import sources
from keras_tpu_ext import _runtime, errors


def test_this_machine_has_no_gpu():
    assert _runtime.devices.count_gpus() == 0


@pytest.mark.parametrize("replicas", [1, 3])
def test_open_cpu(replicas):
    opened = _runtime.devices.open_cpu(replicas)
    assert (opened.num_replicas, opened.device_name, opened.configured_by) == (replicas, "CPU", "")
    assert not opened.supports_bfloat16


def test_a_strategy_is_opened_once():
    assert _runtime.devices.open_cpu(3).strategy is _runtime.devices.open_cpu(3).strategy


def test_open_gpus_and_tpus_that_are_not_there():
    with pytest.raises(Exception):  # noqa: B017, PT011
        _runtime.devices.open_gpus(1)
    with pytest.raises(errors.TpuUnusableError):
        _runtime.devices.open_tpu("local")


def test_one_process_is_its_own_chief():
    assert _runtime.devices.num_workers() == 1
    assert _runtime.devices.is_chief()


def test_compiled_programs_are_kept_on_jax_only(tmp_path):
    if keras.backend.backend() != "jax":
        with pytest.raises(errors.RuntimeNotSupportedError, match="for Keras 3 on JAX"):
            _runtime.devices.compile_cache_dir()
        with pytest.raises(errors.RuntimeNotSupportedError, match="for Keras 3 on JAX"):
            _runtime.devices.use_compile_cache(str(tmp_path), {})
        return
    import jax

    before = _runtime.devices.compile_cache_dir()
    programs: dict[str, bytes] = {}
    cache = types.SimpleNamespace(get=programs.get, put=programs.__setitem__, _path=tmp_path)
    try:
        _runtime.devices.use_compile_cache(str(tmp_path), cache)
        assert _runtime.devices.compile_cache_dir() == str(tmp_path)
        assert float(jax.jit(lambda x: x * 3)(2.0)) == 6
        assert len(programs) == 1
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
        jax.experimental.compilation_cache.compilation_cache.reset_cache()


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_model_belongs_to_the_strategy_of_its_block(make, replicas):
    with _runtime.devices.scope(_runtime.devices.open_cpu(replicas).strategy):
        model = make(keras.Model)
    assert _runtime.devices.num_replicas(model) == replicas
    assert _runtime.devices.num_devices(model) == replicas
    assert _runtime.devices.device_name(model).upper() in ("", "CPU")  # TensorFlow has no name for it


def test_num_replicas_and_device_name_without_a_block(plain):
    assert _runtime.devices.num_replicas(plain) == 1
    assert _runtime.devices.num_devices(plain) == 1


def test_distribute_gives_every_row_once(rows):
    strategy = _runtime.devices.open_cpu(3).strategy
    x = np.concatenate([rows[0], rows[0][:2] + 1])  # batches that three devices can share evenly
    batches = sources.batched((x,), 6)
    seen = []
    for item in _runtime.devices.distribute(strategy, batches):
        (part,) = item if isinstance(item, (tuple, list)) else (item,)
        parts = (
            strategy.experimental_local_results(part) if hasattr(strategy, "experimental_local_results") else [part]
        )
        seen.extend(np.concatenate([np.asarray(one) for one in parts]))
    np.testing.assert_array_equal(sorted(map(tuple, seen)), sorted(map(tuple, x)))


def test_memory_is_that_of_the_device_or_of_the_process(make):
    with _runtime.devices.scope(_runtime.devices.open_cpu(1).strategy):
        model = make(keras.Model)
    (use,) = _runtime.devices.memory_reader(model)()
    weights = sum(weight.nbytes for weight in model.get_weights())
    assert use.in_use >= weights
    assert use.limit is None
    assert ("process" in use.counted) is (keras.backend.backend() != "jax")


def test_live_arrays_are_those_of_the_model_by_role_and_others(make):
    model = make(keras.Model)
    kept = [_runtime.ops.convert_to_tensor(np.ones((11, 13), "float32")) for _ in range(3)]
    groups = {group[:3]: group for group in _runtime.devices.live_arrays(model)}
    assert groups[("other", (11, 13), "float32")][3:] == (len(kept), 3 * 11 * 13 * 4)
    assert groups[("weight", (2, 3), "float32")].number == 1


def test_as_on_tpu_is_a_context_on_jax_and_an_error_elsewhere():
    if _runtime.message_terms.framework == "JAX":
        with _runtime.devices.as_on_tpu():
            pass
        return
    with pytest.raises(errors.RuntimeNotSupportedError, match=r"Write kte.preflight\(model, batch\)"):
        _runtime.devices.as_on_tpu()
