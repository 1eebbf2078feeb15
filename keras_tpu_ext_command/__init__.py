"""The command `keras-tpu-ext`: its arguments, read before anything slow is imported.

It stands beside the package, because whatever is in a package is imported after the package. So `--help`, `--version`
and a wrong call are answered at once, and `doctor` also where `keras_tpu_ext` refuses to be imported.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Sequence

from keras_tpu_ext_command.arguments import parse_arguments
from keras_tpu_ext_command.explanations import explain

_PACKAGE = "keras_tpu_ext"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one sub-command and return the exit status.

    Args:
        arguments: What stands behind the command's name; by default what this process was called with.
    """
    options = parse_arguments(arguments)
    if options.command == "explain":
        text, status = explain(options.code)
        print(text, file=sys.stderr if status else sys.stdout)
        return status
    try:
        from keras_tpu_ext import cli
    except ImportError as error:
        if options.command == "doctor":
            return _doctor(error, as_json=options.json)
        if type(error).__module__ != f"{_PACKAGE}.errors":
            raise
        print(f"keras-tpu-ext: {error} [{error.code}]", file=sys.stderr)  # type: ignore[attr-defined]
        return 2
    return cli.run(options)


def _doctor(error: ImportError, *, as_json: bool) -> int:
    """Print the report that needs no framework, with `error` as the problem."""
    spec = importlib.util.find_spec(_PACKAGE)
    assert spec is not None, "it was found just now"
    sys.modules[_PACKAGE] = importlib.util.module_from_spec(spec)  # its folder, without what it imports by itself
    from keras_tpu_ext.tools.doctor import import_failure_report

    report = import_failure_report(error)
    print(json.dumps(report.to_dict(), indent=2, allow_nan=False) if as_json else report)
    return 1
