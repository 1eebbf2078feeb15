"""Helpers for tests, including your own: run the code paths of a TPU on a CPU."""

from __future__ import annotations

from contextlib import AbstractContextManager

from keras_tpu_ext import _runtime


def as_on_tpu() -> AbstractContextManager[None]:
    """Make Keras take its TPU code paths inside the block, while everything runs on the CPU.

    Keras asks JAX for the platform while it traces a step, and computes some things differently on a TPU, above all
    attention. Inside the block the answer is "tpu". Arrays stay on the CPU and Pallas kernels are interpreted, which
    is slow: use short sequences. What was traced before is not traced again, so compile the model inside the block; a
    step that is traced inside it stays as it is after the block. It applies to the thread that enters it. Only on
    Keras 3 on JAX.

    Returns:
        A context manager.

    Raises:
        RuntimeNotSupportedError: On TensorFlow, which has no equivalent: what a TPU runs is decided when the graph is
            compiled for it, and not by Keras.

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
