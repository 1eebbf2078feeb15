"""Runs a short suite in each environment of `environments/`: the versions that this release says it works with.

    python tests/versions/run.py UV PYTHON [NAME ...] [--results FILE]

Each environment is a file of requirements with a head: `# python:` the version of Python, or several, of which the
first that is there is taken; `# backend:` `tensorflow`, `jax` or `keras2`; `# alone:` packages that are installed
without what they ask for; `# may fail` for nightlies. The wheel is installed offline, and no other package may change
by that. Then the suite runs: what the seam promises, the private names, cases of the parity suite, Throughput in a
fit, and lowering for a TPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from environments import variables

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLDER = ROOT / ".envs" / "versions"
LOGS = ROOT / "out" / "versions"
PATHS = (
    "tests/_runtime",
    "tests/parity",
    "tests/callbacks",
    "tests/machine/test_versions.py",
    "tests/test_jax_sharding.py",
    "tests/test_jax_sharded_finetuning.py",
)
TOOLS = ("pytest", "hypothesis", "matplotlib", "pillow", "scikit-learn", "tensorboard")
BUILD = ("build", "--quiet", "--wheel", "--build-constraints", "locks/build.txt", "--require-hashes")
NOT_RUN = "not run"
SHOWN = {
    "tensorflow": ("keras", "keras-nightly", "tensorflow-cpu", "tf-nightly-cpu"),
    "jax": ("keras", "keras-nightly", "jax"),
    "keras2": ("keras", "tf-keras", "tensorflow-cpu"),
}


@dataclasses.dataclass(frozen=True)
class Environment:
    """An environment that a file describes."""

    name: str
    title: str
    pythons: tuple[str, ...]
    backend: str
    may_fail: bool
    alone: tuple[str, ...]
    file: Path

    @classmethod
    def read(cls, file: Path) -> Environment:
        """Return what a file describes."""
        lines = file.read_text(encoding="utf-8").splitlines()
        head = [line.removeprefix("# ") for line in lines if line.startswith("# ")]
        values = dict(line.split(": ", 1) for line in head if re.match("(python|backend): ", line))
        alone = tuple(line.removeprefix("alone: ") for line in head if line.startswith("alone: "))
        pythons = tuple(values["python"].split(" or "))
        return cls(file.stem, head[0], pythons, values["backend"], "may fail" in head, alone, file)

    @property
    def folder(self) -> Path:
        """Where it is made."""
        return FOLDER / self.name

    def executable(self, name: str) -> Path:
        """Return the path of a program in it."""
        return self.folder / "bin" / name


class CommandError(Exception):
    """What could not be done, with what was printed."""


def main() -> int:
    """Print a line for each environment; return 1 if one fails that may not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("uv")
    parser.add_argument("python", help="what builds the wheel")
    parser.add_argument("names", nargs="*", help="of environments; all by default")
    parser.add_argument("--results", type=Path, help="a file for the table, as JSON")
    options = parser.parse_args()
    environments = [Environment.read(file) for file in sorted((HERE / "environments").glob("*.txt"))]
    unknown = set(options.names) - {environment.name for environment in environments}
    if unknown:
        parser.error(
            f"no such environment: {', '.join(unknown)}; there are {', '.join(e.name for e in environments)}"
        )
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        call(options.uv, *BUILD, "--python", options.python, "--out-dir", folder)
        (wheel,) = Path(folder).glob("*.whl")
        for environment in environments:
            if environment.name in (options.names or [environment.name]):
                rows.append(examine(environment, options.uv, options.python, wheel))
                print("{name}: {outcome} ({versions}; {seconds} s)".format(**rows[-1]), flush=True)
                print(what_to_mend(environment), end="", flush=True)
    if options.results:
        save(rows, options.results, keep=bool(options.names))
    # What was asked for by name must run.
    return int(any(not (row["may_fail"] or is_good(row, bool(options.names))) for row in rows))


def is_good(row: dict[str, object], was_named: bool) -> bool:
    """Return whether an environment came out well."""
    outcome = str(row["outcome"])
    return not was_named if outcome.startswith(NOT_RUN) else bool(re.fullmatch(r"\d+ passed", outcome))


def what_to_mend(environment: Environment) -> str:
    """Return the tests that failed, and what they say of private names that are gone; empty where none did."""
    log = LOGS / f"{environment.name}.txt"
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
    gone = re.findall(r"Failed: (.* is gone .*)", text)
    lines = [*gone, *failed[:20], f"more in {log.relative_to(ROOT)}"] if failed else []
    return "".join(f"  {line}\n" for line in lines)


def save(rows: list[dict[str, object]], file: Path, *, keep: bool) -> None:
    """Write rows to a file; `keep` the others that are there."""
    there = json.loads(file.read_text(encoding="utf-8"))["rows"] if keep and file.exists() else []
    by_name = {row["name"]: row for row in [*there, *rows]}
    text = json.dumps({"rows": [by_name[name] for name in sorted(by_name)]}, indent=1)
    file.write_text(text + "\n", encoding="utf-8")


def examine(environment: Environment, uv: str, python: str, wheel: Path) -> dict[str, object]:
    """Make an environment and run the suite in it; return a row of the table."""
    start = time.monotonic()
    row = {"name": environment.name, "title": environment.title, "may_fail": environment.may_fail, "versions": ""}
    interpreter = next(filter(None, (find_python(version, python) for version in environment.pythons)), None)
    if interpreter is None:
        return {**row, "outcome": f"{NOT_RUN}: no Python {' or '.join(environment.pythons)} here", "seconds": 0}
    try:
        make(environment, uv, interpreter)
        row["versions"] = describe(environment, uv)
        install(environment, uv, wheel)
        outcome = run_suite(environment)
    except CommandError as failure:
        outcome = str(failure).strip().splitlines()[-1]
        write_log(environment, str(failure))
    return {**row, "outcome": outcome, "seconds": round(time.monotonic() - start)}


def find_python(version: str, python: str) -> str | None:
    """Return an interpreter of this version: `python`, or one of the PATH or pyenv; `None` where there is none."""
    root = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    of_pyenv = sorted(glob.glob(f"{root}/versions/{version}.*/bin/python"))
    candidates = [shutil.which(python), shutil.which(f"python{version}"), *of_pyenv]
    for candidate in filter(None, candidates):
        command = [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return candidate
    return None


def make(environment: Environment, uv: str, interpreter: str) -> None:
    """Make an environment with what its file asks for, and what the tests need beside that."""
    call(uv, "venv", "--quiet", "--clear", "--python", interpreter, environment.folder)
    install = (uv, "pip", "install", "--quiet", "--python", environment.executable("python"))
    nightly = ("--prerelease", "allow") if environment.may_fail else ()
    call(*install, *nightly, "--requirement", environment.file, *TOOLS)
    if environment.alone:
        call(*install, "--no-deps", *environment.alone)


def install(environment: Environment, uv: str, wheel: Path) -> None:
    """Install the wheel offline, with all that it depends on; no other package may change."""
    before = freeze(environment, uv)
    command = (uv, "pip", "install", "--quiet", "--python", environment.executable("python"), "--no-index")
    # Keras's nightly does not count as `keras`, which the wheel depends on.
    call(*command, *(["--no-deps"] if any(line.startswith("keras-nightly") for line in before) else []), wheel)
    changed = [line for line in freeze(environment, uv) ^ before if not line.startswith("keras-tpu-ext")]
    if changed:
        raise CommandError(f"installing the wheel changed {', '.join(sorted(changed))}")


def freeze(environment: Environment, uv: str) -> set[str]:
    """Return what is installed, with versions."""
    return set(call(uv, "pip", "freeze", "--python", environment.executable("python")).splitlines())


def describe(environment: Environment, uv: str) -> str:
    """Return the versions that matter."""
    found = dict(line.split("==") for line in freeze(environment, uv) if "==" in line)
    shown = [f"{name} {found[name]}" for name in SHOWN[environment.backend] if name in found]
    python = call(environment.executable("python"), "-c", "import sys; print('Python %d.%d' % sys.version_info[:2])")
    return ", ".join([python.strip(), *shown])


def run_suite(environment: Environment) -> str:
    """Run the suite; return how it went, `"263 passed"` say."""
    # pytest imports a file that is named, although tests/conftest.py leaves it out.
    paths = [path for path in PATHS if environment.backend == "jax" or "test_jax_" not in path]
    # What other versions warn of is no failure.
    command = (
        environment.executable("pytest"),
        *paths,
        "--tier=short",
        "-q",
        "-W",
        "ignore",
        "-p",
        "no:cacheprovider",
    )
    settings = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **variables(f"versions-{environment.backend}")}
    if environment.backend == "keras2" and environment.alone:  # TensorFlow 2.15 has it anyway
        settings["TF_USE_LEGACY_KERAS"] = "1"
    done = subprocess.run(
        [str(part) for part in command], cwd=ROOT, env=settings, capture_output=True, text=True, check=False
    )
    write_log(environment, done.stdout + done.stderr)
    counts = re.search(r"(?:\d+ \w+, )*\d+ \w+ in [\d.]+s", done.stdout)
    return re.sub(r"(, \d+ (deselected|skipped))| in .*", "", counts[0]) if counts else "it does not start"


def write_log(environment: Environment, text: str) -> None:
    """Keep what was printed."""
    LOGS.mkdir(parents=True, exist_ok=True)
    (LOGS / f"{environment.name}.txt").write_text(text, encoding="utf-8")


def call(*command: str | Path) -> str:
    """Run a command in the root of the project and return what it prints.

    Raises:
        CommandError: With what it printed.
    """
    done = subprocess.run([str(part) for part in command], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CommandError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
