"""The private names of JAX that the compiler's process leans on; see tests/_runtime/test_keras3_private_names.py."""

import pytest

from private_names import check_import

NAMES = [
    "jax._src.compiler:get_compile_options",
    "jax._src.interpreters.mlir:make_ir_context",
    "jax._src.lib:xla_client.DeviceList",
    "jax.experimental.topologies:get_topology_desc",
    "jaxlib.mlir.ir:Module.parse",
]


@pytest.mark.parametrize("path", NAMES)
def test_it_is_still_there(path):
    check_import(path, "_compile_worker.py", "keras_tpu_ext/preflight/")
