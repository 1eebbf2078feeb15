"""Where Keras asks which platform it is on, found in its source, and what is known of each such place.

A function stands for its place: lines move from release to release.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Place(NamedTuple):
    """What is known of a place.

    Attributes:
        since: The first release of Keras, of those from 3.8 on, or of keras-hub, that has it.
        changes: What is another one on a TPU.
        right: Whether what is computed there is right.
        here: What this package does about it.
    """

    since: str
    changes: str
    right: str
    here: str


_NOTHING = "nothing"
_DEVICES = "which devices are listed or counted; nothing that is computed"
_OWN = "keras-hub's attention takes `ops.dot_product_attention`, in place of its own einsum"

PLACES = {
    "keras.src.backend.jax.nn:dot_product_attention": Place(
        "3.10",
        "Attention by the Splash kernel, which is given a causal mask and logits without a scale where the call has "
        "no mask, and the mask of the first example where it has one outside of `jit`",
        "**wrong**, and on several chips it does not compile",
        "its own attention, by the same kernel with the right mask and scale, over all chips",
    ),
    "keras.src.backend.jax.nn:_can_use_flash_attention": Place(
        "3.10",
        "Flash attention is used unasked, for any shape",
        "**wrong**: `ops.dot_product_attention` does not heed `keras.config.disable_flash_attention()`",
        "asks for the shapes, and heeds it",
    ),
    "keras.src.ops.nn:dot_product_attention": Place(
        "3.10",
        "`attn_logits_soft_cap` is an error everywhere else; where the kernel is not taken it is left out in "
        "silence, and its docstring has another formula than the kernel's tanh",
        "**wrong** where the kernel is not taken",
        "`cap * tanh(logits / cap)` on both ways",
    ),
    "keras.src.backend.jax.numpy:_uses_cpu": Place(
        "3.14",
        "`argmax` and `argmin` take -0.0 for less than 0.0 on a CPU, and for equal on a TPU, where the first wins",
        "right; zeros of different sign only",
        _NOTHING,
    ),
    "keras.src.backend.jax.rnn:_is_gpu_available": Place(
        "3.14", "cuDNN's LSTM and GRU on GPUs; a TPU takes the loop, as a CPU does", "right", _NOTHING
    ),
    "keras.src.backend.jax.trainer:JAXEpochIterator._get_iterator": Place(
        "3.15",
        "A batch is sent to the device while the one before trains; not on CPUs",
        "right; it is about speed",
        "sends whole executions ahead itself",
    ),
    "keras.src.backend.jax.export:JaxExportArchive._check_device_compatible": Place(
        "3.8", "A warning on export, where JAX is on a GPU and TensorFlow is not", "right", _NOTHING
    ),
    "keras.src.backend.jax.distribution_lib:list_devices": Place("3.8", _DEVICES, "right", _NOTHING),
    "keras.src.backend.jax.distribution_lib:get_device_count": Place("3.13", _DEVICES, "right", _NOTHING),
    "keras.src.backend.jax.distribution_lib:initialize_rng": Place(
        "3.10", "The seed that processes share is agreed on over their CPUs", "right", _NOTHING
    ),
    "keras.src.backend.jax.distribution_lib:_to_backend_device": Place("3.10", _DEVICES, "right", _NOTHING),
    "keras.src.backend.jax.distribution_lib:_to_jax_device": Place("3.8", _DEVICES, "right", _NOTHING),
    "keras.src.trainers.data_adapters.data_adapter_utils:scipy_sparse_to_jax_sparse": Place(
        "3.8", "Sparse batches are made on the CPU", "right", _NOTHING
    ),
    "keras.src.trainers.data_adapters.data_adapter_utils:tf_sparse_to_jax_sparse": Place(
        "3.8", "Sparse batches are made on the CPU", "right", _NOTHING
    ),
    "keras.src.trainers.trainer:Trainer._resolve_auto_jit_compile": Place(
        "3.8", 'On TensorFlow `jit_compile="auto"` is off where there are only CPUs', "right", _NOTHING
    ),
    "keras.src.trainers.trainer:model_supports_jit": Place(
        "3.8", 'On TensorFlow `jit_compile="auto"` is off on GPUs of a Mac', "right", _NOTHING
    ),
    "keras.src.backend.tensorflow.trainer:reduce_per_replica": Place(
        "3.8",
        "The results of `train_step` on replicas: those of the first one under TPUStrategy, the mean under others",
        "**wrong** where replicas differ: the loss in history is that of the first replica's examples",
        "every replica holds the loss and metrics of the whole batch",
    ),
    "keras.src.backend.tensorflow.trainer:_is_tpu_strategy_class.is_tpu_strat": Place(
        "3.8", "The order in which results of several hosts are put together in `predict`", "right", _NOTHING
    ),
    "keras.src.backend.tensorflow.nn:_cpu_only": Place(
        "3.15",
        "Convolutions of channels-first data are transposed where there are only CPUs",
        "right",
        _NOTHING,
    ),
    "keras.src.backend.tensorflow.rnn:_is_gpu_available": Place(
        "3.8", "cuDNN's LSTM and GRU on GPUs; a TPU takes the loop, as a CPU does", "right", _NOTHING
    ),
    "keras.src.backend.tensorflow.distribution_lib:list_devices": Place("3.8", _DEVICES, "right", _NOTHING),
    "keras.src.backend.torch.distribution_lib:get_device_count": Place("3.16", _DEVICES, "right", "not for PyTorch"),
}
# Read in keras-hub 0.32; nothing of it was run.
HUB = {
    "keras_hub.src.models.gemma.gemma_attention:CachedGemmaAttention._use_fused_attention_op": Place(
        "0.32",
        f"{_OWN}; Gemma's soft cap is then left out where the kernel is not taken, as with the masks of a step",
        "**wrong** with a soft cap",
        "its own attention, with the cap",
    ),
}
_HUB_FUSED = (
    "gemma3.gemma3_attention:CachedGemma3Attention",
    "gemma4.gemma4_attention:Gemma4TextAttention",
    "mixtral.mixtral_attention:CachedMixtralAttention",
    "qwen_moe.qwen_moe_attention:QwenMoeAttention",
)
for _name in _HUB_FUSED:
    HUB[f"keras_hub.src.models.{_name}._use_fused_attention_op"] = Place(
        "0.32", _OWN, "as `ops.dot_product_attention`", "its own attention"
    )
for _name in ("running_on_tpu", "running_on_gpu", "get_gpu_names"):
    HUB[f"keras_hub.src.utils.keras_utils:{_name}"] = Place("0.32", "what the others here ask", "right", _NOTHING)

# What tells the platform: attributes of devices, functions of JAX, TensorFlow and keras-hub, and classes.
ATTRIBUTES = {"platform", "device_kind", "device_type"}
FUNCTIONS = {
    "default_backend",
    "devices",
    "device_count",
    "local_devices",
    "list_logical_devices",
    "list_physical_devices",
    "running_on_gpu",
    "running_on_tpu",
}
CLASS = "TPUStrategy"


def find(package: Path) -> set[str]:
    """Return the places in a package's source, as `"package.module:Class.function"`."""
    found: set[str] = set()
    for path in sorted(package.rglob("*.py")):
        if path.stem.endswith("_test") or "testing" in path.parts or "tests" in path.parts:
            continue
        module = ".".join([package.name, *path.relative_to(package).with_suffix("").parts]).removesuffix(".__init__")
        module = re.sub(r"(backend\.\w+)\.ops\.", r"\1.", module)  # where they are from Keras 3.16 on
        found |= {f"{module}:{name}" for name in _asking(ast.parse(path.read_text(encoding="utf-8")), "")}
    return found


def _asking(node: ast.AST, name: str) -> Iterator[str]:
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, (ast.FunctionDef, ast.ClassDef)):
            yield from _asking(inner, f"{name}.{inner.name}".lstrip("."))
        else:
            if _asks(inner):
                yield name or "(module)"
            yield from _asking(inner, name)


def _asks(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        of_python = isinstance(node.value, ast.Name) and node.value.id in ("sys", "platform", "os")
        return (node.attr in ATTRIBUTES and not of_python) or node.attr == CLASS
    if isinstance(node, ast.Call):
        function = node.func
        owned = isinstance(function, ast.Attribute) and isinstance(function.value, (ast.Name, ast.Attribute))
        called = function.attr if owned else function.id if isinstance(function, ast.Name) else ""
        return called in FUNCTIONS
    if isinstance(node, ast.ImportFrom):
        return any(alias.name in ("default_backend",) for alias in node.names)
    return isinstance(node, ast.Constant) and node.value == CLASS
