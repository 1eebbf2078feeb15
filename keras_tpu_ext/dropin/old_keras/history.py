"""The order and names of what training gives: loss, each output's loss, metrics, as in Keras 2."""

from __future__ import annotations

from typing import Any

import keras
from keras import tree

from keras_tpu_ext.dropin.patching import Function, replace, wrap
from keras_tpu_ext.dropin.report import is_old_program, mapped, means_old


def install() -> None:
    """Order metrics as Keras 2 did."""
    trainer = "keras.src.trainers.trainer.Trainer"
    wrap(
        {
            "keras.src.trainers.compile_utils.CompileLoss.build": _naming_each_loss,
            "keras.src.utils.python_utils.pythonify_logs": _in_order,
            f"{trainer}.get_metrics_result": _get_metrics_result,
            f"{trainer}._flatten_metrics_in_order": _flatten,
        }
    )
    replace({f"{trainer}.metrics_names": _names})


def _naming_each_loss(stock: Function, self: Any, y_true: Any, y_pred: Any) -> None:
    """Show the loss of an output also where the other outputs have none; Keras 3 shows the sum alone."""
    stock(self, y_true, y_pred)
    if len(self._flat_losses) == 1 and len(tree.flatten(y_pred)) > 1 and is_old_program():
        self._tracker.add_to_store("metrics", keras.metrics.Mean(name=f"{self._flat_losses[0].name}_loss"))


def _in_order(stock: Function, logs: dict[str, Any] | None) -> dict[str, Any]:
    """Keep the order of logs, which Keras 3 sorts; those of validation come in that of training."""
    python: dict[str, Any] = stock(logs)
    if not is_old_program():
        return python
    first = [name for name in logs or () if name in python and not name.startswith("val_")]
    names = [*first, *(f"val_{name}" for name in first if f"val_{name}" in python)]
    return {**{name: python[name] for name in names}, **python}


def _losses_first(model: Any, results: dict[str, Any]) -> dict[str, Any]:
    """Return the results with the losses of outputs after the loss, where Keras 3 has them at the end."""
    compiled = getattr(model, "_compile_loss", None)
    names = ["loss", *(tracker.name for tracker in (compiled.metrics if compiled is not None else ()))]
    first = {name: results[name] for name in names if name in results}
    return {**first, **{name: value for name, value in results.items() if name not in first}}


def _get_metrics_result(stock: Function, self: Any) -> dict[str, Any]:
    results: dict[str, Any] = {name: keras.ops.convert_to_tensor(of) for name, of in stock(self).items()}
    return _losses_first(self, results) if is_old_program() else results


def _flatten(stock: Function, self: Any, logs: dict[str, Any]) -> Any:
    names = _metrics_names(self)
    values = [logs[name] for name in names if name in logs]
    values += [value for name, value in logs.items() if name not in names]
    if len(values) == 1:
        return values[0]
    today, what = stock(self, logs), "the order of what evaluate returns"
    same = [*map(id, values)] == [*map(id, today)]
    return values if same or means_old(what, "that of compile, as in Keras 2") else today


def _names(stock: property) -> property:
    def metrics_names(self: Any) -> list[str]:
        what, then = "model.metrics_names", "the names of what evaluate returns"
        return _metrics_names(self) if means_old(what, then) else stock.__get__(self)

    return property(metrics_names)


def know_names(model: Any) -> None:
    """Let a model of an HDF5 file know the names of what `evaluate` returns before it has run, as in Keras 2."""
    compiled: Any = model._compile_metrics
    if compiled is not None and not compiled.built and getattr(model, "outputs", None) and is_old_program():
        several = len(model.outputs) > 1
        compiled.build(model.outputs, model.outputs)
        losses = [f"{name}_loss" for name in model.output_names] if several else []
        vars(model)["_kte_names"] = ["loss", *losses, *compiled.result()]
        compiled.built = False  # for the labels, which say what "accuracy" is


def _metrics_names(self: Any) -> list[str]:
    """Return the names of what `evaluate` returns, in its order; none before training, as in Keras 2."""
    compiled: Any = getattr(self, "_compile_metrics", None)
    if not self.compiled or (compiled is not None and not compiled.built):
        return [*vars(self).get("_kte_names", ())]
    results: dict[str, None] = {}
    for metric in self.metrics:
        several = metric is compiled  # whose result is a dict
        results.update(dict.fromkeys(metric.result() if several else [metric.name]))
    return list(_losses_first(self, results))


class _BothRates(dict[str, Any]):
    """What `fit` recorded; it has the learning rate under one key, and answers to that of Keras 2 and of Keras 3."""

    def __missing__(self, key: str) -> Any:
        other = {"lr": "learning_rate", "learning_rate": "lr"}.get(key, "")
        if other not in self:
            raise KeyError(key)
        if key == "lr":
            mapped('history["lr"]', 'history["learning_rate"]')
        return self[other]

    def __reduce__(self) -> Any:  # it is copied and pickled as a dict
        return dict, (dict(self),)


def with_both_rates(history: Any) -> Any:
    """Return what `fit` returns, so that `history["lr"]` and `history["learning_rate"]` are the same."""
    if isinstance(history, keras.callbacks.History):
        history.history = _BothRates(history.history)
    return history
