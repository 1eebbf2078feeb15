"""Every public name of TensorFlow Addons under `TPUModel`, and that docs/addons.md says what is found.

`KTE_WRITE_TABLE=1 pytest tests/addons` writes the column of the TensorFlow at hand instead.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys

import pytest
import tensorflow as tf

if importlib.util.find_spec("tensorflow_addons") is None:
    pytest.skip("TensorFlow Addons is not installed", allow_module_level=True)

from addons import table
from addons.callbacks import CALLBACKS
from addons.layers import LAYERS
from addons.losses import LOSSES
from addons.metrics import METRICS
from addons.optimizers import OPTIMIZERS
from addons.tensorflow_addons_here import tfa
from addons.trial import difference

COLUMN = "TF " + ".".join(tf.__version__.split(".")[:2])
TRIALS = {
    "optimizers": OPTIMIZERS,
    "losses": LOSSES,
    "metrics": METRICS,
    "layers": LAYERS,
    "callbacks": CALLBACKS,
}
NAMES = [
    (module, name)
    for module in TRIALS
    for name, value in inspect.getmembers(getattr(tfa, module))
    if not name.startswith("_") and not inspect.ismodule(value)
]
FOUND: dict[str, dict[str, table.Verdict]] = {module: {} for module in TRIALS}

pytestmark = [
    pytest.mark.runtimes("keras2_tf"),
    pytest.mark.exhaustive,
    pytest.mark.skipif(COLUMN not in table.COLUMNS, reason=f"docs/addons.md has no column {COLUMN}"),
    # TensorFlow Addons on what has moved into TensorFlow, on its compiled ops, and its own seeds.
    pytest.mark.filterwarnings("ignore:gelu activation has been migrated to core TensorFlow:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`MultiHeadAttention` will be deprecated in Addons 0.13:DeprecationWarning"),
    pytest.mark.filterwarnings(
        "ignore:You are currently using TensorFlow .* and trying to load a custom op:UserWarning"
    ),
    pytest.mark.filterwarnings("ignore:The initializer .* is unseeded and being called multiple times:UserWarning"),
]


@pytest.fixture(autouse=True)
def keras_by_its_name(monkeypatch):
    """Let TensorFlow find the package `keras`, whose version it reads, where other tests mean `tf.keras` by it."""
    monkeypatch.delitem(sys.modules, "keras")


def verdict(module: str, name: str) -> table.Verdict:
    """Try `name` in every way that is noted for it."""
    found = [(trial, difference(trial)) for trial in TRIALS[module][name]]
    print(name, [off or "agrees" for _, off in found])
    notes = tuple(trial.otherwise or off for trial, off in found if off)
    if not notes:
        return table.Verdict(table.WORKS)
    return table.Verdict(table.DOES_NOT if len(notes) == len(found) else table.WITH_A_NOTE, notes)


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_the_table_says_what_is_found(module, name):
    if name == "TQDMProgressBar":
        pytest.importorskip("tqdm")
    found = verdict(module, name)
    if os.environ.get("KTE_WRITE_TABLE"):
        FOUND[module][name] = found
        if len(FOUND[module]) == len(TRIALS[module]):
            table.write(COLUMN, module, FOUND[module])
        return
    said = table.read()[module][name][COLUMN]
    assert said == found, "docs/addons.md says something else; KTE_WRITE_TABLE=1 writes what is found"


def test_the_table_has_these_names_and_no_other():
    written = {(module, name) for module, rows in table.read().items() for name in rows}
    assert written == set(NAMES) == {(module, name) for module, trials in TRIALS.items() for name in trials}


def test_a_note_that_is_about_one_column_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "PAGE", tmp_path / "page.md")
    table.PAGE.write_text("# x\n\n## `tfa.layers`\n\n## `tfa.losses`\n\nend\n")
    both, one = table.Verdict(table.DOES_NOT, ("Why.", "Here.")), table.Verdict(table.DOES_NOT, ("Why.",))
    table.write("TF 2.15", "layers", {"A": both, "B": table.Verdict(table.WORKS)})
    table.write("TF 2.21", "layers", {"A": one, "B": table.Verdict(table.WORKS)})
    assert (
        "| `A` | does not | does not | Why.<br>TF 2.15: Here. |\n| `B` | works | works | |\n"
        in table.PAGE.read_text()
    )
    assert table.PAGE.read_text().endswith("\n## `tfa.losses`\n\nend\n")
    assert table.read()["layers"]["A"] == {"TF 2.15": both, "TF 2.21": one}
