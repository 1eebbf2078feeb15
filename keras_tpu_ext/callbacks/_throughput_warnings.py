"""The warnings of `Throughput`."""

from __future__ import annotations

UNCOUNTED_EXAMPLES = (
    "Throughput shows no samples per second: this model's train_step does not add its batch size to Keras's "
    "loss tracker (or has one example per step and replica, which looks the same), so examples cannot be "
    "counted. Write: Throughput(batch_size=<examples per step over all replicas>)"
)
TWICE = (
    "Throughput: the same object is in `callbacks` twice, so that it would count every step twice. Write it once: "
    "fit(..., callbacks=[throughput])"
)
_NO_FLOPS = (
    "Throughput shows no MFU: the FLOPs of a step cannot be counted, because {why}. Write: Throughput("
    "flops_per_sample=<FLOPs of the forward and the backward pass for one example>), or flops_per_sample=None to do "
    "without"
)
_NO_PEAK = (
    "Throughput shows no MFU: it does not know the peak of this TPU, which calls itself {name!r}. Write: "
    "Throughput(peak_flops=<bfloat16 FLOP/s of one device>), or flops_per_sample=None to do without"
)
_SUSPECTS = {
    "flops_per_sample": "flops_per_sample={value:.6g} is too large: it is for one example, forward and backward "
    'pass, two for each multiply-add. Write: Throughput(flops_per_sample="auto")',
    "batch_size": "batch_size={value} is too large: it is the number of examples per step over all replicas. Write: "
    "Throughput() to have them counted",
    "peak_flops": "peak_flops={value:.6g} is too small: it is in FLOP/s, and that of one framework device: a chip, "
    "on TPU v2, v3 and 7x a core. Write: Throughput() to take it from the table",
}
_NOT_GIVEN = (
    "this TPU is faster than the table says, or the steps were not over in the time that was measured. Write: "
    "Throughput(peak_flops=<FLOP/s of one device>), and give an epoch more steps"
)


def mismatched_batch_size(batch_size: int | None, examples: float, steps: int) -> str:
    """Return the warning for a `batch_size` that does not match the model's count."""
    return (
        f"Throughput(batch_size={batch_size}) does not fit: the model counted {examples:.0f} examples in an "
        f"epoch of {steps} steps, {examples / steps:.6g} per step. The rates shown use {batch_size}. "
        "batch_size is the number of examples per step over all replicas. Write: Throughput() to have them "
        "counted, and put it before any callback that evaluates the model"
    )


def uncounted_flops(why: str) -> str:
    """Return the warning for FLOPs that cannot be counted."""
    return _NO_FLOPS.format(why=why)


def unknown_peak(name: str) -> str:
    """Return the warning for a TPU that is not in the table."""
    return _NO_PEAK.format(name=name)


def impossible_mfu(
    mfu: float, peak_flops: float, source: str, flops_per_sample: float, given: dict[str, float | None]
) -> str:
    """Return the warning for an MFU above 1, with those of the `given` numbers that may be wrong."""
    suspects = [_SUSPECTS[name].format(value=value) for name, value in given.items() if value is not None]
    likely = "; or ".join(suspects or [_NOT_GIVEN])
    return (
        f"Throughput refuses an MFU of {100 * mfu:.4g} %: a device would do more than the "
        f"{peak_flops:.4g} FLOP/s that it can do ({source}), counting {flops_per_sample:.4g} "
        f"FLOPs for each sample. Likely {likely}"
    )
