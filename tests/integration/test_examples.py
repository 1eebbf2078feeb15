"""Each example as a user runs it: in a process of its own, from the root of the repository, on real data."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PNG = b"\x89PNG"


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run `python examples/...` with the package that is being tested, and keep what it prints."""
    package = Path(importlib.util.find_spec("keras_tpu_ext").origin).parents[1]
    path = os.pathsep.join(filter(None, (str(package), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "-1", **environ},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def table(finished: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """Return the rows of the final table by name."""
    assert finished.returncode == 0, finished.stdout + finished.stderr
    rows = finished.stdout.split("\nResult\n------\n")[1].strip().splitlines()
    return dict(re.split(r" {3,}", row, maxsplit=1) for row in rows)


def message(finished: subprocess.CompletedProcess[str]) -> str:
    """Return the one line that a program which cannot go on leaves; TensorFlow's own lines are no part of it."""
    assert finished.returncode == 1, finished.stdout
    assert "Traceback" not in finished.stderr
    lines = finished.stderr.strip().splitlines()
    return lines[-1]


def accuracy(row: str) -> float:
    return float(re.match(r"[0-9.]+", row)[0])


@pytest.mark.slow
def test_digits_train_on_eight_rehearsed_replicas_by_default(tmp_path):
    rows = table(run("examples/fashion_mnist.py", "--epochs", "6", "--output", str(tmp_path)))

    assert list(rows) == [
        "data",
        "ran on",
        "global batch",
        "epochs",
        "test accuracy",
        "seconds",
        "throughput",
        "parity",
        "picture",
    ]
    assert rows["data"].startswith("handwritten digits from scikit-learn")
    assert rows["ran on"].startswith("8 replicas on CPU")
    assert rows["global batch"] == "64, 8 on each replica"
    assert accuracy(rows["test accuracy"]) > 0.8  # 0.91 measured after 6 epochs; chance is 0.1
    assert rows["throughput"].endswith("samples/s")
    assert not rows["throughput"].startswith("nan")
    assert rows["parity"].endswith("equal to float tolerance")
    assert (tmp_path / "fashion_mnist.png").read_bytes().startswith(PNG)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dataset", "name", "least"),
    [
        ("auto", "900 tiles of Fashion-MNIST", 0.6),  # 0.74 measured after one epoch
        ("mnist", "MNIST from files, 28x28; 8,000 to train, 2,000 to test", 0.85),  # 0.93 measured
    ],
)
def test_images_from_a_folder(shared_data, tmp_path, dataset, name, least):
    finished = run(
        "examples/fashion_mnist.py",
        *("--data", str(shared_data), "--dataset", dataset),
        *("--epochs", "1", "--replicas", "2", "--batch-size", "32", "--output", str(tmp_path)),
    )

    rows = table(finished)
    assert rows["data"].startswith(name)
    assert rows["ran on"].startswith("2 replicas")
    assert accuracy(rows["test accuracy"]) > least
    assert rows["parity"].endswith("equal to float tolerance")


@pytest.mark.slow
def test_reuters_learns_from_a_folder(shared_data, tmp_path):
    finished = run(
        "examples/reuters.py",
        *("--data", str(shared_data), "--epochs", "2", "--replicas", "2", "--output", str(tmp_path)),
    )

    rows = table(finished)
    assert rows["data"] == "Reuters newswires, 46 topics; 8,982 to train, 2,246 to test"
    assert rows["global batch"] == "32 over all replicas"
    assert accuracy(rows["train accuracy"]) > 0.55  # 0.61 measured after two epochs
    assert accuracy(rows["val accuracy"]) > 0.55  # 0.61 measured
    assert rows["parity"].endswith("equal to float tolerance")
    assert (tmp_path / "reuters.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("examples/fashion_mnist.py", "--dataset", "fashion_mnist"), "fashion-mnist-sprite.png"),
        (("examples/reuters.py",), "reuters.npz"),
    ],
)
def test_a_missing_network_is_one_line_that_names_the_way_out(tmp_path, arguments, what):
    nowhere = "http://127.0.0.1:9"  # the discard port: refused at once, with or without a network
    proxies = {name: nowhere for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")}

    text = message(run(*arguments, KERAS_HOME=str(tmp_path), no_proxy="", NO_PROXY="", **proxies))

    assert "could not be downloaded" in text
    assert "Without a network, write: --data DIR, with DIR" in text
    assert what in text


def test_a_folder_without_the_files_is_one_line_that_names_them(tmp_path):
    text = message(run("examples/fashion_mnist.py", "--data", str(tmp_path)))

    assert "must hold fashion-mnist-sprite.png, or mnist-t10k-images-idx3-ubyte.gz" in text
    assert "Leave --data out to train on scikit-learn's digits." in text


def test_what_the_package_refuses_is_one_line():
    text = message(run("examples/fashion_mnist.py", "--precision", "float7"))

    assert text.startswith("'float7' is no dtype policy. Write 'mixed_bfloat16'")
