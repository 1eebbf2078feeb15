"""What is read from a file that may be anybody's."""

import json

import pytest

from keras_tpu_ext.errors import ArgumentError
from keras_tpu_ext.resume.run_file import as_plain, read_run, write_run
from keras_tpu_ext.resume.storage import folder_of

pytestmark = pytest.mark.gate_on("keras3_jax")

RUN = {
    "format": 1,
    "versions": {"keras": "3.15.1"},
    "hardware": "CPU",
    "arguments": {"epochs": 2, "steps": None},
    "started": 1.5,
    "wall_seconds": 3.0,
    "finished": True,
    "returned": True,
    "problem": "",
    "history": [{"epoch": 0, "wall_seconds": 1.0, "logs": {"loss": 0.5, "accuracy": None}}],
    "reports": {"Goodput": {"seconds": {"training": 3}, "ok": True}, "Other": {"list": [1, {"a": None}]}},
    "plan": {"hours": 9, "buckets": {"training": 2.5}},
}


def changed(*path, value):
    run = json.loads(json.dumps(RUN))
    inside = run
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    return run


def test_what_was_written_is_read(tmp_path):
    folder = folder_of(str(tmp_path))
    assert read_run(folder) is None
    write_run(folder, RUN)
    assert read_run(folder) == RUN
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def deep(levels):
    return {} if not levels else {"in": deep(levels - 1)}


@pytest.mark.parametrize(
    ("run", "text"),
    [
        ([], r"it must be an object; got a list of 0"),
        (changed("format", value=2), r"format must be an integer from 1 to 1; got 2"),
        (changed("code", value="x"), r"no other keys than format, .*; got 'code'"),
        (
            changed("history", 0, "logs", value={"loss": "0.5"}),
            r"history\[0\]\.logs\['loss'\] must be a finite number",
        ),
        (changed("reports", "Goodput", "seconds", value=[1]), r"Goodput\.seconds must be an object; got a list of 1"),
        (changed("reports", value={"Other": deep(30)}), r"must be at most 12 deep"),
        (
            changed("plan", "buckets", value={"training": True}),
            r"plan\.buckets\['training'\] must be a finite number",
        ),
        (changed("wall_seconds", value=float("nan")), r"wall_seconds must be a finite number; got nan"),
        (changed("hardware", value=None), r"hardware must be a text; got None"),
    ],
)
def test_what_does_not_fit_is_told(tmp_path, run, text):
    (tmp_path / "run.json").write_text(json.dumps(run))
    with pytest.raises(ArgumentError, match=rf"run\.json is no file of kte\.callbacks\.RunLog: .*{text}"):
        read_run(folder_of(str(tmp_path)))


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"a": 1, "a": 2}', b"[" * 100_000])
def test_what_is_no_json_is_told(tmp_path, content):
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(ArgumentError, match="the text must be JSON"):
        read_run(folder_of(str(tmp_path)))


def test_a_huge_file_is_not_read(tmp_path):
    with (tmp_path / "run.json").open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(ArgumentError, match="must be at most 67108864 bytes long; got 1073741824"):
        read_run(folder_of(str(tmp_path)))


def test_values_become_plain():
    found = {1: float("inf"), "a": (2.0, 2.5, True, None), "what": object}
    assert as_plain(found) == {"1": None, "a": [2, 2.5, True, None], "what": "<class 'object'>"}
