"""A line for users who have not set up logging."""

from __future__ import annotations

import functools
import logging
import sys

_LOG = logging.getLogger("keras_tpu_ext")


def announce(text: str) -> None:
    """Log a line; if logging is not set up, print it on stderr, the same line only once."""
    if _LOG.isEnabledFor(logging.INFO) or _LOG.level != logging.NOTSET:
        _LOG.info(text)
    else:
        _print_once(text)


@functools.cache
def _print_once(text: str) -> None:
    print(text, file=sys.stderr)
