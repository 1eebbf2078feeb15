"""What preflight estimates of ResNet-50's training, beside what others have published of theirs on real TPUs.

    make .envs/keras3-compiler/.ready
    JAX_PLATFORMS=cpu KERAS_BACKEND=jax .envs/keras3-compiler/bin/python benchmarks/published_rates.py

Compiled is ResNet-50 from keras.applications as a `TPUModel` in mixed_bfloat16, with the batch of the published run.
Published are whole trainings: steps times batch, by the wall time that is given, with evaluation, checkpoints and
the first compile in it, of the same network in other code, on input pipelines of their own. No TPU runs anything
here. The last line is JSON, from which docs_tables.py makes the table in docs/preflight.md.
"""

from __future__ import annotations

from typing import NamedTuple

import harness
from _resnet50 import batch, compiled

import keras_tpu_ext as kte
from keras_tpu_ext.preflight.targets import parse_target

IMAGES = 1_281_167  # of ImageNet's training set
FLAX = "[Flax](https://github.com/google/flax/blob/1dbd90eaedcb/examples/imagenet/README.md)"
HAIKU = "[Haiku](https://github.com/google-deepmind/dm-haiku/blob/017e2a3e4a60/examples/imagenet/README.md)"


class Run(NamedTuple):
    """A training on a slice: its batch over all cores, and where it is published its images, seconds and source."""

    target: str
    batch: int
    images: float = 0.0
    seconds: float = 0.0
    source: str = ""

    @property
    def rate(self) -> float | None:
        """Images per second that were published, or `None`."""
        return self.images / self.seconds if self.seconds else None


RUNS = (
    Run("v2-8", 512),
    Run("v2-32", 1024, 125_100 * 1024, 2.5 * 3600, FLAX),
    Run("v3-8", 1024, 125_100 * 1024, 4.4 * 3600, FLAX),
    Run("v3-32", 1024, 125_100 * 1024, 2.1 * 3600, FLAX),
    Run("v3-32", 1024, 90 * IMAGES, 130 * 60, HAIKU),
    Run("v3-128", 4096, 90 * IMAGES, 33 * 60, HAIKU),
    Run("v5e-8", 1024),
    Run("v5e-32", 4096),
    Run("v5e-256", 32768),
)


def main() -> None:
    """Print a table of all runs, then JSON."""
    harness.parser(__doc__).parse_args()
    rows = []
    print("| slice | batch | each core or chip | estimated images/s | published | whose |")
    print("| --- | ---: | ---: | ---: | ---: | --- |")
    for run in RUNS:
        each = run.batch // parse_target(run.target).devices
        report = kte.preflight(compiled(exact=True), batch(), run.target, each, progress=False)
        if report.samples_per_sec is None or not report.ok:
            raise SystemExit(str(report))
        published = "" if run.rate is None else f"{run.rate:,.0f}"
        print(
            f"| {run.target} | {run.batch:,} | {report.per_replica_batch} | {report.samples_per_sec:,.0f} | "
            f"{published} | {run.source} |",
            flush=True,
        )
        found = {"estimated": report.samples_per_sec, "published": run.rate, "source": run.source}
        rows.append({"target": run.target, "batch": run.batch, **found, "versions": report.versions})
    harness.report("published_rates", rows=rows)


if __name__ == "__main__":
    main()
