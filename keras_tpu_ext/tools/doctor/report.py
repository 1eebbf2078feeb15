"""`DoctorReport`: the machine, the path that will run on it, and the problems to fix."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from keras_tpu_ext.hardware import Hardware
from keras_tpu_ext.output.display import HtmlText, wrap


@dataclasses.dataclass(frozen=True)
class Finding:
    """A problem, or advice.

    Attributes:
        kind: `"problem"` if training will not work as intended, `"advice"` if it will.
        text: The problem or the advice.
        write: What to write or run instead; empty if there is nothing to do.
    """

    kind: Literal["problem", "advice"]
    text: str
    write: str = ""

    def __str__(self) -> str:
        return f"{self.text}. Write: {self.write}" if self.write else f"{self.text}."


@dataclasses.dataclass(frozen=True)
class DoctorReport(HtmlText):
    """The result of `doctor`; print it, or show it in a notebook.

    Attributes:
        place: The machine, such as `"Kaggle"` or `"a Cloud TPU VM"`.
        hardware: The hardware that a program would run on.
        tpu: Where a TPU is reached, such as `"local"` or `"grpc://10.0.0.2:8470"`; empty if none was found.
        framework: Keras and its backend, such as `"Keras 3 on JAX"`.
        versions: The versions of the relevant packages that are installed.
        policy: Keras's current dtype policy.
        findings: Problems, then advice.
        next_step: The next thing to write or to run.
    """

    place: str
    hardware: Hardware
    tpu: str
    framework: str
    versions: dict[str, str]
    policy: str
    findings: tuple[Finding, ...]
    next_step: str

    @property
    def ok(self) -> bool:
        """Whether there is no problem."""
        return all(finding.kind != "problem" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data for JSON."""
        generation = self.hardware.generation
        return {
            "ok": self.ok,
            "place": self.place,
            "hardware": {
                "kind": self.hardware.kind,
                "name": self.hardware.name,
                "devices": self.hardware.num_devices,
                "generation": None if generation is None else generation.name,
                "chips": self._chips(),
                "hbm_bytes_per_device": None if generation is None else generation.hbm_bytes_per_core,
                "found_by": list(self.hardware.found_by),
            },
            "tpu": self.tpu,
            "framework": self.framework,
            "versions": dict(self.versions),
            "policy": self.policy,
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
            "next_step": self.next_step,
        }

    def __str__(self) -> str:
        rows = [("machine", self.place), ("hardware", self._hardware())]
        if self.tpu:
            rows.append(("TPU", f"reached at {self.tpu}"))
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        rows += [("framework", f"{self.framework} ({versions})"), ("dtype policy", self.policy)]
        lines = [line for name, text in rows for line in wrap(f"{name:<14}{text}", 14)]
        for finding in self.findings:
            mark = "PROBLEM" if finding.kind == "problem" else finding.kind
            lines += ["", *wrap(f"{mark}: {finding.text}.", 4)]
            lines += [f"    Write: {finding.write}"] if finding.write else []  # on one line, to be copied
        return "\n".join([*lines, "", f"Next: {self.next_step}"])

    def _chips(self) -> int | None:
        generation, devices = self.hardware.generation, self.hardware.num_devices
        return None if generation is None or devices is None else devices // generation.cores_per_chip

    def _hardware(self) -> str:
        generation, chips = self.hardware.generation, self._chips()
        if generation is None:
            return str(self.hardware)
        cores = generation.cores_per_chip
        per = f"{generation.hbm_bytes_per_core / 2**30:g} GiB of memory each"
        count = (
            "" if chips is None else f"; {chips} chip{'' if chips == 1 else 's'} of {cores} device{'s'[: cores - 1]}"
        )
        return f"{self.hardware}{count}, {per}"
