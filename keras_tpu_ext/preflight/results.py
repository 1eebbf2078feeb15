"""The data of a preflight report."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Literal

from keras_tpu_ext.output.display import mesh_text
from keras_tpu_ext.output.report import Report
from keras_tpu_ext.sharding.layout_report import LayoutReport

_TILE = 128  # sequence lengths are multiples of it
_ESTIMATES = (
    "Times are estimates, with one operation after the other at the chip's nominal clock: no TPU has run this."
)
_NOT_IN_THEM = (
    "Not included: how fast the host makes and sends batches, the time between steps, {} real network; "
    "`steps_per_execution`, callbacks and validation."
)


@dataclasses.dataclass(frozen=True)
class Fault:
    """Why a step does not compile.

    Attributes:
        cause: What is wrong.
        layer: Name of the layer; empty if it is not known.
        line: Line of the user's code, such as `"model.py:12"`; empty if it is not known.
        cure: What to write instead; empty if it is not known.
    """

    cause: str
    layer: str = ""
    line: str = ""
    cure: str = ""

    def __str__(self) -> str:
        where = " ".join([f"layer {self.layer!r}"] * bool(self.layer) + [f"({self.line})"] * bool(self.line))
        return f"{where}: {self.cause}" if where else self.cause


# What a buffer is for; an update is what an optimizer computes from gradients and state.
Bound = Literal["matrix units", "vector units", "random bits", "memory", "collectives", "kernels"]
Purpose = Literal["activation", "logits", "gradient", "gathered weight", "update"]


@dataclasses.dataclass(frozen=True)
class Buffer:
    """A buffer that is live at peak HBM use.

    Attributes:
        bytes: Size, padding included.
        layer: Layer that writes it.
        shape: Shape, such as `"bf16[128,56,56,256]"`.
        backward: Whether the backward pass writes it.
        purpose: What it is for, judged by its shape and its layer; `None` if the variables are not known.
        cure: How to make it smaller; may be empty.
    """

    bytes: int
    layer: str
    shape: str
    backward: bool = False
    purpose: Purpose | None = None
    cure: str = ""


@dataclasses.dataclass(frozen=True)
class MemoryUse:
    """The HBM use of one device.

    Attributes:
        needed: Bytes in all; `None` if the compiler does not say.
        available: Bytes that a program may use.
        arguments: Bytes of the weights, the optimizer's and metrics' state, and the batch.
        temporaries: Bytes of activations, gradients and other intermediate results.
        buffers: The largest buffers at peak use.
        buffers_batch: Batch of a replica that has these buffers, if the requested one does not fit; else `None`.
        by_role: Bytes by role: `"weights"`, `"optimizer"`, `"accumulator"`, `"batch and other"`; and `"gradients"`,
            as far as they exist at peak memory use, and `"activations"` with all other intermediate results. Only the
            last three include padding.
    """

    needed: int | None
    available: int
    arguments: int | None = None
    temporaries: int | None = None
    buffers: tuple[Buffer, ...] = ()
    buffers_batch: int | None = None
    by_role: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def fits(self) -> bool:
        """Whether the step fits into HBM."""
        return self.needed is not None and self.needed <= self.available


@dataclasses.dataclass(frozen=True)
class LayerTime:
    """The cost of a layer in a step on one device.

    Attributes:
        layer: Path of the layer, such as `"block/conv1"`; or `"(loss)"`, `"(optimizer)"`, `"(other)"`.
        seconds: Time of the forward and the backward pass.
        backward_seconds: Time of the backward pass.
        flops: FLOPs of its matrix products and convolutions.
        moved_bytes: Bytes read from and written to HBM.
        padding: Fraction of these bytes that pads dimensions to the chip's tiles.
    """

    layer: str
    seconds: float
    backward_seconds: float
    flops: float
    moved_bytes: int
    padding: float


@dataclasses.dataclass(frozen=True)
class CollectiveKind:
    """The collectives of a step that have the same kind and the same mesh axes.

    Attributes:
        kind: Kind, such as `"all-gather"`.
        axes: Names of the axes of the mesh whose devices take part; empty if the model is not sharded.
        count: Number of them.
        bytes: Bytes of their results on one device.
        seconds: Time that the step waits for them.
        layer: The layer with most of these bytes.
    """

    kind: str
    axes: tuple[str, ...]
    count: int
    bytes: int
    seconds: float
    layer: str


@dataclasses.dataclass(frozen=True)
class Collectives:
    """The collectives of a step, such as all-reduces.

    Attributes:
        count: Number of collectives.
        bytes: Bytes of their results on one device.
        seconds: Time as measured on such chips, or the least by the bandwidth of the interconnect; for asynchronous
            ones, only how long the step waits for them.
        by_kind: The same by kind and axes, those with the most bytes first.
    """

    count: int
    bytes: int
    seconds: float
    by_kind: tuple[CollectiveKind, ...] = ()


@dataclasses.dataclass(frozen=True)
class StepTime:
    """The estimated time of a step.

    Attributes:
        seconds: Time of a step.
        by_compiler: Fraction of it that the compiler states. The rest is computed from bytes and bandwidth (the
            measured one if there is a correction, else the nominal one, which gives the least time), or is in
            kernels.
        by_kernels: Fraction of it spent in Pallas kernels, such as attention: the cycles of their instructions or,
            where the compiler does not tell them, their products at the device's peak; or their bytes if these take
            longer.
        kernels_by_compiler: Whether the compiler tells the instructions of all kernels.
        flops: FLOPs of the matrix products and convolutions on one device.
        mfu: Model FLOPs utilization: the fraction of the device's bfloat16 peak.
        intensity: FLOPs per byte read from and written to HBM.
        bound: What limits most of the time: `"matrix units"`, `"vector units"`, `"random bits"`, `"memory"`,
            `"collectives"` or `"kernels"`, as in a roofline model.
        shares: Fraction of the time limited by each; their sum is 1. Random bits are drawn by the vector units, and
            kernels use all units.
        unknown_loops: Number of loops whose trip count the compiler does not know; they are counted as one iteration.
        seconds_range: Lowest and highest time in seconds, from the ratios of measurements on real chips of the
            generation to their estimates; `None` if nothing was published.
        measured: What was measured, such as `"3 training steps"`; empty if nothing was published.
        corrections: Names of the corrections that were applied.
        borrowed: The generation on which a correction was measured, by its name, if that is not the target's.
    """

    seconds: float
    by_compiler: float
    flops: float
    mfu: float
    intensity: float
    bound: Bound
    shares: dict[Bound, float]
    unknown_loops: int = 0
    by_kernels: float = 0.0
    kernels_by_compiler: bool = True
    seconds_range: tuple[float, float] | None = None
    measured: str = ""
    corrections: tuple[str, ...] = ()
    borrowed: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A layout that was tried with `shard="auto"`.

    Attributes:
        mesh: Size of each axis of the mesh, by its name; `None` if every device holds the whole model.
        remat: The policy of `layers.remat` by which blocks compute their activations again; empty if they do not.
        needed: Bytes needed on a device; `None` if unknown.
        fits: Whether they fit; `None` if unknown.
        step_seconds: Estimated time of a step; `None` if there is none.
        largest_per_replica_batch: The largest batch of a replica that fits, as computed; `None` if unknown.
        note: Why something is unknown; may be empty.
    """

    mesh: dict[str, int] | None
    remat: str = ""
    needed: int | None = None
    fits: bool | None = None
    step_seconds: float | None = None
    largest_per_replica_batch: int | None = None
    note: str = ""

    @property
    def rank(self) -> tuple[int, float]:
        """The sort key of candidates: those that fit, by time, then those that do not, by bytes."""
        if self.fits and self.step_seconds is not None:
            return 0, self.step_seconds
        return (1, float(self.needed)) if self.needed is not None else (2, 0.0)

    @property
    def name(self) -> str:
        """The mesh, and the policy of `layers.remat`."""
        axes = {name: size for name, size in (self.mesh or {}).items() if size > 1}
        layout = mesh_text(axes) if self.mesh else "not sharded"
        return f"{layout}, {self.remat}" if self.remat else layout

    @property
    def code(self) -> str:
        """The code to write for it."""
        if self.mesh is None:
            return "kte.strategy_scope()"
        axes = ", ".join(f"({name!r}, {size})" for name, size in self.mesh.items()).replace("'", '"')
        return f'kte.strategy_scope(shard="fsdp", mesh=({axes},))'


@dataclasses.dataclass(frozen=True)
class PreflightResult(Report):
    """The data of a `PreflightReport`, which documents the fields."""

    _derived = (
        *("num_replicas", "step_seconds", "samples_per_sec", "tokens_per_sec", "largest_sequence_length"),
        *("host_bytes_per_sec", "left_out"),
    )

    model: str
    target: str
    framework: str
    chips: int
    devices: int
    global_batch: int
    per_replica_batch: int
    fault: Fault | None = None
    memory: MemoryUse | None = None
    time: StepTime | None = None
    layers: tuple[LayerTime, ...] = ()
    collectives: Collectives | None = None
    host_bytes: int = 0
    largest_per_replica_batch: int | None = None
    largest_was_compiled: bool = False
    pipeline_batches_per_sec: float | None = None
    compile_seconds: float = 0.0
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    mesh: dict[str, int] | None = None
    layout: LayoutReport | None = None
    sequence_length: int | None = None
    candidates: tuple[Candidate, ...] = ()
    # Compiles the programs of the step and writes them into a file; it has the model, which is no result.
    _save: Callable[[str | os.PathLike[str]], str] | None = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """Whether the step compiles and fits into memory."""
        return self.fault is None and self.memory is not None and self.memory.fits

    @property
    def num_replicas(self) -> int:
        """Number of replicas: that of the devices, or the size of the data axis of the mesh."""
        return self.global_batch // self.per_replica_batch

    @property
    def step_seconds(self) -> float | None:
        """Estimated time of a step; `None` if there is no estimate."""
        return None if self.time is None else self.time.seconds

    @property
    def samples_per_sec(self) -> float | None:
        """Estimated examples per second of all devices; `None` if there is no estimate."""
        return None if not self.step_seconds else self.global_batch / self.step_seconds

    @property
    def tokens_per_sec(self) -> float | None:
        """Estimated tokens per second of all devices; `None` if there is no estimate, or the input is not tokens."""
        rate, length = self.samples_per_sec, self.sequence_length
        return None if rate is None or length is None else rate * length

    @property
    def largest_sequence_length(self) -> int | None:
        """The longest sequence that fits at the same batch size, if memory grows with the tokens; `None` if unknown.

        It does if attention is a kernel; see docs/preflight.md.
        """
        largest, length = self.largest_per_replica_batch, self.sequence_length
        if not largest or length is None or self.largest_was_compiled:
            return None
        return largest * length // self.per_replica_batch // _TILE * _TILE or None

    @property
    def host_bytes_per_sec(self) -> float | None:
        """Bytes per second that the input pipeline must deliver at that rate; `None` if there is no estimate."""
        return None if not self.step_seconds else self.host_bytes / self.step_seconds

    @property
    def left_out(self) -> tuple[str, ...]:
        """Sentences on what the estimate leaves out."""
        corrections = () if self.time is None else self.time.corrections
        network = "and a" if "collectives" in corrections else "and the latency of collectives and of a"
        return _ESTIMATES, _NOT_IN_THEM.format(network)
