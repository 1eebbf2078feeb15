"""How long `import keras_tpu_ext` takes beyond `import keras`, in fresh processes.

    python benchmarks/import_time.py [--runs 5]

The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys

PROGRAM = """
import time
begun = time.perf_counter()
import keras
between = time.perf_counter()
import keras_tpu_ext
print(between - begun, time.perf_counter() - between)
"""


def main() -> None:
    """Run the processes one after the other and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="number of processes (default 5)")
    options = parser.parse_args()
    pairs = []
    for _ in range(options.runs):
        done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
        pairs.append([float(seconds) for seconds in done.stdout.split()])
    of_keras, beyond = (statistics.median(seconds) for seconds in zip(*pairs, strict=True))
    print(f"import keras: {of_keras:.2f} s; import keras_tpu_ext beyond it: {beyond:.3f} s (medians of {len(pairs)})")
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    print(json.dumps({"benchmark": "import_time", "machine": machine, "keras_s": of_keras, "beyond_s": beyond}))


if __name__ == "__main__":
    main()
