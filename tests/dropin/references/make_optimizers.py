"""Write models whose optimizers have taken some steps, and the losses of the next ones. Run it on TensorFlow 2.15."""

import json
from pathlib import Path

import numpy as np
import tensorflow as tf

HERE = Path(__file__).parent
X, Y = np.array([[1.0, 2.0], [3.0, -1.0]]), np.array([[1.0], [0.0]])
OPTIMIZERS = {
    "adam": lambda: tf.keras.optimizers.Adam(0.02, beta_1=0.8),
    "legacy_adam": lambda: tf.keras.optimizers.legacy.Adam(0.02, beta_1=0.8),
    "sgd": lambda: tf.keras.optimizers.SGD(0.003, momentum=0.9, nesterov=True),
    "schedule": lambda: tf.keras.optimizers.Adam(tf.keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)),
}


def main() -> None:
    """Write the files."""
    (HERE / "optimizers").mkdir(exist_ok=True)
    losses = {}
    for name, optimizer in OPTIMIZERS.items():
        model = tf.keras.Sequential([tf.keras.layers.Dense(3, input_shape=(2,)), tf.keras.layers.Dense(1)])
        model.set_weights([np.linspace(-0.5, 0.7, w.size).reshape(w.shape) for w in model.get_weights()])
        model.compile(optimizer(), "mse")
        model.fit(X, Y, epochs=3, verbose=0)
        model.save(HERE / "optimizers" / f"{name}.h5")
        losses[name] = model.fit(X, Y, epochs=4, verbose=0).history["loss"]
    (HERE / "optimizers.json").write_text(json.dumps(losses, indent=1) + "\n")


if __name__ == "__main__":
    main()
