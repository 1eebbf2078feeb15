"""What this package's layers make of ResNet-50, by the TPU compiler's estimate.

    make .envs/keras3-compiler/.ready
    JAX_PLATFORMS=cpu KERAS_BACKEND=jax .envs/keras3-compiler/bin/python benchmarks/resnet50_layers.py
    KERAS_BACKEND=tensorflow .envs/keras3-compiler/bin/python benchmarks/resnet50_layers.py [--targets v5e-8]

ResNet-50 from keras.applications as a `TPUModel`, 224 x 224, mixed_bfloat16, SGD with momentum, 128 images on each
core or chip: as it is, with this package's `BatchNormalization`, without the biases before it, with both (what
`layers.for_tpu` makes), and with both and moments of each core's 128 examples. No TPU runs anything: times are the
compiler's estimates. The last line is JSON.
"""

from __future__ import annotations

from typing import Any

import harness
import keras
from _resnet50 import estimated

import keras_tpu_ext as kte

PER_REPLICA = 128


def with_normalisation(model: Any) -> Any:
    """Return a model with this package's `BatchNormalization`, and with the biases before it."""

    def like(layer: Any) -> Any:
        kind = type(layer)
        return (kte.layers.BatchNormalization if kind is keras.layers.BatchNormalization else kind).from_config(
            layer.get_config()
        )

    return keras.models.clone_model(model, clone_function=like)


def without_biases(model: Any) -> Any:
    """Return a model of Keras's own layers without biases in its convolutions."""

    def like(layer: Any) -> Any:
        config = layer.get_config()
        if isinstance(layer, keras.layers.Conv2D):
            config["use_bias"] = False
        return type(layer).from_config(config)

    return keras.models.clone_model(model, clone_function=like)


VARIANTS = {
    "Keras": lambda model: model,
    "BatchNormalization": with_normalisation,
    "without biases": without_biases,
    "for_tpu": kte.layers.for_tpu,
    "for_tpu, ghost batches of 128": lambda model: kte.layers.for_tpu(model, ghost_batch_size=PER_REPLICA),
}


def main() -> None:
    """Print a line for each target and variant, then JSON."""
    parser = harness.parser(__doc__)
    parser.add_argument("--targets", nargs="+", default=["v3-8", "v5e-8", "v6e-8"], help="default: all three")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), help="default: all")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for target in options.targets:
        for name in options.variants:
            rows.append({"variant": name, **estimated(target, PER_REPLICA, exact=True, change=VARIANTS[name])})
            row, first = rows[-1], next(row for row in rows if row["target"] == target)
            print(
                f"{target:6s} {name:30s} {1e3 * row['seconds']:6.1f} ms/step, "
                f"{row['seconds'] / first['seconds']:.3f} of the first, {row['hbm_bytes'] / harness.GIB:.2f} GiB, "
                f"{row['collectives']} collectives",
                flush=True,
            )
    harness.report("resnet50_layers", rows=rows)


if __name__ == "__main__":
    main()
