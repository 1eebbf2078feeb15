"""Files of compiled programs that are not right, each with the reason for which it is refused.

`MUTATIONS` change what is in a file that is right, `DAMAGES` its bytes. Each file has the digest that the user's
program names, so that what refuses it is what looks inside.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json

import numpy as np

from keras_tpu_ext.resume import tensor_file


def parts(content):
    """Return what JSON a file holds, and its arrays."""
    file = tensor_file.TensorFile(io.BytesIO(content))
    return file.content, [file.read(number) for number in range(file.number)]


def whole(content, arrays):
    """Return the bytes of a file."""
    file = io.BytesIO()
    tensor_file.write(file, content, arrays)
    return file.getvalue()


def digest(content):
    return hashlib.sha256(content).hexdigest()


def _set(*path, to):
    def change(content, arrays):
        inner = content
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = to(inner[path[-1]]) if callable(to) else to

    return change


def _delete(*path):
    def change(content, arrays):
        inner = content
        for key in path[:-1]:
            inner = inner[key]
        del inner[path[-1]]

    return change


def _arrays(to):
    def change(content, arrays):
        arrays[:] = to(arrays)

    return change


def mutated(content, change):
    """Return the bytes of a file with a change."""
    content, arrays = copy.deepcopy(parts(content))
    change(content, arrays)
    return whole(content, arrays)


def _twice(content, arrays):
    content["programs"].append(content["programs"][0])
    arrays.append(arrays[0])


# Of what is in a file: the change, and what the error says.
MUTATIONS = {
    "another format": (_set("format", to="compiled programs, 2"), "format must be one of 'compiled programs, 1'"),
    "no format": (_delete("format"), "must be an object with the key 'format'"),
    "a key more": (lambda c, a: c.update(code="os:system"), "no other keys"),
    "a target that is no text": (_set("target", to=["v5e-8"]), "target must be a text"),
    "a part of the machine more": (lambda c, a: c["machine"].update(path="/etc"), "machine must be .* no other keys"),
    "a part of the machine less": (_delete("machine", "libtpu"), "machine must be an object with the key 'libtpu'"),
    "a version that is a number": (_set("machine", "jax", to=0.1), "machine.jax must be a text; got 0.1"),
    "devices in a list": (_set("machine", "devices", to=[]), "machine.devices must be a text; got a list of 0"),
    "programs that are no list": (_set("programs", to={}), "programs must be a list"),
    "no programs, and their code": (_set("programs", to=[]), "programs must be .* that are different"),
    "a program without code": (_arrays(lambda arrays: arrays[:-1]), "programs must be .* that are different"),
    "code without a program": (
        _arrays(lambda arrays: [*arrays, arrays[0]]),
        "programs must be .* that are different",
    ),
    "a program twice": (_twice, "programs must be .* that are different"),
    "a digest that is short": (_set("programs", 0, "digest", to="abc"), r"programs\[0\].digest must be the 64 hex"),
    "a digest in capitals": (_set("programs", 0, "digest", to=str.upper), r"programs\[0\].digest must be the 64 hex"),
    "a digest that is a number": (_set("programs", 0, "digest", to=1), r"programs\[0\].digest must be the 64 hex"),
    "a name that is none": (_set("programs", 0, "name", to=None), r"programs\[0\].name must be a text; got None"),
    "no steps": (_set("programs", 0, "steps", to=0), r"programs\[0\].steps must be an integer of at least 1; got 0"),
    "steps in a text": (_set("programs", 0, "steps", to="8"), r"programs\[0\].steps must be an integer"),
    "a program's path": (
        lambda c, a: c["programs"][0].update(path="../x"),
        r"programs\[0\] must be .* no other keys",
    ),
    "a module in a list": (_set("programs", 0, "module", to=["m"]), r"programs\[0\].module must be a text"),
    "arguments in a text": (_set("programs", 0, "arguments", to="tensor"), r"programs\[0\].arguments must be a list"),
    "an argument that is a number": (
        _set("programs", 0, "arguments", to=[5]),
        r"programs\[0\].arguments\[0\] must be a text; got 5",
    ),
    "options that are bytes of numbers": (
        _set("programs", 0, "options", to=[1]),
        r"programs\[0\].options must be a text",
    ),
    "seconds without end": (
        _set("programs", 0, "seconds", to=1e999),
        r"programs\[0\].seconds must be a finite number",
    ),
    "seconds in a text": (_set("programs", 0, "seconds", to="1"), r"programs\[0\].seconds must be a finite number"),
    "code of numbers": (
        _arrays(lambda arrays: [arrays[0].astype("float32"), *arrays[1:]]),
        r"programs\[0\] must be bytes; got 'float32",
    ),
    "code in a table": (
        _arrays(lambda arrays: [arrays[0][None], *arrays[1:]]),
        r"programs\[0\] must be bytes; got 'uint8",
    ),
    "another thing in it": (lambda c, a: (c.clear(), c.update(weights=[1])), "no other keys"),
}


def _header(change):
    """Return a damage of the header alone, which its own digest finds."""

    def damage(content):
        length = int.from_bytes(content[:8], "little")
        header = change(json.loads(content[8 : 8 + length]))
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        return len(text).to_bytes(8, "little") + text + content[8 + length :]

    return damage


def _renamed(name):
    return _header(lambda header: {name if key == "array-0" else key: one for key, one in header.items()})


def _shifted(header):
    header["array-0"]["data_offsets"][1] += 8
    return header


def _twins(header):
    return json.dumps(header).replace('"array-0"', '"array-0": 1, "array-0"', 1).encode()


def _flipped(place):
    def damage(content):
        where = place(content)
        return content[:where] + bytes([content[where] ^ 1]) + content[where + 1 :]

    return damage


# Of its bytes: the change, and what the error says.
DAMAGES = {
    "a byte of the code": (_flipped(lambda content: len(content) - 9), "the digest of array-"),
    "a byte of the header": (_flipped(lambda content: content.index(b"v5e") + 1), "the digest of its header"),
    "cut off in the code": (lambda content: content[:-16], "its arrays must be"),
    "cut off in the header": (lambda content: content[:40], "the length of its header must be no longer"),
    "empty": (lambda content: b"", "the length of its header must be no longer"),
    "longer": (lambda content: content + b"more", "its arrays must be"),
    "a header that has no end": (
        lambda content: b"\xff" * 8 + content[8:],
        "the length of its header must be no longer",
    ),
    "no JSON": (_header(lambda header: b"import os"), "the text must be JSON"),
    "nested without end": (_header(lambda header: b"[" * 100_000), "the text must be JSON"),
    "a key twice": (_header(_twins), "a key stands there twice"),
    "an absolute name": (_renamed("/etc/passwd"), "the digest of its header|its header must be"),
    "a name of a parent folder": (_renamed("../../step"), "the digest of its header|its header must be"),
    "overlapping code": (_header(_shifted), "the digest of its header"),
    "no metadata": (_header(lambda header: {k: v for k, v in header.items() if k[0] != "_"}), "must be an object"),
    "a zip file": (lambda content: b"PK\x03\x04" + content, "the length of its header must be no longer"),
    "a pickle": (lambda content: b"\x80\x04\x95\x00" + content, "the length of its header must be no longer"),
}

# Parts of what a file is compiled for, each with a text that no machine has.
OTHER_MACHINES = {
    "keras_tpu_ext": "0.1.0",
    "keras": "3.8.0",
    "jax": "0.5.2",
    "jaxlib": "0.5.1",
    "libtpu": "0.0.1",
    "platform": "rocm",
    "build": "Built on a Monday",
    "device kind": "TPU v2",
    "devices": "TPU_0(process=0,(0,0,0,0))",
    "mesh": "data=4 model=2",
    "XLA_FLAGS": "--xla_allow_excess_precision=false",
    "LIBTPU_INIT_ARGS": "--xla_tpu_scoped_vmem_limit_kib=1",
    "processor": "z80",
}


def programs_of(number):
    """Return some machine code."""
    return np.random.default_rng(number).integers(0, 256, 1000 + number).astype("uint8").tobytes()
