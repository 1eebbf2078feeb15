"""The order and names of what training gives: loss, each output's loss, metrics, as in Keras 2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras_tpu_ext.dropin.patching import replace

Method = Callable[..., Any]


def install() -> None:
    """Order metrics as Keras 2 did."""
    trainer = "keras.src.trainers.trainer.Trainer"
    replace(
        {
            "keras.src.utils.python_utils.pythonify_logs": _in_order,
            f"{trainer}.get_metrics_result": _get_metrics_result,
            f"{trainer}._flatten_metrics_in_order": _flatten,
            f"{trainer}.metrics_names": lambda _: property(_metrics_names),
        }
    )


def _in_order(stock: Method) -> Method:
    """Keep the order of logs, which Keras 3 sorts; those of validation come in that of training."""

    def pythonify_logs(logs: dict[str, Any] | None) -> dict[str, Any]:
        python = stock(logs)
        first = [name for name in logs or () if name in python and not name.startswith("val_")]
        names = [*first, *(f"val_{name}" for name in first if f"val_{name}" in python)]
        return {**{name: python[name] for name in names}, **python}

    return pythonify_logs


def _losses_first(model: Any, results: dict[str, Any]) -> dict[str, Any]:
    """Return the results with the losses of outputs after the loss, where Keras 3 has them at the end."""
    compiled = getattr(model, "_compile_loss", None)
    names = ["loss", *(tracker.name for tracker in (compiled.metrics if compiled is not None else ()))]
    first = {name: results[name] for name in names if name in results}
    return {**first, **{name: value for name, value in results.items() if name not in first}}


def _get_metrics_result(stock: Method) -> Method:
    def get_metrics_result(self: Any) -> dict[str, Any]:
        return _losses_first(self, stock(self))

    return get_metrics_result


def _flatten(stock: Method) -> Method:
    def flatten_in_order(self: Any, logs: dict[str, Any]) -> Any:
        names = _metrics_names(self)
        values = [logs[name] for name in names if name in logs]
        values += [value for name, value in logs.items() if name not in names]
        return values[0] if len(values) == 1 else values

    return flatten_in_order


def _metrics_names(self: Any) -> list[str]:
    """Return the names of what `evaluate` returns, in its order; none before training, as in Keras 2."""
    compiled: Any = getattr(self, "_compile_metrics", None)
    if not self.compiled or (compiled is not None and not compiled.built):
        return []
    results: dict[str, None] = {}
    for metric in self.metrics:
        several = metric is compiled  # whose result is a dict
        results.update(dict.fromkeys(metric.result() if several else [metric.name]))
    return list(_losses_first(self, results))
