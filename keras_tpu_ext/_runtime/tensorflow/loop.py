"""How `fit`, `evaluate` and `predict` run steps under `tf.distribute`: many steps per call, exact logs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.padding import PaddedOutputs
from keras_tpu_ext._runtime.common.types import Model, Nest, Variable
from keras_tpu_ext._runtime.compat import loss_tracker_of
from keras_tpu_ext._runtime.tensorflow.custom_step import find_separability, own_predict_step
from keras_tpu_ext._runtime.tensorflow.replicas import hide_uneven_sizes, split_batch, with_none
from keras_tpu_ext._runtime.training.execution_schedule import ExecutionSchedule
from keras_tpu_ext._runtime.training.model import is_own_step

Step = Callable[[Nest], Nest]


def make_steps_function(
    model: Model, step: Step, *, trains: bool, counter: Variable | None = None
) -> Callable[[Nest], dict[str, tf.Tensor]]:
    """Return the function that Keras's `fit` and `evaluate` call with an iterator.

    Its logs are read once, over all replicas, after the last step of an execution, whereas Keras averages those of
    the replicas (on TPUs it shows the first one's). The number of steps is an argument: changing it retraces nothing.
    """
    strategy, own_step = model.distribute_strategy, model.train_step if trains else model.test_step

    def one_step(data: Nest) -> Nest:
        data = with_none(data)
        with _only_with(data):
            return first_of_replicas(strategy, strategy.run(step, args=(data,)))

    def run_one(iterator: tf.data.Iterator) -> dict[str, tf.Tensor]:
        outputs = compiled_step(iterator.get_next())
        _count(counter, 1)
        return _exact_logs(model, outputs)

    def run_many(iterator: tf.data.Iterator, steps: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        outputs, done = _loop(compiled_step, iterator, steps)
        _count(counter, done)
        return _exact_logs(model, outputs), done

    def run_batch(data: Nest) -> dict[str, tf.Tensor]:
        return _exact_logs(model, compiled_step(hide_uneven_sizes(strategy, data)))

    @functools.cache
    def executions_of(kind: type) -> tuple[Any, Any]:
        return (run_one, run_many) if model.run_eagerly else (_graph(run_one), _graph(run_many))

    compiled_step = one_step
    if not model.run_eagerly:
        compiled_step, run_batch = _graph(one_step, jit_compile=model.jit_compile), _graph(run_batch)

    def function(data: Any) -> dict[str, tf.Tensor]:
        if isinstance(data, (tf.data.Iterator, tf.distribute.DistributedIterator)):
            _make_variables(model, lambda iterator: one_step(iterator.get_next()), data)
            find_separability(model, data, own_step)
            return _run_execution(model, data, *executions_of(kind_of_batches(data)), trains=trains)
        for _, batch in zip(range(int(model.steps_per_execution)), data, strict=False):
            parts = split_batch(strategy, batch)
            _make_variables(model, one_step, parts)
            find_separability(model, batch, own_step)
            logs = run_batch(parts)
        return logs

    return function


def _make_variables(model: Model, run: Callable[[Any], Nest], data: Nest) -> None:
    """Trace this package's step of an unbuilt model for its variables, which then begin as on one device."""
    is_needed = is_own_step(model.train_step) and is_own_step(model.test_step) and not model.built
    if is_needed and not model.run_eagerly and model.distribute_strategy.num_replicas_in_sync > 1:
        _graph(run).get_concrete_function(data)


def kind_of_batches(iterator: tf.data.Iterator) -> type:
    """Return the class of an iterator's batches, such as `tuple` or `PaddedBatch`.

    Each has its own graph, because TensorFlow considers iterators of tuples and of named tuples one type: it would
    run a graph traced for one on the other.
    """
    return type(iterator.element_spec)


def _count(counter: Variable | None, steps: tf.Tensor) -> None:
    if counter is not None:
        counter.assign_add(tf.cast(steps, counter.dtype))


def _run_execution(
    model: Model, iterator: tf.data.Iterator, run_one: Any, run_many: Any, *, trains: bool
) -> dict[str, tf.Tensor]:
    schedule = model._kte.schedule
    if schedule is not None and not schedule.held:
        return _run_scheduled(model, schedule, run_many, iterator, learns=trains)
    steps = int(model.steps_per_execution)
    if steps > 1 and isinstance(model.distribute_strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return _one_by_one(run_one, iterator, steps)
    return run_one(iterator) if steps == 1 else run_many(iterator, tf.constant(steps))[0]


def _run_scheduled(
    model: Model, schedule: ExecutionSchedule, run_many: Any, iterator: tf.data.Iterator, *, learns: bool
) -> dict[str, tf.Tensor]:
    """Run an execution of `requested_steps` steps; learn from its time, unless it included a compilation."""

    def run() -> dict[str, tf.Tensor]:
        logs, schedule.completed_steps = run_many(iterator, tf.constant(schedule.requested_steps))
        return logs

    if not learns or schedule.tuner.settled:
        return run()
    logs: list[dict[str, tf.Tensor]] = []

    def timed() -> bool:
        traces = run_many.experimental_get_tracing_count()
        logs.append(run())
        tf.nest.map_structure(lambda value: value.numpy(), logs[0])  # waits for the device
        return bool(traces != run_many.experimental_get_tracing_count())

    schedule.time(model, timed)
    return logs[0]


def _one_by_one(run_one: Any, iterator: tf.data.Iterator, steps: int) -> dict[str, tf.Tensor]:
    """Run 1 to `steps` steps, until the data ends, where several processes train together.

    They cannot synchronise in a graph's loop: TensorFlow numbers their collectives when it is called from outside.
    """
    logs: dict[str, tf.Tensor] = run_one(iterator)
    for _ in range(steps - 1):
        try:
            logs = run_one(iterator)
        except tf.errors.OutOfRangeError:
            break
    return logs


def make_predict_function(model: Model, predict: Step) -> Step:
    """Return Keras's predict function, without the outputs of padded rows."""

    def function(data: Nest) -> Nest:
        batch = data[0] if isinstance(data, list) else data  # Keras 3 gives a list of batches
        find_separability(model, batch, model.predict_step)
        with own_predict_step(model):
            outputs = predict(data)
        if not isinstance(outputs, PaddedOutputs):
            return outputs
        return tf.nest.map_structure(lambda output: _without_rows(output, outputs.real), outputs.outputs)

    return function


def hide_uneven_sizes_from(model: Model, predict: Step) -> Step:
    """Return `predict`, a function of a list of batches, with static sizes hidden if replicas differ in them."""
    strategy = model.distribute_strategy
    if model.run_eagerly or strategy.num_replicas_in_sync == 1:
        return predict

    def predict_uneven(batches: list[Nest]) -> Nest:
        return predict([hide_uneven_sizes(strategy, batch, sparse=False) for batch in batches])

    graph: Step = _graph(predict_uneven)
    return graph


def _without_rows(output: tf.Tensor, real: tf.Tensor) -> tf.Tensor:
    """Return the rows of a tensor that count, one or several per example; a tensor without such rows is unchanged."""
    rows, examples = tf.shape(output)[0], tf.shape(real)[0]
    return output if rows % examples else tf.boolean_mask(output, tf.repeat(real, rows // examples))


def first_of_replicas(strategy: tf.distribute.Strategy, outputs: Nest) -> Nest:
    """Return the mean over replicas of what each returned; anything but floats comes from the first replica."""

    def merge(value: tf.Tensor) -> tf.Tensor:
        values = strategy.experimental_local_results(value)
        if len(values) == 1:
            return values[0]
        # Before Keras 3.11 an eager step returns Python's numbers.
        together = tf.stack(values)
        return tf.reduce_mean(together, axis=0) if together.dtype.is_floating else values[0]

    return tf.nest.map_structure(merge, outputs)


def _graph(function: Any, **kwargs: Any) -> tf.types.experimental.PolymorphicFunction:
    return tf.function(tf.autograph.experimental.do_not_convert(function), reduce_retracing=True, **kwargs)


@contextlib.contextmanager
def _only_with(data: Nest) -> Iterator[None]:
    """Within the block nothing runs before `data` is available, and so nothing at all if there is none.

    Without it TensorFlow counts a step of the optimizer while it finds that the data has ended. A dependency on the
    input itself would be dropped, and when a function is inlined, an input delays only the operations that use it.
    """
    leaves = tf.nest.flatten(data, expand_composites=True)
    with tf.control_dependencies([leaf for leaf in leaves if leaf is not None]):
        there_is_data = tf.no_op()
    with tf.control_dependencies([there_is_data]), tf.variable_creator_scope(_before_any_data):
        yield


def _before_any_data(create: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
    """Create a variable, of a metric for example, that does not wait for data: XLA rejects a step where one does."""
    with tf.control_dependencies(None):
        return create(**kwargs)


def _loop(step: Step, iterator: tf.data.Iterator, steps: tf.Tensor) -> tuple[Nest, tf.Tensor]:
    """Run `step` 1 to `steps` times, until the data ends; return the last outputs and the number of steps."""

    def go_on(done: tf.Tensor, data: tf.experimental.Optional, outputs: Nest) -> tf.Tensor:
        return tf.logical_and(done < steps, data.has_value())

    def once(done: tf.Tensor, data: tf.experimental.Optional, outputs: Nest) -> tuple[tf.Tensor, Nest, Nest]:
        outputs = step(_with_shapes_of(batch, data.get_value()))
        # The last step of an execution must not fetch: that batch belongs to the next execution.
        data = tf.cond(done + 1 < steps, iterator.get_next_as_optional, lambda: data)
        return done + 1, data, outputs

    def rest() -> tuple[Nest, tf.Tensor]:
        data = iterator.get_next_as_optional()
        loose = tf.nest.map_structure(lambda value: tf.TensorShape([None] * value.shape.rank), first)
        invariants = (tf.TensorShape([]), tf.type_spec_from_value(data), loose)
        done, _, outputs = tf.while_loop(go_on, once, (tf.constant(1), data, first), shape_invariants=invariants)
        return outputs, done

    batch = iterator.get_next()
    first = step(batch)
    return tf.cond(steps > 1, rest, lambda: (tf.nest.map_structure(tf.identity, first), tf.constant(1)))


def _with_shapes_of(batch: Nest, other: Nest) -> Nest:
    """Return `other`, a batch from the same iterator as `batch`, with the static shapes of `batch`."""
    if tf.executing_eagerly():
        return other
    for known, leaf in zip(*(tf.nest.flatten(data, expand_composites=True) for data in (batch, other)), strict=True):
        if isinstance(leaf, tf.Tensor) and known is not None:
            leaf.set_shape(known.shape)
    return other


def _exact_logs(model: Model, outputs: Any) -> dict[str, tf.Tensor]:
    """Replace the metrics in a step's outputs by their values over all replicas."""
    if not isinstance(outputs, dict) or model.distribute_strategy.num_replicas_in_sync == 1:
        return outputs
    with model.distribute_strategy.scope():  # the cross-replica context, in which a metric is its sum
        exact = model.get_metrics_result()
        if not outputs:  # a step that leaves all its logs to this function
            return exact
        if "loss" in outputs and "loss" in exact:
            exact["loss"] = _loss_if_tracked(model, exact["loss"], outputs["loss"])
    return {name: exact.get(name, value) for name, value in outputs.items()}


def _loss_if_tracked(model: Model, tracked: tf.Tensor, returned: tf.Tensor) -> tf.Tensor:
    """Return the tracked loss, or the loss that a user's own step returned but never tracked."""
    tracker = loss_tracker_of(model)
    if tracker is None or [metric for metric in model.metrics if metric.name == "loss"] != [tracker]:
        return tracked
    count, tracked = tf.convert_to_tensor(tracker.count), tf.convert_to_tensor(tracked)
    return tf.where(count > 0, tracked, tf.cast(returned, tracked.dtype))
