"""Scripts and notebooks as one text, and back: encodings, magics, cells of other languages."""

import json

import pytest

from keras_tpu_ext.errors import ArgumentError
from keras_tpu_ext.tools.migrate.program import Place, Program

pytestmark = pytest.mark.gate_on("keras3_jax")


def notebook(*sources, minor=4, **more):
    cells = [
        {"cell_type": "code", "metadata": {}, "execution_count": 3, "outputs": [{"x": 1}], "source": source}
        for source in sources
    ]
    return {"nbformat": 4, "nbformat_minor": minor, "metadata": {"kernelspec": {}}, "cells": cells, **more}


def read(path, content):
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return Program(path, path.read_bytes())


def written(program, text=None, header="import a\n"):
    return json.loads(program.render(program.text if text is None else text, header))


@pytest.mark.parametrize(
    "content",
    [
        b"x = 1\n",
        b"x = 1",
        b"",
        b"x = 1\r\ny = 2\r\n",
        "\ufeffx = 'é'\n".encode(),
        "# -*- coding: latin-1 -*-\nx = 'é'\n".encode("latin-1"),
        "x = '日本'\n".encode(),
    ],
)
def test_what_is_not_changed_is_written_as_it_was(content, tmp_path):
    program = read(tmp_path / "a.py", content)
    header = "import a\n"
    made = program.render(program.text, header)
    assert made.replace(header.encode().replace(b"\n", program.newline.encode()), b"") == content
    compile(made, "a.py", "exec")


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        ("", "x = 1\n"),
        ('"""Text\nof two lines."""\n', "x = 1\n"),
        ("#!/usr/bin/env python\n# coding: utf-8\n", "x = 1\n"),
        ("# A comment\n'''Text.'''\nfrom __future__ import annotations\n", "import b\n"),
    ],
)
def test_new_lines_come_behind_what_must_be_first(before, behind, tmp_path):
    program = read(tmp_path / "a.py", (before + behind).encode())
    assert program.render(program.text, "import a\n").decode() == f"{before}import a\n{behind}"


@pytest.mark.parametrize("content", [b"x = '\xff'\n", b"# coding: klingon\n"])
def test_a_file_that_is_no_text_is_told(content, tmp_path):
    with pytest.raises(ArgumentError, match=r"a.py is no text that Python can read: .* Save it as UTF-8\."):
        read(tmp_path / "a.py", content)


MAGICS = [
    '!pip install -q efficientnet "it\'s"',
    "%matplotlib inline",
    "    !ls {folder}",
    "files = !ls",
    "start = %time 1 + 1",
    "tf.data?",
    "?tf.data",
    "%%time",
]


@pytest.mark.parametrize("magic", MAGICS)
def test_magics_survive(magic, tmp_path):
    source = f"{magic}\nif True:\n{magic if magic[0] == ' ' else '    pass'}\nx = 1\n"
    program = read(tmp_path / "a.ipynb", notebook(source))
    assert written(program)["cells"][1]["source"] == [*source.splitlines(keepends=True)[:-1], "x = 1"]
    assert magic.split("=")[-1].strip() not in program.text
    import libcst

    if magic[0] != " ":
        libcst.parse_module(program.text)


@pytest.mark.parametrize(
    "source",
    [
        'text = """\n!pip\n%time\n"""',
        "x = ('%d'\n% 3)",
        "x = 7 \\\n% 3",
        "x = [1,  # a bracket [\n!= 3]",
        'y = \'a """ b\'\nz = f(y)',
    ],
)
def test_what_only_looks_like_a_magic_is_python(source, tmp_path):
    assert read(tmp_path / "a.ipynb", notebook(source)).text == f"_kte_cell_0_\n{source}\n"


@pytest.mark.parametrize("first", ["%%bash", "%%writefile a.py", "%%html"])
def test_cells_of_other_languages_are_left_alone(first, tmp_path):
    source = f"{first}\n$x = ((("
    program = read(tmp_path / "a.ipynb", notebook("x = 1", source, "y = 2"))
    assert "$x" not in program.text
    assert written(program)["cells"][2]["source"] == source
    assert program.place(program.text.splitlines().index("y = 2") + 1) == Place(1, 3)


def test_a_notebook_keeps_its_cells_and_loses_its_outputs(tmp_path):
    old = notebook(["a = 1\n", "b = 2"], "", "c = 3", minor=5)
    old["cells"].insert(1, {"cell_type": "markdown", "metadata": {}, "source": ["# Title"]})
    program = read(tmp_path / "a.ipynb", old)
    new = written(program, program.text.replace("b = 2", "b = 4\nd = 5"))
    assert [cell["source"] for cell in new["cells"]] == [
        ["import a"],
        ["a = 1\n", "b = 4\n", "d = 5"],
        ["# Title"],
        "",
        ["c = 3"],
    ]
    assert all(not cell.get("outputs") for cell in new["cells"])
    assert new["cells"][0]["id"] == "keras-tpu-ext-migrate"
    assert new["metadata"] == old["metadata"]


def test_a_place_is_a_line_of_a_cell(tmp_path):
    program = read(tmp_path / "a.ipynb", notebook("a = 1\nb = 2", "c = 3"))
    lines = program.text.splitlines()
    assert str(program.place(lines.index("b = 2") + 1)) == "cell 1, line 2"
    assert str(program.place(lines.index("c = 3") + 1)) == "cell 2, line 1"


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"worksheets": []}', b'{"cells": [{}]}'])
def test_what_is_no_notebook_is_told(content, tmp_path):
    with pytest.raises(ArgumentError, match=r"is no notebook of nbformat 4 \(.*Write: jupyter nbconvert"):
        read(tmp_path / "a.ipynb", content)


@pytest.mark.parametrize(
    ("line", "is_pin"),
    [
        ("!pip install -q tensorflow==2.3", True),
        ("%pip install keras", True),
        ("!pip3 install --upgrade 'jax[tpu]'", True),
        ("    !pip uninstall -y tensorflow && pip install tf-nightly", True),
        ("!pip install tensorflow-addons", False),
        ("!pip install keras_hub", False),
        ("!pip install efficientnet", False),
        ("!ls tensorflow", False),
    ],
)
def test_a_line_that_replaces_the_framework_becomes_a_comment(line, is_pin, tmp_path):
    program = read(tmp_path / "a.ipynb", notebook(f"if True:\n    y = 1\n{line}\nx = 1" if line[0] == " " else line))
    source = "".join(written(program)["cells"][1]["source"])
    assert program.pins == ([line.strip()] if is_pin else [])
    assert (f"pass  # {line.strip()}" in source) == is_pin
    assert line.strip() in source
