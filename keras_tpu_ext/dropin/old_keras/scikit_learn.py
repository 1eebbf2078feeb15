"""`keras.wrappers.scikit_learn` of Keras 2: estimators of scikit-learn that make their model by a function.

Keras 3 has `keras.wrappers.SKLearnClassifier` and `SKLearnRegressor`, which take other arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin  # type: ignore[import-not-found]
except ImportError:  # Keras 2's did not need scikit-learn either
    BaseEstimator = ClassifierMixin = RegressorMixin = object


class _Wrapper:
    """An estimator.

    Args:
        build_fn: Returns a compiled model; a subclass may have `__call__` instead.
        **sk_params: Arguments of `build_fn`, `fit`, `predict` and `evaluate`.
    """

    def __init__(self, build_fn: Callable[..., Any] | None = None, **sk_params: Any) -> None:
        self.build_fn = build_fn
        self.sk_params = sk_params
        self._check()

    def _check(self) -> None:
        model = keras.Sequential
        known = set().union(*map(_arguments, (self._builder(), model.fit, model.predict, model.evaluate)))
        unknown = sorted(self.sk_params.keys() - known)
        if unknown:
            raise ValueError(
                f"{type(self).__name__} needs arguments of `build_fn`, `fit`, `predict` or `evaluate`; "
                f"{', '.join(unknown)} is none. Leave it out, or give it to `build_fn`."
            )

    def _builder(self) -> Callable[..., Any]:
        build = self.build_fn if self.build_fn is not None else self
        if not callable(build):
            raise ValueError(f"{type(self).__name__} needs build_fn=, a function that returns a compiled model.")
        return build

    def _chosen(self, function: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a function."""
        known = _arguments(function)
        return {**{name: value for name, value in self.sk_params.items() if name in known}, **given}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments."""
        del deep
        return {**self.sk_params, "build_fn": self.build_fn}

    def set_params(self, **params: Any) -> Any:
        """Set arguments."""
        self.build_fn = params.pop("build_fn", self.build_fn)
        self.sk_params.update(params)
        self._check()
        return self

    def fit(self, x: Any, y: Any, **kwargs: Any) -> Any:
        """Make the model and train it; return its history."""
        build = self._builder()
        self.model = build(**self._chosen(build, {}))
        if self.model.loss in ("categorical_crossentropy", keras.losses.categorical_crossentropy) and np.ndim(y) != 2:
            y = keras.utils.to_categorical(y)
        return self.model.fit(x, y, **self._chosen(keras.Sequential.fit, kwargs))

    def _predict(self, x: Any, kwargs: dict[str, Any]) -> Any:
        return self.model.predict(x, **self._chosen(keras.Sequential.predict, kwargs))

    def _evaluate(self, x: Any, y: Any, kwargs: dict[str, Any]) -> dict[str, float]:
        arguments = self._chosen(keras.Sequential.evaluate, kwargs)
        return self.model.evaluate(x, y, return_dict=True, **arguments)


class KerasClassifier(_Wrapper, ClassifierMixin, BaseEstimator):
    """A classifier whose `score` is the model's accuracy."""

    def fit(self, x: Any, y: Any, **kwargs: Any) -> Any:
        """Make the model and train it; return its history."""
        y = np.array(y)
        if y.ndim == 2 and y.shape[1] > 1:
            self.classes_ = np.arange(y.shape[1])
        elif y.ndim == 1 or (y.ndim == 2 and y.shape[1] == 1):
            self.classes_, y = np.unique(y), np.searchsorted(np.unique(y), y)
        else:
            raise ValueError(f"y needs the shape (examples,) or (examples, classes); this is {y.shape}.")
        self.n_classes_ = len(self.classes_)
        return super().fit(x, y, **kwargs)

    def predict(self, x: Any, **kwargs: Any) -> Any:
        """Return the class of each example."""
        probabilities = self._predict(x, kwargs)
        one = probabilities.shape[-1] > 1
        return self.classes_[probabilities.argmax(-1) if one else (probabilities > 0.5).astype("int32")]

    def predict_proba(self, x: Any, **kwargs: Any) -> Any:
        """Return the probability of each class, (examples, classes)."""
        probabilities = self._predict(x, kwargs)
        return np.hstack([1 - probabilities, probabilities]) if probabilities.shape[1] == 1 else probabilities

    def score(self, x: Any, y: Any, **kwargs: Any) -> float:
        """Return the accuracy."""
        y = np.searchsorted(self.classes_, y)
        if getattr(self.model, "loss", None) == "categorical_crossentropy" and y.ndim != 2:
            y = keras.utils.to_categorical(y)
        values = self._evaluate(x, y, kwargs)
        for name in ("accuracy", "acc"):
            if name in values:
                return values[name]
        raise ValueError("score needs the accuracy. Write in build_fn: model.compile(..., metrics=['accuracy'])")


class KerasRegressor(_Wrapper, RegressorMixin, BaseEstimator):
    """A regressor whose `score` is the negative loss."""

    def predict(self, x: Any, **kwargs: Any) -> Any:
        """Return the values."""
        return np.squeeze(self._predict(x, kwargs), axis=-1)

    def score(self, x: Any, y: Any, **kwargs: Any) -> float:
        """Return the loss, with a minus: more is better."""
        return -self._evaluate(x, y, kwargs)["loss"]


def _arguments(function: Callable[..., Any]) -> Iterable[str]:
    return inspect.signature(function).parameters.keys()
