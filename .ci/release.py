"""What a release needs to be ready, and what its tag and its page say.

python .ci/release.py check             # the version stands everywhere, and is the same
python .ci/release.py check --final     # that, and nothing says that it is not released yet
python .ci/release.py notes             # the text of the tag, and of the release on GitHub
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[1]


def read(name: str) -> str:
    """Return the text of a file of the project."""
    return (ROOT / name).read_text(encoding="utf-8")


def version() -> str:
    """Return the version of the package."""
    return re.findall(r'^__version__ = "(.*)"$', read("keras_tpu_ext/__init__.py"), re.MULTILINE)[0]


def section(text: str) -> tuple[str, str]:
    """Return the heading and the text of the newest version in the changelog."""
    found = re.search(r"^## (\[[^\n]*)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return (found[1], found[2]) if found else ("", "")


def missing(*, final: bool) -> Iterator[str]:
    """Yield what must still be done."""
    heading, _ = section(read("CHANGELOG.md"))
    if not heading.startswith(f"[{version()}], "):
        yield f"CHANGELOG.md begins with {heading!r}, and the version is {version()}"
    if f"\nversion: {version()}\n" not in read("CITATION.cff"):
        yield f"CITATION.cff has another version than {version()}"
    if final:
        project = tomllib.loads(read("pyproject.toml"))
        if not re.search(r"\d{4}-\d\d-\d\d$", heading):
            yield f"CHANGELOG.md has no date at {heading!r}"
        if "urls" not in project["project"]:
            yield "pyproject.toml has no [project.urls]"
        if not project["tool"]["keras_tpu_ext"]["on_pypi"]:
            yield "pyproject.toml has on_pypi = false: README.md and docs/ do not say `pip install keras-tpu-ext`"


def notes() -> str:
    """Return the title, what the changelog says first of this version, and what breaks."""
    _, text = section(read("CHANGELOG.md"))
    parts = re.split(r"^(?=### )", text, flags=re.MULTILINE)
    shown = [part for part in parts if not part.startswith("### ") or part.startswith("### Breaking")]
    return f"keras_tpu_ext {version()}\n{''.join(shown).rstrip()}\n\nAll changes are in CHANGELOG.md."


def main() -> int:
    """Check, or print the notes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("check", "notes"))
    parser.add_argument("--final", action="store_true")
    options = parser.parse_args()
    if options.what == "notes":
        print(notes())
        return 0
    undone = list(missing(final=options.final))
    print("\n".join(undone or [f"{version()}: ready" if options.final else f"{version()}"]))
    return int(bool(undone))


if __name__ == "__main__":
    sys.exit(main())
