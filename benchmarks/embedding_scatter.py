"""What the TPU compiler's cost analysis says of the scatter in the gradient of a lookup.

    JAX_PLATFORMS=cpu .envs/keras3-compiler/bin/python benchmarks/embedding_scatter.py

The compiler gives no cycles for it, so that a step with a lookup looks cheaper than it is. Compiled alone, here for
one core or chip, `cost_analysis()["optimal_seconds"]` is sound for one operation (and nonsense for a whole network).
It is taken for a bound from above: a scatter into a table that stays in the chip's fast memory may cost less. 16,384
rows of 512 values in bfloat16, which are 128 examples of 128 tokens. The last line is JSON.
"""

from __future__ import annotations

import harness
import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

TOPOLOGIES = {"v3-8": "v3:2x2x1", "v5e-8": "v5e:2x2", "v6e-8": "v6e:2x2"}
VOCABULARIES = (100, 1000, 10_000, 30_000)
TOKENS, WIDTH = 128 * 128, 512


def seconds_of_scatter(topology: str, vocabulary: int) -> float:
    """Return the seconds of adding rows to a table."""
    device = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices[0]
    sharding = SingleDeviceSharding(device)
    shapes = ((vocabulary, WIDTH), jnp.bfloat16), ((TOKENS,), jnp.int32), ((TOKENS, WIDTH), jnp.bfloat16)
    arguments = [jax.ShapeDtypeStruct(*shape, sharding=sharding) for shape in shapes]
    compiled = jax.jit(lambda table, ids, rows: table.at[ids].add(rows)).lower(*arguments).compile()
    return float(compiled.cost_analysis()["optimal_seconds"])


def main() -> None:
    """Print a line for each generation and vocabulary, then JSON."""
    rows = []
    for target, topology in TOPOLOGIES.items():
        for vocabulary in VOCABULARIES:
            seconds = seconds_of_scatter(topology, vocabulary)
            rows.append({"target": target, "vocabulary": vocabulary, "seconds": seconds})
            print(f"{target:6s} {vocabulary:6,d} words: {1e6 * seconds:6.0f} us")
    harness.report("embedding_scatter", rows=rows)


if __name__ == "__main__":
    main()
