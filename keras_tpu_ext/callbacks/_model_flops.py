"""Finding out, in a `fit`, how many FLOPs a step of its model takes."""

from __future__ import annotations

import warnings
from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.executions import Execution, Interception
from keras_tpu_ext._runtime.common.flops import FlopsCount, UncountableError

_ANY_SIZE = 8  # of a batch, where nobody knows it: FLOPs for one example hardly ever depend on it


class FlopsFinder:
    """Looks at the first execution of a `fit` to see what a batch is like, and then counts.

    Args:
        model: The model, which is in `fit`.

    Attributes:
        found: The FLOPs; `None` while they are not known.
        why_not: Why they cannot be; empty while they may still be.
    """

    def __init__(self, model: Any) -> None:
        self.found: FlopsCount | None = None
        self.why_not = ""
        self._model = model
        self._interception: Interception | None = None
        self._has_run = False
        self._batch: Any = None

    def is_ready(self) -> bool:
        """Return whether an execution has run, and it can count; if not, look at the next one."""
        if not self._has_run and self._interception is None:
            self._interception = _runtime.probes.intercept_executions(self._model, self._around)
        return self._has_run

    def count(self, batch_size: int | None) -> None:
        """Count, and never raise; `batch_size` is the number of examples over all replicas, where that is known."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the step is traced for a second time, and has warned before
                self.found = self._count(batch_size)
        except UncountableError as error:
            self.why_not = str(error)
        except Exception as error:  # code of the user's runs here, and can raise anything
            text = str(error).strip().partition("\n")[0]
            self.why_not = f"its step cannot be traced apart from fit ({type(error).__name__}: {text[:200]})"

    def undo(self) -> None:
        """Look at nothing any more."""
        if self._interception is not None:
            self._interception.undo()
            self._interception = None

    def _count(self, batch_size: int | None) -> FlopsCount:
        if self._batch is None:
            raise UncountableError("its data does not say what a batch is like")
        found = _runtime.probes.count_flops(self._model, self._batch, batch_size or _ANY_SIZE)
        if not found.per_sample:
            raise UncountableError("no product and no convolution can be seen in it")
        return found

    def _around(self, execution: Execution) -> Any:
        self.undo()
        result, self._batch = execution.run_and_describe()
        self._has_run = True
        return result
