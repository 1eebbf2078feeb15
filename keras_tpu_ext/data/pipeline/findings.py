"""What `advise` looks for, each in a function of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from keras_tpu_ext.data.pipeline import stage_kinds as kinds
from keras_tpu_ext.data.pipeline import stages as pipeline
from keras_tpu_ext.data.pipeline.advice import Finding
from keras_tpu_ext.data.pipeline.function_effects import effects_of
from keras_tpu_ext.data.pipeline.rewriting import READS, Rewriting, has_threads, opens_files_in_parallel
from keras_tpu_ext.data.skipped import has_ledger

_BATCHES = {kinds.BATCH, kinds.PARALLEL_BATCH, kinds.PADDED_BATCH}
_PARALLEL = "num_parallel_calls=tf.data.AUTOTUNE"
_THREADS = f"options.threading.private_threadpool_size = {READS}; dataset = dataset.with_options(options)"
_ROWS = 8  # a TPU works on rows by the eight
_MANY, _SMALL = 1000, 2**20  # files, and bytes of one
_PART = 0.1  # of the elements that a shuffle buffer should hold


def find(dataset: Any, replicas: int, tpu: str) -> list[Finding]:
    """Return all findings, without gains."""
    stages = list(pipeline.stages_of(dataset))
    found = [*_sequential(dataset, stages), *_python(stages), *_caches(stages), *_images(dataset, stages)]
    found += [*_batches(dataset, stages, replicas), *_shuffles(stages), *_files(stages, tpu)]
    return found


def _sequential(dataset: Any, stages: list[Any]) -> Iterator[Finding]:
    """What does one thing after the other; the kinds are those of `Rewriting`."""
    by_name: dict[str, list[Any]] = {}
    for stage in _written_by_the_user(stages):
        by_name.setdefault(pipeline.name_of(stage), []).append(stage)
    maps = [one for one in by_name.get(kinds.MAP, []) if not effects_of(one).runs_python]
    if maps:
        names = ", ".join(dict.fromkeys(map(pipeline.function_name, maps)))
        reads = any(effects_of(one).reads_files for one in maps)
        line = f".map({pipeline.function_name(maps[0])}, {f'num_parallel_calls={READS}' if reads else _PARALLEL})"
        line += f", and {_THREADS}" if reads and not has_threads(dataset) else ""
        yield Finding("map", f"map({names}) works on one element at a time.", line)
    if by_name.get(kinds.INTERLEAVE):
        name = pipeline.function_name(by_name[kinds.INTERLEAVE][0])
        line = f".interleave({name}, cycle_length=16, {_PARALLEL})"
        yield Finding("interleave", f"interleave({name}) reads one of its inputs at a time.", line)
    flat = [one for one in by_name.get(kinds.FLAT_MAP, []) if effects_of(one).reads_files]
    if flat:
        name = pipeline.function_name(flat[0])
        line = f".interleave({name}, cycle_length=16, {_PARALLEL})"
        yield Finding("flat_map", f"flat_map({name}) opens one file after the other.", line)
    if by_name.get(kinds.BATCH):
        size = pipeline.value_of(by_name[kinds.BATCH][0], "_batch_size")
        line = f".batch({size}, {_PARALLEL})"
        yield Finding("batch", f"batch({size}) copies one element at a time into a batch.", line)
    if opens_files_in_parallel(dataset) and not has_threads(dataset):
        what = (
            f"Files are opened by a thread for each core ({os.cpu_count()}), which wait for storage most of the time."
        )
        yield Finding("threads", what, _THREADS)
    if "prefetch" in _applied(dataset, "prefetch"):
        what = "Nothing is prefetched at the end: while the devices train, no batch is made ahead."
        yield Finding("prefetch", what, "dataset = dataset.prefetch(tf.data.AUTOTUNE)")


def _written_by_the_user(stages: list[Any]) -> list[Any]:
    """Return `stages` without those of which `images` or `tfrecords` is made: nobody can write other lines there."""
    inside = {id(one) for stage in stages if has_ledger(stage) for one in pipeline.stages_of(stage)}
    return [stage for stage in stages if id(stage) not in inside]


def _applied(dataset: Any, rewrite: str) -> set[str]:
    rewriting = Rewriting(dataset, only={rewrite}, allow_stateful=True)
    rewriting.apply()
    return rewriting.applied


def _python(stages: list[Any]) -> Iterator[Finding]:
    for stage in stages:
        deeds, name = effects_of(stage), pipeline.function_name(stage)
        if deeds.is_generator:
            yield Finding(
                "from-generator",
                "from_generator runs Python, one element at a time, however many cores there are.",
                "tf.data.Dataset.from_tensor_slices((x, y)), or TFRecord files written once",
            )
        elif deeds.runs_python:
            yield Finding(
                "python",
                f"{pipeline.word_of(stage)}({name}) runs Python (numpy_function or py_function), which takes turns "
                "with all other Python of this process.",
                f"def {name}(...): with TensorFlow's functions, tf.io.decode_jpeg and tf.image say",
            )


def _caches(stages: list[Any]) -> Iterator[Finding]:
    for stage in stages:
        if pipeline.name_of(stage) != kinds.CACHE:
            continue
        below = list(pipeline.stages_of(stage))[1:]
        names = {pipeline.name_of(one) for one in below}
        if kinds.SHUFFLE in names and not _is_shuffled_later(stage, stages):
            what = "cache comes after shuffle: every epoch has the order of the first."
            yield Finding("cache-after-shuffle", what, ".cache().shuffle(...)")
        if any(effects_of(one).draws for one in below):
            what = "cache comes after random augmentation: every epoch has the pictures of the first."
            yield Finding("cache-after-random", what, ".cache().map(augment, num_parallel_calls=tf.data.AUTOTUNE)")
        if names & _BATCHES and _is_below_shuffle(stage, stages):
            what = "cache comes after batch and before shuffle: whole batches are shuffled, not examples."
            yield Finding("cache-after-batch", what, ".cache().shuffle(...).batch(...)")
        if pipeline.name_of(below[0]) == kinds.PREFETCH:
            what = "cache comes right after prefetch, which then has nothing to do after the first epoch."
            yield Finding("cache-after-prefetch", what, ".cache().prefetch(tf.data.AUTOTUNE)")


def _is_shuffled_later(stage: Any, stages: list[Any]) -> bool:
    shuffles = [one for one in stages if pipeline.name_of(one) == kinds.SHUFFLE]
    return any(any(one is stage for one in pipeline.stages_of(shuffle)) for shuffle in shuffles)


def _is_below_shuffle(stage: Any, stages: list[Any]) -> bool:
    shuffles = [one for one in stages if pipeline.name_of(one) == kinds.SHUFFLE]
    return any(any(one is stage for one in _same_rows(shuffle)) for shuffle in shuffles)


def _same_rows(shuffle: Any) -> Iterator[Any]:
    """Yield the stages below a shuffle, down to where batches are taken apart."""
    for stage in pipeline.stages_of(shuffle):
        if pipeline.word_of(stage) in ("unbatch", "flat_map", "interleave"):
            return
        yield stage


def _images(dataset: Any, stages: list[Any]) -> Iterator[Finding]:
    for spec in tf.nest.flatten(dataset.element_spec):
        if not isinstance(spec, tf.TensorSpec) or spec.dtype not in (tf.float32, tf.float64):
            continue
        if spec.shape.rank is None or spec.shape.rank < 3 or spec.shape[-1] not in (1, 3, 4):
            continue
        times = spec.dtype.size
        if spec.shape.rank >= 4 or any(effects_of(stage).casts_bytes for stage in stages):
            yield Finding(
                "float-images",
                f"Images go to the devices as {spec.dtype.name}: {times} times the bytes of uint8, if they come from "
                "8-bit files.",
                "keep uint8 in the pipeline, and begin the model with keras.layers.Rescaling(1 / 255)",
            )
            return


def _batches(dataset: Any, stages: list[Any], replicas: int) -> Iterator[Finding]:
    batches = [stage for stage in stages if pipeline.name_of(stage) in _BATCHES]
    sizes = _sizes(dataset)
    if "" in sizes or (not batches and None not in sizes and _is_plain(stages)):
        unit = _ROWS * replicas * 16
        yield Finding("unbatched", "The elements are examples and no batches.", f"dataset = dataset.batch({unit})")
        return
    size = sizes.pop() if len(sizes) == 1 else None
    if size is None and batches:
        size = pipeline.value_of(batches[0], "_batch_size")
    if isinstance(size, int):
        yield from _size(size, _ROWS * replicas, replicas)
    yield from _tail(batches[0], None in sizes or size not in sizes) if batches and not _is_fixed(dataset) else ()


def _sizes(dataset: Any) -> set[Any]:
    specs = tf.nest.flatten(dataset.element_spec)
    return {_rows(spec) for spec in specs if type(spec).__name__ != "NoneTensorSpec"}


def _rows(spec: Any) -> Any:
    """Return the rows of a batch: a number, `None` where it is not known, and empty where there are none."""
    shape = getattr(spec, "shape", None)
    if shape is None or shape.rank is None:
        return None
    return shape[0] if shape.rank else ""


def _is_plain(stages: list[Any]) -> bool:
    """Return whether elements are known to be no batches that a source gives."""
    known = all(pipeline.kind_of(stage) or not pipeline.inputs_of(stage) for stage in stages)
    gives_batches = any(effects_of(one).is_generator or pipeline.name_of(one) == kinds.TENSORS for one in stages)
    return known and not gives_batches


def _is_fixed(dataset: Any) -> bool:
    return all(isinstance(size, int) for size in _sizes(dataset))


def _size(size: int, unit: int, replicas: int) -> Iterator[Finding]:
    where = f"on {replicas} replica{'' if replicas == 1 else 's'}"
    if size < unit:
        what = f"A batch has {size} examples: {where} fewer than 8 each, and a TPU works on 8 rows at a time."
        yield Finding("batch-small", what, f".batch({unit * 16})  # 128 a replica")
    elif size % unit:
        what = f"A batch has {size} examples, which {where} is no multiple of 8 each: a TPU fills the rest up."
        yield Finding("batch-multiple", what, f".batch({-(-size // unit) * unit})")


def _tail(stage: Any, is_open: bool) -> Iterator[Finding]:
    """A last batch of another size."""
    size, (below,) = pipeline.value_of(stage, "_batch_size"), pipeline.inputs_of(stage)
    count = int(below.cardinality())
    if pipeline.value_of(stage, "_drop_remainder") or count < 0 or not count % size or not is_open:
        return
    yield Finding(
        "tail",
        f"The last batch has {count % size} examples and the others {size}: a TPU compiles the step twice.",
        f"dataset = kte.data.pad_batches(dataset, {size}), or .batch({size}, drop_remainder=True)",
    )


def _shuffles(stages: list[Any]) -> Iterator[Finding]:
    for stage in stages:
        if pipeline.name_of(stage) != kinds.SHUFFLE:
            continue
        below = list(pipeline.stages_of(stage))[1:]
        count, size = int(below[0].cardinality()), pipeline.value_of(stage, "_buffer_size")
        is_shuffled = any(pipeline.name_of(one) == kinds.SHUFFLE for one in below)
        if not is_shuffled and 0 <= size < count * _PART:
            what = f"shuffle({size}) mixes each example with its {size} neighbours only, of {count}."
            yield Finding("shuffle-small", what, f".shuffle({count}), or shuffle the names of the files first")


def _files(stages: list[Any], tpu: str) -> Iterator[Finding]:
    """Files that are many and small, or out of the TPU's reach."""
    reads = [
        stage for stage in stages if effects_of(stage).reads_files or pipeline.name_of(stage).startswith("readers.")
    ]
    if not reads:
        return
    names, count = _file_names(stages)
    sizes = [os.path.getsize(name) for name in names if os.path.isfile(name)]
    if count >= _MANY and (not sizes or sum(sizes) < _SMALL * len(sizes)):
        what = f"{count} small files are opened one by one, in every epoch."
        yield Finding("small-files", what, "keras-tpu-ext tfrecords: write them once into a few large TFRecord files")
    local = [name for name in names if "://" not in name]
    if local and tpu.startswith("grpc://"):
        yield Finding(
            "local-files",
            f"{local[0]} is on this machine, and the TPU at {tpu} cannot read it.",
            f'"gs://your-bucket/{os.path.basename(local[0])}"',
        )


def _file_names(stages: list[Any]) -> tuple[list[str], int]:
    """Return some of the names of files that a pipeline reads, and how many there are."""
    for stage in stages:
        if pipeline.name_of(stage) == kinds.SLICES:
            for tensor in pipeline.tensors_of(stage):
                if tensor.dtype == tf.string and tensor.shape.rank == 1:
                    return [name.decode(errors="replace") for name in tensor[:20].numpy()], int(tensor.shape[0])
    return [], 0
