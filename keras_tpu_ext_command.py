"""The command `keras-tpu-ext`, which has an answer also where `keras_tpu_ext` refuses to be imported.

It stands beside the package, because whatever is in a package is imported after the package.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Sequence

_PACKAGE = "keras_tpu_ext"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one sub-command and return the exit status; see `keras_tpu_ext.cli`.

    Args:
        arguments: What stands behind the command's name; by default what this process was called with.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        from keras_tpu_ext import cli
    except ImportError as error:
        if list(arguments[:1]) == ["doctor"]:
            return _doctor(error, as_json="--json" in arguments)
        if type(error).__module__ != f"{_PACKAGE}.errors":
            raise
        print(f"keras-tpu-ext: {error}", file=sys.stderr)
        return 2
    return cli.main(arguments)


def _doctor(error: ImportError, *, as_json: bool) -> int:
    """Print the report that needs no framework, with `error` as the problem."""
    spec = importlib.util.find_spec(_PACKAGE)
    assert spec is not None, "it was found just now"
    sys.modules[_PACKAGE] = importlib.util.module_from_spec(spec)  # its folder, without what it imports by itself
    from keras_tpu_ext._doctor.checks import import_failure_report

    report = import_failure_report(error)
    print(json.dumps(report.to_dict(), indent=2, allow_nan=False) if as_json else report)
    return 1


if __name__ == "__main__":
    sys.exit(main())
