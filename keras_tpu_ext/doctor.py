"""`doctor()`: the machine, the path that will run on it, and the problems to fix."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence

from keras_tpu_ext import _runtime
from keras_tpu_ext.checks import arguments
from keras_tpu_ext.errors import KteError
from keras_tpu_ext.hardware import Hardware, detect, find_tpu
from keras_tpu_ext.precision import recommended_policy
from keras_tpu_ext.preflight._saved import open_saved
from keras_tpu_ext.strategy import strategy_scope
from keras_tpu_ext.tools import doctor as checks
from keras_tpu_ext.tools.doctor import DoctorReport as DoctorReport
from keras_tpu_ext.tools.doctor import Finding as Finding


def doctor(
    *,
    paths: Sequence[str] = (),
    start: bool = False,
    compiled: tuple[str | os.PathLike[str], str] | None = None,
    environ: Mapping[str, str] | None = None,
    root: str | os.PathLike[str] = "/",
    versions: Mapping[str, str] | None = None,
) -> DoctorReport:
    """Examine this machine: whether its TPU can be used, and what to do next.

    Without `start=True` it starts nothing, no device and no network connection, and it raises no error because of
    what it finds. If versions cannot work together, importing this package raises an error with the pair that works;
    the command `keras-tpu-ext doctor` still reports what it can.

    Args:
        paths: Where data and checkpoints will be, to check that they can be reached from where the model trains; none
            by default.
        start: Whether to start the TPU as well, which occupies it and waits for it. Defaults to `False`.
        compiled: A file of `PreflightReport.save` and its SHA-256, as for `strategy_scope`, to check that it fits
            this machine; what of its devices only a started TPU tells, with `start=True`. Defaults to `None`.
        environ: Environment variables; those of this process by default.
        root: Folder to use as the root of the file system; `"/"` by default.
        versions: Installed versions by package; by default those of this Python.

    Returns:
        A `DoctorReport`; `report.ok` says whether there is no problem.

    Example:
        ```python
        import keras_tpu_ext as kte

        report = kte.doctor(paths=["gs://my-bucket/train", "/tmp/checkpoints"])
        print(report)
        print(report.ok, report.next_step)
        ```
    """
    environ = os.environ if environ is None else environ
    versions = checks.installed_versions() if versions is None else versions
    hardware, address = detect(environ, root), find_tpu("auto", environ, root)
    reached = "" if address is None else address.address
    framework = _runtime.message_terms.framework
    policy, recommended = str(_runtime.keras.mixed_precision.global_policy().name), recommended_policy(hardware)
    found = list(checks.check_packages(versions))
    if reached:
        found += checks.check_tpu_framework(framework, versions, reached)
    if reached == "local":
        found += checks.check_holders(root)
    found += checks.check_paths(list(map(arguments.path, paths)), reached, root)
    if hardware.kind == "gpu" and not _runtime.devices.count_gpus():
        found.append(Finding("problem", "a GPU is there, and the framework sees none", _runtime.message_terms.no_gpu))
    found += checks.check_policy(policy, recommended, hardware)
    if start and reached:
        found += _started(reached)
    if compiled is not None:
        found.append(_fits(compiled, hardware, reached if start else ""))
    found.sort(key=lambda finding: finding.kind != "problem")
    return DoctorReport(
        place=checks.describe_place(environ, hardware),
        hardware=hardware,
        tpu=reached,
        framework=f"{_runtime.message_terms.keras} on {framework}",
        versions=dict(versions),
        policy=policy,
        findings=tuple(found),
        next_step=_next_step(hardware, reached, found, versions),
    )


def _fits(compiled: tuple[str | os.PathLike[str], str], hardware: Hardware, started: str) -> Finding:
    saved, facts = open_saved("doctor", compiled), {"platform": str(hardware.kind)}
    if hardware.generation is not None:
        facts["device kind"] = hardware.generation.device_kind
    with contextlib.suppress(KteError):  # `_started` has told
        if started and _runtime.saved_programs is not None:
            strategy = strategy_scope(require="tpu", tpu=started).strategy
            facts = {**_runtime.saved_programs.facts_of(strategy), "mesh": saved.machine["mesh"]}
    misfit, path = saved.misfit(facts), arguments.path(compiled[0])
    if misfit:
        text = f"the programs of {path}, for {saved.target}, do not fit this machine: {misfit}"
        return Finding("problem", text, "report.save(...) anew, with these versions and for this target")
    names = "; ".join(program.name for program in saved.programs)
    unknown = "" if "devices" in facts else ", as far as is known before it is started"
    return Finding("advice", f"{path} fits this machine{unknown}. It has the programs {names}")


def _started(address: str) -> list[Finding]:
    try:
        scope = strategy_scope(require="tpu", tpu=address)
    except KteError as error:
        return [Finding("problem", " ".join(str(error).split()).rstrip("."))]
    return [Finding("advice", f"the TPU was started: {scope}")]


def _next_step(hardware: Hardware, tpu: str, found: Sequence[Finding], versions: Mapping[str, str]) -> str:
    problem = next((finding for finding in found if finding.kind == "problem"), None)
    if problem is not None:
        return problem.write or "mend the problem above, and run keras-tpu-ext doctor again"
    if tpu:
        return 'with kte.strategy_scope(require="tpu", precision="auto") as scope:  # and make the model in it'
    if hardware.kind == "gpu":
        return 'with kte.strategy_scope(precision="auto") as scope:  # and make the model in it'
    if not {"jax", "libtpu"} <= versions.keys():
        return "pip install 'jax[tpu]'  # and keras-tpu-ext preflight asks the TPU compiler from here"
    return "keras-tpu-ext preflight --help  # it asks the TPU compiler from here"
