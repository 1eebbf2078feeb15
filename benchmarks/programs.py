"""Programs that others wrote, cut to small made-up data: one device against eight replicas in a scope, unchanged.

    python benchmarks/programs.py FOLDER [--only NAME ...] [--json FILE]

FOLDER has the examples and guides of keras-io, https://github.com/keras-team/keras-io, or the copies that
keras-team/keras had of them; nothing of it is in this repository. A program is executed as it stands, first plainly,
then inside `with kte.strategy_scope(replicas=8):`. What is cut is around it: `keras.datasets` gives a few made-up
examples, `fit` takes two epochs, dropout and augmentation are off, noise of `tf.random` is a fixed pattern, and
plots go nowhere. Compared are the history of each `fit`, what `evaluate` returns, and the weights of each model that
was trained.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pickle
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

REPLICAS = 8
TOLERANCE = 1e-4  # relative; some programs take Adam's whole steps of a rounding error
TIMEOUT_S = 400
ROWS = {"train": 75, "test": 43}

# Shape of an example, number of classes, and whether it is an image of bytes.
IMAGES = {
    "mnist": ((28, 28), 10),
    "fashion_mnist": ((28, 28), 10),
    "cifar10": ((32, 32, 3), 10),
    "cifar100": ((32, 32, 3), 100),
}

PROGRAMS = (
    "examples/keras_io/generative/pixelcnn.py",
    "examples/keras_io/nlp/addition_rnn.py",
    "examples/keras_io/nlp/bidirectional_lstm_imdb.py",
    "examples/keras_io/tensorflow/generative/vae.py",
    "examples/keras_io/tensorflow/generative/wgan_gp.py",
    "examples/keras_io/tensorflow/keras_recipes/antirectifier.py",
    "examples/keras_io/tensorflow/keras_recipes/endpoint_layer_pattern.py",
    "examples/keras_io/tensorflow/keras_recipes/subclassing_conv_layers.py",
    "examples/keras_io/tensorflow/keras_recipes/tensorflow_numpy_models.py",
    "examples/keras_io/tensorflow/keras_recipes/trainer_pattern.py",
    "examples/keras_io/tensorflow/vision/cutmix.py",
    "examples/keras_io/tensorflow/vision/involution.py",
    "examples/keras_io/tensorflow/vision/metric_learning.py",
    "examples/keras_io/tensorflow/vision/mixup.py",
    "examples/keras_io/tensorflow/vision/perceiver_image_classification.py",
    "examples/keras_io/tensorflow/vision/semantic_image_clustering.py",
    "examples/keras_io/tensorflow/vision/shiftvit.py",
    "examples/keras_io/tensorflow/vision/simsiam.py",
    "examples/keras_io/tensorflow/vision/swim_transformers.py",
    "examples/keras_io/vision/attention_mil_classification.py",
    "examples/keras_io/vision/autoencoder.py",
    "examples/keras_io/vision/cct.py",
    "examples/keras_io/vision/convmixer.py",
    "examples/keras_io/vision/eanet.py",
    "examples/keras_io/vision/image_classification_with_vision_transformer.py",
    "examples/keras_io/vision/knowledge_distillation.py",
    "examples/keras_io/vision/mlp_image_classification.py",
    "examples/keras_io/vision/mnist_convnet.py",
    "examples/keras_io/vision/siamese_contrastive.py",
    "examples/keras_io/vision/supervised_contrastive_learning.py",
    "examples/keras_io/vision/token_learner.py",
    "guides/custom_train_step_in_jax.py",
    "guides/custom_train_step_in_tensorflow.py",
    "guides/functional_api.py",
    "guides/making_new_layers_and_models_via_subclassing.py",
    "guides/sequential_model.py",
    "guides/training_with_built_in_methods.py",
    "guides/understanding_masking_and_padding.py",
    "guides/writing_your_own_callbacks.py",
)


def main() -> int:
    """Run each program in two processes, print a table, and return 0 if all are equal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=None, help="names of programs, without .py")
    parser.add_argument("--json", type=Path, default=None, help="where to write the rows")
    parser.add_argument("--run", choices=("plain", "scope"), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        options.out.write_bytes(pickle.dumps(run(options.folder, options.run)))
        return 0
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    rows = []
    for name in PROGRAMS:
        if options.only is not None and Path(name).stem not in options.only:
            continue
        if not (options.folder / name).exists() or not meant_for(name, backend):
            continue
        rows.append({"program": name, "backend": backend, **compared(options.folder / name)})
        print(f"{rows[-1]['result']:<60} {name}", flush=True)
    equal = sum(row["equal"] for row in rows)
    print(f"{equal} of {len(rows)} give the numbers of one device on {backend}, up to {TOLERANCE:g}")
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if equal == len(rows) else 1


def meant_for(name: str, backend: str) -> bool:
    """Return whether the folder or name of a program says another backend."""
    others = {"tensorflow", "jax", "torch"} - {backend}
    return not any(f"/{other}/" in name or name.endswith(f"_in_{other}.py") for other in others)


def compared(path: Path) -> dict[str, Any]:
    """Run a program plainly and in a scope; return whether they are equal and what to say of it."""
    outcomes = {}
    for how in ("plain", "scope"):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out"
            command = [sys.executable, __file__, str(path.resolve()), "--run", how, "--out", str(out)]
            try:
                done = subprocess.run(
                    command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
                )
            except subprocess.TimeoutExpired:
                return {"equal": False, "result": f"{how}: not done after {TIMEOUT_S} s"}
            if done.returncode:
                error = next(
                    (line for line in reversed(done.stderr.splitlines()) if "Error" in line), "no error told"
                )
                return {"equal": False, "result": f"{how} fails: {error[:200]}"}
            outcomes[how] = pickle.loads(out.read_bytes())
    off, where = difference(outcomes["plain"]["numbers"], outcomes["scope"]["numbers"])
    told = outcomes["scope"]["warnings"]
    result = f"{len(outcomes['plain']['numbers'])} numbers, off by {off:.1e}" + (
        "" if off <= TOLERANCE else f" in {where}"
    )
    return {"equal": off <= TOLERANCE and bool(outcomes["plain"]["numbers"]), "result": result, "told": told}


def difference(expected: dict[str, Any], got: dict[str, Any]) -> tuple[float, str]:
    """Return the largest relative difference, and where it is."""
    if expected.keys() != got.keys():
        return float("inf"), f"what there is: {sorted(expected.keys() ^ got.keys())[:3]}"
    worst, where = 0.0, ""
    for name, value in expected.items():
        a, b = np.asarray(value, "float64"), np.asarray(got[name], "float64")
        off = float("inf") if a.shape != b.shape else 0.0 if np.array_equal(a, b, equal_nan=True) else _relative(a, b)
        if not off <= worst:
            worst, where = off, name
    return worst, where


def _relative(a: Any, b: Any) -> float:
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(a), 1e-3))


def run(path: Path, how: str) -> dict[str, Any]:
    """Execute the program at `path`; return its numbers by name."""
    import warnings

    import keras

    import keras_tpu_ext as kte

    os.environ.setdefault("MPLBACKEND", "agg")
    scope: Any = kte.strategy_scope(require="cpu", replicas=REPLICAS) if how == "scope" else contextlib.nullcontext()
    keras.utils.set_random_seed(7)
    numbers: dict[str, Any] = {}
    module = types.ModuleType("__main__")
    module.__file__ = str(path)
    sys.modules["__main__"] = module
    with contextlib.ExitStack() as stack:
        for patch in cuts(keras, numbers):
            stack.enter_context(patch)
        caught = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        stack.enter_context(scope)
        exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    told = [str(one.message) for one in caught if one.category.__module__ == "keras_tpu_ext.errors"]
    return {"numbers": numbers, "warnings": told}


def cuts(keras: Any, numbers: dict[str, Any]) -> list[Any]:
    """Return what is changed around a program."""
    patches = [
        mock.patch.object(getattr(keras.datasets, name), "load_data", _images(*of)) for name, of in IMAGES.items()
    ]
    patches.append(mock.patch.object(keras.datasets.boston_housing, "load_data", _table))
    patches.append(mock.patch.object(keras.datasets.imdb, "load_data", _words))
    for name in ("show", "imshow", "figure", "plot", "savefig", "subplots_adjust"):
        with contextlib.suppress(ImportError):
            import matplotlib.pyplot as plt

            patches.append(mock.patch.object(plt, name, mock.MagicMock()))
    for name in ("plot_model", "model_to_dot"):
        patches.append(mock.patch.object(keras.utils, name, mock.MagicMock()))
    for layer, rates in ((keras.layers.Dropout, ("rate",)), (keras.layers.SpatialDropout1D, ("rate",))):
        patches.append(mock.patch.object(layer, "__init__", _without(layer.__init__, rates)))
    for name in dir(keras.layers):
        if name.startswith("Random"):
            patches.append(
                mock.patch.object(
                    getattr(keras.layers, name), "__call__", _not_training(getattr(keras.layers, name).__call__)
                )
            )
    with contextlib.suppress(ImportError):
        import tensorflow as tf

        for name in ("normal", "uniform", "truncated_normal"):
            patches.append(mock.patch.object(tf.random, name, _fixed_noise(tf)))
    trainer = next(
        base for base in keras.Model.__mro__ if base.__module__.endswith(f"{keras.backend.backend()}.trainer")
    )
    patches.append(mock.patch.object(trainer, "fit", _short_fit(trainer.fit, numbers)))
    patches.append(mock.patch.object(trainer, "evaluate", _noted(trainer.evaluate, numbers)))
    return patches


def _fixed_noise(tf: Any) -> Any:
    def noise(shape: Any, *args: Any, dtype: Any = tf.float32, **kwargs: Any) -> Any:
        count = tf.reduce_prod(tf.cast(shape, tf.int32))
        values = tf.reshape(0.5 + 0.4 * tf.sin(tf.range(tf.cast(count, tf.float32))), shape)
        return tf.cast(values, dtype)

    return noise


def _images(shape: tuple[int, ...], classes: int) -> Any:
    def load_data(*args: Any, **kwargs: Any) -> Any:
        rng = np.random.default_rng(1)
        # CIFAR's labels have a column of their own.
        label = (1,) if len(shape) == 3 else ()
        return tuple(
            (rng.integers(0, 256, (n, *shape)).astype("uint8"), rng.integers(0, classes, (n, *label)).astype("uint8"))
            for n in ROWS.values()
        )

    return load_data


def _table(*args: Any, **kwargs: Any) -> Any:
    rng = np.random.default_rng(1)
    return tuple((rng.normal(size=(n, 13)), rng.uniform(5, 50, n)) for n in ROWS.values())


def _words(*args: Any, num_words: int = 1000, **kwargs: Any) -> Any:
    rng = np.random.default_rng(1)

    def texts(n: int) -> Any:
        lengths = rng.integers(5, 60, n)
        return np.array([list(map(int, rng.integers(1, num_words, length))) for length in lengths], dtype=object)

    return tuple((texts(n), rng.integers(0, 2, n)) for n in ROWS.values())


def _without(init: Any, rates: tuple[str, ...]) -> Any:
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        for name in rates:
            setattr(self, name, 0.0)

    return made


def _not_training(call: Any) -> Any:
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        return call(self, *args, **{**kwargs, "training": False})

    return called


def _short_fit(fit: Any, numbers: dict[str, Any]) -> Any:
    def short_fit(model: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs.update(epochs=kwargs.get("initial_epoch", 0) + 2, verbose=0)
        history = fit(model, *args, **kwargs)
        place = len(numbers)
        for name, values in history.history.items():
            numbers[f"{place} history {name}"] = np.asarray(values, "float64").tolist()
        weights = [np.asarray(weight).ravel() for weight in model.trainable_variables]
        numbers[f"{place} weights"] = np.concatenate([[], *weights])
        return history

    return short_fit


def _noted(evaluate: Any, numbers: dict[str, Any]) -> Any:
    def noted(model: Any, *args: Any, **kwargs: Any) -> Any:
        results = evaluate(model, *args, **kwargs)
        if "_use_cached_eval_dataset" not in kwargs:  # that of `fit`
            values = results.values() if isinstance(results, dict) else results
            numbers[f"{len(numbers)} evaluate"] = np.asarray(
                list(values) if isinstance(results, dict) else values
            ).tolist()
        return results

    return noted


if __name__ == "__main__":
    sys.exit(main())
