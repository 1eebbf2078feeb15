"""`check_parity()`: does a model train on N replicas as it does on one device?"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.errors import MissingExtraError, ParityCheckError, RuntimeNotSupportedError
from keras_tpu_ext.machine.versions import install_command
from keras_tpu_ext.output.display import counted
from keras_tpu_ext.tools.parity import batches
from keras_tpu_ext.tools.parity.compare import compare, default_tolerance
from keras_tpu_ext.tools.parity.function_reference import FunctionReference, check_compiled_model, unpack_model
from keras_tpu_ext.tools.parity.inspection import findings
from keras_tpu_ext.tools.parity.process import Outcome, Task, refuse_nested_check, run_worker
from keras_tpu_ext.tools.parity.report import ParityReport as ParityReport
from keras_tpu_ext.tools.parity.report import ParityRow as ParityRow

_BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX"}


def check_parity(
    build_model: Callable[[], Any],
    batch: Any = None,
    replicas: int = 8,
    *,
    steps: int = 3,
    tolerance: float | None = None,
    backend: str | None = None,
    exact: bool = True,
    as_on_tpu: bool = False,
    timeout_s: float = 600.0,
    progress: bool = True,
) -> ParityReport:
    """Train a model on one device and on N rehearsed replicas, in fresh processes, and compare the two.

    From the same weights both run one step and `steps` steps with the batch, an epoch whose last batch does not
    divide evenly, `evaluate` and `predict`, and a step in which one example has an infinite weight. Compared are the
    loss, metrics, gradients as they reach the optimizer's update, the changes of the weights, and whether the step
    with the infinite weight is skipped. Both processes use CPUs, whatever the hardware. Dropout is switched off,
    because each replica draws its own random numbers; the report names the layers.

    A difference is relative: |a - b| / |a| for a number, the same with norms for gradients and for updates, where a
    is one device. If it is above the tolerance, one device is compared with itself with its examples in reverse order
    (and, for 16-bit dtypes, with weights moved by half a unit in the last place): an optimizer such as Adam turns a
    rounding error into whole steps. Up to four times that difference is allowed, and never more than 100 times the
    tolerance or 0.1, whichever is smaller; a quantity that rounding moves further than that counts as not checked.

    Args:
        build_model: Function without arguments that returns a compiled Keras model, a `TPUModel` or a plain one, and
            opens no scope itself. Each process imports it, so it must be at the top level of a file, and a script
            must have its calls under `if __name__ == "__main__":`; from a notebook, cloudpickle transfers it. It may
            return `(model, batch)`, too.
        batch: `x`, `(x, y)` or `(x, y, sample_weight)`, structures of arrays with the examples along the first axis.
            Any number of examples works, also fewer than replicas. Default: that of `build_model`, or one that is
            made up for the model's inputs and loss.
        replicas: Number of replicas, at least 2. Defaults to 8.
        steps: Number of steps with the batch. Defaults to 3.
        tolerance: The relative difference up to which numbers agree. Default: 1e-5, because replicas add float32
            numbers in another order; with layers in bfloat16 4 * 2**-8 and in float16 4 * 2**-11, because each
            replica rounds its part of a gradient to that dtype's significand; with another `backend` at least 1e-4.
        backend: `"jax"` or `"tensorflow"`: the replicas run on this backend of Keras 3, and one device on the backend
            of this process. This shows whether a model trains on JAX as it does on TensorFlow. `None` (default) uses
            the backend of this process for both.
        exact: Whether a plain Keras model uses the exact step, as in `strategy_scope(exact=True)`, the default.
            `False` shows how it trains with Keras's own step.
        as_on_tpu: Whether the replicas take Keras's TPU code paths, with its kernels interpreted on the CPU
            (`keras_tpu_ext.testing.as_on_tpu`), which is slow. This shows whether a model computes the same on a TPU
            as on a CPU. On JAX only. Defaults to `False`.
        timeout_s: Seconds after which each of the two processes is stopped. Defaults to 600.
        progress: Whether to show progress on stderr. Defaults to `True`.

    Returns:
        A `ParityReport`; `report.ok` says whether all that was checked agrees.

    Raises:
        ArgumentError: If an argument is invalid, or `build_model` does not return a compiled model.
        RuntimeNotSupportedError: If `as_on_tpu` is used on TensorFlow.
        MissingExtraError: If `build_model` cannot be imported and cloudpickle is not installed, or the framework of
            `backend` is not installed.
        ParityCheckError: If `build_model` raises, the model cannot train on the batch, or a process fails.

    Example:
        ```python
        import keras
        import numpy as np
        import keras_tpu_ext as kte

        def build_model():
            inputs = keras.Input((28, 28, 1))
            model = keras.Model(inputs, keras.layers.Dense(10)(keras.layers.Flatten()(inputs)))
            model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
            return model

        if __name__ == "__main__":
            images = np.random.default_rng(0).random((64, 28, 28, 1), "float32")
            report = kte.check_parity(build_model, (images, np.arange(64) % 10))
            print(report)
            assert report.ok
        ```
    """
    refuse_nested_check()
    _check_arguments(replicas, steps, tolerance, timeout_s, backend, exact, as_on_tpu)
    function = FunctionReference.of(build_model)
    batch, made_up = (batch, False) if batch is not None else _batch_of(function.label, build_model, replicas)
    arrays = batches.parse_batch(batch)

    def run(*, distributed: bool, start: list[Any] | None) -> Outcome:
        path = [os.path.abspath(entry) for entry in sys.path]
        on = backend if distributed and backend else ""
        paths_of_tpu = distributed and as_on_tpu
        task = Task(function, arrays, replicas, distributed, steps, start, path, on, exact, paths_of_tpu)
        return run_worker(task, timeout_s, progress=progress)

    one = run(distributed=False, start=None)
    if one.parts["steps"].error:
        hint = " The batch was made up; return (model, batch) instead." if made_up else ""
        error = one.parts["steps"].error
        raise ParityCheckError(
            f"The model of {function.label} cannot train on the batch on one device: {error}.{hint}"
        )
    many = run(distributed=True, start=one.start)
    frameworks = one.facts.framework, many.facts.framework
    allowed = default_tolerance(one.facts.compute_dtypes, frameworks) if tolerance is None else tolerance
    rows = compare(one, many, allowed, replicas)
    examples = counted(batches.num_examples(arrays), "example")
    words = f"a {'made-up ' if made_up else ''}batch of {examples}"
    words += "; the replicas take the paths of a TPU" if as_on_tpu else ""
    return ParityReport(replicas, steps, float(allowed), words, rows, findings(many.facts, rows), frameworks)


def _batch_of(label: str, build_model: Callable[[], Any], replicas: int) -> tuple[Any, bool]:
    """Return the batch that comes with a model, or one that is made up for it, and whether it is made up."""
    model, batch = unpack_model(build_model())
    check_compiled_model(label, model, "a compiled Keras model, (model, batch) or (build_model, batch)")
    return (batches.synthetic_batch(model, 8 * replicas + 3), True) if batch is None else (batch, False)


def _check_arguments(
    replicas: Any, steps: Any, tolerance: Any, timeout_s: Any, backend: Any, exact: Any, as_on_tpu: Any
) -> None:
    caller = "check_parity"
    if as_on_tpu and backend == "tensorflow":
        raise RuntimeNotSupportedError(
            'check_parity: `as_on_tpu` is for Keras 3 on JAX; got backend="tensorflow". Write backend="jax", or '
            "leave `as_on_tpu` out."
        )
    check.one_of(caller, "exact", exact, (True, False), example="False")
    check.one_of(caller, "as_on_tpu", as_on_tpu, (True, False), example="True")
    if as_on_tpu and backend is None:
        _runtime.devices.as_on_tpu()  # raises on TensorFlow
    check.integer(caller, "replicas", replicas, minimum=2, example=8)
    check.integer(caller, "steps", steps, example=3)
    check.optional(check.number, caller, "tolerance", tolerance, above=0, maximum=1, example="1e-5")
    check.number(caller, "timeout_s", timeout_s, above=0, what="a number of seconds", example=600)
    check.one_of(caller, "backend", backend, (None, *_BACKENDS), example='"jax"')
    if backend is not None and importlib.util.find_spec(backend) is None:
        raise MissingExtraError(
            f'check_parity(backend="{backend}") trains on {_BACKENDS[backend]} as well, and this Python has none. '
            f"Write: {install_command('keras', backend)}"
        )
