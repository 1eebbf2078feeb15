"""Run the tests of files, in the environments that these tests are about; `make test-of FILE=...` calls it.

    python tests/support/tests_of.py keras_tpu_ext/callbacks/throughput.py ... [--on keras3-jax] [--list] [-- ...]

The tests of a file are those that have its name (`test_throughput*.py`, in the folder of the same name), that import
it, and that are to catch the faults that tests/faults puts into it. Where there are none, they are those that use one
of its public names, then those of the modules that import it, and then all of its room. A test itself, and a module
of tests/support, may be asked for, too.
"""

from __future__ import annotations

import argparse
import ast
import functools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "faults"))

import marks
from environments import ROOT, Environment, environments, for_all
from faults import FAULTS

PACKAGE = "keras_tpu_ext"
TESTS = ROOT / "tests"
# pytest's exit statuses: all passed; none of these tests is in the gate of this environment.
GOOD = (0, 5)


def main() -> int:
    """Say what is run, run it, and return 1 where a test fails or nothing was run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="+", help="of the package, or of the tests")
    parser.add_argument("--on", action="append", choices=environments(), metavar="ENVIRONMENT", help="all by default")
    parser.add_argument("--list", action="store_true", help="say what would be run, and run nothing")
    arguments = sys.argv[1:]
    end = arguments.index("--") if "--" in arguments else len(arguments)
    for_pytest = arguments[end + 1 :]
    asked = parser.parse_args(arguments[:end])
    tests: dict[Path, dict[str, str]] = {}
    for named in asked.file:
        file = named.resolve()
        if not file.is_file() or not file.is_relative_to(ROOT) or file.suffix != ".py":
            parser.error(
                f"{named} is no Python file of this project: write keras_tpu_ext/callbacks/throughput.py, say"
            )
        tests[file] = tests_of(file)
        for test, reason in tests[file].items():
            print(f"{test}: {reason}")
        if not tests[file]:
            print(f"no test has the name of {named}, imports it or uses what it defines: see docs/tests.md")
    statuses = []
    for name, environment in environments().items():
        of_files = [test for file in tests if is_about(environment, file) for test in tests[file]]
        here = [test for test in dict.fromkeys(of_files) if runs_in(environment, test)]
        if not here or name not in (asked.on or [name]):
            continue
        if not environment.python.exists():
            print(f"{name}: NOT RUN, its environment is not there: make .envs/{environment.folder.name}/.ready")
            continue
        print(f"{name}: {' '.join(here)}", flush=True)
        if not asked.list:
            environ = {**os.environ, **for_all(), **environment.variables}
            command = [environment.python, "-m", "pytest", "-q", *for_pytest, *here]
            statuses.append(subprocess.run(command, cwd=ROOT, env=environ, check=False).returncode)
    return int(not all(tests.values()) or any(status not in GOOD for status in statuses))


def tests_of(file: Path) -> dict[str, str]:
    """Return the tests of a file, each with the reason why it is one of them."""
    room = f"tests/{'/'.join(file.relative_to(ROOT).parts[1:2])}/"
    return _found(file, frozenset()) or {test: "it is of its room" for test in _all() if test.startswith(room)}


def _found(file: Path, passed: frozenset[str]) -> dict[str, str]:
    """Return the tests of a file; files that were `passed` are not looked at again."""
    path = file.relative_to(ROOT)
    if path.parts[0] == "tests":
        if file.name.startswith("test_"):
            return {str(path): "it was asked for"}
        return {test: f"it imports {file.stem}" for test in _all() if file.stem in _imports(test)}
    tests = {test: "it imports it" for test in _all() if _module(path) in _imports(test)}
    mirrored = [test for test in _all() if _has_name_of(test, path) and _is_mirrored(test, path)]
    elsewhere = [test for test in _all() if _has_name_of(test, path, exactly=True)]
    tests |= dict.fromkeys(mirrored or elsewhere, "it has its name")
    of_faults = dict(_of_faults(path))
    tests |= {test: f"it is to catch {fault}" for test, fault in of_faults.items() if test not in tests}
    tests = {test: reason for test, reason in tests.items() if "::" not in test or test.split("::")[0] not in tests}
    if not tests:
        used = _uses(file)
        tests = {test: f"it uses {found[0]}" for test in _all() if (found := used.search(_text(test)))}
    if not tests:
        passed = passed | {str(path)}
        users = [one for one in _package() if one not in passed and _module(path) in _imports(one)]
        of_users = ((user, test) for user in users for test in _found(ROOT / user, passed))
        tests = {test: f"a test of {user}, which imports it" for user, test in of_users}
    return tests


def runs_in(environment: Environment, test: str) -> bool:
    """Return whether an environment is one for a test."""
    path = test.split("::")[0]
    about = marks.of_file(ROOT / path)
    if about is not None and not about & environment.marks:
        return False
    if environment.tests:
        return path.startswith(environment.tests)
    others = [folder for one in environments().values() for folder in one.tests if (ROOT / folder).is_dir()]
    return not path.startswith(tuple(others))


def is_about(environment: Environment, file: Path) -> bool:
    """Return whether what is in a file runs in an environment: the rooms of `_runtime` have the names of prefixes."""
    parts = file.relative_to(ROOT).parts
    room = parts[2] if parts[:2] == (PACKAGE, "_runtime") else ""
    return bool(marks.PREFIXES.get(room, environment.marks) & environment.marks)


def _has_name_of(test: str, path: Path, *, exactly: bool = False) -> bool:
    """Return whether a test has a module's name, or one that begins so."""
    stem = (path.parent.name if path.stem == "__init__" else path.stem).lstrip("_")
    words = Path(test).stem.removeprefix("test_")
    names = {words, *(words.removeprefix(f"{prefix}_") for prefix in marks.PREFIXES)}
    return stem in names or (not exactly and any(name.startswith(f"{stem}_") for name in names))


def _is_mirrored(test: str, path: Path) -> bool:
    """Return whether a test lies in the folder of a module's room, or the room has none."""
    room = path.parts[1] if len(path.parts) > 2 else ""
    return not (TESTS / room).is_dir() or test.startswith(f"tests/{room}/")


def _of_faults(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the tests that are to catch the faults of a module, each with the fault's name."""
    for fault in FAULTS:
        if Path(PACKAGE, fault.path) == path:
            yield from ((test, fault.name) for test in fault.first if (ROOT / test.split("::")[0]).is_file())


def _uses(file: Path) -> re.Pattern[str]:
    """Return what finds a use of the public names that a module defines."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    body = ast.parse(file.read_text(encoding="utf-8")).body
    names = [one.name for one in body if isinstance(one, kinds) and not one.name.startswith("_")]
    return re.compile(rf"\b(?:{'|'.join(names)})\b" if names else r"(?!)")


def _module(path: Path) -> str:
    """Return a module's name."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def _all() -> tuple[str, ...]:
    """Return the paths of all test files."""
    return tuple(sorted(str(path.relative_to(ROOT)) for path in TESTS.rglob("test_*.py")))


@functools.cache
def _package() -> tuple[str, ...]:
    """Return the paths of all files of the package."""
    return tuple(sorted(str(path.relative_to(ROOT)) for path in (ROOT / PACKAGE).rglob("*.py")))


@functools.cache
def _text(test: str) -> str:
    return (ROOT / test).read_text(encoding="utf-8")


@functools.cache
def _imports(test: str) -> frozenset[str]:
    """Return the modules that a test imports, and those that it names in a text, for `monkeypatch` say."""
    found = set(re.findall(rf"\b{PACKAGE}(?:\.\w+)+", _text(test)))
    for statement in ast.walk(ast.parse(_text(test))):
        if isinstance(statement, ast.Import):
            found |= {alias.name for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom) and statement.module:
            found |= {statement.module, *(f"{statement.module}.{alias.name}" for alias in statement.names)}
    return frozenset(found)


if __name__ == "__main__":
    sys.exit(main())
