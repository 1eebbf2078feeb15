"""The private names of JAX that the compiler's process leans on; see tests/_runtime/test_keras3_private_names.py."""

import importlib

import pytest

NAMES = [
    "jax._src.compiler:get_compile_options",
    "jax._src.interpreters.mlir:make_ir_context",
    "jax._src.lib:xla_client.DeviceList",
    "jax.experimental.topologies:get_topology_desc",
    "jaxlib.mlir.ir:Module.parse",
]


@pytest.mark.parametrize("path", NAMES)
def test_it_is_still_there(path):
    module, _, names = path.partition(":")
    found = importlib.import_module(module)
    for name in names.split("."):
        found = getattr(found, name, None)
        assert found is not None, f"{path} is gone: mend keras_tpu_ext/preflight/_compile_worker.py"
