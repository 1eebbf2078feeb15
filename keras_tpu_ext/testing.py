"""For tests, yours too: take the paths of a TPU on a CPU."""

from __future__ import annotations

from contextlib import AbstractContextManager

from keras_tpu_ext import _runtime


def as_on_tpu() -> AbstractContextManager[None]:
    """Let Keras take within the block the paths that it takes on a TPU, while everything runs on the CPU.

    Keras asks JAX for the platform while it traces a step, and on a TPU it computes some things in another way:
    attention, above all. Within the block it is told "tpu". Arrays stay on the CPU and Pallas kernels are
    interpreted, which is slow: take short sequences. What was traced before is not traced again, so compile the model
    within the block; a step that is traced within it stays as it is after the block. It holds for the thread that
    enters it. On Keras 3 on JAX only.

    Returns:
        A context manager.

    Raises:
        RuntimeNotSupportedError: On TensorFlow, where nothing of this kind is there: what a TPU runs is decided
            when the graph is compiled for it, and not by Keras.

    Example:
        ```python
        import keras
        import numpy as np
        from keras_tpu_ext import testing

        query = np.random.default_rng(0).random((1, 128, 2, 16), "float32")
        with testing.as_on_tpu():
            on_tpu = keras.ops.dot_product_attention(query, query, query)
        on_cpu = keras.ops.dot_product_attention(query, query, query)
        print(abs(on_tpu - on_cpu).max())  # 0.49 with Keras 3.15, which computes it causal and unscaled there
        ```
    """
    return _runtime.devices.as_on_tpu()
