"""Read protobuf messages without their classes: https://protobuf.dev/programming-guides/encoding."""

from __future__ import annotations


class Message:
    """The fields of a message, by number; a field that is absent is 0, empty or `[]`."""

    def __init__(self, data: bytes) -> None:
        self.numbers: dict[int, int] = {}  # the last value of each integer
        self.chunks: dict[int, list[bytes]] = {}  # all values of each string, message or bytes
        at = 0
        while at < len(data):
            key, at = _varint(data, at)
            field, kind = key >> 3, key & 7
            if kind == 0:
                self.numbers[field], at = _varint(data, at)
            elif kind == 2:
                size, at = _varint(data, at)
                self.chunks.setdefault(field, []).append(data[at : at + size])
                at += size
            elif kind in (1, 5):  # a float, which nothing here reads
                at += 8 if kind == 1 else 4
            else:
                raise ValueError(f"no protobuf message: a field of kind {kind}")
        if at != len(data):
            raise ValueError("no protobuf message: it is cut off")

    def number(self, field: int) -> int:
        """Return an integer."""
        return self.numbers.get(field, 0)

    def integers(self, field: int) -> list[int]:
        """Return a repeated integer."""
        found = [self.numbers[field]] if field in self.numbers else []
        for packed in self.chunks.get(field, []):
            at = 0
            while at < len(packed):
                value, at = _varint(packed, at)
                found.append(value)
        return found

    def text(self, field: int) -> str:
        """Return a string."""
        return self.chunks.get(field, [b""])[-1].decode(errors="replace")

    def each(self, field: int) -> list[Message]:
        """Return the messages of a repeated field."""
        return [Message(chunk) for chunk in self.chunks.get(field, [])]

    def table(self, field: int) -> dict[int, Message]:
        """Return a map from integers to messages."""
        return {entry.number(1): entry.each(2)[-1] for entry in self.each(field) if 2 in entry.chunks}


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the integer at a position, and the position after it."""
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise ValueError("no protobuf message: it is cut off")
