"""Measurements on real TPUs, next to preflight's estimates; `benchmarks/published_steps.py` writes the file."""

from __future__ import annotations

import functools
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple, get_args

from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.output.display import counted
from keras_tpu_ext.preflight._hlo.timeline import Correction, Corrections, Line

FILE = Path(__file__).with_name("published.json")
NAMES: tuple[Correction, ...] = get_args(Correction)


class Published(NamedTuple):
    """Published measurements on a generation, compared with estimates."""

    lowest: float  # the lowest ratio of measured to estimated time, at most 1
    highest: float  # the highest, at least 1
    what: str  # what was measured, such as `"3 training steps"`


@functools.cache
def _data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(FILE.read_text())
    return data


def wanted_corrections(corrections: bool | Collection[str]) -> tuple[Correction, ...]:
    """Return the names of the corrections that an argument of `preflight` requests."""
    if isinstance(corrections, bool):
        return NAMES if corrections else ()
    names = None if isinstance(corrections, str) or not isinstance(corrections, Collection) else set(corrections)
    if names is None or not names.issubset(NAMES):
        needed = f"True, False, or a collection of names among {', '.join(map(repr, NAMES))}"
        write = f'corrections=["{NAMES[0]}"]'
        raise check.argument_error("preflight", "corrections", needed, repr(corrections), write)
    return tuple(name for name in NAMES if name in names)


def corrections_for(generation: str, names: Collection[Correction]) -> Corrections:
    """Return the corrections among `names` that are for a generation."""
    found = _data()["corrections"].get(generation, {})
    return {name: Line(**found[name]) for name in names if name in found}


def published_for(generation: str | None, names: Collection[Correction]) -> Published | None:
    """Return measurements on a generation, of training steps if there are any; `None` if there are none at all.

    A `generation` of `None` stands for all of them.
    """
    rows = [row for row in _data()["rows"] if generation in (None, row["generation"])]
    steps = [row for row in rows if row["kind"] == "training step"]
    rows = steps or rows
    if not rows:
        return None
    ratios = [row["measured"] / row["estimated"]["+".join(names)] for row in rows]
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    what = counted(len(rows), "training step") if steps else ", ".join(kinds)
    return Published(min(1.0, *ratios), max(1.0, *ratios), what)
