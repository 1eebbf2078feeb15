"""`keras-tpu-ext advise`: what it prints and the status it exits with."""

import json
import sys
import textwrap

import pytest

from keras_tpu_ext_command import main

pytestmark = [pytest.mark.runtimes("keras3_tf", "keras2_tf"), pytest.mark.gate_on("keras3_tf")]

MODULE = """
    import tensorflow as tf

    def slow():
        return tf.data.Dataset.range(640).shuffle(640).cache().batch(64)

    def good():
        return tf.data.Dataset.range(640).batch(64, True, tf.data.AUTOTUNE).prefetch(2)

    def no_dataset():
        return [1, 2]

    def raises():
        raise ValueError("no such file:\\nimages")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "cli_datasets.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "cli_datasets", raising=False)


def test_it_prints_the_advice_and_exits_with_1(capsys):
    assert main(["advise", "cli_datasets:slow", "--tpu", "local"]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("1 thing to change in this pipeline:\n1. ")
    assert "cache-after-shuffle: cache comes after shuffle: every epoch has the order of" in printed
    assert "\n    .cache().shuffle(...)\n" in printed


def test_a_good_pipeline_exits_with_0(capsys):
    assert main(["advise", "cli_datasets:good", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"ok": True, "findings": []}


def test_its_options_are_those_of_advise(capsys):
    assert main(["advise", "cli_datasets:good", "--replicas", "16", "--json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["kind"], finding["write"]) == ("batch-small", ".batch(2048)  # 128 a replica")


@pytest.mark.parametrize(
    ("named", "text"),
    [
        (
            "cli_datasets:no_dataset",
            "cli_datasets:no_dataset must return a tf.data.Dataset; it returned list.",
        ),
        ("cli_datasets:raises", "cli_datasets:raises failed: ValueError: no such file: images"),
        (
            "cli_datasets:none",
            "The module 'cli_datasets' has no function 'none'. It has good, no_dataset, raises, slow",
        ),
    ],
)
def test_errors_are_one_sentence_and_status_2(capsys, named, text):
    assert main(["advise", named]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"keras-tpu-ext advise: {text}")
    assert shown.err.count("\n") == 1
    assert shown.out == ""
