import threading

import pytest

from keras_tpu_ext._runtime.common.executions import CompileWatch

pytestmark = pytest.mark.gate_on("keras3_jax")


@pytest.mark.parametrize(
    ("spans", "seconds"),
    [
        ([(1, 2), (3, 5)], 3),
        ([(1, 2), (2, 3), (0, 4)], 4),  # an event comes when it ends: the inner ones first
        ([(1, 3), (2, 4)], 3),
        ([(0, 1), (2, 3), (1.5, 4), (4, 5)], 4.5),
    ],
)
def test_no_second_counts_twice(spans, seconds):
    watch = CompileWatch()
    for span in spans:
        watch.add(*span)
    assert watch.seconds() == pytest.approx(seconds)


def test_other_threads_do_not_count():
    watch = CompileWatch()
    thread = threading.Thread(target=watch.add, args=(1, 2))
    thread.start()
    thread.join()
    assert watch.seconds() == 0
    watch.add(2, 3)
    assert watch.seconds() == 1
