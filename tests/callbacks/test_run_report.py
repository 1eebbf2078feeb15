"""`keras-tpu-ext report`: the text, the JSON, and the page."""

import html.parser
import json
import re

import pytest

from keras_tpu_ext.callbacks.run_report import RunReport, run_report
from keras_tpu_ext_command import main

pytestmark = pytest.mark.gate_on("keras3_jax")

EVIL = '<script>alert("x")</script>\x1b[31m'
RUN = {
    "format": 1,
    "versions": {"keras": "3.15.1"},
    "hardware": "CPU, 2 cores: 1 device; trained on 1 device (cpu)",
    "arguments": {"epochs": 3, "steps": 40},
    "started": 1.8e9,
    "wall_seconds": 100.0,
    "finished": True,
    "returned": True,
    "problem": "",
    "history": [
        {
            "epoch": epoch,
            "wall_seconds": 30.0 * epoch,
            "logs": {
                "loss": 0.5 - 0.1 * epoch,
                "val_loss": None if epoch == 1 else 0.6,
                "throughput/samples_per_sec": 149494.318,
                "input/wait_fraction": 0.0,
                "device_memory/in_use_gib": 1.5,
            },
        }
        for epoch in range(3)
    ],
    "reports": {
        "Goodput": {
            "seconds": {"training": 80.0, "input": 15.0, "callbacks/Slow": 4.99, "callbacks/History": 0.01},
            "advice": "Make batches faster.",
        },
        "HostBottleneck": {"verdict": "moderately input-bound", "wait_fraction": 0.15, "ok": False},
        "Recompilations": {"count": 1, "compilations": [{"epoch": 0, "seconds": 3.5, "reason": "x: rows 128 to 37"}]},
        "DeviceMemory": {"devices": [{"device": "cpu:0", "in_use": 2**30, "limit": None}], "leaks": []},
    },
    "plan": {"hours": 9, "buckets": {"training": 70.0, "compile": 12.0}},
}


@pytest.fixture
def folder(tmp_path):
    def write(**changed):
        (tmp_path / "run.json").write_text(json.dumps({**RUN, **changed}))
        return tmp_path

    return write


def text_of(page):
    """Return the words of a page, after a parser has seen that its tags are closed and that it loads nothing."""
    words, is_open = [], []

    class Parser(html.parser.HTMLParser):
        def handle_starttag(self, tag, attrs):
            assert tag not in ("script", "link", "img", "iframe", "a", "object")
            assert not {"src", "href", "onload", "onclick"} & {name for name, _ in attrs}
            is_open.append(tag) if tag != "meta" else None

        def handle_startendtag(self, tag, attrs):
            pass

        def handle_endtag(self, tag):
            assert is_open.pop() == tag

        def handle_data(self, data):
            words.append(data) if is_open[-1:] != ["style"] else None

    Parser().feed(page)
    assert not is_open
    assert not re.search(r"https?:|url\(|@import", page)
    return " ".join(" ".join(words).split())


def test_the_page_has_what_the_callbacks_kept(folder):
    page = run_report(str(folder())).page()
    text = text_of(page)
    assert "Training: finished 1 min 40 s, 3 epochs; fit: epochs 3, steps 40" in text
    assert "started 2027-01-15 08:00 UTC; keras 3.15.1" in text
    assert "training 1 min 20 s 80.0 % input 15 s 15.0 % callbacks/Slow 4.99 s 5.0 % all others 10 ms 0.0 %" in text
    assert "planned came training 1 min 10 s 1 min 20 s compile 12 s input 15 s" in text
    assert "all 1 min 22 s 1 min 40 s" in text
    for title in ("Throughput", "Loss", "Waiting for data", "Memory in GiB"):
        assert f"<h2>{title}</h2>" in page
    assert "throughput/samples_per_sec 149k" in text
    assert "verdict moderately input-bound wait fraction 15.0 % ok no" in text
    assert "epoch seconds reason 0 3.5 s x: rows 128 to 37" in text
    assert "cpu:0 1 GiB" in text
    assert page.count("<polyline") == 5
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport"' in page


def test_what_comes_from_the_file_is_escaped(folder):
    changed = {
        "versions": {EVIL: EVIL},
        "hardware": EVIL,
        "arguments": {EVIL: 3},
        "finished": False,
        "problem": EVIL,
        "history": [
            {"epoch": 0, "wall_seconds": 1.0, "logs": {EVIL: 0.5, "loss": 1.0, f"device_memory/{EVIL}": 1.0}}
        ],
        "reports": {EVIL: {EVIL: [{EVIL: EVIL}], "in": {EVIL: [EVIL]}}, "Goodput": {"seconds": {EVIL: 1.0}}},
        "plan": {"buckets": {EVIL: 1.0}},
    }
    report = run_report(str(folder(**changed)))
    page = report.page()
    text_of(page)
    assert page.count("&lt;script&gt;") > 12
    assert "<script" not in page
    assert "\x1b" not in str(report)
    assert "<script" not in report._repr_html_()


@pytest.mark.parametrize(
    ("changed", "state"),
    [
        ({}, "finished"),
        ({"finished": False, "returned": False}, "running, or killed"),
        ({"finished": False}, "stopped before its end"),
        ({"finished": False, "returned": False, "problem": "ValueError: no"}, "ended by ValueError: no"),
    ],
)
def test_how_it_ended(changed, state, folder):
    assert f"<h1>Training: {state}</h1>" in run_report(str(folder(**changed))).page()


def test_the_smallest_run_has_a_page():
    empty = {"history": [], "reports": {}, "plan": None, "arguments": {}, "versions": {}}
    report = RunReport({**RUN, **empty})
    assert "Training: finished" in text_of(report.page())
    assert str(report).startswith("finished: 0 epochs, 1 min 40 s. CPU, 2 cores")
    assert report.ok


def test_many_rows_are_shortened():
    rows = [{"number": number} for number in range(100)]
    text = text_of(RunReport({**RUN, "reports": {"Own": {"rows": rows}}}).page())
    assert "and 70 more" in text


def test_the_command_prints_the_text_and_writes_the_page(folder, capsys):
    path = folder()
    assert main(["report", str(path)]) == 0
    printed = capsys.readouterr()
    assert printed.err == f"wrote {path / 'report.html'}\n"
    assert printed.out.splitlines() == [
        "finished: 3 epochs of 3, 1 min 40 s. CPU, 2 cores: 1 device; trained on 1 device",
        "  (cpu)",
        "last epoch: loss 0.3, val_loss 0.6",
        "time: training 1 min 20 s, input 15 s, callbacks/Slow 4.99 s",
        "reports: Goodput, HostBottleneck, Recompilations, DeviceMemory",
    ]
    assert (path / "report.html").read_text(encoding="utf-8") == run_report(str(path)).page()


def test_the_command_prints_json_and_writes_where_it_is_told_to(folder, tmp_path, capsys):
    path = folder()
    assert main(["report", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reports"]["HostBottleneck"]["verdict"] == "moderately input-bound"
    assert not (path / "report.html").exists()
    assert main(["report", str(path), "--out", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").exists()


def test_a_folder_without_a_run_is_one_sentence_and_status_2(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        f"keras-tpu-ext report: there is no run.json in {tmp_path}. Write the folder that kte.callbacks.RunLog was "
        "given. [KTE008]\n"
    )
    (tmp_path / "run.json").write_text("[]")
    assert main(["report", str(tmp_path)]) == 2
    assert "is no file of kte.callbacks.RunLog: it must be an object; got a list of 0" in capsys.readouterr().err
