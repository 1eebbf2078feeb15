"""How `fit`, `evaluate` and `predict` run steps under `tf.distribute`: many steps a call, exact logs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime._tf_replicas import split_batch

Step = Callable[[Any], Any]


def make_steps_function(model: Any, step: Step) -> Callable[[Any], dict[str, Any]]:
    """Return the function that Keras's `fit` and `evaluate` call with an iterator.

    It differs from Keras's own in three ways. The logs are read once, over all replicas, after the last step of
    an execution, where Keras averages what every replica sees of itself (on TPUs it shows the first replica).
    A single step needs no `tf.experimental.Optional` around its result. The number of steps is an argument, so
    changing it does not trace again.

    Args:
        model: The model; its strategy, `run_eagerly`, `jit_compile` and `steps_per_execution` are honoured.
        step: `train_step` or `test_step`.
    """
    strategy = model.distribute_strategy

    def one_step(data: Any) -> Any:
        return first_of_replicas(strategy, strategy.run(step, args=(without_optionals(data),)))

    def run_one(iterator: Any) -> dict[str, Any]:
        return _exact_logs(model, _on_next(compiled_step, iterator))

    def run_many(iterator: Any, steps: Any) -> dict[str, Any]:
        return _exact_logs(model, _loop(compiled_step, iterator, steps))

    def run_batch(data: Any) -> dict[str, Any]:
        return _exact_logs(model, compiled_step(data))

    compiled_step = one_step
    if not model.run_eagerly:
        compiled_step = _graph(one_step, jit_compile=model.jit_compile)
        run_one, run_many, run_batch = _graph(run_one), _graph(run_many), _graph(run_batch)

    def function(iterator: Any) -> dict[str, Any]:
        steps = int(model.steps_per_execution)
        if not isinstance(iterator, (tf.data.Iterator, tf.distribute.DistributedIterator)):
            for _, data in zip(range(steps), iterator, strict=False):
                logs = run_batch(split_batch(strategy, data))
            return logs
        if steps == 1:
            return run_one(iterator)
        return run_many(iterator, tf.constant(steps))

    return function


def first_of_replicas(strategy: Any, outputs: Any) -> Any:
    """Return the mean over replicas of what each returned; anything that is no number, from the first one."""

    def merge(value: Any) -> Any:
        values = strategy.experimental_local_results(value)
        if len(values) == 1:
            return values[0]
        return tf.reduce_mean(tf.stack(values), axis=0) if values[0].dtype.is_floating else values[0]

    return tf.nest.map_structure(merge, outputs)


def without_optionals(data: Any) -> Any:
    """Return `data` with `None` where Keras's data adapters put an empty `tf.experimental.Optional`."""
    return tf.nest.map_structure(lambda leaf: None if isinstance(leaf, tf.experimental.Optional) else leaf, data)


def _graph(function: Any, **kwargs: Any) -> Any:
    return tf.function(tf.autograph.experimental.do_not_convert(function), reduce_retracing=True, **kwargs)


def _on_next(step: Step, iterator: Any) -> Any:
    """Run `step` on the next batch, and no part of it when there is none.

    Without the dependency TensorFlow counts a step of the optimizer while it finds that the data has ended.
    """
    data = iterator.get_next()
    with tf.control_dependencies(tf.nest.flatten(data, expand_composites=True)):
        return step(data)


def _loop(step: Step, iterator: Any, steps: Any) -> Any:
    """Run `step` up to `steps` times and return the last outputs; fewer when the data ends, not none."""
    outputs = _on_next(step, iterator)
    data = iterator.get_next_as_optional()

    def go_on(done: Any, data: Any, outputs: Any) -> Any:
        return tf.logical_and(done < steps, data.has_value())

    def once(done: Any, data: Any, outputs: Any) -> Any:
        outputs = step(data.get_value())
        # The last step of an execution must not fetch: that batch belongs to the next one.
        data = tf.cond(done + 1 < steps, iterator.get_next_as_optional, lambda: data)
        return done + 1, data, outputs

    loose = tf.nest.map_structure(lambda value: tf.TensorShape([None] * value.shape.rank), outputs)
    variables = (tf.constant(1), data, outputs)
    invariants = (tf.TensorShape([]), tf.type_spec_from_value(data), loose)
    return tf.while_loop(go_on, once, variables, shape_invariants=invariants)[2]


def _exact_logs(model: Any, outputs: Any) -> Any:
    """Replace the metrics in a step's outputs by their values over all replicas."""
    if not isinstance(outputs, dict) or model.distribute_strategy.num_replicas_in_sync == 1:
        return outputs
    with model.distribute_strategy.scope():  # the cross-replica context, in which a metric is its sum
        exact = model.get_metrics_result()
    return {name: exact.get(name, value) for name, value in outputs.items()}
