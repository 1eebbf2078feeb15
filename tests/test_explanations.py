"""Each error and warning has a code, and `keras-tpu-ext explain` says what it means."""

import ast
import copy
import importlib.util
import os
import pickle
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import keras_tpu_ext as kte
import keras_tpu_ext_command as command
from keras_tpu_ext import errors
from keras_tpu_ext_command import explanations

PACKAGE = Path(kte.__file__).parent
# These say what Keras and TensorFlow Addons say there.
OF_OTHERS = {"_runtime/tensorflow/program.py", "dropin/stand_ins/addons_averaging.py"}

pytestmark = pytest.mark.gate_on("keras3_jax")


def classes():
    """Return the names of the classes of errors and warnings, as the source has them."""
    for path in (PACKAGE / "errors.py", PACKAGE / "dropin" / "errors.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name


def test_each_class_has_a_section_and_each_section_a_message_or_a_class():
    sections = [one for one in explanations.explanations().values() if not one.messages]
    assert sorted(one.text.split(". ")[0].strip("`") for one in sections) == sorted(classes())


def test_codes_are_unique_and_no_quote_is_one_of_another_section():
    page = explanations._PAGE.read_text(encoding="utf-8")
    known = explanations.explanations()
    assert re.findall("^### (KTE.*?):", page, re.MULTILINE) == [*list(known)[27:], *list(known)[:27]]
    for code, one in known.items():
        quotes = re.findall(r"^```text\n(.*?)^```", one.text, re.MULTILINE | re.DOTALL)
        assert [explanations.code_of([], " ".join(quote.split())) for quote in quotes] == [code] * len(one.messages)


def test_errors_of_this_package_are_raised_and_warned_with_these_classes():
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "warnings.warn":
                where = path.relative_to(PACKAGE).as_posix()
                assert len(node.args) > 1 or where in OF_OTHERS, f"{where}:{node.lineno}: a warning without a class"


def test_a_message_that_is_explained_has_its_own_code():
    with pytest.raises(errors.HardwareNotFoundError) as missing:
        kte.strategy_scope(require="gpu", tpu=False)
    with pytest.raises(errors.ArgumentError) as invalid:
        kte.strategy_scope(require="all")
    assert (missing.value.code, invalid.value.code) == ("KTE201", "KTE008")
    scaled = errors.ArgumentError("loss_scale=8 was given, and the optimizer scales the loss too (it)")
    assert scaled.code == "KTE303"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="notes came with Python 3.11")
def test_the_code_is_below_the_traceback():
    error = errors.ScopeError("too late")
    for one in (error, pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert one.__notes__ == ["[KTE006] keras-tpu-ext explain KTE006"]
        assert str(one) == "too late"


def test_the_code_is_at_the_end_of_a_warning():
    with pytest.warns(errors.KteWarning) as told:
        warnings.warn("AutoResume: something.", errors.ResumeWarning, stacklevel=1)
    assert str(told[0].message) == "AutoResume: something. [KTE025]"


def test_explain_lists_all_codes_with_their_titles(capsys):
    assert command.main(["explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(explanations.explanations())
    assert "KTE303  The loss would be scaled twice" in lines


@pytest.mark.parametrize("code", ["KTE303", "kte303", "[KTE303]"])
def test_explain_prints_a_section(capsys, code):
    assert command.main(["explain", code]) == 0
    assert "Pass the inner optimizer, and let `compile` do the scaling." in capsys.readouterr().out


def test_explain_knows_the_classes_that_have_a_code(capsys):
    assert command.main(["explain", "CompiledFileWarning"]) == 0
    assert capsys.readouterr().out.startswith("KTE027: A compiled file for another machine\n")


def test_explain_takes_the_number_alone(capsys):
    assert command.main(["explain", "16"]) == 0
    assert capsys.readouterr().out.startswith("KTE016: A checkpoint")


def test_explain_names_the_nearest_code(capsys):
    assert command.main(["explain", "KTE3033"]) == 2
    told = capsys.readouterr()
    assert told.err == (
        "there is no code KTE3033; the nearest is KTE303. To list all, write: keras-tpu-ext explain\n"
    )
    assert told.out == ""


def test_its_help_has_an_example_that_works(capsys):
    with pytest.raises(SystemExit):
        command.main(["explain", "--help"])
    (example,) = re.findall("Example: keras-tpu-ext (explain KTE.*)", capsys.readouterr().out)
    assert command.main(example.split()) == 0


def test_nothing_is_imported_for_it():
    program = (
        "import sys, keras_tpu_ext_command as command; status = command.main(['explain', 'KTE303']);"
        "assert not {'numpy', 'keras', 'jax', 'tensorflow', 'keras_tpu_ext'} & set(sys.modules); sys.exit(status)"
    )
    root = Path(importlib.util.find_spec("keras_tpu_ext_command").origin).parents[1]
    subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(root)}, check=True)
