"""Which runtimes a test file is about, read from its `pytestmark` without importing it."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

# What begins with `test_` and one of these is about these runtimes only, and says so in its `pytestmark`, too.
PREFIXES = {
    "jax": frozenset({"keras3_jax"}),
    "keras3_tf": frozenset({"keras3_tf"}),
    "keras3": frozenset({"keras3_tf", "keras3_jax"}),
    "keras2": frozenset({"keras2_tf"}),
    "tensorflow": frozenset({"keras3_tf", "keras2_tf"}),
}


@functools.cache
def of_file(path: Path) -> frozenset[str] | None:
    """Return the names in the mark `runtimes` of a file, and `None` where it has none: it is about all."""
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "pytestmark":
            for call in ast.walk(statement.value):
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.runtimes":
                    return frozenset(ast.literal_eval(argument) for argument in call.args)
    return None


def of_prefix(name: str) -> frozenset[str] | None:
    """Return the runtimes that the prefix of a file's name stands for, and `None` where it has none."""
    words = name.removeprefix("test_")
    found = [prefix for prefix in PREFIXES if words.startswith(f"{prefix}_")]
    return PREFIXES[max(found, key=len)] if found else None
