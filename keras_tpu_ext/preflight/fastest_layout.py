"""The fastest layout of a model on this TPU, by the compiler's estimate of a train step."""

from __future__ import annotations

import logging
from typing import Any

from keras_tpu_ext.errors import ArgumentError, MissingExtraError, PreflightError
from keras_tpu_ext.hardware import Hardware
from keras_tpu_ext.preflight.api import preflight

_LOG = logging.getLogger("keras_tpu_ext")


def fastest_mesh(hardware: Hardware, model: Any, batch: Any) -> dict[str, int] | None:
    """Return the size of each axis of the mesh on which the model trains fastest; `None` to leave it as it is.

    An empty mesh means that every device holds the whole model.
    """
    generation, devices = hardware.generation, hardware.num_devices
    if hardware.kind != "tpu" or generation is None or devices is None:
        return None
    target = generation.slice_name(devices // generation.cores_per_chip)
    try:
        report = preflight(model, batch, target, shard="auto")
    except (ArgumentError, MissingExtraError, PreflightError) as error:
        _LOG.warning('The layout of %r stays that of shard="fsdp": %s', model.name, str(error).splitlines()[0])
        return None
    best = report.candidates[0]
    if not best.fits:
        _LOG.warning(
            "No layout of %r fits on %s by its compiler. print(kte.preflight(...)) says more.", model.name, target
        )
        return None
    _LOG.info(
        "%r is laid out for %s as %s: %.4g s a step by its compiler", model.name, target, best.name, best.step_seconds
    )
    return best.mesh or {}
