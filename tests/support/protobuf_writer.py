"""Write protobuf messages without their classes, such as the traces of TPUs and GPUs, which are not here."""


def message(fields):
    """Return a message with `fields`: an integer, a string, bytes, or a list of them, by number."""
    parts = []
    for field, values in fields.items():
        for value in values if isinstance(values, list) else [values]:
            if isinstance(value, int):
                parts.append(varint(field << 3) + varint(value))
            else:
                data = value.encode() if isinstance(value, str) else value
                parts.append(varint(field << 3 | 2) + varint(len(data)) + data)
    return b"".join(parts)


def varint(value):
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def plane(name, lines, stats=()):
    """Return a plane: `lines` has events `(name, begin, end, stats)`, in picoseconds, by the name of the line."""
    names = ["", *dict.fromkeys(event[0] for events in lines.values() for event in events)]
    keys = ["", *stats]
    written = [
        message({2: line, 3: 1, 4: [_event(event, names, keys) for event in events]})
        for line, events in lines.items()
    ]
    metadata = [message({1: i, 2: message({1: i, 2: one, 4: _display(one)})}) for i, one in enumerate(names) if i]
    return message({2: name, 3: written, 4: metadata, 5: [_stat_metadata(i, key) for i, key in enumerate(keys) if i]})


def programs(name, stacks):
    """Return the plane with a program, which has one operation for each item of `stacks`."""
    ops = [message({1: op, 7: message({2: stack})}) for op, stack in stacks.items()]
    hlo = message({1: message({3: message({2: ops})})})
    event = message({2: f"{name}(7)", 5: message({1: 1, 6: hlo})})
    return message({2: "/host:metadata", 4: message({1: 1, 2: event}), 5: _stat_metadata(1, "Hlo Proto")})


def _event(event, names, keys):
    name, begin, end, stats = event
    written = [message({1: keys.index(key), (4 if isinstance(one, int) else 5): one}) for key, one in stats.items()]
    # The line begins after 1 ns.
    return message({1: names.index(name), 2: begin, 3: end - begin, 4: written})


def _display(name):
    return name.rpartition(":")[2] if ":" in name and "::" not in name else ""


def _stat_metadata(i, key):
    return message({1: i, 2: message({1: i, 2: key})})
