"""Values of files that are nearly right, for tests that read them.

`mutated(valid)` is a hypothesis strategy: `valid` changed at one to four random places. It has to be what a file
holds once it is decoded: dicts with texts as keys, lists, texts, numbers, booleans and None. So a test writes a
whole file (JSON, gzip, a checkpoint) around a content that is not right; flipped bits would damage its container.

`each` runs many of them, and `Tally` counts what comes of them.
"""

from __future__ import annotations

import collections
import copy
import os
import sys

import hypothesis
from hypothesis import strategies as st

CASES, EXHAUSTIVE_CASES = 120, 10_000
ODD = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, 2**70, -(2**70), 0.5, 1e308, float("nan"), float("inf")),
    *("", "x", "../x", "/x", "..", ".", "a/b", "a\\b", "\0", "\ud800", "x" * 5000, "os.system", "é"),
    *([], {}, [[]], [None], {"": {}}, {"x": [1, {"y": None}]}, [[[[[[[[]]]]]]]], [0] * 100),
)


def mutated(valid):
    """Return a strategy of values that differ from `valid` at one to four places.

    At each place, which may be deep inside, a value is replaced by an odd one or by a near one, deleted, duplicated
    or exchanged with its neighbour; a key is renamed; or an odd value is inserted.
    """

    @st.composite
    def values(draw):
        root = [copy.deepcopy(valid)]  # so that the whole has a place, too
        for _ in range(draw(st.integers(1, 4))):
            container, key = draw(st.sampled_from(_places(root)[::-1]))  # mostly deep inside
            _CHANGES[draw(st.sampled_from(sorted(_CHANGES)))](draw, container, key)
        return root[0] if root else None

    return values()


def _places(value):
    """Return (container, key or index) of all that is in a value."""
    found = []
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
        found.append((value, key))
        if isinstance(inner, (dict, list)):
            found += _places(inner)
    return found or [([None], 0)]


def _odd(draw):
    return copy.deepcopy(draw(st.sampled_from(ODD)))


def _replace(draw, container, key):
    container[key] = _odd(draw)


def _alter(draw, container, key):
    value = container[key]
    if type(value) in (int, float):
        container[key] = value + draw(st.sampled_from((-1, 1, 0.5)))
    elif isinstance(value, str):
        container[key] = draw(st.sampled_from((value + "x", value[:-1], f"../{value}", [value], value.upper())))
    else:
        container[key] = [value]


def _delete(draw, container, key):
    del container[key]


def _duplicate(draw, container, key):
    if isinstance(container, dict):
        container[f"{key}2"] = copy.deepcopy(container[key])
    else:
        container.insert(key, copy.deepcopy(container[key]))


def _exchange(draw, container, key):
    other = draw(st.sampled_from(list(container) if isinstance(container, dict) else range(len(container))))
    container[key], container[other] = container[other], container[key]


def _rename(draw, container, key):
    if isinstance(container, dict):
        name = draw(st.sampled_from([odd for odd in ODD if isinstance(odd, str)]))
        container[name] = container.pop(key)


def _insert(draw, container, key):
    if isinstance(container, dict):
        container[draw(st.sampled_from(("", "x", "../x", "format", "__class__")))] = _odd(draw)
    else:
        container.insert(key, _odd(draw))


_CHANGES = {
    "replace": _replace,
    "alter": _alter,
    "delete": _delete,
    "duplicate": _duplicate,
    "exchange": _exchange,
    "rename": _rename,
    "insert": _insert,
}


class Tally:
    """Counts the outcomes of many cases.

    Args:
        what: What is read, for the line in KTE_RESULTS.
        outside: A folder in which no case may leave a file, but for the folders in `own`.
        own: Names of the folders in it that cases write to.
    """

    def __init__(self, what, outside, own=()):
        self._what, self._outside, self._own = what, outside, own
        self._files = self._listing()
        self.counts = collections.Counter()

    def count(self, read, *arguments):
        """Count what `read` returns, the name of an outcome; it must import nothing, and write nothing outside."""
        before = set(sys.modules)
        outcome = read(*arguments)
        assert set(sys.modules) == before
        assert self._listing() == self._files
        self.counts[outcome] += 1

    def note(self):
        """Append the counts to the file that KTE_RESULTS names."""
        outcomes = ", ".join(f"{count} {name}" for name, count in sorted(self.counts.items()))
        if path := os.environ.get("KTE_RESULTS"):
            with open(path, "a", encoding="utf-8") as file:
                file.write(f"fuzz {self._what}: {sum(self.counts.values())} cases: {outcomes}\n")

    def _listing(self):
        paths = (
            path for path in self._outside.rglob("*") if path.relative_to(self._outside).parts[0] not in self._own
        )
        return sorted((str(path), path.stat().st_mtime_ns) for path in paths)


def each(config, strategy, tally, read, *, share=1, in_gate=CASES):
    """Count what `read` makes of many values of a strategy: always the same ones, more with `--tier=exhaustive`.

    Args:
        config: The fixture `pytestconfig`.
        strategy: Such as `mutated(valid)`.
        tally: Counts the outcomes, and notes them at the end.
        read: Returns the name of the outcome for a value; what it raises is a failure.
        share: How many tests share the cases.
        in_gate: How many there are without it.
    """
    cases = (EXHAUSTIVE_CASES if config.getoption("tier") == "exhaustive" else in_gate) // share
    health = [hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large]
    settings = hypothesis.settings(max_examples=cases, database=None, suppress_health_check=health)
    settings(hypothesis.given(strategy)(lambda value: tally.count(read, value)))()
    tally.note()
