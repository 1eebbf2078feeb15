"""What can be told of a machine whose packages do not let this one be imported; it needs no framework."""

from __future__ import annotations

import os
from collections.abc import Mapping

from keras_tpu_ext._doctor.findings import finding_of
from keras_tpu_ext._doctor.machine import installed, place_of
from keras_tpu_ext._doctor.report import DoctorReport
from keras_tpu_ext.hardware import detect, find_tpu


def refused(
    error: ImportError, *, environ: Mapping[str, str] | None = None, root: str | os.PathLike[str] = "/"
) -> DoctorReport:
    """Return a report whose one problem is `error`.

    Args:
        error: What importing this package raised.
        environ: Environment variables; those of this process by default.
        root: Folder taken for the root of the file system; `"/"` by default.
    """
    environ = os.environ if environ is None else environ
    hardware, address = detect(environ, root), find_tpu("auto", environ, root)
    problem = finding_of(str(error))
    return DoctorReport(
        place=place_of(environ, hardware),
        hardware=hardware,
        tpu="" if address is None else address.address,
        framework="none, keras_tpu_ext cannot be imported",
        versions=installed(),
        policy="unknown",
        findings=(problem,),
        next_step=problem.write or "mend the problem above, and run keras-tpu-ext doctor again",
    )
