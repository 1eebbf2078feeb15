"""`PreflightReport`: whether a train step compiles for a TPU, fits, and how fast it may be."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from keras_tpu_ext.output.display import HtmlText
from keras_tpu_ext.preflight._plot import draw_report
from keras_tpu_ext.preflight._text import report_text
from keras_tpu_ext.preflight.results import PreflightResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class PreflightReport(HtmlText, PreflightResult):
    """The result of `preflight`; print it, or show it in a notebook.

    Attributes:
        model: Name of the model.
        target: The TPU slice, such as `"v5e-8"`.
        framework: The framework that lowered the step, such as `"JAX"`.
        chips: Number of chips of the slice.
        devices: Number of its devices.
        global_batch: Examples in a batch of all replicas.
        per_replica_batch: Examples in a batch of one replica.
        fault: Why the step does not compile; `None` if it compiles or only runs out of memory.
        memory: HBM use of one device; `None` if the step does not compile.
        time: Estimated time of a step; `None` if there is no estimate.
        layers: Cost of each layer, the slowest first.
        collectives: Collectives of a step; `None` if the step does not compile.
        host_bytes: Bytes of a batch that the input pipeline must deliver for each step.
        largest_per_replica_batch: The largest batch of a replica that fits; `None` if unknown, for example because
            the step needs less than a hundredth of the memory.
        largest_was_compiled: Whether that batch was compiled, not extrapolated from this one.
        pipeline_batches_per_sec: Measured rate of the `pipeline` argument; `None` without one.
        compile_seconds: Time that the compiler took.
        versions: Versions of jax, jaxlib and libtpu.
        mesh: Size of each axis of the mesh, by its name; `None` if the model is not sharded.
        layout: The layout of each variable of the model; `None` if the model is not sharded.
        sequence_length: Tokens in an example; `None` if the input is not tokens.
        candidates: With `shard="auto"`, the layouts that were tried, the best first; this report is for the best one.
    """

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draw the memory use of a device, with the time by layer or, if the step does not fit, its largest buffers.

        Args:
            path: Image file to write, such as `"preflight.png"`; `None` (default) writes none.

        Returns:
            The `matplotlib.figure.Figure`; no display is needed.

        Raises:
            NothingMeasuredError: If the step does not compile, or the compiler does not say how much memory it needs.
            MissingExtraError: If matplotlib is not installed.
        """
        figure = draw_report(self)
        if path is not None:
            figure.savefig(path)
        return figure

    def __str__(self) -> str:
        return report_text(self)
