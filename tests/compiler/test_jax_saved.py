"""A file for a v5e-8, written with the TPU compiler: all of it comes back, and what is not right is refused."""

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
import saved_files
from keras_tpu_ext._runtime.jax import saved_programs
from keras_tpu_ext.errors import ArgumentError, CompiledFileWarning
from keras_tpu_ext.machine.system import installed_version
from keras_tpu_ext.preflight._saved import open_saved

pytestmark = [pytest.mark.runtimes("keras3_jax"), pytest.mark.exhaustive]

# As JAX tells of the devices of one host with eight chips, and as it sets libtpu's arguments beside a TPU.
PLACES = [f"TPU_{i}(process=0,({i % 2},{i // 2},0,0))" for i in range(8)]
ARGUMENTS = "--xla_tpu_use_enhanced_launch_barrier=true"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A file and its digest."""
    path = tmp_path_factory.mktemp("saved") / "step.kte"
    with kte.strategy_scope(require="cpu"):
        model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(8)])
        model.compile("sgd", "mse")
    batch = np.ones((64, 16), "float32"), np.ones((64, 8), "float32")
    report = kte.preflight(model, batch, target="v5e-8", cache_dir=False, progress=False, timeout_s=1200)
    return path, report.save(path)


@pytest.fixture(scope="module")
def facts(written):
    """What the devices of the target are, as a started TPU tells."""
    machine = open_saved("test", written).machine
    return {
        name: machine[name] for name in ("platform", "build", "device kind", "devices", "mesh", "LIBTPU_INIT_ARGS")
    }


def test_every_field_comes_back(written):
    saved = open_saved("test", written)
    assert saved.target == "v5e-8"
    versions = {name: installed_version(name) for name in ("keras", "jax", "jaxlib", "libtpu")}
    assert {name: saved.machine[name] for name in versions} == versions
    assert (saved.machine["platform"], saved.machine["device kind"]) == ("tpu", "TPU v5 lite")
    assert saved.machine["devices"].split() == PLACES
    assert saved.machine["build"].startswith("Built on ")
    assert (saved.machine["mesh"], saved.machine["processor"]) == ("batch=8", "")
    assert saved.machine["LIBTPU_INIT_ARGS"].split() == [ARGUMENTS]
    assert {"train", "evaluate", "predict"} <= {program.name for program in saved.programs}
    for program in saved.programs:
        assert program.signature.module == "jit_stateless"
        assert 'tensor<64x16xf32> #sdy.sharding<@mesh, [{"batch"}, {}]>' in program.signature.arguments
        assert "computation_count=8" in program.signature.options
        assert program.seconds > 0
        assert len(program.executable) > 10_000


def test_it_fits_a_machine_with_the_same_and_no_other(written, facts):
    saved = open_saved("test", written)
    assert saved.misfit(facts) == ""
    for part, text in saved_files.OTHER_MACHINES.items():
        other = saved._replace(machine={**saved.machine, part: text})
        assert other.misfit(facts).startswith(f"{part}: expected ")
        assert other.misfit(facts).count("expected") == 1


def test_what_is_not_right_in_it_is_refused_with_the_reason(written, tmp_path):
    path, content = tmp_path / "other.kte", written[0].read_bytes()
    cases = {
        name: (saved_files.mutated(content, change), why) for name, (change, why) in saved_files.MUTATIONS.items()
    }
    cases |= {name: (change(content), why) for name, (change, why) in saved_files.DAMAGES.items()}
    assert len(cases) >= 30
    for mutated, reason in cases.values():
        path.write_bytes(mutated)
        with pytest.raises(ArgumentError, match=f"in which .*({reason})"):
            open_saved("test", (path, saved_files.digest(mutated)))
        with pytest.raises(ArgumentError, match="must be a file of the SHA-256"):
            open_saved("test", (path, written[1]))


def test_without_a_tpu_it_is_told_and_nothing_is_offered(written, monkeypatch):
    monkeypatch.setattr(saved_programs, "_programs", {})
    with pytest.warns(CompiledFileWarning, match="for v5e-8, do not fit, .* platform: expected tpu, found cpu"):
        kte.strategy_scope(require="cpu", compiled=written)
    assert not saved_programs._programs
    report = kte.doctor(compiled=written)
    assert any("do not fit this machine: platform: expected tpu" in finding.text for finding in report.findings)
