"""The process of the compiler: its time limit, its messages and what is kept, with a worker of the test's own."""

import gzip
import importlib.metadata
import json
import os
import textwrap
import threading
import time
import tracemalloc
from pathlib import Path

import pytest

from keras_tpu_ext._runtime.common.lowering import LoweredStep
from keras_tpu_ext.errors import MissingExtraError, PreflightError
from keras_tpu_ext.output import progress
from keras_tpu_ext.preflight import _compiler
from keras_tpu_ext.preflight._compiler import Compiled, compile_all, compile_for, compiler_versions, default_cache_dir
from keras_tpu_ext.preflight.targets import parse_target

pytestmark = pytest.mark.gate_on("keras3_jax")

V5E, V4 = parse_target("v5e-8"), parse_target("v4-8")
STEP = LoweredStep(b"a program", True, 8, 64, ("dense",), {}, {})
VERSIONS = {"jax": "1", "jaxlib": "2", "libtpu": "3"}

# Counts its runs in the file that RUNS names, and writes what it was asked.
WRITES = """
import json, os, pathlib, sys
folder = pathlib.Path(sys.argv[1])
with open(os.environ["RUNS"], "a") as file:
    file.write("x")
job = json.loads((folder / "job.json").read_text())
program = (folder / "program").read_bytes().decode()
errors = {"wrong": "ValueError: no such thing", "large": "RESOURCE_EXHAUSTED: too large"}
if program in errors:
    result = {"error": errors[program]}
else:
    (folder / "executable").write_bytes(b"machine code of " + program.encode())
    (folder / "module.hlo").write_text(f"HloModule {program}\\n\\nENTRY %main () -> () {{\\n}}\\n")
    names = ("LIBTPU_INIT_ARGS", "TPU_NAME", "JAX_PLATFORMS", "MEGASCALE_X")
    asked = {"job": job, "environment": {name: os.environ.get(name) for name in names}}
    pathlib.Path(os.environ["RUNS"] + ".json").write_text(json.dumps(asked))
    result = {"compile_seconds": 1.5, "argument_bytes": 100, "output_bytes": 30, "aliased_bytes": 20}
    result |= {"temporary_bytes": 4, "code_bytes": 5}
(folder / "result.json").write_text(json.dumps(result))
"""


@pytest.fixture
def worker(monkeypatch, tmp_path):
    """Set what the compiler's process does."""
    monkeypatch.setattr(_compiler, "compiler_versions", lambda target: VERSIONS)
    monkeypatch.setattr(progress, "_POLL_SECONDS", 0.02)
    monkeypatch.setenv("RUNS", str(tmp_path / "runs"))
    monkeypatch.delenv("LIBTPU_INIT_ARGS", raising=False)

    def does(script):
        (tmp_path / "worker.py").write_text(script)
        monkeypatch.setattr(_compiler, "_WORKER", tmp_path / "worker.py")

    does(WRITES)
    return does


def asked(tmp_path, what):
    return json.loads((tmp_path / "runs.json").read_text())[what]


def hlo_of(program):
    return f"HloModule {program}\n\nENTRY %main () -> () {{\n}}\n"


def runs(tmp_path):
    return len((tmp_path / "runs").read_text())


def compiled(step=STEP, target=V5E, cache_dir=None, timeout_s=60.0, progress=lambda seconds: None):
    return compile_for(target, step, timeout_s=timeout_s, cache_dir=cache_dir, progress=progress)


def step(program, **changes):
    return LoweredStep(**{**vars(STEP), "program": program, **changes})


def test_the_worker_is_asked_for_the_slice_and_its_answer_comes_back(worker, tmp_path):
    found = compiled(step(b"p", partitions=False, results=2), target=V4)
    assert (found.hlo, found.error, found.from_cache) == (hlo_of("p"), "", False)
    job = {"topology": "v4:2x2x1", "options": {"chip_config_name": "megacore"}, "devices": 4}
    job |= {"partitions": False, "results": 2, "compile_options": "", "instructions": ""}
    assert asked(tmp_path, "job") == job
    assert found.executable == b"machine code of p"
    assert found.facts["versions"] == VERSIONS


def test_several_are_compiled_in_one_process_for_as_long_as_each_may_take(worker, tmp_path, monkeypatch):
    every = "for folder in map(pathlib.Path, sys.argv[1:]):\n"
    first, _, rest = WRITES.partition("folder = pathlib.Path(sys.argv[1])\n")
    worker(first + every + textwrap.indent(rest, "    "))
    limits, run = [], _compiler.run_process

    def run_process(*arguments, timeout_s, **options):
        limits.append(timeout_s)
        return run(*arguments, timeout_s=timeout_s, **options)

    monkeypatch.setattr(_compiler, "run_process", run_process)
    steps = [step(b"one"), step(b"wrong"), step(b"two")]
    one, wrong, two = compile_all(V5E, steps, timeout_s=60.0, progress=lambda seconds: None)
    assert (one.hlo, two.executable) == (hlo_of("one"), b"machine code of two")
    assert wrong.error == "ValueError: no such thing"
    assert limits == [180.0]


def test_what_the_compiler_says_is_no_error_of_this_process(worker):
    assert compiled(step(b"wrong")) == Compiled("", {"versions": VERSIONS}, "ValueError: no such thing")


def test_what_a_machine_says_of_its_own_tpu_is_not_for_the_worker(worker, tmp_path, monkeypatch):
    monkeypatch.setenv("TPU_NAME", "local")
    monkeypatch.setenv("MEGASCALE_X", "1")
    monkeypatch.setenv("JAX_PLATFORMS", "tpu")
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--flag")
    expected = {"LIBTPU_INIT_ARGS": "--flag", "TPU_NAME": None, "JAX_PLATFORMS": "cpu", "MEGASCALE_X": None}
    compiled()
    assert asked(tmp_path, "environment") == expected


# What is kept


def test_what_was_compiled_is_kept(worker, tmp_path):
    folder = tmp_path / "a" / "b"
    first, second = compiled(cache_dir=folder), compiled(cache_dir=str(folder))
    assert runs(tmp_path) == 1
    assert not first.from_cache
    assert second == Compiled(first.hlo, first.facts, from_cache=True)
    assert [path.name.split(".", 1)[1] for path in folder.iterdir()] == ["json.gz"]


@pytest.mark.parametrize(("program", "times"), [(b"wrong", 2), (b"large", 1)])
def test_of_what_does_not_compile_it_is_kept_only_that_it_does_not_fit(worker, tmp_path, program, times):
    first, second = (compiled(step(program), cache_dir=tmp_path / "c") for _ in range(2))
    assert runs(tmp_path) == times
    assert (second.error, second.from_cache) == (first.error, times == 1)


def test_nothing_is_kept_where_that_is_not_wanted(worker, tmp_path):
    assert not compiled().from_cache
    assert not compiled().from_cache
    assert runs(tmp_path) == 2


def test_all_that_changes_the_result_is_compiled_anew(worker, tmp_path, monkeypatch):
    folder = tmp_path / "c"

    def is_new(**options):
        return not compiled(cache_dir=folder, **options).from_cache

    assert is_new()
    assert not is_new()
    assert not is_new(
        step=step(STEP.program, layers=("other",), roles={"sgd": "(other)"})
    )  # of these the compiler knows nothing
    assert is_new(step=step(b"another program"))
    assert is_new(step=step(STEP.program, partitions=False))
    assert is_new(step=step(STEP.program, results=1))
    assert is_new(target=parse_target("v5e-16"))
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--flag")
    assert is_new()
    monkeypatch.setattr(_compiler, "compiler_versions", lambda target: {**VERSIONS, "libtpu": "4"})
    assert is_new()
    monkeypatch.setattr(_compiler, "_CACHE_VERSION", _compiler._CACHE_VERSION + 1)
    assert is_new()
    assert not is_new()


def cut(data):
    return data[:-9]


def flipped(data):
    return data[:-60] + bytes(255 - byte for byte in data[-60:-20]) + data[-20:]


def no_json(data):
    return gzip.compress(b"{")


def other_json(data):
    return gzip.compress(b'{"hlo": ""}')


def changed(**changes):
    """Return what puts other values into a kept file; of facts, where the name is one of them."""

    def spoil(data):
        found = json.loads(gzip.decompress(data))
        for name, value in changes.items():
            (found if name in found else found["facts"])[name] = value
        return gzip.compress(json.dumps(found).encode())

    return spoil


OTHER = {
    "a list": lambda data: gzip.compress(b"[]"),
    "a list of facts": changed(facts=[]),
    "a number as program": changed(hlo=3),
    "a text as size": changed(argument_bytes="100"),
    "a size below 0": changed(code_bytes=-1),
    "a size that is too large": changed(output_bytes=2**70),
    "no number as time": changed(compile_seconds=float("nan")),
    "versions that are none": changed(versions={"jax": 1}),
    "an unknown fact": changed(facts={}, more=1),
    "an error of another kind": changed(hlo="", facts={"versions": VERSIONS}, error="ValueError: no such thing"),
    "an error and a program": changed(error="RESOURCE_EXHAUSTED: too large"),
    "no text": lambda data: gzip.compress(b"\xff\xfe\xff"),
    "a deep list": lambda data: gzip.compress(b"[" * 100_000),
}


@pytest.mark.parametrize(
    "spoiled",
    [cut, flipped, no_json, other_json, bytes.upper, *(pytest.param(OTHER[name], id=name) for name in OTHER)],
)
def test_a_kept_file_that_is_not_whole_is_made_anew(worker, tmp_path, spoiled):
    first = compiled(cache_dir=tmp_path / "c")
    (kept,) = (tmp_path / "c").iterdir()
    kept.write_bytes(spoiled(kept.read_bytes()))
    assert compiled(cache_dir=tmp_path / "c") == first
    assert compiled(cache_dir=tmp_path / "c").from_cache
    assert runs(tmp_path) == 2


def test_a_kept_file_is_not_unpacked_beyond_the_bound(worker, tmp_path, monkeypatch):
    """Two megabytes may hold gigabytes: what is read of them is counted."""
    compiled(cache_dir=tmp_path / "c")
    (kept,) = (tmp_path / "c").iterdir()
    monkeypatch.setattr(_compiler, "_CACHE_BYTES", 10**6)
    with gzip.open(kept, "wb", compresslevel=1) as file:
        for _ in range(512):
            file.write(bytes(2**20))
    tracemalloc.start()
    assert not compiled(cache_dir=tmp_path / "c").from_cache
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 * 2**20
    assert compiled(cache_dir=tmp_path / "c").from_cache


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_a_folder_or_a_pipe_with_the_name_of_a_kept_file_is_no_entry(worker, tmp_path, make):
    compiled(cache_dir=tmp_path / "c")
    (kept,) = (tmp_path / "c").iterdir()
    kept.unlink()
    make(kept)
    found = []
    thread = threading.Thread(target=lambda: found.append(compiled(cache_dir=tmp_path / "c")), daemon=True)
    thread.start()
    thread.join(60)  # opening a pipe that nobody writes into waits for ever
    assert [(one.hlo, one.from_cache) for one in found] == [(hlo_of("a program"), False)]


def test_a_folder_that_cannot_be_written_loses_no_result(worker, tmp_path):
    (tmp_path / "file").write_text("")
    assert compiled(cache_dir=tmp_path / "file" / "c").hlo == hlo_of("a program")


def test_a_program_that_came_from_other_lines_is_the_same_and_one_of_other_layers_is_not(worker, tmp_path):
    for program, layers in ((b"line 1", ("a",)), (b"line 2", ("a",)), (b"line 2", ("b",))):
        compiled(step(program, digest="same", layers=layers), cache_dir=tmp_path / "c")
    assert runs(tmp_path) == 2


def test_the_folder_is_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "keras_tpu_ext" / "preflight"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert default_cache_dir() == Path("/home/somebody/.cache/keras_tpu_ext/preflight")


# Time, and ends without a result

SLEEPS = """
import os, sys, time
with open(os.environ["RUNS"], "w") as file:
    file.write(str(os.getpid()))
time.sleep(60)
"""


def is_running(tmp_path):
    """Return whether the worker is, which has told its number."""
    try:
        os.kill(int((tmp_path / "runs").read_text()), 0)
    except ProcessLookupError:
        return False
    return True


def test_a_compiler_that_takes_too_long_is_ended(worker, tmp_path):
    worker(SLEEPS)
    message = r"was not done for v5e-8 after 0\.4 s\. Give it more time, timeout_s=0\.8, or fewer layers\."
    with pytest.raises(PreflightError, match=message):
        compiled(timeout_s=0.4)
    assert not (tmp_path / "runs").exists() or not is_running(tmp_path)


def test_interrupting_ends_the_compiler_too(worker, tmp_path):
    worker(SLEEPS)

    def interrupt(seconds):
        if (tmp_path / "runs").exists() and (tmp_path / "runs").read_text():
            assert is_running(tmp_path)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compiled(progress=interrupt)
    assert not is_running(tmp_path)


def test_progress_hears_how_long_it_takes(worker):
    worker(WRITES + "\nimport time\ntime.sleep(0.2)")
    heard = []
    begun = time.monotonic()
    compiled(progress=heard.append)
    assert heard == sorted(heard)
    assert len(heard) > 1
    assert 0 <= heard[0] <= heard[-1] <= time.monotonic() - begun


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("", "The compiler for v5e-8 ended with status 0 and no result."),
        ("import os; os.abort()", "The compiler for v5e-8 ended with status -6 and no result."),
        (
            "import sys; print(*range(20), '', 'F0000 check failed', sep='\\n', file=sys.stderr); sys.exit(3)",
            "The compiler for v5e-8 ended with status 3 and no result.\nThe last lines that it printed:\n"
            + "".join(f"  {i}\n" for i in range(13, 20))
            + "  F0000 check failed",
        ),
    ],
)
def test_an_end_without_a_result_is_told_with_the_last_lines(worker, tmp_path, script, message):
    worker(script)
    with pytest.raises(PreflightError) as caught:
        compiled(cache_dir=tmp_path / "c")
    assert str(caught.value) == message
    assert not (tmp_path / "c").exists()


def test_what_it_prints_is_no_hindrance(worker):
    worker("print('x' * 10_000_000)\n" + WRITES)
    assert compiled().hlo == hlo_of("a program")


UNREADABLE = """
import json, pathlib, sys
result = {"unreadable": "JaxRuntimeError: INTERNAL: 1 operand but sees 3\\nmore"}
(pathlib.Path(sys.argv[1]) / "result.json").write_text(json.dumps(result))
"""


def test_a_compiler_that_jax_does_not_understand_is_told_with_what_to_install(worker, tmp_path):
    worker(UNREADABLE)
    with pytest.raises(PreflightError) as told:
        compiled(cache_dir=tmp_path / "c")
    assert str(told.value) == (
        "The step compiles for v5e-8, but jaxlib 2 cannot read the program that libtpu 3 has compiled "
        "(JaxRuntimeError: INTERNAL: 1 operand but sees 3). Write: pip install --upgrade 'jax[tpu]'"
    )
    assert not (tmp_path / "c").exists()


# What has to be installed


def test_versions_are_those_installed(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: f"{name} 1.0")
    assert compiler_versions(V5E) == {"jax": "jax 1.0", "jaxlib": "jaxlib 1.0", "libtpu": "libtpu 1.0"}


def no_version(name):
    raise importlib.metadata.PackageNotFoundError(name)


def test_without_the_compiler_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", no_version)
    message = r"this Python has no jax\. It needs no TPU.*Write: pip install 'jax\[tpu\]'"
    with pytest.raises(MissingExtraError, match=message):
        compile_for(V5E, STEP, timeout_s=1.0, cache_dir=None, progress=print)


def test_the_kept_file_is_plain_data(worker, tmp_path):
    found = compiled(cache_dir=tmp_path / "c")
    (kept,) = (tmp_path / "c").iterdir()
    with gzip.open(kept, "rt") as file:
        assert json.load(file) == {"hlo": found.hlo, "facts": found.facts, "error": ""}
