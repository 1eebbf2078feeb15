import pytest

from keras_tpu_ext.callbacks._xplane import Message
from protobuf_writer import message, varint

pytestmark = pytest.mark.gate_on("keras3_jax")


def test_each_kind_of_field():
    read = Message(message({1: 2**40, 2: "name", 3: [message({1: 5}), message({1: 6})], 4: [7, 8], 5: varint(300)}))
    assert (read.number(1), read.text(2), [one.number(1) for one in read.each(3)]) == (2**40, "name", [5, 6])
    assert read.integers(5) == [300]  # packed
    assert (read.number(9), read.text(9), read.each(9), read.integers(9)) == (0, "", [], [])


def test_floats_are_passed_over():
    assert Message(b"\x09" + bytes(8) + b"\x15" + bytes(4) + message({3: 4})).number(3) == 4


def test_a_map():
    entries = [message({1: key, 2: message({2: name})}) for key, name in {3: "three", 9: "nine"}.items()]
    assert {key: one.text(2) for key, one in Message(message({4: entries})).table(4).items()} == {
        3: "three",
        9: "nine",
    }


@pytest.mark.parametrize("data", [b"\x08", b"\x08\x80", b"\x12\x05ab", b"\x09\x00", b"\x0b"])
def test_what_is_none_is_an_error(data):
    with pytest.raises(ValueError, match="no protobuf message"):
        Message(data)
