"""The command where the package refuses to be imported: what is told then, and that nothing is imported for it."""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys

import pytest

import keras_tpu_ext as kte
import keras_tpu_ext_command as command
from keras_tpu_ext.hardware import TPU_GENERATIONS
from keras_tpu_ext.preflight.targets import parse_target
from keras_tpu_ext_command import arguments

pytestmark = pytest.mark.gate_on("keras3_jax")

# A Python whose packages seem to be these, of which TensorFlow would end the process.
PROGRAM = """
import importlib.metadata, sys
there, really = {"tensorflow-tpu": "2.20.0", "libtpu": "0.0.51"}, importlib.metadata.version
importlib.metadata.version = lambda name: there.get(name) or really(name)
import keras_tpu_ext_command
status = keras_tpu_ext_command.main(sys.argv[1:])
assert not {"keras", "tf_keras", "tensorflow", "jax"} & set(sys.modules)
sys.exit(status)
"""
CAUSE = (
    "tensorflow-tpu 2.20.0 ends the process when it is imported with libtpu 0.0.51; it works with libtpu up to 0.0.31"
)
CURE = "pip install 'libtpu==0.0.31'"


def refused(*arguments):
    environ = {**os.environ, "KERAS_BACKEND": "tensorflow"}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], env=environ, capture_output=True, text=True, check=False
    )


def test_doctor_tells_what_it_can_without_a_framework():
    done = refused("doctor", "/tmp/data")
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("machine       ")
    assert f"PROBLEM: {CAUSE}. Write: {CURE}" in " ".join(done.stdout.split())
    assert "tensorflow-tpu 2.20.0" in done.stdout
    assert done.stdout.rstrip().endswith(f"Next: {CURE}")
    assert done.stderr == ""


def test_doctor_tells_it_as_json():
    done = refused("doctor", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["ok"], found["next_step"]) == (1, False, CURE)
    assert found["findings"] == [{"kind": "problem", "text": CAUSE, "write": CURE}]


def test_the_other_commands_say_why_in_one_line():
    done = refused("preflight", "module:function")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"keras-tpu-ext: {CAUSE}. Write: {CURE} [KTE107]\n"


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["--help"], 0, "Exit status: 0 if the report is good, 1 if it is not, 2 if there is none."),
        (["tfrecords", "--help"], 0, "Exit status: 0 if there are records now, 2 if there are none."),
        (["preflight", "--help"], 0, "keras-tpu-ext preflight my_models:model --target v5e-8\n"),
        (["preflight", "--help"], 0, "7x-16384; the number counts TensorCores (default: v5e-8)"),
        ([], 2, "long will a training take"),
        (["--version"], 0, f"keras-tpu-ext {kte.__version__}\n"),
        (["preflite"], 2, "invalid choice: 'preflite'"),
        (["parity", "m:f", "--steps", "0"], 2, "argument --steps: must be an integer of at least 1; got '0'\n"),
        (["parity", "m:f", "--tolerance", "2"], 2, "must be a number above 0 and at most 1; got '2'\n"),
        (["tfrecords", "a", "b", "--quality", "0"], 2, "--quality: must be an integer from 1 to 100; got '0'\n"),
        (
            ["preflight", "m:f", "--mesh", "data=2;model=4"],
            2,
            "must be sizes of axes; got 'data=2;model=4'. Write data",
        ),
        (["preflight", "m:f", "--shard", "zero"], 2, "choose from"),
        (["parity", "m:f", "--batch", "m:g"], 2, "parity: error: unrecognized arguments: --batch m:g\n"),
        (["preflight", "m:f", "--plot", "/no/a.png"], 2, "cannot write '/no/a.png': there is no folder /no\n"),
    ],
)
def test_help_the_version_and_a_wrong_call_are_answered_before_anything_slow_is_imported(arguments, status, text):
    command = [sys.executable, "-X", "importtime", "-m", "keras_tpu_ext", *arguments]
    environ = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    assert text in done.stdout + done.stderr
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "|" in line}
    assert "argparse" in imported
    assert not {"keras", "tf_keras", "tensorflow", "jax", "numpy"} & imported


@pytest.mark.parametrize("name", arguments.EXAMPLES)
def test_the_examples_of_each_command_are_right(name):
    for example in arguments.EXAMPLES[name]:
        assert arguments.parse_arguments([name, *shlex.split(example)]).command == name


def test_help_lists_the_smallest_and_largest_slice_of_each_generation():
    slices = re.findall(r"(\w+-\d+) to (\w+)-(\d+)", arguments.SLICES)
    assert [second for _, second, _ in slices] == list(TPU_GENERATIONS)
    for smallest, name, largest in slices:
        assert parse_target(smallest).name == smallest
        with pytest.raises(kte.errors.ArgumentError) as caught:
            parse_target(f"{name}-{3 * int(largest)}")
        known = re.findall(rf"{name}-\d+", str(caught.value).partition("comes as")[2])
        assert (smallest, f"{name}-{largest}") == (known[0], known[-1])


def test_options_of_one_name_mean_one_thing(monkeypatch):
    """What takes a function in one command takes one in all, and so with numbers."""
    kinds = {}
    monkeypatch.setattr(
        argparse.ArgumentParser, "parse_known_args", lambda parser, _: (kinds.update(_kinds(parser)), [])
    )
    arguments.parse_arguments(["doctor"])
    assert {("--data", "MODULE:FUNCTION"), ("--batch-size", "N"), ("--target", "SLICE")} <= kinds.keys()
    flags = [flag for flag, _ in kinds]
    assert len(flags) == len(set(flags)), kinds


def _kinds(parser):
    commands = next(one for one in parser._actions if one.dest == "command").choices
    found = ((name, one) for name, command in commands.items() for one in command._actions if one.option_strings)
    return {(one.option_strings[-1], one.metavar or one.dest.upper()): name for name, one in found}


def test_a_folder_is_no_file_to_draw_into(tmp_path, capsys):
    with pytest.raises(SystemExit):
        command.main(["preflight", "m:f", "--plot", str(tmp_path)])
    assert "it is a folder, or not yours to write" in capsys.readouterr().err


def test_what_is_no_refusal_is_raised(monkeypatch):
    monkeypatch.setitem(sys.modules, "keras_tpu_ext.cli", None)
    monkeypatch.delattr("keras_tpu_ext.cli", raising=False)
    with pytest.raises(ImportError, match=r"keras_tpu_ext\.cli"):
        command.main(["parity", "module:function"])


def test_where_nothing_is_refused_it_is_the_command_line(capsys, monkeypatch):
    monkeypatch.setenv("COLAB_TPU_ADDR", "10.0.0.2:8470")
    assert command.main(["doctor", "/tmp/data"]) == 1
    assert "cannot reach /tmp/data" in " ".join(capsys.readouterr().out.split())


@pytest.mark.gate_on("keras3_jax")
def test_a_pipe_that_has_read_enough_is_no_error():
    command = [sys.executable, "-m", "keras_tpu_ext", "doctor"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        running.stdout.close()
        assert (running.stderr.read(), running.wait()) == ("", 141)
