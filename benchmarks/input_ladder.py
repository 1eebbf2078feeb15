"""How many images per second an input pipeline gives, rung by rung, from the naive loop to the finished one.

    python benchmarks/input_ladder.py [--images 2000] [--open-ms 20] [--picture input_ladder.png]

The images are crops of scikit-learn's two photographs, 4 to 3, written as JPEG files, the same ones each time. Every
rung reads them, takes the square in the middle, makes it 160 x 160 and gives batches of 64, which nothing trains on:
what is counted is what the host delivers. It runs on this machine's disk as it is, and once more with files that take
20 ms to open, as on a network: a library that is preloaded (_slow_open.c, which needs a C compiler) sleeps in each
open of these files. The shards of TFRecords are written beforehand, which is not counted.

Every row is a process of its own. Pipelines run for at least two seconds and at least 256 images; the one that has
a cache to fill does so before. The rows "optimize alone" are what `kte.data.optimize` makes of the pipeline of that
rung, and their share is that of the images per second of the fastest rung without a cache. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import harness
import numpy as np
import tensorflow as tf
from PIL import Image

import keras_tpu_ext as kte

BATCH, SIZE = 64, 160
SEED = 0


def main() -> None:
    """Print both ladders, draw them, and print JSON."""
    parser = harness.parser(__doc__)
    parser.add_argument("--images", type=int, default=2000, help="number of JPEG files (default 2000)")
    parser.add_argument("--open-ms", type=float, default=20.0, help="latency of an open, in ms (default 20)")
    parser.add_argument("--picture", default="input_ladder.png", help="file for the bar chart")
    parser.add_argument("--rung", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rung:
        print(json.dumps(images_per_second(options.rung, pathlib.Path(options.folder), options.images)), flush=True)
        os._exit(0)  # the tuning thread of tf.data can take seconds to stop
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_images(folder, options.images)
        slow = {"KTE_SLOW_OPEN_UNDER": str(folder / "data"), "KTE_SLOW_OPEN_MS": str(options.open_ms)}
        slow["LD_PRELOAD"] = compiled_library(folder)
        ladders = {"local disk": climb(folder, options.images, {})}
        ladders[f"{options.open_ms:g} ms to open a file"] = climb(folder, options.images, slow)
    draw(ladders, options.picture)
    harness.report("input_ladder", images=options.images, batch=BATCH, ladders=ladders)


def write_images(folder: pathlib.Path, count: int) -> None:
    """Write `count` crops of the two photographs into a folder for each, and the same as TFRecord shards."""
    from sklearn.datasets import load_sample_images

    rng = np.random.default_rng(SEED)
    photographs = load_sample_images().images
    for i in range(count):
        label = i % 2
        photograph = photographs[label]
        height = int(rng.integers(240, 400))
        width = height * 4 // 3
        top = int(rng.integers(0, photograph.shape[0] - height + 1))
        left = int(rng.integers(0, photograph.shape[1] - width + 1))
        path = folder / "data" / "jpeg" / f"class_{label}" / f"{i:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(photograph[top : top + height, left : left + width]).save(path, quality=90)
    command = [sys.executable, "-m", "keras_tpu_ext", "tfrecords", str(folder / "data" / "jpeg")]
    subprocess.run([*command, str(folder / "data" / "shards"), "--shards", "8", "--quiet"], check=True)


def compiled_library(folder: pathlib.Path) -> str:
    """Return the path of the library that makes opening slow."""
    path = folder / "slow_open.so"
    source = pathlib.Path(__file__).with_name("_slow_open.c")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", path, source, "-ldl"], check=True)
    return str(path)


def climb(folder: pathlib.Path, count: int, extra: dict[str, str]) -> list[dict[str, Any]]:
    """Return a row for each rung, and print it."""
    rows: list[dict[str, Any]] = []
    print(f"\n{extra.get('KTE_SLOW_OPEN_MS', '0')} ms to open a file", flush=True)
    for name, (what, _) in RUNGS.items():
        command = [sys.executable, __file__, "--rung", name, "--folder", str(folder), "--images", str(count)]
        done = subprocess.run(command, env={**os.environ, **extra}, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{name}: {done.stderr[-2000:]}")
        rate = json.loads(done.stdout.splitlines()[-1])
        of_naive = rate / (rows[0]["images_per_sec"] if rows else rate)
        rows.append({"rung": name, "what": what, "images_per_sec": rate, "of_naive": of_naive})
        print(f"{name:34s} {rate:9.1f} images/s {of_naive:7.2f} times  {what}", flush=True)
    top = max(row["images_per_sec"] for row in rows if row["rung"] != CACHED)
    for row in rows:
        if row["rung"].startswith("optimize"):
            row["share_of_top"] = row["images_per_sec"] / top
            print(f"{row['rung']}: {row['share_of_top']:.0%} of the images per second at the top without a cache")
    return rows


def images_per_second(rung: str, folder: pathlib.Path, count: int) -> float:
    """Return how many images per second the pipeline of `rung` gives, over two seconds or more."""
    tf.config.set_visible_devices([], "GPU")
    dataset = RUNGS[rung][1](folder / "data")
    batches = iter(dataset.repeat())
    for _ in range(-(-count // BATCH) if rung == CACHED else 1):
        next(batches)
    begun, images = time.perf_counter(), 0
    while images < 256 or time.perf_counter() - begun < 2.0:
        images += int(next(batches)[0].shape[0])
    return images / (time.perf_counter() - begun)


def files(data: pathlib.Path) -> tuple[list[str], list[int]]:
    """Return the paths and labels."""
    paths = sorted(str(path) for path in data.glob("jpeg/*/*.jpg"))
    return paths, [int(pathlib.Path(path).parent.name[-1]) for path in paths]


def python_loop(data: pathlib.Path) -> Any:
    """Return batches of a Python generator."""

    def images() -> Iterator[Any]:
        for path, label in zip(*files(data), strict=True):
            image = Image.open(path).convert("RGB")
            side = min(image.size)
            left, top = (image.size[0] - side) // 2, (image.size[1] - side) // 2
            image = image.crop((left, top, left + side, top + side)).resize((SIZE, SIZE), Image.BILINEAR)
            yield np.asarray(image, "float32") / 255.0, label

    signature = (tf.TensorSpec((SIZE, SIZE, 3), tf.float32), tf.TensorSpec((), tf.int32))
    return tf.data.Dataset.from_generator(images, output_signature=signature).batch(BATCH)


def middle(shape: Any) -> tuple[Any, Any, Any]:
    """Return top, left and side of the square in the middle."""
    side = tf.minimum(shape[0], shape[1])
    return (shape[0] - side) // 2, (shape[1] - side) // 2, side


def decoded(path: Any, label: Any, *, as_float: bool, fused: bool) -> Any:
    """Return an image of a file, and its label."""
    content = tf.io.read_file(path)
    if fused:
        top, left, side = middle(tf.io.extract_jpeg_shape(content))
        image = tf.image.decode_and_crop_jpeg(content, tf.stack([top, left, side, side]), channels=3)
    else:
        image = tf.io.decode_jpeg(content, channels=3)
        top, left, side = middle(tf.shape(image))
        image = image[top : top + side, left : left + side]
    image = tf.image.resize(image, (SIZE, SIZE))
    return (image / 255.0 if as_float else tf.cast(tf.round(image), tf.uint8)), label


def mapped(
    data: pathlib.Path, calls: int | None = None, prefetch: bool = False, as_float: bool = True, fused: bool = False
) -> Any:
    """Return batches of `tf.data` with these settings; `calls` have a thread each, unless they are `AUTOTUNE`."""
    decode = partial(decoded, as_float=as_float, fused=fused)
    dataset = tf.data.Dataset.from_tensor_slices(files(data)).map(decode, num_parallel_calls=calls).batch(BATCH)
    if calls not in (None, tf.data.AUTOTUNE):
        options = tf.data.Options()
        options.threading.private_threadpool_size = calls
        dataset = dataset.with_options(options)
    return dataset.prefetch(tf.data.AUTOTUNE) if prefetch else dataset


def in_one_call(data: pathlib.Path, read: Callable[..., Any], folder: str) -> Any:
    """Return the batches of `kte.data.images` or `kte.data.tfrecords`."""
    return read(str(data / folder), batch_size=BATCH, size=(SIZE, SIZE), crop="center")


CACHED = "cache"
images = partial(in_one_call, read=kte.data.images, folder="jpeg")
shards = partial(in_one_call, read=kte.data.tfrecords, folder="shards")
in_bytes = partial(mapped, calls=tf.data.AUTOTUNE, prefetch=True, as_float=False)
RUNGS: dict[str, tuple[str, Callable[[pathlib.Path], Any]]] = {
    "naive": ("a Python loop: from_generator, PIL, float32", python_loop),
    "tf.data": ("map(read, decode, crop, resize, / 255).batch()", mapped),
    "optimize alone, on naive": ("kte.data.optimize(naive)", lambda data: kte.data.optimize(python_loop(data))),
    "optimize alone, on tf.data": ("kte.data.optimize(tf.data)", lambda data: kte.data.optimize(mapped(data))),
    "parallel": ("num_parallel_calls=AUTOTUNE", partial(mapped, calls=tf.data.AUTOTUNE)),
    "prefetch": ("and prefetch(AUTOTUNE)", partial(mapped, calls=tf.data.AUTOTUNE, prefetch=True)),
    "uint8": ("and uint8 to the device, a quarter of the bytes", in_bytes),
    "fused": ("and decode_and_crop_jpeg", partial(in_bytes, fused=True)),
    "threads": ("and 64 calls on 64 threads", partial(in_bytes, fused=True, calls=64)),
    "kte.data.images": ("the same in one call, with bad files counted", images),
    "kte.data.tfrecords": ("8 shards for thousands of files", shards),
    CACHED: ("kte.data.tfrecords(...).cache(), after the first pass", lambda data: shards(data).cache().prefetch(2)),
}


def draw(ladders: dict[str, list[dict[str, Any]]], path: str) -> None:
    """Write a bar chart of both ladders."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 6), dpi=120, layout="constrained")
    for axes, (storage, rows) in zip(figure.subplots(1, 2, sharey=True), ladders.items(), strict=True):
        names = [row["rung"] for row in rows]
        rates = [row["images_per_sec"] for row in rows]
        colours = ["#d9822b" if "optimize" in name else "#1f5fa8" for name in names]
        bars = axes.barh(names, rates, color=colours)
        times = [f"{row['of_naive']:,.0f}" if row["of_naive"] >= 10 else f"{row['of_naive']:.2g}" for row in rows]
        axes.bar_label(bars, [f"{rate:,.0f}  ({of}x)" for rate, of in zip(rates, times, strict=True)], padding=4)
        axes.set(xscale="log", xlabel="images per second", xlim=(min(rates) / 1.5, max(rates) * 60))
        axes.set_title(storage, loc="left")
    axes.invert_yaxis()
    figure.suptitle("Input ladder: real JPEGs, decoded, cropped and made 160 x 160 by the host", x=0.01, ha="left")
    figure.savefig(path)


if __name__ == "__main__":
    main()
