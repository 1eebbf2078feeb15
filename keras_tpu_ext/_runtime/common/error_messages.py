"""The message of an error, without what a framework has put around it."""

from __future__ import annotations

import re

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# How Keras wraps an error in a layer. The first group is what the layer raised, after a sentence about its shape.
_IN_LAYER = re.compile(
    r"Exception encountered when calling [^\n]*\n\n(?:Could not automatically infer [^\n]* Error encountered:\n\n)?"
    r"(.*?)\n\nArguments received by",
    re.DOTALL,
)
_ROOT = re.compile(r"root error\(s\) found\.\n\s*\(0\) [A-Z_]+: +([^\n]+)")  # the first of TensorFlow's list
_NODE = re.compile(r"\{\{[^}]*\}\}\s*")  # TensorFlow's name of a node
_NOISE = ("Graph execution error", "Detected at node", "File", "<stack", "The stack trace")


def message_of(error: BaseException) -> str:
    """Return the message of an error; if Keras has wrapped it, the layer's message."""
    text = _COLOURS.sub("", str(error))
    wrapped = _IN_LAYER.search(text)
    return wrapped[1] if wrapped else text


def summary_of(error: BaseException) -> str:
    """Return the type and the most telling line of an error, without a compiler's stack of nodes."""
    text = message_of(error)
    root = _ROOT.search(text)
    lines = [line.strip() for line in _NODE.sub("", root[1] if root else text).splitlines()]
    telling = [line for line in lines if line and not line.startswith(_NOISE)] or [""]
    line = telling[-1] if isinstance(error, RuntimeError) else telling[0]
    return f"{type(error).__name__}: {shorten(line)}".rstrip(": ")


def shorten(text: str, most: int = 300) -> str:
    """Return text of at most `most` letters, with an ellipsis where some are left out."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
