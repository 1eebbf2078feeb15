"""What preflight finds out about a train step, as frozen data."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

LEFT_OUT = (
    "Times are the compiler's own estimates, with one operation after the other at the chip's nominal clock: no TPU "
    "has run this.",
    "Not in them: how fast the host makes batches and sends them, the time between steps, and the latency of "
    "collectives and of a real network; `steps_per_execution`, callbacks and validation.",
)


@dataclasses.dataclass(frozen=True)
class Fault:
    """Why a step does not compile.

    Attributes:
        cause: What is the matter.
        layer: The layer at fault; empty where that is not known.
        line: The user's line, such as `"model.py:12"`; empty likewise.
        cure: What to write instead; empty likewise.
    """

    cause: str
    layer: str = ""
    line: str = ""
    cure: str = ""

    def __str__(self) -> str:
        where = " ".join([f"layer {self.layer!r}"] * bool(self.layer) + [f"({self.line})"] * bool(self.line))
        return f"{where}: {self.cause}" if where else self.cause


@dataclasses.dataclass(frozen=True)
class Buffer:
    """A buffer that is in HBM when it is fullest.

    Attributes:
        bytes: Its size, padding included.
        layer: The layer that writes it, or `"(arguments)"`.
        shape: Its shape, such as `"bf16[128,56,56,256]"`.
        backward: Whether the backward pass writes it.
    """

    bytes: int
    layer: str
    shape: str
    backward: bool = False


@dataclasses.dataclass(frozen=True)
class MemoryUse:
    """HBM of one device.

    Attributes:
        needed: Bytes in all; `None` where the compiler gave up before it knew.
        available: Bytes that a program may use there.
        arguments: Bytes of weights, optimizer, metrics and the batch.
        temporaries: Bytes of what is in between.
        buffers: The largest buffers when it is fullest.
    """

    needed: int | None
    available: int
    arguments: int | None = None
    temporaries: int | None = None
    buffers: tuple[Buffer, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether there is enough."""
        return self.needed is not None and self.needed <= self.available


@dataclasses.dataclass(frozen=True)
class LayerTime:
    """What a layer takes of a step on one device.

    Attributes:
        layer: Its name, with those of the layers around it; `"(loss)"`, `"(optimizer)"`, `"(other)"` for the rest.
        seconds: Of a step, forward and backward.
        backward_seconds: Those of the backward pass.
        flops: FLOPs of its products and convolutions.
        moved_bytes: Bytes that it moves from and to HBM.
        padding: Which part of these bytes fills dimensions up to the tiles of the chip, from 0 to 1.
    """

    layer: str
    seconds: float
    backward_seconds: float
    flops: float
    moved_bytes: int
    padding: float


@dataclasses.dataclass(frozen=True)
class Collectives:
    """What the devices exchange in a step.

    Attributes:
        count: Number of operations.
        bytes: Bytes of their results on one device.
        seconds: The least time for that, from the bandwidth of the chips' links.
    """

    count: int
    bytes: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class StepTime:
    """The estimate of one step.

    Attributes:
        seconds: Of a step.
        by_compiler: Which part of it the compiler states; the rest is a bound from bytes and bandwidths.
        flops: FLOPs of the products and convolutions of one device.
        mfu: FLOPs by the bfloat16 peak of a device, from 0 to 1.
        intensity: FLOPs for each byte from or to HBM.
        bound: What takes the most time: `"matrix units"`, `"memory"` or `"collectives"`.
        shares: Which part of the time each of the three takes.
        unknown_loops: Number of loops for which nobody knows how often they run; they count once.
    """

    seconds: float
    by_compiler: float
    flops: float
    mfu: float
    intensity: float
    bound: Literal["matrix units", "memory", "collectives"]
    shares: dict[str, float]
    unknown_loops: int = 0


@dataclasses.dataclass(frozen=True)
class PreflightResult:
    """The data of a `PreflightReport`, which documents the fields."""

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

    @property
    def ok(self) -> bool:
        """Whether it compiles and fits."""
        return self.fault is None and self.memory is not None and self.memory.fits

    @property
    def step_seconds(self) -> float | None:
        """The compiler's estimate of a step."""
        return None if self.time is None else self.time.seconds

    @property
    def samples_per_sec(self) -> float | None:
        """Examples per second in all, by the estimate."""
        return None if not self.step_seconds else self.global_batch / self.step_seconds

    @property
    def host_bytes_per_sec(self) -> float | None:
        """Bytes per second that the hosts have to deliver for that, all together."""
        return None if not self.step_seconds else self.host_bytes / self.step_seconds

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data for JSON."""
        return {
            "ok": self.ok,
            **dataclasses.asdict(self),
            "step_seconds": self.step_seconds,
            "samples_per_sec": self.samples_per_sec,
            "host_bytes_per_sec": self.host_bytes_per_sec,
            "left_out": list(LEFT_OUT),
        }
