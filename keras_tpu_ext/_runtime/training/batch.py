"""What losses and metrics need to know about the batch and the replicas; a module of each runtime implements it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from keras_tpu_ext._runtime.common.types import Metric, Nest, SameNest, Tensor, Variable
from keras_tpu_ext._runtime.training import protocols

_Rows = TypeVar("_Rows", bound="Tensor | None")


class Batch(protocols.Batch, Protocol):
    """The batch of the running step, for layers, losses and metrics."""

    def num_replicas(self) -> int:
        """Return the number of replicas that the current data is split over."""

    def needs_gather(self) -> bool:
        """Return whether this replica's data are not exactly the examples of the batch."""

    def is_padded(self) -> bool:
        """Return whether some rows may not be examples."""

    def gather_examples(self, data: SameNest) -> SameNest:
        """Return `data` and the masks on it with the examples of all replicas joined, without padded rows."""

    def whole_batch_view(self) -> AbstractContextManager[None]:
        """Return a context manager within which this replica holds what `gather_examples` returns."""

    def whole_state(self, metrics: Callable[[], Iterable[Metric]]) -> AbstractContextManager[None]:
        """Return a context manager within which the variables of `metrics` hold the values kept on all replicas."""

    def on_some_row(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return `function`, called with a row where this replica has none; the values of that row are cut off."""

    def is_row_by_row(self, function: Callable[..., Nest], specs: Sequence[Nest]) -> bool:
        """Return whether results of `function` for a row, on tensors like `specs`, depend on that row alone."""

    def keeps_sums(self, update: Callable[..., Nest], specs: Sequence[Nest], variables: Iterable[Variable]) -> bool:
        """Return whether an update of a metric's `variables` adds to each a sum over the rows, and nothing else."""

    def valid_rows_of(self, values: Tensor) -> Tensor | None:
        """Return for each row of `values` whether it counts; `None` if every row does."""

    def zero_invalid_rows(self, values: Tensor) -> Tensor:
        """Return `values` with zeros in padded rows."""

    def select_valid_rows(self, values: _Rows) -> _Rows:
        """Return `values`, a tensor or `None`, without padded rows."""

    def valid_fraction(self) -> Tensor | float:
        """Return the fraction of this replica's rows that are examples."""

    def static_examples(self, rows: int | None) -> int | None:
        """Return the number of rows here that Keras would know to be examples, given the static number of rows."""
