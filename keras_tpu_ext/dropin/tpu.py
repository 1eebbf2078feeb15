"""TensorFlow's names for TPUs and strategies, over `strategy_scope()`."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from keras_tpu_ext import hardware
from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.dropin.errors import out_of_reach
from keras_tpu_ext.dropin.patching import Function, replace, wrap
from keras_tpu_ext.dropin.report import mapped, told
from keras_tpu_ext.machine.tpu_evidence import DROPIN_ADDRESS
from keras_tpu_ext.strategy import Scope, strategy_scope
from keras_tpu_ext.tools.migrate.tables.out_of_reach import LOOPS

_ADDRESS = f"grpc://{DROPIN_ADDRESS}"  # what a program gets that asks for an address; nothing listens there
_REHEARSE = "KTE_REHEARSE"


class _Open(threading.local):
    """The strategies whose scopes this thread has open, innermost last."""

    def __init__(self) -> None:
        self.strategies: list[Strategy] = []


_OPEN = _Open()


def rehearsed_replicas() -> int | None:
    """Return how many CPU devices are to look like a TPU; `None` if `KTE_REHEARSE` is not set.

    Raises:
        ArgumentError: If it is not a positive integer.
    """
    text = os.environ.get(_REHEARSE, "")
    if not text:
        return None
    if not text.isdecimal() or not int(text):
        raise check.argument_error("dropin", _REHEARSE, "a number of replicas", repr(text), f'"{_REHEARSE}=8"')
    return int(text)


@functools.cache
def _tpu_scope() -> Scope | None:
    """Open the TPU, or what looks like one; `None` if there is neither."""
    replicas = rehearsed_replicas()
    if replicas is not None:
        return strategy_scope(require="cpu", replicas=replicas)
    return None if hardware.find_tpu() is None else strategy_scope(require="tpu")


@functools.cache
def _default_scope() -> Scope:
    """Open one device, for a program without a strategy: losses that are not reduced train as on TensorFlow there."""
    return strategy_scope(tpu=False, replicas=1)


class TPUClusterResolver:
    """The TPU of this machine, under the name that TensorFlow has for one that it connects to.

    Args:
        tpu: Any name or address: the TPU is the one of this machine.
        **options: Ignored: zone, project and the like of a TPU elsewhere.

    Raises:
        ValueError: If there is no TPU, so that a program takes its own way without one.
    """

    environment = ""
    task_type = "worker"
    task_id = 0

    def __init__(self, tpu: Any = None, **options: Any) -> None:
        scope = _tpu_scope()
        if scope is None:
            mapped("TPUClusterResolver", "a ValueError: there is no TPU")
            raise ValueError(
                "Please provide a TPU Name to connect to. (keras_tpu_ext.dropin found no TPU on this machine; "
                f"{_REHEARSE}=8 in the environment lets eight CPU devices look like one.)"
            )
        told("TPUClusterResolver", "keras_tpu_ext.strategy_scope()")
        self._scope = scope

    @classmethod
    def connect(cls, tpu: Any = None, **options: Any) -> TPUClusterResolver:
        """Return the resolver; connecting and initialising are not needed."""
        return cls(tpu, **options)

    def master(self, *args: Any, **options: Any) -> str:
        """Return an address to print."""
        return _ADDRESS

    get_master = master

    def cluster_spec(self) -> tf.train.ClusterSpec:
        """Return one worker, for programs that print it."""
        return tf.train.ClusterSpec({"worker": [DROPIN_ADDRESS]})

    def num_accelerators(self, *args: Any, **options: Any) -> dict[str, int]:
        """Return the number of cores."""
        return {"TPU": self._scope.num_replicas}

    def get_job_name(self) -> str:
        """Return the job's name."""
        return "worker"


class _Extended:
    def __getattr__(self, name: str) -> Any:
        raise out_of_reach(
            what=f"strategy.extended.{name}",
            why="there is no tf.distribute below the drop-in",
            write="keras_tpu_ext.strategy_scope()",
        )


class Strategy:
    """A `tf.distribute` strategy whose models train in a `strategy_scope()`; the default one has one replica."""

    def __init__(self, scope: Scope | None = None) -> None:
        self._scope = scope
        self.extended = _Extended()
        self.cluster_resolver: TPUClusterResolver | None = None

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of replicas."""
        return 1 if self._scope is None else self._scope.num_replicas

    @contextlib.contextmanager
    def scope(self) -> Iterator[Strategy]:
        """Open the scope in which models are built."""
        mapped("strategy.scope()", "keras_tpu_ext.strategy_scope()")
        _OPEN.strategies.append(self)
        try:
            with self._scope or _default_scope():
                yield self
        finally:
            _OPEN.strategies.pop()

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        """Return the data: `fit`, `evaluate` and `predict` split each batch over the replicas."""
        mapped("strategy.experimental_distribute_dataset", "the dataset itself, which fit splits")
        return dataset

    def distribute_datasets_from_function(self, dataset_fn: Callable[[Any], Any], options: Any = None) -> Any:
        """Return what the function gives for one worker, batched for all replicas."""
        mapped("strategy.distribute_datasets_from_function", "the function's dataset, which fit splits")
        return dataset_fn(_InputContext(self.num_replicas_in_sync))

    experimental_distribute_datasets_from_function = distribute_datasets_from_function

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """Return the one value that there is."""
        return value if isinstance(value, tuple) else (value,)

    def __getattr__(self, name: str) -> Any:
        if name not in LOOPS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise out_of_reach(
            what=f"strategy.{name}",
            why="a loop of TensorFlow's own cannot train a model on JAX",
            write=LOOPS[name],
        )


class _InputContext:
    """What a function gets that makes each worker's dataset; all replicas are here."""

    num_input_pipelines = 1
    input_pipeline_id = 0

    def __init__(self, replicas: int) -> None:
        self.num_replicas_in_sync = replicas

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """Return the batch size itself: the batch is split later, by `fit`."""
        return global_batch_size


class TPUStrategy(Strategy):
    """All cores of the TPU.

    Args:
        tpu_cluster_resolver: The resolver, which may be left out.
        **options: Ignored.
    """

    def __init__(self, tpu_cluster_resolver: Any = None, *args: Any, **options: Any) -> None:
        resolver = tpu_cluster_resolver or TPUClusterResolver()
        super().__init__(_tpu_scope())
        self.cluster_resolver = resolver


class MirroredStrategy(Strategy):
    """All GPUs that JAX has, or else the CPU.

    Args:
        devices: Ignored; all GPUs are taken.
        **options: Ignored.
    """

    def __init__(self, devices: Any = None, **options: Any) -> None:
        scope = strategy_scope(tpu=False)
        told(type(self).__name__, "keras_tpu_ext.strategy_scope(tpu=False)")
        super().__init__(scope)


class OneDeviceStrategy(Strategy):
    """One device.

    Args:
        device: Ignored: JAX's first device.
    """

    def __init__(self, device: str = "") -> None:
        mapped("OneDeviceStrategy", "JAX's first device")
        super().__init__()


_DEFAULT = Strategy()


def get_strategy() -> Strategy:
    """Return the strategy whose scope is open, or the default one."""
    return _OPEN.strategies[-1] if _OPEN.strategies else _DEFAULT


def has_strategy() -> bool:
    """Return whether a strategy's scope is open."""
    return bool(_OPEN.strategies)


def _initialize(cluster_resolver: Any = None) -> SimpleNamespace:
    """Return the topology: all cores are those of one task."""
    mapped("tf.tpu.experimental.initialize_tpu_system", "nothing: JAX has the TPU")
    scope = _tpu_scope()
    return SimpleNamespace(num_tasks=1, num_tpus_per_task=scope.num_replicas if scope else 0)


def _connect(stock: Function, target: Any = None, *args: Any, **options: Any) -> Any:
    if isinstance(target, TPUClusterResolver) or _tpu_scope() is not None:
        return mapped("tf.config.experimental_connect_to_*", "nothing: the TPU is in this machine")
    return stock(target, *args, **options)


def _listed(stock: Function, device_type: str | None = None) -> list[Any]:
    scope = _tpu_scope() if device_type in (None, "TPU") else None
    found = list(stock(device_type))
    if scope is None:
        return found
    mapped(f"tf.config.{stock.__name__}", "the TPU cores that JAX has")
    kind = tf.config.LogicalDevice if "logical" in stock.__name__ else tf.config.PhysicalDevice
    prefix = "/device:TPU" if "logical" in stock.__name__ else "/physical_device:TPU"
    return found + [kind(f"{prefix}:{i}", "TPU") for i in range(scope.num_replicas)]


def install() -> None:
    """Put these under TensorFlow's names."""
    distribute, config = "tensorflow.distribute", "tensorflow.config"
    new: dict[str, Any] = {
        f"{distribute}.cluster_resolver.TPUClusterResolver": TPUClusterResolver,
        f"{distribute}.experimental.TPUStrategy": TPUStrategy,
        **{
            f"{distribute}.{one.__name__}": one
            for one in (TPUStrategy, MirroredStrategy, OneDeviceStrategy, Strategy, get_strategy, has_strategy)
        },
        "tensorflow.tpu.experimental.initialize_tpu_system": _initialize,
        "tensorflow.tpu.experimental.shutdown_tpu_system": _initialize,
    }
    replace({name: functools.partial(lambda one, _: one, one) for name, one in new.items()})
    wrap(
        {f"{config}.{name}": _connect for name in ("experimental_connect_to_cluster", "experimental_connect_to_host")}
    )
    for name in ("list_logical_devices", "list_physical_devices"):
        wrap({f"{config}.{name}": _listed, f"{config}.experimental.{name}": _listed})
    if rehearsed_replicas() is not None or hardware.find_tpu() is not None:
        _tpu_scope()  # before the program starts JAX's devices
        os.environ.setdefault("COLAB_TPU_ADDR", DROPIN_ADDRESS)
