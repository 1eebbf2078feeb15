"""What the errors of XLA and TensorFlow say when a device has too little memory.

Codes and examples: https://openxla.org/xla/errors (docs/errors in github.com/openxla/xla).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

_UNITS = {"B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
_SIZE = r"([\d.]+)([BKMGTP])"
# What was asked for, and what there is, in the words of older and newer compilers and runtimes.
_ASKED = tuple(
    re.compile(pattern.replace("SIZE", _SIZE))
    for pattern in (
        "Used SIZE of SIZE hbm",
        r"total memory required for [\w ]+\(SIZE\) exceeds available HBM \(SIZE\)",
        "Requires SIZE, has SIZE available",
    )
)
_RESERVED = re.compile(rf"Attempting to (?:allocate|reserve) {_SIZE}.*?There are {_SIZE} free", re.DOTALL)
_BYTES = re.compile(
    r"(?:Out of memory (?:while )?(?:trying to )?allocat\w+|trying to allocate) ([\d.]+) ?([KMGT]?)i?B?\b"
)
_TENSOR = re.compile(r"OOM when allocating tensor with shape\s?\[([\d,]*)\] and type (\w+)")
_SPACE = re.compile(r"memory space (\w+)|space=(\w+)")
_PART = re.compile(rf"^\s+(reserved|program|arguments)\s+{_SIZE}\s*$", re.MULTILINE)
_BUFFER = re.compile(rf'Size: {_SIZE}\s+(?:Operator: op_name="([^"]*)")?')
_CODE = re.compile(r"\bE(\d{4})\b")
_CODES = {
    "1000": "Ran out of memory in memory space hbm|unlikely to have enough memory|available HBM",
    "1001": "space=vmem|memory space vmem",
    "0100": "Error allocating device buffer",
    "0101": "Error loading program",
}


class OutOfMemory(NamedTuple):
    """What an error says; sizes in bytes, `None` where it does not say."""

    asked: float | None  # for a whole program, or for one buffer
    limit: float | None  # of the device
    free: float | None
    is_program: bool  # whether the compiler refuses a whole program
    code: str  # OpenXLA's, such as `"E1000"`, stated or known by the words; may be empty
    parts: Mapping[str, float]  # the compiler's `reserved`, `program` (with temporaries) and `arguments`
    buffers: tuple[tuple[float, str], ...]  # the largest that the compiler lists, with their operations
    shape: str  # of the tensor, with its dtype, where TensorFlow says it; may be empty

    @property
    def is_certain(self) -> bool:
        """Whether it is about memory: anything else may be exhausted, too."""
        return bool(self.asked or self.shape or self.code)


def read_out_of_memory(text: str) -> OutOfMemory | None:
    """Return what an error says about the memory of a device; `None` for other errors, and for that of a kernel."""
    if not re.search(r"RESOURCE_EXHAUSTED|Ran out of memory|[Oo]ut of memory|OOM when", text):
        return None
    space = _SPACE.search(text)
    if space is not None and (space[1] or space[2]) not in ("hbm", None):  # a smaller batch need not help there
        return None
    code = next((found[1] for found in [_CODE.search(text)] if found), None)
    code = code or next((code for code, words in _CODES.items() if re.search(words, text)), "")
    program = next((match for pattern in _ASKED if (match := pattern.search(text))), None)
    reserved, one, tensor = _RESERVED.search(text), _BYTES.search(text), _TENSOR.search(text)
    asked = limit = free = None
    if program is not None:
        asked, limit = _bytes(*program.group(1, 2)), _bytes(*program.group(3, 4))
    elif reserved is not None:
        asked, free = _bytes(*reserved.group(1, 2)), _bytes(*reserved.group(3, 4))
    elif one is not None:
        asked = _bytes(one[1], one[2] or "B")
    return OutOfMemory(
        asked,
        limit,
        free,
        program is not None or code == "1000",
        f"E{code}" if code else "",
        {name: _bytes(size, unit) for name, size, unit in _PART.findall(text)},
        tuple((_bytes(size, unit), name) for size, unit, name in _BUFFER.findall(text)),
        "" if tensor is None else f"{tensor[2]} [{tensor[1]}]",
    )


def _bytes(number: str, unit: str) -> float:
    return float(number.rstrip(".")) * _UNITS[unit]
