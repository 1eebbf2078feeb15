"""What `migrate` makes of the kernels runs, and gives what they gave on TensorFlow 2.15."""

import json
import subprocess
import sys

import pytest

from dropin import running
from dropin.test_kernels import check, kernel
from keras_tpu_ext.tools.migrate import migrate

pytestmark = pytest.mark.runtimes("keras3_jax")

# What still needs the drop-in: a name in each, for which there is no modern form.
ON_DROPIN = {
    "addons_focal_f1",
    "addons_norm_rotate",
    "arcmargin_gem",
    "denoise_generators",
    "full_h5_checkpoint",
    "kfold_tabular",
    "masked_lstm",
    "mobilenet_finetune",
    "openvaccine_gru",
    "quantile_osic",
    "snapshots_ema",
    "super_resolution",
    "swin_mixer",
    "tabnet_glu",
    "transformer_tutorial",
    "triplet_gan",
    "unet_swa_miou",
    "vae_added",
}


def with_old_keys(found):
    """Return results with the key of `history` that old Keras had for the learning rate."""
    if isinstance(found, dict):
        return {"lr" if key == "learning_rate" else key: with_old_keys(value) for key, value in found.items()}
    if isinstance(found, list) and "learning_rate" in found:
        return sorted("lr" if one == "learning_rate" else one for one in found)  # a list of keys
    return found


def run(path, replicas):
    """Run a written program in its folder, on so many CPU devices."""
    program = path.read_text(encoding="utf-8")
    assert "kte.strategy_scope()" in program
    path.write_text(
        program.replace("kte.strategy_scope()", f"kte.strategy_scope(replicas={replicas})"), encoding="utf-8"
    )
    variables = running._variables(path.parent) | {"KTE_REHEARSE": str(replicas)}
    done = subprocess.run([sys.executable, path.name], cwd=path.parent, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return running._rounded(json.loads((path.parent / "out.json").read_text(encoding="utf-8")))


@pytest.mark.exhaustive
@pytest.mark.parametrize("replicas", [1, 8])
@pytest.mark.parametrize("name", [kernel(name) for name in running.KERNELS])
def test_a_written_program_gives_the_numbers_of_old(name, replicas, tmp_path):
    written = tmp_path / "kernel.py"
    assert migrate(running.HERE / "kernels" / f"{name}.py", write=True, output=written).ok
    check(name, with_old_keys(run(written, replicas)), replicas)


@pytest.mark.parametrize("name", running.KERNELS)
def test_what_a_written_program_needs_the_dropin_for(name):
    report = migrate(running.HERE / "kernels" / f"{name}.py")
    assert report.ok
    assert bool(report.on_dropin) == (name in ON_DROPIN), report
