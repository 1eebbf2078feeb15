"""A train step to compile, and the report of the compiler's answer."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Collection, Mapping
from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.lowering import LoweredStep, LoweringError
from keras_tpu_ext._runtime.common.saved_programs import SavedProgram
from keras_tpu_ext._runtime.common.values import OpenedStrategy
from keras_tpu_ext.errors import ArgumentError, PreflightError
from keras_tpu_ext.output.announce import announce
from keras_tpu_ext.output.display import mesh_text
from keras_tpu_ext.output.progress import Progress
from keras_tpu_ext.preflight import _batch
from keras_tpu_ext.preflight._compiler import Compiled, compile_all, compile_for
from keras_tpu_ext.preflight._hlo.timeline import Correction
from keras_tpu_ext.preflight._saved import SavedFile, machine_of
from keras_tpu_ext.preflight.report import PreflightReport
from keras_tpu_ext.preflight.results import Fault
from keras_tpu_ext.preflight.targets import Target
from keras_tpu_ext.sharding.layout_report import LayoutReport


@dataclasses.dataclass(frozen=True)
class Step:
    """A train step, and how to compile it."""

    model: Any  # the compiled model
    spec: Any  # specs of the global batch, as `fit` gives it to a step
    target: Target  # the TPU slice
    opened: OpenedStrategy  # the strategy over its devices
    mesh: Mapping[str, int] | None  # size of each axis of the mesh, by its name; `None` if the model is not sharded
    corrections: Collection[Correction]  # names of the requested corrections
    timeout_s: float  # seconds after which the compiler is stopped
    cache: str | None  # folder of the compile cache; `None` for none
    progress: bool  # whether to show progress on stderr

    @property
    def examples(self) -> int:
        """Examples in a batch of all replicas."""
        return _batch.batch_size(self.spec)

    def compile(self, examples: int) -> tuple[LoweredStep, Compiled]:
        """Lower and compile it for a batch of another size."""
        sized = _batch.with_batch_size(self.spec, examples)
        lowered = _runtime.probes.lower_step(self.model, sized, self.opened, self.target.generation.device_kind)
        mesh = "" if self.mesh is None else f" ({mesh_text(self.mesh)})"
        with Progress(f"preflight: compiling for {self.target.name}{mesh}", shown=self.progress) as line:
            return lowered, compile_for(
                self.target, lowered, timeout_s=self.timeout_s, cache_dir=self.cache, progress=line.update
            )

    def save(self, step_seconds: float | None, known: Compiled, digest: str, path: str | os.PathLike[str]) -> str:
        """Compile all programs of a `fit`, but for the known one, and write them; return the file's SHA-256."""
        saved_programs = _runtime.saved_programs
        if saved_programs is None:
            raise ArgumentError(f"save needs Keras 3 on JAX; this is {_runtime.message_terms.keras} on TensorFlow.")
        if not isinstance(self.model, _runtime.TrainStep):
            raise ArgumentError(
                f"save: {self.model.name!r} has Keras's own step, and in strategy_scope() a model has another. Write "
                "preflight(model, batch) with a model that was made in kte.strategy_scope()."
            )
        if not_compiled := self._not_compiled():
            raise ArgumentError(f"save: {not_compiled}")
        lowered = _runtime.probes.lower_programs(
            self.model, self.spec, self.opened, self.target.generation.device_kind, step_seconds=step_seconds
        )
        if not all(one.compile_options for one in lowered):
            raise ArgumentError("save: this JAX does not tell what it asks its compiler for, as the log says.")
        missing = [one for one in lowered if one.digest != digest or not known.executable]
        with Progress(f"save: compiling for {self.target.name}", shown=self.progress) as line:
            found = compile_all(self.target, missing, timeout_s=self.timeout_s, progress=line.update)
        compiled = {digest: known} | {one.digest: each for one, each in zip(missing, found, strict=True)}
        programs = []
        for one in lowered:
            answer = compiled[one.digest]
            if answer.error:
                raise PreflightError(f"{one.name!r} does not compile: {answer.error.splitlines()[0]}")
            assert one.signature is not None, "it was lowered by JAX"
            seconds = answer.facts["compile_seconds"]
            programs.append(SavedProgram(one.name, one.steps, one.signature, seconds, answer.executable))
        auto = f'steps_per_execution="auto" is {max(one.steps for one in lowered)} where it is used'
        names = "; ".join(one.name for one in lowered)
        announce(f"save: {os.fspath(path)} has, for {self.target.name}: {names}. {auto}")
        facts = {**answer.machine, **saved_programs.facts_of(self.opened.strategy, are_here=False)}
        return SavedFile(self.target.name, machine_of(facts), tuple(programs)).write(path)

    def _not_compiled(self) -> str:
        """Return why `fit` on JAX compiles no step of the model; empty if it does."""
        if _runtime.saved_programs is None or (self.model.jit_compile and not self.model.run_eagerly):
            return ""
        layers = [repr(layer.name) for layer in self.model._flatten_layers() if not layer.supports_jit]
        why = "it was compiled with run_eagerly=True or jit_compile=False. Leave that out."
        if layers:
            why = f"Keras does not compile {', '.join(layers)}. Do that in dataset.map(...), or with kte.layers."
        return f"`fit` runs each operation of {self.model.name!r} by itself, which is slow on a TPU: {why}"

    def report(self, **more: float | None) -> PreflightReport:
        """Compile it and return the report, without the largest batch."""
        from keras_tpu_ext.preflight._analysis import (
            StepAnalysis,
            bytes_by_role,
            memory_on_cpu,
            parse_compile_error,
            parse_out_of_memory,
        )

        facts: dict[str, Any] = {
            "model": self.model.name,
            "target": self.target.name,
            "framework": _runtime.message_terms.framework,
            "chips": self.target.chips,
            "devices": self.target.devices,
            "global_batch": self.examples,
            "per_replica_batch": self.examples // self.opened.num_replicas,
            "sequence_length": _batch.sequence_length(self.spec),
            "mesh": None if self.mesh is None else dict(self.mesh),
            **more,
        }
        if not_compiled := self._not_compiled():
            announce(f"preflight: a compiled step is estimated, but {not_compiled}")
        try:
            lowered, compiled = self.compile(self.examples)
        except LoweringError as error:
            return PreflightReport(**facts, fault=Fault(error.cause, error.layer, error.line, error.cure))
        facts |= {"host_bytes": lowered.batch_bytes, "versions": compiled.facts.get("versions", {})}
        if self.mesh is not None:
            facts["layout"] = LayoutReport(self.model.name, dict(self.mesh), lowered.layouts, lowered.complaints)
        if not compiled.error:
            facts |= {"compile_seconds": compiled.facts["compile_seconds"]}
            if self.target.is_cpu:
                save = functools.partial(self.save, None, compiled, lowered.digest)
                return PreflightReport(**facts, memory=memory_on_cpu(compiled, self.target), _save=save)
            analysis = StepAnalysis(lowered, compiled, self.target, self.corrections, self.mesh)
            time = analysis.time()
            return PreflightReport(
                **facts,
                memory=analysis.memory(),
                time=time,
                layers=analysis.layers(),
                collectives=analysis.collectives(),
                _save=functools.partial(self.save, time.seconds, compiled, lowered.digest),
            )
        memory = parse_out_of_memory(compiled.error, self.target)
        if memory is None:
            return PreflightReport(**facts, fault=parse_compile_error(compiled.error, lowered))
        memory = dataclasses.replace(memory, by_role=bytes_by_role(lowered.layouts))
        return PreflightReport(**facts, memory=memory)
