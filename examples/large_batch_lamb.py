"""Train with LAMB at a global batch of 1024 to the accuracy that Adam reaches at 64, in the same number of epochs.

    python examples/large_batch_lamb.py                # MNIST through keras.datasets
    python examples/large_batch_lamb.py --data DIR     # DIR holds MNIST's t10k files

A TPU wants large batches: eight cores with 128 examples each make 1024. With sixteen times fewer steps, Adam at its
usual rate falls behind. LAMB (You et al., Large Batch Optimization for Deep Learning, 2019) scales each layer's
update by the norm of its weights, which allows a large rate. On Keras 2 it is that of TensorFlow Addons, on Keras 3
Keras's own.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before the first import of TensorFlow

import _command_line
import _data

import keras_tpu_ext as kte

try:
    from tensorflow import keras  # Keras 2 or 3, as TF_USE_LEGACY_KERAS says
except ImportError:
    import keras

SMALL, LARGE = 64, 1024
PEAK = 0.02  # rate of LAMB; Adam has its usual 0.001
ALLOWED = 0.005  # by which LAMB may fall behind: ten of two thousand test images


def main() -> int:
    """Train twice and compare."""
    args = parse()
    data = _data.load_images("mnist", args.data)
    print(f"Data: {data}")

    with kte.strategy_scope(replicas=_command_line.replicas(args)) as scope:
        lamb, name = large_batch_optimizer(-(-len(data.train[0]) // LARGE) * args.epochs)
        ours = network(kte.TPUModel, args.seed)
        compile_with(ours, lamb)
    plain = network(keras.Model, args.seed)
    compile_with(plain, keras.optimizers.Adam(1e-3))
    print(f"Runs on: {scope}\n", flush=True)

    reached = {
        f"Adam, batch {SMALL}, keras.Model": train(plain, data, SMALL, args.epochs),
        f"{name}, batch {LARGE}, TPUModel on {scope.num_replicas} replicas": train(ours, data, LARGE, args.epochs),
    }
    print("Result\n------")
    for row, accuracy in reached.items():
        print(f"{row}   test accuracy {accuracy:.4f}")
    adam, large = reached.values()
    print(f"difference   {large - adam:+.4f} (at most {ALLOWED} less is allowed)")
    return 0 if large >= adam - ALLOWED else 1


def large_batch_optimizer(steps: int) -> tuple[Any, str]:
    """Return LAMB with a rate that warms up for a tenth of `steps` and then falls to zero, and whose it is."""
    warm = max(1, steps // 10)
    rate = keras.optimizers.schedules.CosineDecay(0.0, steps - warm, warmup_target=PEAK, warmup_steps=warm)
    try:
        from keras_tpu_ext.addons import tfa
    except ImportError:  # Keras 3
        return keras.optimizers.Lamb(rate), "Keras's Lamb"
    return tfa.optimizers.LAMB(rate), "TensorFlow Addons' LAMB"


def network(model_class: Any, seed: int) -> Any:
    """Return a perceptron of two hidden layers."""
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((28, 28, 1))
    hidden = keras.layers.Flatten()(inputs)
    hidden = keras.layers.Dense(256, activation="relu")(hidden)
    hidden = keras.layers.Dense(128, activation="relu")(hidden)
    return model_class(inputs, keras.layers.Dense(10)(hidden))


def compile_with(model: Any, optimizer: Any) -> None:
    """Compile `model` for logits of classes."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])


def train(model: Any, data: _data.Data, batch_size: int, epochs: int) -> float:
    """Train `model` and return its accuracy on the test images."""
    model.fit(*data.train, batch_size=batch_size, epochs=epochs, verbose=0)
    return float(model.evaluate(*data.test, batch_size=LARGE, verbose=0, return_dict=True)["accuracy"])


def parse() -> argparse.Namespace:
    """Return the options."""
    parser = _command_line.parser(__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=_command_line.positive, default=40, help="epochs of both; default: 40")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
