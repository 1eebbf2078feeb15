"""`PreflightReport`: what the TPU compiler makes of a train step."""

from __future__ import annotations

import os
from typing import Any

from keras_tpu_ext._repr import HtmlText
from keras_tpu_ext.preflight._plot import draw_report
from keras_tpu_ext.preflight._text import report_lines
from keras_tpu_ext.preflight.results import PreflightResult


class PreflightReport(HtmlText, PreflightResult):
    """What the TPU compiler makes of a train step; print it, or show it in a notebook.

    Attributes:
        model: The model's name.
        target: The TPU slice, such as `"v5e-8"`.
        framework: What the step was lowered by.
        chips: Chips of the slice.
        devices: Devices of the slice, which are replicas.
        global_batch: Examples in a batch over all replicas.
        per_replica_batch: Those of one replica.
        fault: Why it does not compile; `None` where it does, or fails only for want of memory.
        memory: HBM of one device; `None` where it does not compile.
        time: The estimate of a step; `None` where there is none.
        layers: What each layer takes, the dearest first.
        collectives: What the devices exchange; `None` where it does not compile.
        host_bytes: Bytes of a batch that the host has to give for each step.
        largest_per_replica_batch: The largest batch that fits; `None` where it is not known.
        largest_was_compiled: Whether that was compiled, and not worked out from this batch.
        pipeline_batches_per_sec: What a pipeline that was given makes; `None` where none was.
        compile_seconds: How long the compiler took.
        versions: Of what compiled.
    """

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Draw the time by layer, and the memory against the chip's.

        Args:
            path: File to write the picture to, such as `"preflight.png"`, or `None` for none.

        Returns:
            The `matplotlib.figure.Figure`; no display is needed.

        Raises:
            NothingMeasuredError: If the step does not compile, so that there is nothing to draw.
            MissingExtraError: If matplotlib is not installed.
        """
        figure = draw_report(self)
        if path is not None:
            figure.savefig(path)
        return figure

    def __str__(self) -> str:
        return "\n".join(report_lines(self))
