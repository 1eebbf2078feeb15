"""What `RunLog` kept of a training."""

from __future__ import annotations

import dataclasses
from typing import Any

from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.checks.schema import plain
from keras_tpu_ext.errors import ArgumentError
from keras_tpu_ext.output.display import HtmlText, counted, duration, wrap
from keras_tpu_ext.output.run_page import page
from keras_tpu_ext.resume.run_file import RUN_FILE, read_run
from keras_tpu_ext.resume.storage import folder_of

_WORTH_TELLING = 0.01  # of the time


@dataclasses.dataclass(frozen=True)
class RunReport(HtmlText):
    """What the callbacks of a training found, as `RunLog` kept it.

    Attributes:
        run: All of it, as it is in the file: `history`, `reports` by callback, `plan` and others.
    """

    run: dict[str, Any]

    @property
    def ok(self) -> bool:
        """Whether there is something to report, which is always so."""
        return True

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {**self.run, "ok": self.ok}

    def page(self) -> str:
        """Return an HTML page, which needs no server and no network."""
        return page(self.run, state_of(self.run))

    def __str__(self) -> str:
        run = self.run
        of = run["arguments"].get("epochs")
        epochs = f"{counted(len(run['history']), 'epoch')}{f' of {of}' if of else ''}"
        lines = wrap(f"{state_of(run)}: {epochs}, {duration(run['wall_seconds'])}. {plain(run['hardware'])}", 2)
        if run["history"]:
            logs = run["history"][-1]["logs"]
            shown = [
                f"{plain(key)} {value:.4g}" for key, value in logs.items() if value is not None and "/" not in key
            ]
            lines += wrap(f"last epoch: {', '.join(shown)}", 2)
        goodput = run["reports"].get("Goodput", {}).get("seconds", {})
        parts = [(name, one) for name, one in goodput.items() if one >= _WORTH_TELLING * run["wall_seconds"]]
        parts.sort(key=lambda part: -part[1])
        lines += (
            wrap(f"time: {', '.join(f'{plain(name)} {duration(one)}' for name, one in parts)}", 2) if parts else []
        )
        return "\n".join([*lines, f"reports: {', '.join(map(plain, run['reports'])) or 'none'}"])


def state_of(run: dict[str, Any]) -> str:
    """Return how a training ended, in words."""
    if run["finished"]:
        return "finished"
    if run["problem"]:
        return f"ended by {plain(run['problem'])}"
    return "stopped before its end" if run["returned"] else "running, or killed"


def run_report(directory: str) -> RunReport:
    """Return what `RunLog` has kept in a folder.

    Raises:
        ArgumentError: If there is nothing, or something else.
    """
    folder = folder_of(check.path(directory))
    run = read_run(folder)
    if run is None:
        raise ArgumentError(
            f"there is no {RUN_FILE} in {directory}. Write the folder that kte.callbacks.RunLog was given."
        )
    return RunReport(run)
