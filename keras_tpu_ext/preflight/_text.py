"""The text of a preflight report."""

from __future__ import annotations

from collections.abc import Iterator

from keras_tpu_ext.output.display import WIDTH, counted, file_size, memory_size, mesh_text, three_digits, wrap
from keras_tpu_ext.preflight.results import (
    Collectives,
    LayerTime,
    MemoryUse,
    PreflightResult,
    StepTime,
)

_NUM_LAYERS = 10
_NAME = 28  # characters of a layer's name
_NEARLY_FULL = 0.85
_NUM_KINDS = 6
_TO_SHRINK = 3  # buffers whose cures are shown
_LEAST_PART = 1e-3  # of the memory that is needed; smaller buffers are not shown


def report_text(report: PreflightResult, *, width: int = WIDTH) -> str:
    """Return the text, with lines below the first one wrapped to `width` characters."""
    first, *rest = _lines(report)
    return "\n".join([first, *(line for long in rest for line in _wrapped(long, width))])


def _wrapped(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    is_row = line.startswith("  ") and line[:12].endswith(" ")  # else a sentence
    indent = 12 if is_row else 2
    return wrap(line, indent, width=width)


def _lines(report: PreflightResult) -> Iterator[str]:
    yield headline(report)
    if report.fault is not None:
        yield f"  {report.fault}"
        if report.fault.cure:
            yield f"  Instead: {report.fault.cure}."
        return
    if report.layout is not None:
        yield from (f"  ! {complaint}" for complaint in report.layout.complaints)
    yield ""
    if report.candidates:
        yield from _candidate_lines(report)
    if report.memory is not None:
        yield from _memory_lines(report, report.memory)
    if report.time is not None:
        yield from _time_lines(report, report.time)
        yield ""
        yield from _layer_lines(report.layers)
    yield ""
    if is_cpu(report):
        yield '- There is no estimate of time for this machine\'s CPU: kte.plan(..., target="cpu") measures it.'
        return
    yield from (f"- {sentence}" for sentence in report.left_out)


def _candidate_lines(report: PreflightResult) -> Iterator[str]:
    width = max(30, *(len(one.name) + 2 for one in report.candidates))
    yield f"  {'layouts':<{width}}{'memory':>10}{'step':>10}{'largest batch per replica':>26}"
    for one in report.candidates:
        if one.needed is None:
            yield f"  {one.name:<{width}}{one.note}"
            continue
        step = "" if one.step_seconds is None else _seconds(one.step_seconds)
        largest = "does not fit" if not one.fits else str(one.largest_per_replica_batch or "")
        yield f"  {one.name:<{width}}{memory_size(one.needed):>10}{step:>10}{largest:>26}"
    best = report.candidates[0]
    if best.fits:
        yield f"  To use the first one: {best.code}"
        if best.remat:
            yield f'  and, once it is built: kte.layers.remat(model, policy="{best.remat}")'
    yield ""


def headline(report: PreflightResult) -> str:
    """Return the first line: model, target, batch and verdict."""
    chips = counted(report.chips, "virtual device" if is_cpu(report) else "chip")
    each = f", {report.per_replica_batch} on each {device_name(report)}" if report.devices > 1 else ""
    if report.mesh is not None:
        each = f", {report.per_replica_batch} a replica"
        chips += f", mesh of {mesh_text(report.mesh)}"
    what = f"{report.model!r} on {report.target} ({chips}), batch of {report.global_batch}{each}"
    return f"{what}: {_verdict(report)}"


def is_cpu(report: PreflightResult) -> bool:
    """Return whether the target is this machine's CPU."""
    return report.target.startswith("cpu")


def device_name(report: PreflightResult) -> str:
    """Return `"chip"`, or `"core"` if a chip has two devices; a CPU has neither."""
    if is_cpu(report):
        return "device"
    return "chip" if report.chips == report.devices else "core"


def _verdict(report: PreflightResult) -> str:
    if report.fault is not None:
        return "does not compile"
    if report.memory is None or not report.memory.fits:
        return "compiles, and does NOT FIT into memory"
    part = (report.memory.needed or 0) / report.memory.available
    return "compiles, and nearly fills the memory" if part > _NEARLY_FULL else "compiles and fits"


def _memory_lines(report: PreflightResult, memory: MemoryUse) -> Iterator[str]:
    kind = "memory" if is_cpu(report) else "HBM"
    available = f"{memory_size(memory.available)} of {kind} a {device_name(report)}"
    if memory.needed is None:
        yield _row("memory", f"more than the {available}")
    else:
        part, detail = memory.needed / memory.available, ""
        if memory.temporaries is not None and memory.arguments is not None:
            temporaries, arguments = memory_size(memory.temporaries), memory_size(memory.arguments)
            detail = f": {temporaries} for temporaries, {arguments} for weights, state and batch"
        yield _row("memory", f"{memory_size(memory.needed)} of {available} ({100 * part:.0f} %){detail}")
    if memory.by_role:
        roles = {role: size for role, size in memory.by_role.items() if size}
        yield _row("", f"of that {', '.join(f'{memory_size(size)} {role}' for role, size in roles.items())}")
    if report.largest_per_replica_batch is not None:
        how = "compiled" if report.largest_was_compiled else "extrapolated from this batch, not compiled"
        largest = report.largest_per_replica_batch
        yield _row(
            "", f"largest batch per replica that fits: {largest} ({largest * report.num_replicas} in all; {how})"
        )
    if report.largest_sequence_length is not None:
        longest = f"{report.largest_sequence_length:,} tokens"
        yield _row("", f"longest sequence at this batch: about {longest}, if memory grows linearly with the tokens")
    buffers = [buffer for buffer in memory.buffers if buffer.bytes >= _LEAST_PART * (memory.needed or 0)]
    if buffers:
        at = "" if memory.buffers_batch is None else f", at a batch of {memory.buffers_batch} a replica"
        yield _row("", f"largest buffers at peak{at}:")
    for buffer in buffers[:5]:
        way = ", backward" if buffer.backward else ""
        what = f", {buffer.purpose}" if buffer.purpose else ""
        yield _row("", f"{memory_size(buffer.bytes):>10}  {buffer.layer}{way}  {buffer.shape}{what}")
    for purpose, cure in dict.fromkeys((one.purpose, one.cure) for one in buffers[:_TO_SHRINK] if one.cure):
        yield _row("", f"to shrink {purpose}{'' if purpose == 'logits' else 's'}: {cure}")


def _time_lines(report: PreflightResult, time: StepTime) -> Iterator[str]:
    rate = report.samples_per_sec or 0.0
    what = "examples" if report.tokens_per_sec is None else "tokens"
    rate = report.tokens_per_sec or rate
    yield _row("step", f"{_seconds(time.seconds)} estimated: {rate:,.0f} {what}/s, {rate / report.chips:,.0f} a chip")
    yield _row("", _range(report, time))
    kernels = ""
    if time.by_kernels:
        means = "the instructions that the compiler has made of them"
        if not time.kernels_by_compiler:
            means = "their products at the matrix units' peak"
        kernels = f", {100 * time.by_kernels:.0f} % in kernels, by {means} or by their bytes, whichever takes longer"
    yield _row(
        "",
        f"{100 * time.by_compiler:.0f} % of it stated by the compiler{kernels}; the rest is the time to move bytes "
        f"over the chip's memory and links, {_by(report, time)}",
    )
    yield _row("FLOPs", f"{time.flops:.3g} per device and step, {100 * time.mfu:.0f} % of the bfloat16 peak (MFU)")
    shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in time.shares.items() if share >= 0.005)
    yield _row("bound by", f"{time.bound} (time: {shares}); {time.intensity:.0f} FLOPs per byte of HBM")
    if report.collectives is not None and report.devices > 1:
        found = report.collectives
        yield _row(
            "network",
            f"{counted(found.count, 'collective')} of {file_size(found.bytes)}: "
            f"{'' if 'collectives' in time.corrections else 'at least '}{_seconds(found.seconds)}",
        )
        yield from _collective_lines(found)
    per_sec = file_size(report.host_bytes_per_sec or 0)
    yield _row("host", f"must deliver {per_sec}/s ({file_size(report.host_bytes)} a step)")
    if report.pipeline_batches_per_sec is not None:
        yield _pipeline_line(report.pipeline_batches_per_sec, time)
    if time.unknown_loops:
        count = time.unknown_loops
        loops = "a loop runs" if count == 1 else f"{count} loops run"
        yield _row("", f"how often {loops} is not known before it runs: counted once, so a step takes longer")


def _collective_lines(found: Collectives) -> Iterator[str]:
    for one in [one for one in found.by_kind if one.axes][:_NUM_KINDS]:
        what = f"{one.kind} along {' and '.join(one.axes)}"
        where = f", most in {one.layer}" if one.layer != "(other)" else ""
        size, times = file_size(one.bytes), counted(one.count, "time")
        yield _row("", f"{size:>10}  {what}: {_seconds(one.seconds)} in {times}{where}")


def _range(report: PreflightResult, time: StepTime) -> str:
    generation = report.target.split("-")[0]
    if time.seconds_range is None:
        return f"there is no published measurement on real {generation} chips to compare with"
    low, high = map(_seconds, time.seconds_range)
    return f"{low} to {high}, judging by measurements on real {generation} chips ({time.measured})"


def _by(report: PreflightResult, time: StepTime) -> str:
    made = [name for name in time.corrections if name != "collectives" or report.devices > 1]
    made = [f"{name} on {time.borrowed[name]} chips" if name in time.borrowed else name for name in made]
    return f"as measured for {' and '.join(made)}, else at least" if made else "at least"


def _pipeline_line(made: float, time: StepTime) -> str:
    wanted = 1 / time.seconds
    verdict = (
        "enough"
        if made >= wanted
        else f"{100 * (1 - made / wanted):.0f} % of the time would be spent waiting for data"
    )
    return _row("", f"the pipeline makes {made:,.1f} batches/s here, and {wanted:,.1f} are needed: {verdict}")


def _layer_lines(layers: tuple[LayerTime, ...]) -> Iterator[str]:
    total = sum(layer.seconds for layer in layers) or 1.0
    yield f"  {'time by layer':<{_NAME}}{'':>10}{'of step':>9}{'backward':>10}{'FLOPs/byte':>12}{'padding':>9}"
    for layer in layers[:_NUM_LAYERS]:
        part, back = layer.seconds / total, layer.backward_seconds / layer.seconds if layer.seconds else 0.0
        intensity = layer.flops / layer.moved_bytes if layer.moved_bytes else 0.0
        name = shortened(layer.layer, _NAME)
        shares = f"{100 * part:>7.1f} %{100 * back:>8.0f} %{intensity:>12.0f}{100 * layer.padding:>7.0f} %"
        yield f"  {name:<{_NAME}}{_seconds(layer.seconds):>10}{shares}"
    rest = layers[_NUM_LAYERS:]
    if rest:
        seconds = sum(layer.seconds for layer in rest)
        yield f"  {f'({len(rest)} more)':<{_NAME}}{_seconds(seconds):>10}{100 * seconds / total:>7.1f} %"


def shortened(name: str, letters: int) -> str:
    """Return the end of a name that is longer than this."""
    return name if len(name) <= letters else f"…{name[1 - letters :]}"


def _row(name: str, text: str) -> str:
    return f"  {name:<10}{text}"


def _seconds(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{three_digits(1e3 * seconds)} ms" if seconds >= 1e-3 else f"{three_digits(1e6 * seconds)} µs"
