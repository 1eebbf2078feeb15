"""Programs that others wrote, cut to small made-up data: one device against eight replicas in a scope, unchanged.

    python benchmarks/programs.py FOLDER [--only NAME ...] [--noise] [--dropin] [--results FILE]

FOLDER has the examples and guides of keras-io, https://github.com/keras-team/keras-io, or the copies that
keras-team/keras had of them; nothing of it is in this repository. A program is executed as it stands, first plainly,
then inside `with kte.strategy_scope(replicas=8):`, each in a process of its own. What is cut is around it: the data
are a few made-up examples, `fit` takes two epochs of a few batches, dropout and augmentation are off, random numbers
are a fixed pattern that is the same for each example, data are not shuffled by `tf.data`, ResNet50V2 and VGG19 are
one small convolution, and plots go nowhere. The numbers that a program starts with, its layers, image size or epochs
say, are made smaller where SMALLER says so.

Compared are the history of each `fit`, what `evaluate` and `predict` return, and the weights of each model that was
trained. A program counts as equal if the largest relative difference is at most 1e-5, or, with --noise, at most three
times that of a second plain run, up to 1e-3. That run is off by rounding: each initial weight by one rounding error,
and each batch of Keras's own step is in reverse order.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import importlib.util
import inspect
import json
import math
import os
import pickle
import re
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

REPLICAS = 8
TOLERANCE = 1e-5  # relative
NOISES = 3  # how many times the noise of floats a difference may be
MOST = 1e-3  # whatever the noise is: a program that makes more of it shows nothing
ROUNDING = 1.2e-7
ROWS = {"train": 75, "test": 43}
BATCHES = 4

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
    "examples/keras_io/nlp/lstm_seq2seq.py",
    "examples/keras_io/tensorflow/generative/vae.py",
    "examples/keras_io/tensorflow/generative/wgan_gp.py",
    "examples/keras_io/tensorflow/keras_recipes/antirectifier.py",
    "examples/keras_io/tensorflow/keras_recipes/endpoint_layer_pattern.py",
    "examples/keras_io/tensorflow/keras_recipes/trainer_pattern.py",
    "examples/keras_io/tensorflow/vision/involution.py",
    "examples/keras_io/tensorflow/vision/mixup.py",
    "examples/keras_io/tensorflow/vision/perceiver_image_classification.py",
    "examples/keras_io/tensorflow/vision/shiftvit.py",
    "examples/keras_io/tensorflow/vision/swim_transformers.py",
    "examples/keras_io/timeseries/timeseries_classification_from_scratch.py",
    "examples/keras_io/timeseries/timeseries_classification_transformer.py",
    "examples/keras_io/vision/attention_mil_classification.py",
    "examples/keras_io/vision/autoencoder.py",
    "examples/keras_io/vision/cct.py",
    "examples/keras_io/vision/eanet.py",
    "examples/keras_io/vision/image_classification_with_vision_transformer.py",
    "examples/keras_io/vision/knowledge_distillation.py",
    "examples/keras_io/vision/mlp_image_classification.py",
    "examples/keras_io/vision/mnist_convnet.py",
    "examples/keras_io/vision/siamese_contrastive.py",
    "examples/keras_io/vision/token_learner.py",
    "guides/custom_train_step_in_jax.py",
    "guides/custom_train_step_in_tensorflow.py",
    "guides/functional_api.py",
    "guides/making_new_layers_and_models_via_subclassing.py",
    "guides/writing_your_own_callbacks.py",
)

# Programs with noise that is another for each example: with one for all, a BatchNormalization makes it zero. Only a
# step that each replica runs on the whole batch has the same.
NOISE_BY_EXAMPLE = ("wgan_gp",)

# What is made smaller, by program: a name that is assigned outside functions gets another value, `function.argument`
# another default, and a number that stands outside functions and classes is another number; `images` is the shape of
# the images.
SMALLER: dict[str, dict[str | int, Any]] = {
    "addition_rnn": {"TRAINING_SIZE": 80, "epochs": 2},
    "attention_mil_classification": {"BAG_COUNT": 24, "VAL_BAG_COUNT": 10},
    "cct": {"transformer_layers": 1},
    "eanet": {"patch_size": 8, "embedding_dim": 16, "mlp_dim": 16, "num_transformer_blocks": 1},
    "functional_api": {60000: 75, 10000: 43},
    "image_classification_with_vision_transformer": {
        "image_size": 32,
        "patch_size": 8,
        "projection_dim": 16,
        "transformer_layers": 1,
        "mlp_head_units": [32],
    },
    "involution": {256: 32},
    "lstm_seq2seq": {"latent_dim": 32, 20: 2},
    "making_new_layers_and_models_via_subclassing": {60000: 75},
    "mixup": {"val_samples": 25},
    "mlp_image_classification": {"image_size": 32, "embedding_dim": 32, "num_blocks": 1},
    "perceiver_image_classification": {
        "image_size": 16,
        "patch_size": 4,
        "latent_dim": 16,
        "projection_dim": 16,
        "num_heads": 2,
        "num_transformer_blocks": 1,
    },
    "pixelcnn": {"n_residual_blocks": 1, "images": (8, 8), "input_shape": (8, 8, 1)},
    "siamese_contrastive": {30000: 50},
    "shiftvit": {40000: 50, "num_shift_blocks_per_stages": [1, 1, 1, 1], "projected_dim": 48},
    "swim_transformers": {"patch_size": (4, 4), "embed_dim": 16, "num_heads": 2, "num_mlp": 32},
    "token_learner": {40000: 50, "NUM_LAYERS": 2, "PROJECTION_DIM": 16},
    "vae": {"plot_latent_space.n": 2},
}


def main() -> int:
    """Run each program in two processes, print a table, and return 0 if all are equal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=None, help="names of programs, without .py")
    parser.add_argument(
        "--noise", action="store_true", help="measure the noise of floats where a difference is larger"
    )
    parser.add_argument(
        "--results", type=Path, default=None, help="a JSON file that gets the rows, beside those in it"
    )
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for a process")
    parser.add_argument("--memory", type=float, default=8.0, help="GiB at which a process is ended, on Linux")
    parser.add_argument("--dropin", action="store_true", help="run in the scope after keras_tpu_ext.dropin")
    parser.add_argument("--run", choices=("plain", "scope", "noise"), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        if options.dropin:
            importlib.import_module("keras_tpu_ext.dropin")
        options.out.write_bytes(pickle.dumps(run(options.folder, options.run)))
        return 0
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    rows = []
    for name in PROGRAMS:
        if options.only is not None and Path(name).stem not in options.only:
            continue
        if not (options.folder / name).exists() or not meant_for(options.folder, name, backend):
            continue
        row = {"program": name, "backend": backend, **compared(options.folder / name, options)}
        rows.append(row)
        print(f"{'equal' if row['equal'] else 'NOT':<6} {said(row):<60} {name}", flush=True)
        if options.results is not None:
            merge(options.results, options.folder, row)
    equal = sum(row["equal"] for row in rows)
    print(f"{equal} of {len(rows)} give the numbers of one device on {backend}")
    return 0 if equal == len(rows) else 1


def meant_for(folder: Path, name: str, backend: str) -> bool:
    """Return whether neither the folder, nor the name, nor the first lines of a program say another backend."""
    others = {"tensorflow", "jax", "torch"} - {backend}
    # A menu, "@param", says that all are meant.
    asked = re.search(
        r"""os\.environ\[["']KERAS_BACKEND["']\] = ["'](\w+)["'](?!.*@param)""", (folder / name).read_text()
    )
    return not any(
        f"/{other}/" in name or name.endswith(f"_in_{other}.py") or (asked is not None and asked[1] == other)
        for other in others
    )


def merge(results: Path, folder: Path, row: dict[str, Any]) -> None:
    """Put a row into the file, in the place of one of the same program and backend."""
    told = json.loads(results.read_text()) if results.exists() else {"rows": []}
    told["commit"] = subprocess.run(
        ["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()

    def place(row: dict[str, Any]) -> tuple[str, str]:
        return row["program"], row["backend"]

    rows = {place(one): one for one in told["rows"]} | {place(row): row}
    told["rows"] = [rows[one] for one in sorted(rows)]
    results.write_text(json.dumps(told, indent=1) + "\n")


def said(row: dict[str, Any]) -> str:
    """Return what to say of a row in a few words."""
    if "error" in row:
        return row["error"]
    text = f"{row['numbers']} numbers, off by {row['off']:.1e}"
    if "noise" in row:
        text += f", noise {row['noise']:.1e}"
    return text if row["equal"] else f"{text}, {row['where']}"


def compared(path: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run a program plainly and in a scope; return whether they are equal and how far they are off."""
    started = time.monotonic()
    smaller = {str(key): value for key, value in SMALLER.get(path.stem, {}).items()}
    outcomes = {}
    for how in ("plain", "scope"):
        outcomes[how] = executed(path, how, options)
        if isinstance(outcomes[how], str):
            return {"equal": False, "error": f"{how}: {outcomes[how]}", "smaller": smaller}
    plain, scope = (outcomes[how]["numbers"] for how in ("plain", "scope"))
    off, where = difference(plain, scope)
    row = {
        "numbers": len(plain),
        "off": off,
        "where": where,
        "smaller": smaller,
        "told": outcomes["scope"]["warnings"],
    }
    allowed = TOLERANCE
    if options.noise and off > TOLERANCE and math.isfinite(off):
        noisy = executed(path, "noise", options)
        row["noise"] = float("nan") if isinstance(noisy, str) else difference(plain, noisy["numbers"])[0]
        allowed = max(allowed, min(NOISES * row["noise"], MOST))
    seconds = round(time.monotonic() - started)
    return {"equal": bool(off <= allowed and plain), **row, "seconds": seconds}


def executed(path: Path, how: str, options: argparse.Namespace) -> Any:
    """Run a program in a process of its own; return its numbers, or what went wrong in words."""
    with tempfile.TemporaryDirectory() as folder:
        out, errors = Path(folder) / "out", Path(folder) / "errors"
        command = [sys.executable, __file__, str(path.resolve()), "--run", how, "--out", str(out)]
        command += ["--dropin"] if options.dropin and how == "scope" else []
        with errors.open("w") as stderr:
            process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=stderr)
            ended = watched(process, options.timeout, options.memory)
        if ended:
            return ended
        if process.returncode:
            lines = errors.read_text().splitlines()
            if os.environ.get("PROGRAMS_VERBOSE"):
                print("\n".join(lines[-40:]))
            return next(
                (line for line in reversed(lines) if re.match(r"[\w.]*(Error|Exception)\b", line)), "no error told"
            )[:300]
        return pickle.loads(out.read_bytes())


def watched(process: Any, seconds: float, gib: float) -> str:
    """Wait for a process; return why it was ended, or nothing."""
    until = time.monotonic() + seconds
    while process.poll() is None:
        time.sleep(0.2)
        why = f"not done after {seconds:g} s" if time.monotonic() > until else ""
        with contextlib.suppress(OSError, IndexError):
            used = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**30
            why = why or (f"took more than {gib:g} GiB" if used > gib else "")
        if why:
            process.kill()
            process.wait()
            return why
    return ""


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


class _Smaller(ast.NodeTransformer):
    """Puts what is smaller into a program; what it finds is in `found`."""

    def __init__(self, smaller: dict[str | int, Any]) -> None:
        self.smaller = smaller
        self.found: set[str | int] = set()

    def _value(self, name: str | int, instead_of: ast.expr) -> Any:
        if name not in self.smaller:
            return instead_of
        self.found.add(name)
        return ast.copy_location(ast.parse(repr(self.smaller[name]), mode="eval").body, instead_of)

    def visit_Constant(self, node: ast.Constant) -> Any:
        return self._value(node.value, node) if type(node.value) is int else node

    def visit_Assign(self, node: ast.Assign) -> Any:
        if isinstance(node.targets[0], ast.Name):
            node.value = self._value(node.targets[0].id, node.value)
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        given, defaults = node.args.args, node.args.defaults
        for place, argument in enumerate(given[len(given) - len(defaults) :]):
            defaults[place] = self._value(f"{node.name}.{argument.arg}", defaults[place])
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        for statement in node.body:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                statement.value = self._value(statement.targets[0].id, statement.value)
        return node


def cut(path: Path) -> ast.Module:
    """Return the program at `path` with what SMALLER has for it."""
    smaller = _Smaller({name: value for name, value in SMALLER.get(path.stem, {}).items() if name != "images"})
    tree = ast.fix_missing_locations(smaller.visit(ast.parse(path.read_text(), str(path))))
    if smaller.found != smaller.smaller.keys():
        raise ValueError(f"SMALLER names what {path.name} has not: {smaller.smaller.keys() - smaller.found}")
    return tree


def run(path: Path, how: str) -> dict[str, Any]:
    """Execute the program at `path`; return its numbers by name."""
    import warnings

    os.environ.setdefault("MPLBACKEND", "agg")
    import keras

    import keras_tpu_ext as kte

    scope: Any = kte.strategy_scope(require="cpu", replicas=REPLICAS) if how == "scope" else contextlib.nullcontext()
    keras.utils.set_random_seed(7)
    numbers: dict[str, Any] = {}
    module = types.ModuleType("__main__")
    module.__file__ = str(path)
    sys.modules["__main__"] = module
    with contextlib.ExitStack() as stack:
        for patch in around(keras, numbers, path.stem):
            stack.enter_context(patch)
        for patch in rounded(keras) if how == "noise" else ():
            stack.enter_context(patch)
        caught = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        stack.enter_context(scope)
        exec(compile(cut(path), str(path), "exec"), module.__dict__)
    told = {one.category.__name__ for one in caught if one.category.__module__ == "keras_tpu_ext.errors"}
    return {"numbers": numbers, "warnings": sorted(told)}


def around(keras: Any, numbers: dict[str, Any], program: str) -> Iterator[Any]:
    """Yield what is changed around a program."""
    yield from _data(keras, SMALLER.get(program, {}).get("images"))
    yield from _plots(keras)
    yield from _gone(keras)
    yield from _randomness(keras, first=0 if program in NOISE_BY_EXAMPLE else 1)
    trainer = _trainer(keras)
    yield mock.patch.object(trainer, "fit", _short_fit(keras, trainer.fit, numbers))
    for name in ("evaluate", "predict"):
        yield mock.patch.object(trainer, name, _noted(getattr(trainer, name), name, numbers))


def _trainer(keras: Any) -> Any:
    return next(
        base for base in keras.Model.__mro__ if base.__module__.endswith(f"{keras.backend.backend()}.trainer")
    )


def _data(keras: Any, images: Any) -> Iterator[Any]:
    for name, (shape, classes) in IMAGES.items():
        yield mock.patch.object(getattr(keras.datasets, name), "load_data", _images(images or shape, classes))
    yield mock.patch.object(keras.datasets.boston_housing, "load_data", _table)
    yield mock.patch.object(keras.datasets.imdb, "load_data", _words)
    yield mock.patch.object(keras.utils, "get_file", _file)
    yield mock.patch.object(np, "loadtxt", _series)
    for module in (keras.applications, keras.applications.resnet_v2):
        for name in ("ResNet50V2", "VGG19"):
            if hasattr(module, name):
                yield mock.patch.object(module, name, _small_network(keras))


def _plots(keras: Any) -> Iterator[Any]:
    with contextlib.suppress(ImportError):
        import matplotlib.pyplot as plt

        for name in ("show", "imshow", "figure", "plot", "savefig", "subplots_adjust", "tight_layout"):
            yield mock.patch.object(plt, name, mock.MagicMock())
    with contextlib.suppress(ImportError):
        import IPython.display

        for name in ("Image", "display"):
            yield mock.patch.object(IPython.display, name, mock.MagicMock())
    if importlib.util.find_spec("tqdm") is None:
        bars = types.ModuleType("tqdm")
        vars(bars)["tqdm"] = lambda iterable, **options: iterable
        yield mock.patch.dict(sys.modules, {"tqdm": bars})
    for name in ("plot_model", "model_to_dot"):
        yield mock.patch.object(keras.utils, name, mock.MagicMock())


def _gone(keras: Any) -> Iterator[Any]:
    """Yield the names that NumPy and Keras have dropped since."""
    if not hasattr(np, "Inf"):
        yield mock.patch.object(np, "Inf", np.inf, create=True)
    if not hasattr(keras.utils, "numerical_utils"):
        yield mock.patch.object(keras.utils, "numerical_utils", keras.utils, create=True)
    if not hasattr(keras.backend, "shape"):
        yield mock.patch.object(keras.backend, "shape", keras.ops.shape, create=True)


def _randomness(keras: Any, first: int) -> Iterator[Any]:
    for name in (
        "Dropout",
        "SpatialDropout1D",
        "SpatialDropout2D",
        "GaussianNoise",
        "GaussianDropout",
        "AlphaDropout",
    ):
        layer = getattr(keras.layers, name)
        yield mock.patch.object(layer, "call", lambda self, inputs, *args, **kwargs: inputs)
    for name in dir(keras.layers):
        if name.startswith("Random") and hasattr(getattr(keras.layers, name), "call"):
            layer = getattr(keras.layers, name)
            yield mock.patch.object(layer, "__call__", _not_training(layer.__call__))
    yield mock.patch.object(keras.random, "dropout", lambda inputs, *args, **kwargs: inputs)
    on_tensorflow = keras.backend.backend() == "tensorflow"
    for name in ("normal", "truncated_normal", "uniform") if not on_tensorflow else ():
        yield mock.patch.object(keras.random, name, _fixed_noise(keras, name))
    if importlib.util.find_spec("tensorflow") is None:
        return
    import tensorflow as tf

    for name in ("normal", "truncated_normal", "uniform", "gamma"):
        for random in (tf.random, keras.random) if on_tensorflow else (tf.random,):
            yield mock.patch.object(random, name, _fixed_tensorflow_noise(tf, name, first))
    for name in dir(tf.image):
        if name.startswith("random_"):
            yield mock.patch.object(tf.image, name, _first_part if name == "random_crop" else _same)
    yield mock.patch.object(tf.data.Dataset, "shuffle", _same)


def _same(image: Any, *args: Any, **kwargs: Any) -> Any:
    return image


def _first_part(image: Any, size: Any, *args: Any, **kwargs: Any) -> Any:
    return image[tuple(slice(0, length) for length in size)]


def _pattern(shape: Any) -> Any:
    """Return numbers between 0.1 and 0.9 for one example of a static shape."""
    return 0.5 + 0.4 * np.sin(1.0 + np.arange(math.prod(shape))).reshape(shape)


def _scaled(pattern: Any, name: str, low: Any, high: Any) -> Any:
    """Return a pattern in the place of random numbers; `low` and `high` are mean and deviation of a normal one."""
    return low + (high - low) * pattern if name == "uniform" else low + 2 * (pattern - 0.5) * high


def _fixed_noise(keras: Any, name: str) -> Any:
    def noise(shape: Any, a: Any = 0.0, b: Any = 1.0, dtype: Any = None, seed: Any = None, **kwargs: Any) -> Any:
        low, high = kwargs.get("minval", kwargs.get("mean", a)), kwargs.get("maxval", kwargs.get("stddev", b))
        row = keras.ops.convert_to_tensor(_scaled(_pattern(tuple(shape[1:])), name, low, high), dtype or "float32")
        return keras.ops.broadcast_to(row, shape)

    return noise


def _fixed_tensorflow_noise(tf: Any, name: str, first: int) -> Any:
    def noise(shape: Any, a: Any = 0.0, b: Any = None, dtype: Any = None, seed: Any = None, **kwargs: Any) -> Any:
        if name == "gamma":
            return tf.ones(tf.concat([shape, tf.shape(kwargs.get("alpha", a))], 0))
        low, high = kwargs.get("minval", kwargs.get("mean", a)), kwargs.get("maxval", kwargs.get("stddev", b))
        shape = tf.convert_to_tensor(shape, tf.int32)
        row = tf.range(tf.cast(tf.reduce_prod(shape[first:]), tf.float32))
        row = tf.reshape(0.5 + 0.4 * tf.sin(1.0 + row), shape[first:])
        return tf.cast(
            tf.broadcast_to(_scaled(row, name, low, 1.0 if high is None else high), shape), dtype or tf.float32
        )

    return noise


def rounded(keras: Any) -> Iterator[Any]:
    """Yield what changes nothing but rounding: other floats beside the initial weights, and batches in reverse."""

    def one_away(call: Any) -> Any:
        def called(self: Any, shape: Any, *args: Any, **kwargs: Any) -> Any:
            values = call(self, shape, *args, **kwargs)
            signs = np.random.default_rng(math.prod(shape)).choice([-1.0, 1.0], tuple(shape))
            if "float" not in keras.backend.standardize_dtype(values.dtype):
                return values
            return values * keras.ops.convert_to_tensor(1.0 + ROUNDING * signs, values.dtype)

        return called

    def in_reverse(train_step: Any) -> Any:
        @functools.wraps(train_step)
        def called(self: Any, *args: Any) -> Any:
            *state, data = args
            return train_step(self, *state, keras.tree.map_structure(lambda one: keras.ops.flip(one, axis=0), data))

        return called

    trainer = _trainer(keras)
    yield mock.patch.object(trainer, "train_step", in_reverse(trainer.train_step))
    for name in dir(keras.initializers):
        one = getattr(keras.initializers, name)
        if isinstance(one, type) and "__call__" in vars(one) and name == one.__name__:
            yield mock.patch.object(one, "__call__", one_away(one.__call__))


def _images(shape: tuple[int, ...], classes: int) -> Any:
    def load_data(*args: Any, **kwargs: Any) -> Any:
        rng = np.random.default_rng(1)
        # CIFAR's labels have a column of their own.
        label = (1,) if len(shape) == 3 else ()
        return tuple(
            (
                rng.integers(0, 256, (n, *shape)).astype("uint8"),
                (np.arange(n) % classes).astype("uint8").reshape(n, *label),
            )
            for n in ROWS.values()
        )

    return load_data


def _table(*args: Any, **kwargs: Any) -> Any:
    rng = np.random.default_rng(1)
    return tuple((rng.normal(size=(n, 13)), rng.uniform(5, 50, n)) for n in ROWS.values())


def _series(*args: Any, **kwargs: Any) -> Any:
    """Return what a file of labels, -1 or 1, and a series of 60 numbers would."""
    rng = np.random.default_rng(1)
    return np.concatenate([rng.choice([-1.0, 1.0], (ROWS["train"], 1)), rng.normal(size=(ROWS["train"], 60))], axis=1)


def _words(*args: Any, num_words: int = 1000, **kwargs: Any) -> Any:
    rng = np.random.default_rng(1)

    def texts(n: int) -> Any:
        lengths = rng.integers(5, 60, n)
        return np.array([list(map(int, rng.integers(1, num_words, length))) for length in lengths], dtype=object)

    return tuple((texts(n), rng.integers(0, 2, n)) for n in ROWS.values())


def _file(*args: Any, **kwargs: Any) -> str:
    """Return the path of a text of made-up sentences and their translations, as in the sets of manythings.org."""
    rng = np.random.default_rng(1)
    letters = np.array(list("abcdefgh "))
    with open("fra.txt", "w") as file:
        for _ in range(ROWS["train"]):
            file.write("\t".join(["".join(rng.choice(letters, 6)), "".join(rng.choice(letters, 7)), "CC-BY"]) + "\n")
    return "fra.txt"


def _small_network(keras: Any) -> Any:
    def made(input_shape: Any = (None, None, 3), **kwargs: Any) -> Any:
        inputs = keras.Input(input_shape)
        x = keras.layers.Conv2D(8, 3, strides=2, name="conv")(inputs)
        x = keras.layers.BatchNormalization()(x)
        x = keras.layers.ReLU()(x)
        return keras.Model(inputs, keras.layers.GlobalAveragePooling2D()(x))

    return made


def _not_training(call: Any) -> Any:
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        return call(self, *args, **{**kwargs, "training": False})

    return called


def _short_fit(keras: Any, fit: Any, numbers: dict[str, Any]) -> Any:
    def first_rows(data: Any) -> Any:
        longest = ROWS["train"]
        return keras.tree.map_structure(
            lambda one: one[:longest] if hasattr(one, "shape") and one.shape and one.shape[0] > longest else one, data
        )

    @functools.wraps(fit)
    def short_fit(model: Any, *args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(fit).bind(model, *args, **kwargs)
        given = bound.arguments
        for name in set(given) & {"x", "y", "sample_weight", "validation_data"}:
            given[name] = first_rows(given[name])
        given.update(epochs=given.get("initial_epoch", 0) + 2, verbose=0)
        if isinstance(given["x"], keras.utils.PyDataset):
            given.setdefault("steps_per_epoch", BATCHES)
        history = fit(*bound.args, **bound.kwargs)
        place = len(numbers)
        for name, values in history.history.items():
            numbers[f"{place} history {name}"] = np.asarray(values, "float64").tolist()
        weights = [np.asarray(weight).ravel() for weight in model.trainable_variables]
        numbers[f"{place} weights"] = np.concatenate([[], *weights])
        return history

    return short_fit


def _noted(called: Any, name: str, numbers: dict[str, Any]) -> Any:
    @functools.wraps(called)  # whose signature the package reads
    def noted(model: Any, *args: Any, **kwargs: Any) -> Any:
        results = called(model, *args, **kwargs)
        if "_use_cached_eval_dataset" not in kwargs:  # that of `fit`
            values = list(results.values()) if isinstance(results, dict) else results
            for one in values if isinstance(values, (list, tuple)) else [values]:
                numbers[f"{len(numbers)} {name}"] = np.asarray(one, "float64")
        return results

    return noted


if __name__ == "__main__":
    sys.exit(main())
