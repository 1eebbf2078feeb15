import pytest

from keras_tpu_ext.callbacks._thinned import Thinned


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 16, 17, 1000])
def test_items_stay_below_the_limit_and_evenly_apart(count):
    thinned = Thinned(8)
    for item in range(count):
        thinned.append(item)
    assert len(thinned.items) <= 8
    assert thinned.items[:1] == list(range(count))[:1]
    gaps = {after - before for before, after in zip(thinned.items, thinned.items[1:], strict=False)}
    assert len(gaps) <= 1
    assert count <= 8 or len(thinned.items) > 4 or count - thinned.items[-1] <= max(gaps)


def test_all_is_kept_below_the_limit():
    thinned = Thinned(8)
    for item in range(8):
        thinned.append(item)
    assert thinned.items == list(range(8))
