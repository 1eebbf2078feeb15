import json

import pytest

from keras_tpu_ext.callbacks.trace_report import TraceOperation, TraceReport

pytestmark = pytest.mark.gate_on("keras3_jax")


def report(rows=12):
    operations = tuple(
        TraceOperation(f"op_{i}_" + 30 * "x", "block/" + 30 * "y", i % 2 == 1, 10, 0.01, 0.08) for i in range(rows)
    )
    return TraceReport((10, 20), 0.0125, {"compute": 0.1, "collectives": 0.0, "host": 0.025}, operations, "logs")


def test_ten_operations_and_the_rest_in_80_columns():
    lines = str(report()).splitlines()
    assert lines[0] == "10 steps from step 10, 12.5 ms each"
    assert lines[1] == "  compute 80.0 %, collectives 0.0 %, host 20.0 %"
    assert lines[-2].split() == ["(2", "more)", "2", "ms", "16.0", "%"]
    assert lines[-1] == "  for xprof or TensorBoard: --logdir logs"
    assert len(lines) == 15
    assert max(map(len, lines)) <= 80
    assert len({len(line) for line in lines[2:-1]}) == 1
    assert "1 ms" in lines[3]
    assert ", backward" in lines[4]
    assert "backward" not in lines[3]


def test_without_an_operation_it_is_not_ok():
    assert report().ok
    assert not report(0).ok
    assert "the profiler recorded no operation" in str(report(0))


def test_it_is_plain_and_shown_as_it_is_printed():
    found = json.loads(json.dumps(report(1).to_dict()))
    assert found["steps"] == [10, 20]
    assert found["ok"] is True
    assert found["operations"][0]["layer"].startswith("block/")
    assert str(report(1)).splitlines()[0] in report(1)._repr_html_()
