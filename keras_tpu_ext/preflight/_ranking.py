"""The layouts of a model on a TPU slice, ranked by the compiler's answer for each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from keras_tpu_ext import _runtime
from keras_tpu_ext.errors import PreflightError
from keras_tpu_ext.layers.remat import Policy, remat
from keras_tpu_ext.preflight._largest_batch import with_largest_batch
from keras_tpu_ext.preflight._step import Step
from keras_tpu_ext.preflight.report import PreflightReport
from keras_tpu_ext.preflight.results import Candidate

# Policies of `layers.remat`; more would ask the compiler as often again. What keeps all products keeps the logits of
# attention, too, of which the largest arrays are.
_POLICIES: tuple[Policy, ...] = ("dots_with_no_batch_dims_saveable", "nothing_saveable")
# Tensor parallelism over more devices spends more time on collectives than it saves.
_MOST_ALONG_MODEL = 16


class _Asked(NamedTuple):
    """A layout that the compiler was asked about."""

    candidate: Candidate  # its entry in the report
    step: Step  # the step with this layout
    report: PreflightReport | None = None  # its report; `None` if there is none


def ranked_report(
    step: Step,
    mesh: Mapping[str, int] | None,
    rebuild: Callable[[], Any] | None,
    *,
    search: bool,
    **more: float | None,
) -> PreflightReport:
    """Return the report of the fastest layout that fits, if need be with blocks that compute activations again."""
    found = _ask_about_all(step, mesh, "", more)
    has_blocks = rebuild is not None and bool(_runtime.models.repeated_blocks(step.model))
    if rebuild is not None and has_blocks and not any(asked.candidate.fits for asked in found):
        for policy in _POLICIES:
            model = remat(rebuild(), policy=policy)
            found += _ask_about_all(dataclasses.replace(step, model=model), mesh, policy, more)
    found.sort(key=lambda asked: asked.candidate.rank)
    best = next((asked for asked in found if asked.report is not None), None)
    if best is None or best.report is None:
        raise PreflightError(f"No layout could be asked about: {'; '.join(one.candidate.note for one in found)}.")
    report = dataclasses.replace(best.report, candidates=tuple(asked.candidate for asked in found))
    if report.memory is None or (report.ok and not search):
        return report
    return with_largest_batch(report, best.step, search=search)


def _ask_about_all(
    step: Step, mesh: Mapping[str, int] | None, policy: str, more: Mapping[str, float | None]
) -> list[_Asked]:
    """Compile the step for each mesh of a data and a model axis, and unsharded if its variables fit."""
    devices = step.target.devices
    meshes = _meshes_of(devices) if mesh is None else [dict(mesh)]
    unsharded, found, whole = _runtime.devices.abstract_strategy(devices), [], 0
    for one in meshes:
        opened = _runtime.devices.shard(unsharded, "fsdp", tuple(one.items()))
        asked = _asked(dataclasses.replace(step, opened=opened, mesh=one), policy, more)
        found.append(asked)
        if asked.report is not None and asked.report.layout is not None:
            whole = sum(variable.bytes for variable in asked.report.layout.variables)
    if mesh is None:
        step = dataclasses.replace(step, opened=unsharded, mesh=None)
        if whole > step.target.generation.usable_hbm_bytes_per_core:
            note = "weights and optimizer do not fit on one device"
            found.append(_Asked(Candidate(None, policy, needed=whole, fits=False, note=note), step))
        else:
            found.append(_asked(step, policy, more))
    return found


def _meshes_of(devices: int) -> list[dict[str, int]]:
    """Return the meshes of a data axis and a model axis, for several devices."""
    sizes = [2**i for i in range(devices.bit_length()) if not devices % 2**i and 2**i <= _MOST_ALONG_MODEL]
    meshes = [{"data": devices // size, **({"model": size} if size > 1 else {})} for size in sizes]
    return meshes if devices > 1 else []


def _asked(step: Step, policy: str, more: Mapping[str, float | None]) -> _Asked:
    """Return the compiler's answer for a layout."""
    candidate = Candidate(None if step.mesh is None else dict(step.mesh), policy)
    replicas, examples = step.opened.num_replicas, step.examples
    if examples % replicas:
        note = f"{replicas} replicas cannot share {examples} examples evenly"
        return _Asked(dataclasses.replace(candidate, note=note), step)
    try:
        report = step.report(**more)
    except PreflightError as error:
        return _Asked(dataclasses.replace(candidate, note=str(error).splitlines()[0]), step)
    if report.fault is not None:
        return _Asked(dataclasses.replace(candidate, note=str(report.fault)), step, report)
    if report.ok:
        report = with_largest_batch(report, step, search=False)
    assert report.memory is not None, "it compiles, or it says how much it needs"
    candidate = dataclasses.replace(
        candidate,
        needed=report.memory.needed,
        fits=report.ok,
        step_seconds=report.step_seconds,
        largest_per_replica_batch=report.largest_per_replica_batch,
    )
    return _Asked(candidate, step, report)
