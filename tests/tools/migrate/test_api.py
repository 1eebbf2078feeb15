"""`migrate` as a function and as a command: files, errors, reports."""

import json
import subprocess
import sys

import pytest

from keras_tpu_ext import cli
from keras_tpu_ext.errors import ArgumentError, MissingExtraError
from keras_tpu_ext.tools.migrate import migrate
from keras_tpu_ext_command import main
from tools.migrate.migrating import migrated

pytestmark = pytest.mark.gate_on("keras3_jax")

OLD = "from keras.optimizers import Adam\no = Adam(lr=1)\nx = 1\n"


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "x = 1"])
def test_a_program_in_which_nothing_is_old(text, tmp_path):
    report, made = migrated(text, tmp_path)
    assert report.findings == ()
    assert report.ok
    assert made.endswith(text)


def test_nothing_is_written_unless_asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.py"
    path.write_text(OLD)
    assert str(migrate("a.py")).splitlines() == [
        "a.py: 2 lines run as they are; 1 name mapped",
        "  line 2: lr= -> learning_rate=",
    ]
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_is_there_is_kept(tmp_path):
    path = tmp_path / "a.py"
    path.write_text(OLD)
    other = tmp_path / "a.modern.py"
    other.write_text("mine")
    with pytest.raises(ArgumentError, match=r"a\.modern\.py is there already\. Remove it, or name another file"):
        migrate(path, write=True)
    assert other.read_text() == "mine"
    with pytest.raises(ArgumentError, match="is there already"):
        migrate(path, write=True, output=path, overwrite=True)
    assert migrate(path, write=True, overwrite=True).written == str(other)
    assert "learning_rate" in other.read_text()


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("a.txt", {}, r"migrate reads a script \(.py\) or a notebook \(.ipynb\); got 'a.txt'"),
        ("a.py", {"output": "b.py"}, "Write write=True as well"),
        ("a.py", {"output": "b.ipynb", "write": True}, "migrate writes what it reads, a .py file"),
        ("a.py", {"output": "/nowhere/b.py", "write": True}, "there is no folder /nowhere"),
    ],
)
def test_a_wrong_call_is_told(name, options, text, tmp_path):
    path = tmp_path / name
    path.write_text(OLD)
    with pytest.raises(ArgumentError, match=text):
        migrate(path, **options)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\ny = f(  # open\nz = 3\n", r"line 2 is no Python 3: `y = f\(  # open`"),
        ("x = 1\nprint 'a'\n", r"line 2 is no Python 3: `print 'a'`\. In Python 3, print is a function"),
        ("x = 1\nif x\n    y = 2\n", "line 2 is no Python 3: `if x`"),
    ],
)
def test_what_is_no_python_3_is_told_with_its_line(text, said, tmp_path):
    path = tmp_path / "a.py"
    path.write_text(text)
    with pytest.raises(ArgumentError, match=said):
        migrate(path)


def test_the_cell_of_an_error_is_told(tmp_path):
    path = tmp_path / "a.ipynb"
    cells = [{"cell_type": "code", "source": text} for text in ("x = 1", "y = 2\nprint y")]
    path.write_text(json.dumps({"nbformat": 4, "cells": cells}))
    with pytest.raises(ArgumentError, match="cell 2, line 2 is no Python 3: `print y`"):
        migrate(path)


def test_a_notebook_keeps_its_magics(tmp_path):
    cells = [
        {"cell_type": "code", "source": "!pip install -q efficientnet\nimport tensorflow as tf\n%matplotlib inline"},
        {"cell_type": "code", "source": "%%bash\nls | wc"},
        {"cell_type": "code", "source": "%%time\no = tf.keras.optimizers.Adam(lr=1)"},
    ]
    report, made = migrated(json.dumps({"nbformat": 4, "nbformat_minor": 4, "cells": cells}), tmp_path, "a.ipynb")
    sources = ["".join(cell["source"]) for cell in json.loads(made)["cells"]]
    assert [str(one.place) for one in report.findings] == ["cell 3, line 2"]
    assert sources[0].splitlines()[:3] == ["import os", "", 'os.environ["KERAS_BACKEND"] = "jax"']
    assert sources[1:] == [
        "!pip install -q efficientnet\n%matplotlib inline",
        "%%bash\nls | wc",
        "%%time\no = keras.optimizers.Adam(learning_rate=1)",
    ]


def test_the_command_prints_the_report(tmp_path, capsys):
    path = tmp_path / "a.py"
    path.write_text(OLD)
    assert main(["migrate", str(path)]) == 0
    assert "line 2: lr= -> learning_rate=" in capsys.readouterr().out
    assert main(["migrate", str(path), "--json", "--output", str(tmp_path / "b.py")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["findings"] == [
        {"line": 2, "cell": None, "kind": "mapped", "old": "lr=", "text": "learning_rate=", "on_dropin": False}
    ]
    assert (told["ok"], told["lines"], told["run"]) == (True, 3, 2)
    assert (tmp_path / "b.py").exists()


def test_the_command_fails_where_something_is_out_of_reach(tmp_path, capsys):
    path = tmp_path / "a.py"
    path.write_text("import tensorflow_hub as hub\n")
    assert main(["migrate", str(path)]) == 1
    assert "is out of reach" in capsys.readouterr().out
    assert main(["migrate", str(tmp_path / "none.py")]) == 2
    assert "none.py" in capsys.readouterr().err


def test_without_libcst_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "libcst", None)
    path = tmp_path / "a.py"
    path.write_text(OLD)
    with pytest.raises(MissingExtraError, match=r"Write: pip install 'libcst>=1\.1'"):
        migrate(path)


def test_the_tables_need_no_framework():
    code = (
        "import sys, types; package = types.ModuleType('keras_tpu_ext'); "
        f"package.__path__ = [{str(cli.__file__.rpartition('/')[0])!r}]; sys.modules['keras_tpu_ext'] = package; "
        "import keras_tpu_ext.tools.migrate.rewriting; "
        "assert not {'keras', 'tensorflow', 'jax', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_line_that_would_replace_the_framework_is_told(tmp_path):
    cell = {"cell_type": "code", "metadata": {}, "execution_count": 1, "outputs": []}
    cells = [{**cell, "source": "!pip install tensorflow==2.3"}, {**cell, "source": "x = 1"}]
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps({"nbformat": 4, "nbformat_minor": 4, "metadata": {}, "cells": cells}))
    report = migrate(path, write=True)
    assert report.ok
    assert report.notes == (
        "Leave out: !pip install tensorflow==2.3 It replaces what fits the TPU of today's images. The written "
        "program has it as a comment.",
    )
    written = json.loads((tmp_path / "a.modern.ipynb").read_text())
    assert "pass  # !pip install tensorflow==2.3" in ["".join(one["source"]) for one in written["cells"]]
