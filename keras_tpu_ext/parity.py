"""`check_parity()`: does a model train on N replicas as it does on one device?"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from typing import Any

from keras_tpu_ext._parity import arrays
from keras_tpu_ext._parity.builder import BuilderSource
from keras_tpu_ext._parity.compare import default_tolerance, rows
from keras_tpu_ext._parity.findings import findings
from keras_tpu_ext._parity.job import Job, Outcome
from keras_tpu_ext._parity.process import refuse_inside_a_check, run_worker
from keras_tpu_ext._parity.report import ParityReport as ParityReport
from keras_tpu_ext._parity.report import ParityRow as ParityRow
from keras_tpu_ext.errors import ArgumentError, MissingExtraError, ParityCheckError

_BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX"}


def check_parity(
    build_model: Callable[[], Any],
    batch: Any,
    replicas: int = 8,
    *,
    steps: int = 3,
    tolerance: float | None = None,
    backend: str | None = None,
    timeout_s: float = 600.0,
) -> ParityReport:
    """Train a model on one device and on N rehearsed replicas, in fresh processes, and compare the two.

    From the same weights both take one step and `steps` steps with the batch, an epoch whose last batch does not
    divide, `evaluate` and `predict`, and a step in which one example has an infinite weight. Compared are loss,
    metrics, gradients as they reach the optimizer's update, what is added to the weights, and whether the step
    with the inf is skipped. Both processes use CPUs, whatever hardware there is. Dropout is switched off, because
    each replica draws random numbers of its own; the report names the layers.

    A difference is relative: |a - b| / |a| for a number, the same with norms for gradients and for updates, where a
    is one device. Where it is above the tolerance, one device is asked how far it is from itself with its examples
    in reverse order (and with weights moved by half a unit in the last place, for 16-bit dtypes): an optimizer such
    as Adam makes whole steps of a rounding. Up to four times that is allowed, and never more than 100 times the
    tolerance, or 0.1; what rounding moves further than that counts as not checked.

    Args:
        build_model: Function without arguments that returns a compiled `TPUModel` or any compiled Keras model, and
            opens no scope itself. Each process imports it, so it stands at the top level of a file, and a script
            has its calls under `if __name__ == "__main__":`; from a notebook, cloudpickle brings it over.
        batch: `x`, `(x, y)` or `(x, y, sample_weight)`, structures of arrays with the examples first. Any number
            of examples will do, also fewer than replicas.
        replicas: Number of replicas, at least 2. Defaults to 8.
        steps: Number of steps with the batch. Defaults to 3.
        tolerance: The relative difference up to which numbers agree. Default: 1e-5, because float32 adds in another
            order on replicas; with layers in bfloat16 4 * 2**-8 and in float16 4 * 2**-11, because each replica
            rounds its part of a gradient to that dtype's significand; with another `backend` no less than 1e-4.
        backend: `"jax"` or `"tensorflow"`: the replicas run on this backend of Keras 3, and one device on the one
            that this process is on. So it is known whether a model will train on JAX as it does on TensorFlow.
            `None` (default) takes the one of this process for both.
        timeout_s: Seconds after which each of the two processes is ended. Defaults to 600.

    Returns:
        A `ParityReport`; `report.ok` says whether all that was checked agrees.

    Raises:
        ArgumentError: If an argument cannot work, or `build_model` returns no compiled model.
        MissingExtraError: If `build_model` can be imported from nowhere and cloudpickle is not installed, or the
            framework of `backend` is not.
        ParityCheckError: If `build_model` raises, the model cannot train on the batch, or a process fails.

    Example:
        ```python
        def build_model():
            inputs = keras.Input((28, 28, 1))
            model = kte.TPUModel(inputs, keras.layers.Dense(10)(keras.layers.Flatten()(inputs)))
            model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
            return model

        if __name__ == "__main__":
            print(kte.check_parity(build_model, (images[:64], labels[:64])))
        ```
    """
    source = BuilderSource.of(build_model)
    return check_source(source, batch, replicas, steps, tolerance, timeout_s, backend=backend)


def check_source(
    source: BuilderSource,
    batch: Any,
    replicas: int,
    steps: int,
    tolerance: float | None,
    timeout_s: float,
    *,
    backend: str | None = None,
    made_up: bool = False,
) -> ParityReport:
    """Do what `check_parity` does for a function that was found by name; `made_up` says so of the batch."""
    refuse_inside_a_check()
    _check_arguments(replicas, steps, tolerance, timeout_s)
    _check_backend(backend)
    arrays_of_batch = arrays.as_batch(batch)

    def run(*, distributed: bool, start: list[Any] | None) -> Outcome:
        path = [os.path.abspath(entry) for entry in sys.path]
        on = backend if distributed and backend else ""
        job = Job(source, arrays_of_batch, replicas, distributed, steps, start, path, on)
        return run_worker(job, timeout_s)

    one = run(distributed=False, start=None)
    if one.parts["steps"].error:
        hint = " The batch was made up; return (model, batch) instead." if made_up else ""
        error = one.parts["steps"].error
        raise ParityCheckError(f"The model of {source.label} cannot train on the batch on one device: {error}.{hint}")
    many = run(distributed=True, start=one.start)
    frameworks = one.facts.framework, many.facts.framework
    allowed = default_tolerance(one.facts.compute_dtypes, frameworks) if tolerance is None else tolerance
    compared = rows(one, many, allowed, replicas)
    examples = arrays.size(arrays_of_batch)
    words = f"a {'made-up ' if made_up else ''}batch of {examples} example{'' if examples == 1 else 's'}"
    found = findings(many.facts, compared)
    return ParityReport(replicas, steps, float(allowed), words, compared, found, frameworks)


def _check_arguments(replicas: Any, steps: Any, tolerance: Any, timeout_s: Any) -> None:
    if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 2:
        raise ArgumentError(f"`replicas` must be an integer of at least 2; got {replicas!r}. Write replicas=8.")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ArgumentError(f"`steps` must be an integer of at least 1; got {steps!r}. Write steps=3.")
    if tolerance is not None and not (isinstance(tolerance, (int, float)) and 0 < tolerance < 1):
        raise ArgumentError(
            f"`tolerance` must be a number between 0 and 1; got {tolerance!r}. Write tolerance=1e-5, or leave it out."
        )
    if not (isinstance(timeout_s, (int, float)) and timeout_s > 0):
        raise ArgumentError(
            f"`timeout_s` must be a positive number of seconds; got {timeout_s!r}. Write timeout_s=600."
        )


def _check_backend(backend: Any) -> None:
    if backend is None:
        return
    if backend not in _BACKENDS:
        raise ArgumentError(f'`backend` must be None, "tensorflow" or "jax"; got {backend!r}. Write backend="jax".')
    if importlib.util.find_spec(backend) is None:
        raise MissingExtraError(
            f'check_parity(backend="{backend}") trains on {_BACKENDS[backend]} as well, and this Python has none. '
            f"Write: pip install 'keras-tpu-ext[{backend}]'"
        )
