"""The file in which `RunLog` keeps what the callbacks of a training found."""

from __future__ import annotations

import json
import math
from typing import Any

from keras_tpu_ext.checks import schema
from keras_tpu_ext.checks.arguments import is_number
from keras_tpu_ext.errors import ArgumentError
from keras_tpu_ext.resume.storage import Folder

RUN_FILE = "run.json"
_MOST_BYTES = 64 * 2**20
_DEEPEST = 12  # of lists and objects in what a callback found


def as_plain(value: Any) -> Any:
    """Return a value as JSON has it; NaN and inf become null, and what JSON has not, a text."""
    if value is None or isinstance(value, (str, bool)):
        return value
    if is_number(value):
        number = float(value)
        if not math.isfinite(number):
            return None
        return int(value) if number.is_integer() and abs(number) < schema.LARGEST else number
    if isinstance(value, dict):
        return {str(key): as_plain(one) for key, one in value.items()}
    return [as_plain(one) for one in value] if isinstance(value, (list, tuple)) else str(value)


def write_run(folder: Folder, run: dict[str, Any]) -> None:
    """Write the file, which is then complete or that of before."""
    text = json.dumps(as_plain(run), indent=1, allow_nan=False)
    folder.write(RUN_FILE, lambda file: file.write(text.encode()))


def read_run(folder: Folder) -> dict[str, Any] | None:
    """Return what the file holds, checked; `None` if there is none.

    Raises:
        ArgumentError: If it is no file of `RunLog`.
    """
    if not folder.is_file(RUN_FILE):
        return None
    path = folder.path_of(RUN_FILE)
    try:
        if folder.size_of(RUN_FILE) > _MOST_BYTES:
            raise schema.MismatchError("", f"at most {_MOST_BYTES} bytes long", folder.size_of(RUN_FILE))
        with folder.open(RUN_FILE) as file:
            run: dict[str, Any] = _RUN(schema.parse_json(file.read(_MOST_BYTES)), "")
    except schema.MismatchError as error:
        raise ArgumentError(
            f"{path} is no file of kte.callbacks.RunLog: {error}. Move it away, or write another folder."
        ) from None
    return run


def _plain(value: Any, where: str, depth: int = _DEEPEST) -> Any:
    """Check plain values, in lists and objects that are not too deep."""
    if value is None or type(value) in (str, bool):
        return value
    if depth == 0:
        raise schema.MismatchError(where, f"at most {_DEEPEST} deep", value)
    if isinstance(value, list):
        return [_plain(one, where, depth - 1) for one in value]
    if isinstance(value, dict):
        return {name: _plain(one, where, depth - 1) for name, one in value.items()}
    schema.number(value, where)
    return value


def _object(**checks: schema.Check) -> schema.Check:
    """Return the check of an object with plain values, some of which have a check of their own."""

    def check_all(value: Any, where: str) -> dict[str, Any]:
        found: dict[str, Any] = schema.mapping(_plain)(value, where)
        own = {name: check(found[name], f"{where}.{name}") for name, check in checks.items() if name in found}
        return {**found, **own}

    return check_all


_SECONDS = schema.mapping(schema.number)
_EPOCH = schema.fields(
    {
        "epoch": schema.integer(),
        "wall_seconds": schema.number,
        "logs": schema.mapping(schema.optional(schema.number)),
    }
)
_RUN = schema.fields(
    {
        "format": schema.integer(1, 1),
        "versions": schema.mapping(schema.text),
        "hardware": schema.text,
        "arguments": schema.mapping(schema.optional(schema.integer())),
        "started": schema.number,  # in seconds since 1970
        "wall_seconds": schema.number,  # of this start and those that it goes on from
        "finished": schema.boolean,
        "returned": schema.boolean,  # whether `fit` ended by itself, also before the last epoch
        "problem": schema.text,  # the error that ended it
        "history": schema.list_of(_EPOCH),
        "reports": _object(Goodput=_object(seconds=_SECONDS)),
        "plan": schema.optional(_object(buckets=_SECONDS)),
    }
)
