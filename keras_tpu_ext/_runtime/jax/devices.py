"""JAX's devices, and Keras's `DataParallel` over them: each made once per process.

Every failure to open a TPU is explained with its cause and a fix.
"""

from __future__ import annotations

import contextlib
import gc
import glob
import importlib.util
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax
import keras
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from keras_tpu_ext._runtime.common.missing_names import private
from keras_tpu_ext._runtime.common.once import once_per_process
from keras_tpu_ext._runtime.common.patches import install
from keras_tpu_ext._runtime.common.user_frame import warn
from keras_tpu_ext._runtime.common.values import ArrayGroup, DeviceUse, OpenedStrategy
from keras_tpu_ext._runtime.compat.keras3_jax import broadcast_seed, jax_mesh
from keras_tpu_ext._runtime.jax.abstract import abstract_strategy as abstract_strategy
from keras_tpu_ext._runtime.jax.layouts import layout as layout
from keras_tpu_ext._runtime.jax.process_group import is_chief as is_chief
from keras_tpu_ext._runtime.jax.process_group import num_workers as num_workers
from keras_tpu_ext._runtime.jax.scope import data_parallel, distribution_of
from keras_tpu_ext._runtime.jax.scope import device_name as device_name
from keras_tpu_ext._runtime.jax.scope import distribute as distribute
from keras_tpu_ext._runtime.jax.scope import num_devices as num_devices
from keras_tpu_ext._runtime.jax.scope import num_replicas as num_replicas
from keras_tpu_ext._runtime.jax.scope import scope as scope
from keras_tpu_ext._runtime.jax.sharded_parallel import shard as shard
from keras_tpu_ext._runtime.jax.traced_devices import as_on_tpu as as_on_tpu
from keras_tpu_ext._runtime.jax.training_state import all_variables
from keras_tpu_ext.errors import HardwareUnusableWarning, ScopeError, TpuUnusableError
from keras_tpu_ext.machine.system import installed_version

_backends_are_initialized: Any = private("jax._src.xla_bridge:backends_are_initialized")

# CUDA compute capability of Ampere, the first with bfloat16 matrix units
MINIMUM_BFLOAT16_CAPABILITY = (8, 0)
_GPU_PLUGINS = ("jax-cuda12-plugin", "jax-cuda13-plugin", "jax-rocm60-plugin", "jax-rocm7-plugin")

# JAX's defaults, and what pays: small programs, of which there are many; and no path of XLA's own cache in the keys.
_OPTIONS: dict[str, tuple[Any, Any]] = {
    "jax_persistent_cache_min_compile_time_secs": (1.0, 0.0),
    "jax_persistent_cache_enable_xla_caches": ("xla_gpu_per_fusion_autotune_cache_dir", "none"),
}
_compilation_cache: Any = private("jax._src.compilation_cache")
_caches: dict[str, Any] = {}


def count_gpus() -> int:
    """Return the number of GPUs that JAX sees on this host.

    JAX cannot look without starting its devices, after which a rehearsal is impossible. So it is asked only if it was
    installed for GPUs and the machine has one.
    """
    if not _may_have_gpus():
        return 0
    try:
        return jax.local_device_count("gpu")
    except RuntimeError:  # there is none
        return 0


@once_per_process
def open_gpus(count: int) -> OpenedStrategy:
    """Return the distribution over the first `count` GPUs."""
    hide_accelerators()
    devices = jax.local_devices(backend="gpu")[:count]
    capability = _capability(devices[0])
    return OpenedStrategy(
        data_parallel(devices),
        count,
        devices[0].device_kind,
        supports_bfloat16=None if capability is None else capability >= MINIMUM_BFLOAT16_CAPABILITY,
    )


@once_per_process
def open_workers() -> OpenedStrategy:
    """Return the distribution over all devices of every process, accelerators before CPUs."""
    hide_accelerators()
    devices = jax.devices()
    broadcast_seed()  # one seed for all, even if JAX rather than Keras has joined them
    configured_by = "keras.distribution.initialize"
    return OpenedStrategy(data_parallel(devices), len(devices), devices[0].device_kind, configured_by=configured_by)


@once_per_process
def open_cpu(replicas: int) -> OpenedStrategy:
    """Return the distribution over `replicas` CPU devices; if several, they are virtual ones for a rehearsal."""
    if replicas > 1 and not _backends_are_initialized():
        # Never fewer than the environment asks for.
        jax.config.update("jax_num_cpu_devices", max(replicas, jax.config.jax_num_cpu_devices))
    with _threads_for(replicas):
        devices = jax.local_devices(backend="cpu")
    if len(devices) < replicas:
        raise ScopeError(_too_late(replicas, len(devices)))
    return OpenedStrategy(data_parallel(devices[:replicas]), replicas, "CPU")


@contextlib.contextmanager
def _threads_for(devices: int) -> Iterator[None]:
    """Let XLA, if it starts its CPU devices within the block, start enough threads for all of them.

    By default it starts one thread per core, and a collective blocks its thread until every device has joined. With
    few cores, eight devices then wait for each other forever. XLA reads the number from `NPROC`.
    """
    before = os.environ.get("NPROC")
    if devices > 1:
        os.environ["NPROC"] = str(max(4 * devices, os.cpu_count() or 1))
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("NPROC", None)
        else:
            os.environ["NPROC"] = before


def _capability(gpu: jax.Device) -> tuple[int, int] | None:
    """Return CUDA's compute capability; `None` for GPUs without CUDA, which may report "gfx90a", for instance."""
    match = re.fullmatch(r"(\d+)\.(\d+)", str(getattr(gpu, "compute_capability", "")))
    return (int(match[1]), int(match[2])) if match else None


def _may_have_gpus() -> bool:
    nodes = glob.glob("/dev/nvidia[0-9]*") + glob.glob("/dev/kfd") + glob.glob("/dev/dxg")
    return bool(nodes) and any(installed_version(plugin) for plugin in _GPU_PLUGINS)


def _too_late(replicas: int, there: int) -> str:
    return (
        f"strategy_scope needs {replicas} virtual CPU devices, but JAX has already started its devices with {there} "
        f"of them; they cannot be added afterwards. An earlier call came too early{_early_calls()}. "
        "What to do: open the scope before the first line that makes an array, a model or a metric; in a notebook, "
        "restart the kernel first."
    )


def _early_calls() -> str:
    """Name, for the error, a live object that the call that started the devices must have made."""
    names = [thing.path for thing in gc.get_objects() if issubclass(type(thing), keras.Variable)]
    if names:
        return f": it made the variable {names[0]}"
    shapes = [f"{array.dtype}{list(array.shape)}" for array in jax.live_arrays()]
    return f": it made an array {shapes[0]}" if shapes else " (one that made an array or listed the devices, say)"


@once_per_process
def open_tpu(address: str) -> OpenedStrategy:
    """Return the distribution over all cores of the TPU, of every process that JAX has joined."""
    if "://" in address:
        raise TpuUnusableError(_message(*_REMOTE, address))
    if importlib.util.find_spec("libtpu") is None:
        # Trying would start JAX's devices, after which a rehearsal is impossible.
        raise TpuUnusableError(_message(*_NO_LIBTPU, address))
    hide_accelerators()
    try:
        devices = jax.devices("tpu")
    except Exception as error:  # JAX may raise anything here
        raise TpuUnusableError(explain_tpu_failure(address, error)) from error
    return OpenedStrategy(data_parallel(devices), len(devices), devices[0].device_kind, supports_bfloat16=True)


def explain_tpu_failure(address: str, error: BaseException) -> str:
    """Return one sentence that explains why a TPU cannot be used, and another that says what to do about it."""
    text = f"{type(error).__name__}: {error}".strip()
    for pattern, cause, cure in _KNOWN_FAILURES:
        match = re.search(pattern, text, re.IGNORECASE | re.DOTALL)
        if match:
            holder = re.search(r"pid\D{0,3}(\d+)", text)
            by = f" It is the process {holder[1]}." if holder and cause is _HELD else ""
            return _message(cause + by, cure, address)
    return _message(
        f"JAX could not start the TPU: {text.splitlines()[0]}.",
        "check that this is a TPU machine and that libtpu fits JAX, pip install 'jax[tpu]', or go on without it with "
        "strategy_scope(tpu=False).",
        address,
    )


def _message(cause: str, cure: str, address: str) -> str:
    libtpu = installed_version("libtpu") or "not installed"
    return f"{cause} What to do: {cure} (TPU address {address!r}, JAX {jax.__version__}, libtpu {libtpu}.)"


_REMOTE = (
    "Keras runs on JAX here, and JAX cannot reach a TPU over the network.",
    "run on the TPU machine itself and write strategy_scope(tpu='local'), or use TensorFlow: before the first import "
    "of keras, os.environ['KERAS_BACKEND'] = 'tensorflow'.",
)
_NO_LIBTPU = (
    "This JAX was installed without libtpu, which drives the TPU.",
    "pip install 'jax[tpu]', then run again.",
)
_HELD = "Another process holds the TPU chip; only one process and one framework can."
_KNOWN_FAILURES = (
    (
        r"already in use|in use by|lockfile|Device or resource busy|Failed to get TPU.*held",
        _HELD,
        "end that process (another notebook, or TensorFlow in this one), then run again. After a crash the file "
        "/tmp/libtpu_lockfile may be left behind: delete it.",
    ),
    (
        r"No jellyfish device|no TPU|Unable to initialize backend 'tpu'.*(not found|NOT_FOUND)|Failed to find .*TPU",
        "libtpu finds no TPU on this machine.",
        "check that the notebook's accelerator is a TPU and that the machine was restarted since it was chosen.",
    ),
    (
        r"unknown backend|not in the list of known backends|JAX_PLATFORMS",
        "JAX was told not to use TPUs.",
        "unset the environment variable JAX_PLATFORMS, or write JAX_PLATFORMS=tpu,cpu, before JAX is imported.",
    ),
)


def hide_accelerators() -> None:
    """Hide TPUs and GPUs from TensorFlow, used beside JAX for `tf.data` for instance, now or when it is imported.

    Only one framework can hold a TPU chip (jax#13260), and TensorFlow takes all memory of a GPU at once.
    """
    if "tensorflow" in sys.modules:
        _hide()
    elif _HIDE_ON_IMPORT not in sys.meta_path:
        sys.meta_path.insert(0, _HIDE_ON_IMPORT)


def _hide() -> None:
    tensorflow = sys.modules["tensorflow"]
    for kind in ("TPU", "GPU"):
        try:
            tensorflow.config.set_visible_devices([], kind)
        except RuntimeError:
            held = tensorflow.config.get_visible_devices(kind)
            if held:
                warn(_STARTED.format(kind=kind), HardwareUnusableWarning)


_STARTED = (
    "TensorFlow has started the {kind}s of this machine, and Keras trains on JAX: only one framework can have them. "
    'Before the first line that uses TensorFlow, write: tf.config.set_visible_devices([], "{kind}"), or open '
    "strategy_scope() earlier."
)


class _HideOnImport:
    """An import finder that finds no module, but hides the accelerators at the first import after TensorFlow's.

    TensorFlow keeps importing modules lazily while it runs, so this happens before any device is started.
    """

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        tensorflow = sys.modules.get("tensorflow")
        if getattr(getattr(tensorflow, "__spec__", None), "_initializing", True) or not hasattr(tensorflow, "config"):
            return
        sys.meta_path.remove(self)
        _hide()


_HIDE_ON_IMPORT = _HideOnImport()


def memory_reader(model: keras.Model) -> Callable[[], list[DeviceUse]]:
    """Return a function that reads the memory of the devices that train `model`; see `training/protocols.py`."""
    distribution = distribution_of(model) or keras.distribution.distribution()
    devices = jax.devices()[:1] if distribution is None else list(jax_mesh(distribution).local_devices)

    def read() -> list[DeviceUse]:
        told_of = [(device, device.memory_stats()) for device in devices]
        arrays = _bytes_by_device() if any(told is None for _, told in told_of) else Counter()  # a CPU
        found = []
        for device, told in told_of:
            if told is None:
                found.append(DeviceUse(str(device), arrays[device], None, None, "the live arrays of JAX"))
            else:
                memory = told["bytes_in_use"], told.get("peak_bytes_in_use"), told.get("bytes_limit")
                found.append(DeviceUse(str(device), *memory, "all that JAX has allocated on the device"))
        return found

    return read


def _bytes_by_device() -> Counter[jax.Device]:
    found: Counter[jax.Device] = Counter()
    for array in jax.live_arrays():
        size = math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize
        for device in array.sharding.addressable_devices:
            found[device] += size
    return found


def live_arrays(model: keras.Model) -> list[ArrayGroup]:
    """Return JAX's live arrays; see `training/protocols.py`."""
    roles = {id(variable.value): role for role, variable in all_variables(model)}
    arrays = [(roles.get(id(one), "other"), one.shape, one.dtype) for one in jax.live_arrays()]
    return [
        ArrayGroup(role, shape, dtype.name, count, count * math.prod(shape) * dtype.itemsize)
        for (role, shape, dtype), count in Counter(arrays).items()
    ]


def compile_cache_dir() -> str | None:
    """Return the folder of JAX's compilation cache, if it has one."""
    path: str | None = jax.config.jax_compilation_cache_dir
    return path


def use_compile_cache(path: str, cache: Any) -> None:
    """Let JAX ask `cache` for programs, which it knows by `path`; see `training/protocols.py`."""
    _caches[path] = cache
    install([(_compilation_cache, "jax._src.compilation_cache.get_file_cache", _with_ours)])
    for name, (default, ours) in _OPTIONS.items():
        if getattr(jax.config, name) == default:  # else the user has set it
            jax.config.update(name, ours)
    if compile_cache_dir() != path:
        jax.config.update("jax_compilation_cache_dir", path)
        reset_cache()  # it may have another one open


def _with_ours(stock: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda path: (_caches[path], path) if path in _caches else stock(path)
