"""Write old_modules.json: what Keras 2 gives, on TF 2.15 (`.envs/keras2-tf215/bin/python`).

`tests/dropin/test_old_modules.py` compares the drop-in with it. The cases stand in old_modules_cases.py.
"""

from __future__ import annotations

import json
from pathlib import Path

from keras.src.utils import conv_utils
from old_modules_cases import CASES, listed

LENGTHS = [
    (length, size, padding, stride, dilation)
    for length in (None, 7, 10)
    for size in (1, 3)
    for padding in ("same", "valid", "full")
    for stride in (1, 2)
    for dilation in (1, 2)
]


def main():
    """Write the file."""
    result = {name: case() for name, case in CASES.items()}
    result["lengths"] = [
        {
            "arguments": (length, size, padding, stride, dilation),
            "output": conv_utils.conv_output_length(length, size, padding, stride, dilation),
            "input": conv_utils.conv_input_length(length, size, padding, stride),
            "transposed": [
                conv_utils.deconv_output_length(length, size, padding, more, stride, dilation) for more in (None, 1)
            ],
        }
        for length, size, padding, stride, dilation in LENGTHS
    ]
    Path(__file__).with_name("old_modules.json").write_text(json.dumps(listed(result)) + "\n")


if __name__ == "__main__":
    main()
