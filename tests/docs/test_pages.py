"""The code on the site: the blocks of a page, one after the other, are a program that runs as pasted.

A block marked `python` runs. One marked `py` cannot run here, because it needs a TPU or several hosts; it is compiled
only. A page that needs one backend says so in a comment, `% runs on: keras3_tf`; the others run on both.
"""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from kind_of_keras import RUNTIMES

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [path.relative_to(DOCS).as_posix() for path in sorted(DOCS.rglob("*.md"))]

pytestmark = pytest.mark.runtimes("keras3_tf", "keras3_jax", reason="the pages are about Keras 3")


def blocks(page, language):
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def runtimes(page):
    found = re.search(r"^% runs on: (.+)$", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE)
    return found[1].split() if found else ["keras3_tf", "keras3_jax"]


def parameters():
    for page in PAGES:
        if blocks(page, "python"):
            yield pytest.param(page, marks=pytest.mark.runtimes(*runtimes(page)))


@pytest.mark.exhaustive  # test_readme.py runs such a block in the gate
@pytest.mark.parametrize("page", list(parameters()))
def test_the_blocks_of_a_page_run(page, tmp_path):
    program = tmp_path / "page.py"
    program.write_text("\n".join(blocks(page, "python")), encoding="utf-8")
    environ = {**os.environ, "PYTHONPATH": str(DOCS.parent)}
    done = subprocess.run(
        [sys.executable, str(program)], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.gate_on("keras3_jax")
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "py")])
def test_what_cannot_run_here_is_python(page):
    for block in blocks(page, "py"):
        compile(block, page, "exec")


@pytest.mark.gate_on("keras3_jax")
@pytest.mark.parametrize("page", PAGES)
def test_code_and_reports_fit_the_page(page):
    """So many columns fit on a desktop and a tablet (docs/_static/site.css)."""
    code = re.findall(r"^```\w+\n(.*?)^```$", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert not [line for block in code for line in block.splitlines() if len(line) > 88]


@pytest.mark.gate_on("keras3_jax")
@pytest.mark.parametrize("page", PAGES)
def test_headings_stand_alone_and_code_is_in_blocks(page):
    text = re.sub(r"^```.*?^```$", "", (DOCS / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert not re.findall(r"[^\n]\n#+ .*", text)
    assert not re.findall(r"^(?:import|from \w+ import|print\().*", text, re.MULTILINE)


@pytest.mark.gate_on("keras3_jax")
def test_pages_name_runtimes_that_there_are():
    assert {name for page in PAGES for name in runtimes(page)} <= {"keras3_tf", "keras3_jax"}
    assert "keras3_jax" in RUNTIMES or "keras3_tf" in RUNTIMES


@pytest.mark.gate_on("keras3_jax")
def test_one_page_says_how_to_get_this_package():
    """It is not on PyPI: what tells to install it from there must fail."""
    root = DOCS.parent
    files = [path for folder in ("keras_tpu_ext", "docs", "examples") for path in (root / folder).rglob("*.*")]
    texts = {
        path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
        for path in [*files, root / "README.md"]
        if path.suffix in (".py", ".md", ".ipynb")
    }
    wrong = [name for name, text in texts.items() if re.search(r"pip install[^\n`#]*keras[-_]tpu[-_]ext", text)]
    if "\non_pypi = true\n" in (root / "pyproject.toml").read_text(encoding="utf-8"):
        assert sorted(wrong) == ["README.md", "docs/quickstart.md"]
        return
    assert not wrong
    assert "not on PyPI" in texts["docs/quickstart.md"]
    assert "not on PyPI" in texts["README.md"]


@pytest.mark.gate_on("keras3_jax")
def test_llms_txt_has_the_pages_of_the_sidebar():
    made = runpy.run_path(str(DOCS / "conf.py"))["llms_txt"](DOCS)
    pages = re.findall(r"^- \[.+?\]\((.+?)\.html\)", made, re.MULTILINE)
    assert {"quickstart", "tpus", "tools/preflight", "api/index", "architecture"} <= set(pages)
    assert all((DOCS / f"{page}.md").is_file() for page in pages)
    assert "](quickstart.html): Train a model on eight replicas" in made
    assert made.startswith("# keras_tpu_ext\n\n> Train your Keras model")
