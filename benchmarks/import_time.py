"""How long `import keras_tpu_ext` takes beyond `import keras`, in fresh processes.

    python benchmarks/import_time.py [--runs 5] [--against PATH]

With `--against`, this checkout takes turns with another one: below 1.00, this one is faster. The last line is JSON.
"""

from __future__ import annotations

import functools
import statistics
import subprocess
import sys
from pathlib import Path

import harness

PROGRAM = """
import time
begun = time.perf_counter()
import keras
between = time.perf_counter()
import keras_tpu_ext
print(between - begun, time.perf_counter() - between)
"""


def seconds_of(checkout: Path, of_keras: list[float]) -> float:
    """Import the package of a checkout in a process, and return the seconds beyond those of Keras."""
    command = [sys.executable, "-c", PROGRAM]  # for which the folder that it runs in is the first to import from
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True)
    seconds, beyond = (float(word) for word in done.stdout.split())
    of_keras.append(seconds)
    return beyond


def main() -> None:
    """Run the processes one after the other and print the medians."""
    parser = harness.parser(__doc__, against=True)
    parser.add_argument("--runs", type=int, default=5, help="number of processes (default 5)")
    options = parser.parse_args()
    of_keras: list[float] = []
    ours = functools.partial(seconds_of, harness.ROOT, of_keras)
    if options.against:
        row = harness.paired(ours, functools.partial(seconds_of, options.against, of_keras), pairs=options.runs)
        print(f"import keras_tpu_ext beyond import keras: {harness.in_words(row)}, old {row['b_s']:.3f} s")
    else:
        row = {"a_s": statistics.median(harness.interleave({"ours": ours}, options.runs)["ours"])}
    row["keras_s"], row["beyond_s"] = statistics.median(of_keras), row.pop("a_s")
    print(f"import keras: {row['keras_s']:.2f} s; import keras_tpu_ext beyond it: {row['beyond_s']:.3f} s (medians)")
    harness.report("import_time", against=options.against, **row)


if __name__ == "__main__":
    main()
