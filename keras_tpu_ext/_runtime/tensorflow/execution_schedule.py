"""Executions of changing length on TensorFlow."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.training.auto_steps import ExecutionSchedule


class GraphExecutionSchedule(ExecutionSchedule):
    """A `ExecutionSchedule` for functions of an iterator and a number of steps.

    Such a `tf.function` returns the logs and the number of steps done.
    """

    def run_train(self, model: Any, function: Any, iterator: Any) -> Any:
        """Run an execution of training and learn from it, unless it was compiled on the way."""
        if self.held or self.tuner.settled:
            return self.run(function, iterator)
        logs: list[Any] = []

        def run() -> bool:
            traces = function.experimental_get_tracing_count()
            logs.append(self.run(function, iterator))
            tf.nest.map_structure(lambda value: value.numpy(), logs[0])  # waits for the device
            return bool(traces != function.experimental_get_tracing_count())

        self.time(model, run)
        return logs[0]

    def run(self, function: Any, iterator: Any) -> Any:
        """Run an execution of what was announced last."""
        logs, done = function(iterator, tf.constant(self.asked))
        self.done = done
        return logs
