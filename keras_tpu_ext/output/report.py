"""What reports have in common."""

from __future__ import annotations

import dataclasses
from typing import Any

from keras_tpu_ext.output.display import HtmlText


class Report(HtmlText):
    """The base of reports, which are frozen dataclasses with a property `ok`."""

    _derived: tuple[str, ...] = ()  # further properties that `to_dict` has

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data for JSON."""
        derived = {name: _plain(getattr(self, name)) for name in ("ok", *self._derived)}
        return {**derived, **_fields(self)}


def _fields(value: Any) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(value) if not field.name.startswith("_")]
    return {name: _plain(getattr(value, name)) for name in names}


def _plain(value: Any) -> Any:
    if isinstance(value, Report):
        return value.to_dict()
    if dataclasses.is_dataclass(value):
        return _fields(value)
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return list(map(_plain, value)) if isinstance(value, (tuple, list)) else value
