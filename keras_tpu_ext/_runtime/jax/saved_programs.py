"""Programs that were compiled before: JAX asks here before it compiles one.

A program is used only where all that it was compiled for is what JAX is about to compile for: the lowered program by
its digest, which is the same wherever and from whatever lines it is lowered, its arguments, the options for the
compiler and the devices. Anything else is told once, and compiled as usual.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import inspect
import itertools
import json
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import keras
import numpy as np

from keras_tpu_ext._runtime.common.missing_names import private
from keras_tpu_ext._runtime.common.patches import install
from keras_tpu_ext._runtime.common.saved_programs import SavedProgram, Signature, differences
from keras_tpu_ext._runtime.compat.keras3_jax import jax_mesh, mesh_sizes
from keras_tpu_ext.errors import RuntimeNotSupportedError

_LOG = logging.getLogger("keras_tpu_ext")
_compiler: Any = private("jax._src.compiler")
_ir: Any = private("jax._src.lib.mlir:ir")
_make_ir_context: Any = private("jax._src.interpreters.mlir:make_ir_context")
_tpu_dialect: Any = private("jax._src.lib:tpu")
_pxla: Any = private("jax._src.interpreters.pxla")
_contains_unconstrained: Any = private("jax._src.interpreters.mlir:contains_unconstrained")
_CompileOptions: Any = private("jax._src.compiler:CompileOptions")

# What JAX records when its own cache has a program, so that whoever counts those counts these.
_ASKED, _HIT = "/jax/compilation_cache/compile_requests_use_cache", "/jax/compilation_cache/cache_hits"
_SAVED = "/jax/compilation_cache/compile_time_saved_sec"
# The options of JAX's that say where its cache of kernels for GPUs is.
_OF_GPUS = {
    "xla_gpu_kernel_cache_file": "",
    "xla_gpu_per_fusion_autotune_cache_dir": "",
    "xla_gpu_cuda_data_dir": "",
    "xla_gpu_enable_llvm_module_compilation_parallelism": False,
    "xla_force_host_platform_device_count": 1,
}
_OPTIONS = ("device_assignment", "parameter_is_tupled_arguments", "env_option_overrides")
_BUILD_OPTIONS = (
    *("use_spmd_partitioning", "use_shardy_partitioner", "exec_time_optimization_effort", "memory_fitting_effort"),
    *("optimization_level", "memory_fitting_level", "allow_spmd_sharding_propagation_to_parameters"),
    "allow_spmd_sharding_propagation_to_output",
)
_STEPS = frozenset({"jit_stateless", "jit__last", "jit__collected", "jit_flush"})  # of `loop.py` and `update.py`
_NO_OPTIONS = (
    "JAX {} does not tell what it asks its compiler for ({}: {}): memory and time are those of the compiler's own "
    "options, and report.save(...) writes no file"
)
_HERE = "A step is compiled here, because the file of compiled programs"
_MOST_TOLD = 4  # arguments that are named in a message

_programs: dict[str, tuple[SavedProgram, Mapping[str, str]]] = {}  # by the digest, each with the facts of its devices


def facts_of(strategy: keras.distribution.Distribution, *, are_here: bool = True) -> dict[str, str]:
    """Return what programs for a strategy are compiled for: its mesh and, if they are here, its devices."""
    devices = _facts(jax_mesh(strategy).devices.flat) if are_here else {}
    return {**devices, "mesh": " ".join(f"{name}={size}" for name, size in mesh_sizes(strategy).items())}


def _facts(devices: Sequence[jax.Device]) -> dict[str, str]:
    """Return the facts of devices; `preflight/_compile_worker.py` has them of those that are not here."""
    first = devices[0]
    return {
        "platform": first.platform,
        "build": first.client.platform_version.strip().splitlines()[-1],
        "device kind": first.device_kind,
        "devices": " ".join(map(str, devices)),
    }


def signature_of(lowered: jax.stages.Lowered, devices: int) -> tuple[Signature, bytes]:
    """Return what JAX would ask for to compile a program for devices 0, 1, ..., and the options of that.

    If this JAX has other private names for that, both are empty but for the digest, which is told once.
    """
    module = lowered.compiler_ir("stablehlo")
    try:
        lowering = lowered._lowering
        given = lowering.compile_args
        effects = (False,) * len(given["ordered_effects"])
        known = {
            **{name: given.get(name) for name in ("tuple_args", "spmd_lowering", "auto_spmd_lowering")},
            "computation": module,
            "allow_prop_to_inputs": effects + tuple(map(_is_open, given["in_shardings"])),
            "allow_prop_to_outputs": effects + tuple(map(_is_open, given["out_shardings"])),
            "backend": None,
            "np_dev": np.arange(devices),
            "compiler_options": dict(lowering._compiler_options_kvs),
            "mesh": None,
            "pmap_nreps": 1,
        }
        names = inspect.signature(_pxla.create_compile_options).parameters  # JAX before 0.8 has more
        options = _pxla.create_compile_options(**{name: known[name] for name in names})
        return _signature(module, options), bytes(options.SerializeAsString())
    except (AttributeError, KeyError, TypeError, RuntimeNotSupportedError) as error:
        _log_once(_NO_OPTIONS.format(jax.__version__, type(error).__name__, str(error).partition("\n")[0]))
        return Signature("", digest_of(module), (), ""), b""


def _is_open(sharding: Any) -> bool:
    """Return whether the compiler may choose a sharding, or a part of it."""
    return isinstance(sharding, _pxla.UnspecifiedValue) or _contains_unconstrained(sharding)


def _signature(module: Any, options: Any) -> Signature:
    return Signature(_name_of(module), digest_of(module), tuple(_arguments_of(module)), _words_of(options))


def offer(programs: Sequence[SavedProgram], facts: Mapping[str, str]) -> None:
    """Let JAX take these programs, on devices with these facts, in place of compiling them, for good."""
    of_devices = {
        name: text for name, text in facts.items() if name in ("platform", "build", "device kind", "devices")
    }
    _programs.update({program.signature.digest: (program, of_devices) for program in programs})
    install([(_compiler, "jax._src.compiler.compile_or_get_cached", _asking_first)])


def offered_steps() -> int:
    """Return the most steps that an offered program runs; 0 if there is none."""
    return max((program.steps for program, _ in list(_programs.values())), default=0)


def _asking_first(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def compile_or_get_cached(*args: Any, **kwargs: Any) -> Any:
        found = None
        try:
            found = _loaded(signature.bind(*args, **kwargs).arguments)
        except Exception as error:  # the runtime may raise anything, and here a training runs
            _log_once(f"{_HERE} could not be used: {type(error).__name__}: {' '.join(str(error).split())}")
        return original(*args, **kwargs) if found is None else found

    return compile_or_get_cached


def _loaded(given: Mapping[str, Any]) -> Any:
    """Return the saved program for what JAX is about to compile; `None` if there is none, which is told."""
    began, module = time.monotonic(), given["computation"]
    offered = list(_programs.values())  # another thread may offer more
    if not offered or _name_of(module) not in _STEPS.union(one.signature.module for one, _ in offered):
        return None
    wanted = _signature(module, given["compile_options"])
    program, facts = _programs.get(wanted.digest, (None, {}))
    different = [] if program is None else _different(program, facts, wanted, given)
    if program is None or different:
        alike = [one for one, _ in offered if one.signature.module == wanted.module]
        _log_once(f"{_HERE} differs: {'; '.join(different or [_nearest(wanted, alike, module)])}")
        return None
    devices = [given["executable_devices"]] if "executable_devices" in given else []  # JAX before 0.7 has none
    executable = given["backend"].deserialize_executable(program.executable, *devices, given["compile_options"])
    jax.monitoring.record_event(_ASKED)
    jax.monitoring.record_event(_HIT)
    jax.monitoring.record_event_duration_secs(_SAVED, program.seconds - (time.monotonic() - began))
    return executable


def _different(
    program: SavedProgram, facts: Mapping[str, str], wanted: Signature, given: Mapping[str, Any]
) -> list[str]:
    """Return what else than the lowered program differs."""
    found = differences(facts, _facts(given["devices"].flat))
    if program.signature.arguments != wanted.arguments:
        found.append(_nearest(wanted, [program], given["computation"]))
    if program.signature.options != wanted.options:
        found += differences({"options": program.signature.options}, {"options": wanted.options})
    return [*found, "it calls Python on the host"] if given["host_callbacks"] else found


@functools.cache
def _log_once(text: str) -> None:
    _LOG.warning(text)


def _nearest(wanted: Signature, programs: Sequence[SavedProgram], module: Any) -> str:
    """Return how the arguments of a program differ from those of the nearest of some others."""
    if not programs:
        return "it was written with another `steps_per_execution` or `gradient_accumulation_steps`"
    ways = [(program.name, _changes(program.signature.arguments, wanted.arguments)) for program in programs]
    name, changes = min(ways, key=lambda way: len(way[1]))
    if not changes:
        return f"{name!r} has equal arguments, and another layer, loss, optimizer, constant or setting of JAX in it"
    names, few = _argument_names(module), list(changes.items())[:_MOST_TOLD]
    texts = [f"{names[i] if i < len(names) else i}: expected {before}, found {now}" for i, (before, now) in few]
    more = f"; and {len(changes) - len(few)} more" if len(changes) > len(few) else ""
    return f"in {name!r}, {'; '.join(texts)}{more}"


def _changes(before: Sequence[str], now: Sequence[str]) -> dict[int, tuple[str, str]]:
    pairs = itertools.zip_longest(before, now, fillvalue="none")
    return {i: pair for i, pair in enumerate(pairs) if pair[0] != pair[1]}


def _name_of(module: Any) -> str:
    return str(_ir.StringAttr(module.operation.attributes["sym_name"]).value)


def _main_of(module: Any) -> Any:
    return next(op for op in module.body.operations if op.attributes["sym_name"].value == "main")


def _arguments_of(module: Any) -> list[str]:
    """Return the type and the sharding of each argument of a module."""
    main = _main_of(module)
    types = _ir.FunctionType(_ir.TypeAttr(main.attributes["function_type"]).value).inputs
    attributes = map(_ir.DictAttr, _ir.ArrayAttr(main.attributes["arg_attrs"]))
    found = []
    for kind, named in zip(types, attributes, strict=True):
        sharding = [str(named[name]) for name in ("sdy.sharding", "mhlo.sharding") if name in named]
        found.append(" ".join([str(kind), *sharding]))
    return found


def _argument_names(module: Any) -> list[str]:
    """Return the names of the arguments, such as `data[0]`, by which JAX traced them."""
    # A jaxlib before 0.6 does not tell where an argument is from.
    places = [str(getattr(one, "location", "")) for one in _main_of(module).regions[0].blocks[0].arguments]
    found = [re.match(r'loc\("([^"]*)"', place) for place in places]
    return [one[1] if one else f"argument {i}" for i, one in enumerate(found)]


def _words_of(options: Any) -> str:
    """Return options for the compiler, without those that change nothing in a program: a digest of all, and most."""
    copy = _CompileOptions.ParseFromString(options.SerializeAsString())
    build = copy.executable_build_options
    for name, value in _OF_GPUS.items():
        if hasattr(build.debug_options, name):
            setattr(build.debug_options, name, value)
    words = []
    for thing, name in [(copy, name) for name in _OPTIONS] + [(build, name) for name in _BUILD_OPTIONS]:
        with contextlib.suppress(AttributeError, TypeError):  # jaxlib before 0.8 has not all, or cannot read one
            words.append(f"{name}={getattr(thing, name)}")
    words += [line.replace(": ", "=") for line in str(build.debug_options).splitlines()[1:]]
    digest = hashlib.sha256(copy.SerializeAsString()).hexdigest()
    return " ".join(word.replace(" ", "") for word in [*words, f"sha256={digest}"])


def digest_of(module: Any) -> str:
    """Return the SHA-256 of a module of StableHLO, an `ir.Module`, as 64 hexadecimal digits; see `canonical_text`."""
    return hashlib.sha256(canonical_text(module).encode()).hexdigest()


def canonical_text(module: Any) -> str:
    """Return the text of a module without what the compiler does not need.

    That is where the code came from, also in Pallas kernels, and the names of the module and of its inner functions.
    """
    with module.context:
        copy = module.operation.clone()
        copy.attributes["sym_name"] = _ir.StringAttr.get("step")
        functions = [op.operation for block in copy.regions[0] for op in block if op.operation.name == "func.func"]
        for i, function in enumerate(functions):
            name = _ir.StringAttr(function.attributes["sym_name"]).value
            if name != "main":
                # Not a name that JAX gives; callers are renamed first, while the old name is still there.
                _ir.SymbolTable.replace_all_symbol_uses(name, f"<{i}>", copy)
                _ir.SymbolTable.set_symbol_name(function, f"<{i}>")
        copy.walk(_without_origin)
        return str(copy.get_asm())


def _without_origin(operation: Any) -> Any:
    """Replace the body of a Pallas kernel, bytecode with files and lines in it, by its text."""
    name = operation.attributes["call_target_name"] if operation.name == "stablehlo.custom_call" else None
    if name is not None and _ir.StringAttr(name).value == "tpu_custom_call":
        config = json.loads(_ir.StringAttr(operation.attributes["backend_config"]).value)
        inner = config["custom_call_config"]
        inner["body"] = _kernel_text(inner["body"])
        operation.attributes["backend_config"] = _ir.StringAttr.get(json.dumps(config, sort_keys=True))
    return _ir.WalkResult.ADVANCE


@functools.lru_cache(maxsize=256)  # the kernels of a model's layers are the same
def _kernel_text(body: str) -> str:
    context = _make_ir_context()
    _tpu_dialect.register_dialect(context)
    context.allow_unregistered_dialects = True
    with context:
        kernel = _ir.Module.parse(base64.b64decode(body))
        kernel.operation.attributes["sym_name"] = _ir.StringAttr.get("kernel")
        return str(kernel.operation.get_asm())
