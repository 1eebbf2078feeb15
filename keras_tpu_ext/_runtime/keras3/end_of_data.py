"""When the data of an epoch has ended: Keras 3 then reads the metrics of the model, before any callback runs."""

from __future__ import annotations

from collections.abc import Callable

from keras_tpu_ext._runtime.common.types import Model, Nest

_READS = "get_metrics_result"


def watch_end_of_data(model: Model, call: Callable[[], None]) -> Callable[[], None]:
    """Call `call` before each reading of the metrics of `model`; see `common/protocols.py`."""
    attributes: dict[str, Nest] = model.__dict__
    before = attributes.get(_READS)
    read = model.get_metrics_result

    def called(*args: Nest) -> Nest:
        call()
        return read(*args)

    def stop() -> None:
        if before is None:
            attributes.pop(_READS, None)
        else:
            attributes[_READS] = before

    attributes[_READS] = called
    return stop
