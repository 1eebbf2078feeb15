"""`PreflightReport`: whether a train step compiles for a TPU, fits, and how fast it may be."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.preflight._plot import draw_report
from keras_tpu_ext.preflight._text import report_text
from keras_tpu_ext.preflight.results import PreflightResult
from keras_tpu_ext.resume.storage import folder_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class PreflightReport(PreflightResult):
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

    def save(self, path: str | os.PathLike[str]) -> str:
        """Write the compiled step into a file that `strategy_scope(compiled=...)` takes: `fit` then compiles no step.

        It has all programs that `fit` with validation, `evaluate` and `predict` run for batches like that of
        `preflight`; all but the train step are compiled now. `steps_per_execution="auto"` is the number of steps that
        take half a second by the estimate, 8 on a CPU. The line to write where the model trains is printed.
        A file is used only where every version, flag and device is the one that it was compiled for. Keras 3 on JAX
        only.

        Args:
            path: The file to write, such as `"step.kte"`.

        Returns:
            The SHA-256 of the file, as 64 hexadecimal digits.

        Raises:
            ArgumentError: If the step does not compile, `fit` would not compile it, or this report is not from
                `preflight` in this process.
            PreflightError: If the compiler timed out or crashed.

        Example:
            ```python
            import keras
            import numpy as np
            import keras_tpu_ext as kte

            with kte.strategy_scope(require="cpu"):
                model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
                model.compile("sgd", "mse")
            report = kte.preflight(model, (np.ones((32, 4), "float32"), np.ones((32, 1), "float32")), target="cpu")
            sha256 = report.save("step.kte")
            scope = kte.strategy_scope(require="cpu", compiled=("step.kte", sha256))  # in another process
            ```
        """
        if self._save is None:
            got = "one that was copied or made by hand" if self.ok else "one whose step does not fit"
            if self.fault is not None:
                got = f"one whose step does not compile: {self.fault.cause}"
            raise check.argument_error(
                "save", "report", "what preflight returned", got, "preflight(model, batch).save(path)"
            )
        path = check.path(path)
        if os.path.isdir(path):
            raise check.argument_error("save", "path", "a file", f"the folder {path!r}", 'save("step.kte")')
        folder_of(os.path.dirname(path) or ".").prepare()  # before minutes of compiling
        sha256 = self._save(path)
        print(f'kte.strategy_scope(compiled=("{path}", "{sha256}"))')
        return sha256

    def __str__(self) -> str:
        return report_text(self)
