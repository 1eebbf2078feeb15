"""The examples from the command line, as a user asks about them: does it compile, does it fit, how fast may it be?"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kind_of_keras import IS_KERAS2, IS_TENSORFLOW_FOR_TPUS

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.skipif(IS_KERAS2, reason="the examples are for Keras 3")
@pytest.mark.skipif(IS_TENSORFLOW_FOR_TPUS, reason="with another TensorFlow they are run")
@pytest.mark.parametrize("example", ["fashion_mnist", "reuters", "dcgan"])
def test_an_example(example, tmp_path):
    command = Path(sys.executable).with_name("keras-tpu-ext")
    arguments = ["preflight", f"{example}:for_preflight", "--target", "v5e-8", "--batch", "1024"]
    picture = tmp_path / "preflight.png"
    done = subprocess.run(
        [command, *arguments, "--json", "--quiet", "--plot", picture],
        cwd=EXAMPLES,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["ok"]
    assert (report["target"], report["global_batch"], report["per_replica_batch"]) == ("v5e-8", 1024, 128)
    assert report["samples_per_sec"] > 10_000
    assert report["collectives"]["count"] >= 1
    assert picture.read_bytes().startswith(b"\x89PNG")
