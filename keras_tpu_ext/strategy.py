"""`strategy_scope()`: the one line that runs existing Keras code on the available hardware."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Literal, NoReturn

from keras_tpu_ext import _runtime
from keras_tpu_ext import precision as _precision
from keras_tpu_ext._runtime.common import user_frame
from keras_tpu_ext._runtime.common.values import OpenedStrategy
from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.compile_cache import use_compile_cache
from keras_tpu_ext.errors import (
    ArgumentError,
    HardwareNotFoundError,
    HardwareUnusableWarning,
    TpuUnusableError,
)
from keras_tpu_ext.hardware import Hardware, TpuAddress, detect, find_tpu
from keras_tpu_ext.output.announce import announce
from keras_tpu_ext.output.display import HtmlSentence, counted, mesh_text
from keras_tpu_ext.preflight._saved import open_saved
from keras_tpu_ext.preflight.api import fastest_mesh
from keras_tpu_ext.sharding.arguments import WantedDevices, check_sharding
from keras_tpu_ext.sharding.layout_report import LayoutReport

_KINDS = ("tpu", "gpu", "cpu")

Kind = Literal["tpu", "gpu", "cpu"]


class _Entered(threading.local):
    """The `with` blocks that this thread has open on one scope, innermost last."""

    def __init__(self) -> None:
        self.blocks: list[AbstractContextManager[object]] = []


@dataclasses.dataclass(frozen=True)
class Scope(HtmlSentence):
    """The hardware and strategy that models train with; a context manager that can be entered any number of times.

    Attributes:
        hardware: The hardware that was chosen.
        strategy: The framework's own object: a `tf.distribute.Strategy`, a `keras.distribution.DataParallel` or, for
            sharded models, a `keras.distribution.ModelParallel`.
        num_replicas: Number of replicas, each of which gets its own part of every batch: the size of the mesh's data
            axis.
        precision: Name of the dtype policy that is set inside the block; `None` leaves the policy alone.
        note: Why this hardware was chosen, in words.
        exact: Whether plain Keras models made inside the block use the training step of `TPUModel`.
        for_tpu: Whether models made inside the block compute with operations that cost a TPU less.
        mesh: Name and size of each axis of the mesh over which models are sharded; `None` if they are not sharded.

    Example:
        ```python
        import keras
        import numpy as np
        import keras_tpu_ext as kte

        scope = kte.strategy_scope(require="cpu", replicas=8)
        print(scope)  # 8 replicas on CPU, ... (a rehearsal: virtual CPU devices)
        print(scope.global_batch_size(32))  # 256
        with scope:
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        x = np.random.default_rng(0).normal(size=(1000, 4))
        model.fit(x, x.sum(axis=1), batch_size=scope.global_batch_size(32))
        with scope:  # as often as you like
            other = keras.models.clone_model(model)
        ```
    """

    hardware: Hardware
    strategy: Any
    num_replicas: int
    precision: str | None = None
    note: str = ""
    exact: bool = True
    for_tpu: bool = False
    mesh: tuple[tuple[str, int], ...] | None = None
    _entered: _Entered = dataclasses.field(default_factory=_Entered, repr=False, compare=False)

    def __enter__(self) -> Scope:
        block = _runtime.models.reopened_by_clear_session(self._block)
        block.__enter__()
        self._entered.blocks.append(block)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered.blocks.pop().__exit__(kind, error, trace)

    @contextlib.contextmanager
    def _block(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if self.precision is not None:
                stack.enter_context(_precision.policy_scope(self.precision))
            if self.exact:
                stack.enter_context(_runtime.models.exact_models(_runtime.TrainStep, for_tpu=self.for_tpu))
            stack.enter_context(_runtime.devices.scope(self.strategy))
            yield

    @property
    def num_replicas_in_sync(self) -> int:
        """Same as `num_replicas`, under the name that `tf.distribute.Strategy` uses."""
        return self.num_replicas

    def __copy__(self) -> Scope:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Scope:
        return self  # a process has only one set of devices

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "A Scope cannot be pickled: it holds devices that this process has opened. Write "
            "kte.strategy_scope(...) in the process that is to use them."
        )

    def __str__(self) -> str:
        policy = f", {self.precision}" if self.precision else ""
        sharded = f", sharded over a mesh of {mesh_text(dict(self.mesh))}" if self.mesh else ""
        replicas = counted(self.num_replicas, "replica")
        return f"{replicas} on {self.hardware.name}{f' ({self.note})' if self.note else ''}{sharded}{policy}"

    def global_batch_size(self, per_replica: int) -> int:
        """Return the batch size for `fit` or `dataset.batch` that gives each replica `per_replica` examples.

        Raises:
            ArgumentError: If `per_replica` is not a positive integer.
        """
        return check.integer("global_batch_size", "per_replica", per_replica, example=8) * self.num_replicas

    def layout(self, model: Any) -> LayoutReport:
        """Return the mesh axes along which each variable of a model is sharded, and its bytes on each device.

        Printing the report shows a table of the weights' layouts. Likely mistakes, such as a pattern that matches
        nothing, are listed above it.

        Args:
            model: A model that was built in this scope. Its optimizer has variables from its first `fit` on.

        Raises:
            ArgumentError: If it is not a Keras model, or is not built.
        """
        if not isinstance(model, _runtime.keras.Model) or not model.built:
            got = f"{model.name!r}, which is not" if isinstance(model, _runtime.keras.Model) else type(model).__name__
            raise check.argument_error(
                "layout", "model", "a Keras model that is built", got, "model.build(shape) before"
            )
        found = _runtime.devices.layout(model)
        mesh = dict(found.mesh or (("data", _runtime.devices.num_devices(model)),))
        return LayoutReport(model.name, mesh, found.variables, found.complaints, found.has_slots)

    def distribute(self, dataset: Any) -> Any:
        """Split each global batch of `dataset` over the replicas.

        `fit`, `evaluate` and `predict` do this themselves; use it in custom training loops.

        Args:
            dataset: Data batched by the global batch size. On TensorFlow a `tf.data.Dataset`; on JAX any iterable of
                batches, each a structure of arrays with the examples along the first axis.

        Returns:
            On TensorFlow a `tf.distribute.DistributedDataset`; on JAX an iterable of the same structures of
            `jax.Array`s, split over the devices.

        Raises:
            ArgumentError: If `dataset` is none of these or is not batched; on JAX also when iteration reaches a batch
                that cannot be split evenly over the devices.
        """
        return _runtime.devices.distribute(self.strategy, dataset)


def strategy_scope(
    *,
    require: Kind | None = None,
    tpu: str | Literal[False] = "auto",
    replicas: int | None = None,
    precision: str | None = None,
    exact: bool = True,
    for_tpu: bool = False,
    shard: Any = None,
    mesh: Any = None,
    compiled: tuple[str | os.PathLike[str], str] | None = None,
    compile_cache: str | os.PathLike[str] | None = None,
) -> Scope:
    """Open the available hardware: a TPU, else the GPUs, else the CPU; models built inside train on it.

    Existing Keras code needs no change inside the block. A model built inside still trains distributed after the
    block ends. Calling `strategy_scope` again returns the same strategy and never initialises a TPU twice.

    Several processes, on one machine or many, train together if each one knows the others: by the environment
    variable `TF_CONFIG` on TensorFlow, by `keras.distribution.initialize` or `jax.distributed.initialize` on JAX. All
    run the same program, on the same data in the same order, with the global batch size. Call `strategy_scope` before
    the first line that creates a tensor. On TensorFlow it then waits for the other processes for up to 300 seconds,
    or for the seconds in the environment variable `KTE_START_TIMEOUT`; on JAX, `initialize` has already waited. All
    processes get the same random seed.

    Args:
        require: `"tpu"`, `"gpu"` or `"cpu"`: accept nothing else. `None` (default) takes the best available. The
            choice is logged in one line, to the logger `keras_tpu_ext` at level `INFO`; if that logger has no level
            and `INFO` is not shown, the line is printed on stderr.
        tpu: `"auto"` (default) searches as `hardware.find_tpu` does; `"local"`, a TPU's name or a `grpc://` address
            says which TPU to use, and nothing else is accepted; `False` uses no TPU.
        replicas: Number of replicas. On a machine without accelerators, more than one is a rehearsal: that many
            virtual CPU devices run the same code path and give the same numbers. Defaults to all TPU cores or GPUs,
            and to 1 on a CPU.
        precision: Dtype policy inside the block, such as `"mixed_bfloat16"`; `"auto"` takes
            `precision.recommended_policy`. `None` (default) leaves the policy alone. The old policy is restored on
            exit.
        exact: Whether plain Keras models that are made, loaded, compiled or used inside the block get the exact step
            of `TPUModel` and the arguments of `TPUModel.compile`, and their batch normalizations use the statistics
            of the whole batch. A model's class, name and file do not change. Defaults to `True`; with `False` models
            keep Keras's own step.
        for_tpu: Whether models that are made or compiled inside the block compute dropout, layer normalization, gelu
            and the cross-entropy of integer labels with operations that cost a TPU less; docs/layers.md says how much
            less. Numbers are equal up to rounding, but for those of dropout: with it N replicas drop exactly what one
            device drops, and Keras's own random numbers are others. It applies to every layer, also to those of
            keras-hub, in `fit`, `evaluate`, `predict` and their `*_on_batch`, and changes no class, weight or file.
            On JAX attention is one kernel, with dropout too. Keras 3 only. Defaults to `False`.
        shard: How to shard models that do not fit on one device; on Keras 3 on JAX only. `None` (default): every
            device holds the whole model. `"fsdp"`: weights, gradients and optimizer state are sharded over the data
            axis, and over further axes of `mesh` as in tensor parallelism; layouts are chosen from shapes and layers.
            `"auto"`: like `"fsdp"` until the first `fit`, which on a TPU asks its compiler about several meshes, as
            `preflight(shard="auto")` does, and lays the model out on the fastest that fits (`num_replicas` stays);
            with `mesh`, like `"fsdp"`. A dict from patterns over variable paths to layouts,
            `{"dense.*kernel": (None, "model")}`, or a `keras.distribution.LayoutMap`, which has its own mesh:
            variables that match no pattern are replicated on every device.
        mesh: Name and size of each axis of the mesh, such as `(("data", 2), ("model", 4))` or the same as a dict;
            batches are sharded along the axis named `"data"`, else along the first. Default: all devices along
            `"data"`.
        compiled: A file of compiled programs and its SHA-256, `("step.kte", "...")`, the line that
            `PreflightReport.save` printed. Models then use its programs and compile only what it does not have, also
            after the block. If it was compiled for another machine or with other versions or flags, a warning says
            what differs, and everything is compiled as usual. It is machine code, so a digest that you have from
            elsewhere than the file is needed. Keras 3 on JAX only. Defaults to `None`.
        compile_cache: Folder, or URL such as `gs://bucket/programs`, from which programs that were compiled in an
            earlier session are read, and where new ones are kept; for the rest of the process, and on Keras 3 on JAX
            only. `"auto"` is `~/.cache/keras_tpu_ext/compile` and, from a `fit` with `AutoResume("checkpoints")` on,
            `checkpoints-compile-cache`; but a compilation cache that JAX was given before stays as it is. A line at
            the end of a `fit` tells what came from it. Programs are machine code: use no folder that others can
            write. `None` (default) changes nothing.

    Returns:
        The `Scope`, a context manager.

    Raises:
        ArgumentError: If an argument is invalid.
        HardwareNotFoundError: If the hardware named by `require` or `tpu` is not found or cannot be used; the message
            says what was searched, what was found and what to run.
        ScopeError: If a rehearsal or a multi-process start is requested after the framework has started its devices.
        ClusterError: If the processes that train together do not all connect in time.
        RuntimeNotSupportedError: If this Keras has no `shard` or `compile_cache`.

    Example:
        ```python
        import keras
        import numpy as np
        import keras_tpu_ext as kte

        with kte.strategy_scope() as scope:  # replicas=8 rehearses, on a machine without accelerators
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile("adam", "mse")
        x = np.random.default_rng(0).normal(size=(1000, 4))
        model.fit(x, x.sum(axis=1), batch_size=scope.global_batch_size(32), epochs=2)
        ```
    """
    _check_arguments(require, tpu, replicas, precision)
    check.one_of("strategy_scope", "exact", exact, (True, False), example="False")
    check.one_of("strategy_scope", "for_tpu", for_tpu, (True, False), example="True")
    if for_tpu and not exact:
        raise ArgumentError("for_tpu=True changes the exact step, and exact=False does without it. Leave one out.")
    if for_tpu and _runtime.tpu_operations is None:
        raise ArgumentError("strategy_scope(for_tpu=True) needs Keras 3; this is Keras 2. Leave `for_tpu` out.")
    axes = check_sharding("strategy_scope", shard, mesh, replicas)
    saved = None if compiled is None else open_saved("strategy_scope", compiled)
    if compile_cache is not None:
        use_compile_cache(compile_cache)
    wanted = WantedDevices(replicas, axes)
    address = find_tpu(tpu)
    if require is None and tpu not in ("auto", False):
        require = "tpu"  # a user who names a TPU does not want to train on a CPU
    scope = dataclasses.replace(_open(require, address, wanted), exact=exact, for_tpu=for_tpu)
    if shard is not None:
        scope = _sharded(scope, shard, axes)
    if saved is not None:
        saved.offer(scope.strategy)
    if precision is not None:
        policy = _precision.recommended_policy(scope.hardware) if precision == "auto" else precision
        scope = dataclasses.replace(scope, precision=policy)
    if _runtime.devices.is_chief():
        announce(f"strategy_scope: {scope}")
    return scope


def _sharded(scope: Scope, shard: Any, axes: tuple[tuple[str, int], ...] | None) -> Scope:
    """Return a scope whose models are sharded over its devices."""
    opened = OpenedStrategy(scope.strategy, scope.num_replicas)
    chooses = isinstance(shard, str) and shard == "auto" and axes is None
    choose = functools.partial(fastest_mesh, scope.hardware) if chooses else None
    sharded = _runtime.devices.shard(opened, shard, axes, choose)
    mesh = axes or (("data", int(scope.num_replicas)),)
    return dataclasses.replace(scope, strategy=sharded.strategy, num_replicas=sharded.num_replicas, mesh=mesh)


def _open(require: Kind | None, address: TpuAddress | None, wanted: WantedDevices) -> Scope:
    """Try TPU, GPUs and CPU in this order, as far as `require` allows."""
    if require in (None, "tpu") and address is not None:
        try:
            return _open_tpu(address, wanted)
        except TpuUnusableError as error:
            if require == "tpu":
                raise
            user_frame.warn(_passed_over(address, error), HardwareUnusableWarning)
    if require == "tpu":
        raise HardwareNotFoundError(_not_found("tpu"))
    gpus = 0 if require == "cpu" else _runtime.devices.count_gpus()
    if _runtime.devices.num_workers() > 1:
        return _open_workers(gpus, require, wanted)
    if gpus:
        return _open_gpus(gpus, wanted)
    if require == "gpu":
        raise HardwareNotFoundError(_not_found("gpu"))
    return _open_cpu(wanted.devices or 1)


def _open_tpu(address: TpuAddress, wanted: WantedDevices) -> Scope:
    opened = _runtime.devices.open_tpu(address.address)
    if wanted.devices not in (None, opened.num_replicas):
        raise ArgumentError(
            f"{wanted} was asked for, but this TPU has {opened.num_replicas} cores, and all of them "
            f"train. Leave `{wanted.name}` out, or rehearse on the CPU: "
            f'strategy_scope(require="cpu", {wanted.code}).'
        )
    seen = detect()
    name = seen.name if seen.kind == "tpu" else "TPU"
    generation = seen.generation if seen.kind == "tpu" else None
    hardware = Hardware("tpu", opened.num_replicas, name, generation, True, (address.found_by,))
    return Scope(hardware, opened.strategy, opened.num_replicas, note=f"found by {address.found_by}")


def _open_workers(gpus: int, require: Kind | None, wanted: WantedDevices) -> Scope:
    """Several processes train together on their GPUs, else on their CPUs."""
    if require == "gpu" and not gpus:
        raise HardwareNotFoundError(_not_found("gpu"))
    opened = _runtime.devices.open_workers()
    if wanted.devices not in (None, opened.num_replicas):
        raise ArgumentError(
            f"{wanted} was asked for, but the cluster of {opened.configured_by} has {opened.num_replicas}, and "
            f"all of them train. Leave `{wanted.name}` out, or do without {opened.configured_by}."
        )
    hardware = dataclasses.replace(_cpu(), kind="gpu", name="GPUs", num_devices=gpus) if gpus else _cpu()
    return Scope(hardware, opened.strategy, opened.num_replicas, note=f"a cluster, told by {opened.configured_by}")


def _open_gpus(available: int, wanted: WantedDevices) -> Scope:
    count = wanted.devices or available
    if count > available:
        instead = f"Write replicas={available}" if wanted.mesh is None else f"Write a mesh of {available}"
        raise ArgumentError(
            f"{wanted} was asked for, but this machine has {counted(available, 'GPU')}. "
            f'{instead}, or rehearse on the CPU: strategy_scope(require="cpu", {wanted.code}).'
        )
    opened = _runtime.devices.open_gpus(count)
    hardware = Hardware("gpu", count, opened.device_name, None, opened.supports_bfloat16, ("the framework",))
    return Scope(hardware, opened.strategy, opened.num_replicas)


def _open_cpu(replicas: int) -> Scope:
    opened = _runtime.devices.open_cpu(replicas)
    note = "a rehearsal: virtual CPU devices" if replicas > 1 else ""
    return Scope(_cpu(), opened.strategy, opened.num_replicas, note=note)


def _cpu() -> Hardware:
    """Return the CPU as `Hardware`, even if there is a TPU or GPU."""
    seen = detect(environ={"CUDA_VISIBLE_DEVICES": ""})
    return seen if seen.kind == "cpu" else Hardware("cpu", 1, "CPU")


def _passed_over(address: TpuAddress, error: TpuUnusableError) -> str:
    return (
        f"The TPU found by {address.found_by} cannot be used, so the next best device is taken. "
        f'{error} To make this an error, write strategy_scope(require="tpu"); to silence it, '
        "strategy_scope(tpu=False)."
    )


def _not_found(wanted: Kind) -> str:
    looked = {
        "tpu": "a TPU in TPU_NAME, COLAB_TPU_ADDR, TPU_GRPC_URL, KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS, "
        "TPU_ACCELERATOR_TYPE, TPU_WORKER_ID, /dev/accel* and /dev/vfio",
        "gpu": "a GPU among the framework's devices",
    }
    run = {
        "tpu": "switch the notebook's accelerator to a TPU, or name one, "
        'strategy_scope(require="tpu", tpu="grpc://HOST:8470"), or rehearse: strategy_scope(replicas=8).',
        "gpu": f"switch the accelerator to a GPU, {_runtime.message_terms.no_gpu}, or leave `require` out.",
    }
    return (
        f'strategy_scope(require="{wanted}") looked for {looked[wanted]}, and found none. '
        f"This machine is: {detect()}. What to do: {run[wanted]}"
    )


def _check_arguments(require: object, tpu: object, replicas: object, precision: str | None) -> None:
    check.one_of("strategy_scope", "require", require, (None, *_KINDS))
    if require == "tpu" and tpu is False:
        raise ArgumentError(
            'require="tpu" and tpu=False contradict each other. Leave `tpu` out, or leave `require` out.'
        )
    check.optional(check.integer, "strategy_scope", "replicas", replicas, example=8)
    if precision not in (None, "auto"):
        _precision.check_policy(precision)
