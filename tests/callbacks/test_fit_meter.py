"""An end that one thread appends while another one flushes."""

import pytest

from keras_tpu_ext.callbacks._fit_meter import FitMeter

pytestmark = pytest.mark.gate_on("keras3_jax")


class Late(list):
    """A list to which another thread adds while somebody reads it."""

    late = ((2, 9.0),)

    def _grow(self):
        self.extend(self.late)
        self.late = ()

    def __getitem__(self, key):
        found = super().__getitem__(key)
        self._grow()
        return found

    def __iter__(self):
        yield from list.copy(self)
        self._grow()


def test_an_end_that_comes_in_the_meantime_is_not_lost():
    meter = FitMeter(window=20, warmup=1, batch_size=8, untrusted_per_step=0, began=0.0)
    meter.ends = Late([(0, 3.0), (1, 6.0)])
    meter.flush()
    assert (meter.executions.last_batch, meter.executions.ended) == (1, 6.0)
    meter.flush()
    assert (meter.executions.last_batch, meter.executions.ended) == (2, 9.0)
