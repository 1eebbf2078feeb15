"""The checks of `advise`, each in its own function, and `Finding` and `Advice`, which it returns."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from typing import Any

from keras_tpu_ext.data._tensorflow import FILE_THREADS, tf
from keras_tpu_ext.data.pipeline import nodes
from keras_tpu_ext.data.skipped import is_reader
from keras_tpu_ext.output.display import HtmlText, counted


@dataclasses.dataclass(frozen=True)
class Finding(HtmlText):
    """One thing that makes an input pipeline slow, or wrong on a TPU.

    Attributes:
        kind: A short name, such as `"threads"` or `"cache-after-shuffle"`.
        what: What was found, in a sentence.
        write: The line to write.
    """

    kind: str
    what: str
    write: str

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as plain data for JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}\n    {self.write}"


class Advice(HtmlText, list[Finding]):
    """The findings of `advise`; print it, or show it in a notebook."""

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self

    def to_dict(self) -> dict[str, Any]:
        """Return the advice as plain data for JSON."""
        return {"ok": self.ok, "findings": [finding.to_dict() for finding in self]}

    def __str__(self) -> str:
        if self.ok:
            return "Nothing in this pipeline needs another line."
        first = f"{counted(len(self), 'thing')} to change in this pipeline:"
        return "\n".join([first, *(f"{number}. {one}" for number, one in enumerate(self, 1))])


_PARALLEL = "num_parallel_calls=tf.data.AUTOTUNE"
_OPTION = f"options.threading.private_threadpool_size = {FILE_THREADS}; dataset = dataset.with_options(options)"
SLOW = ("map", "autotune", "interleave", "flat_map", "from-generator", "python", "cache-after-shuffle")  # kinds
_ROWS = 8  # a TPU processes rows in groups of eight
_MANY, _SMALL = 1000, 2**20  # files, and bytes of one
_PART = 0.1  # of the elements that a shuffle buffer should hold


def find(dataset: nodes.Node, replicas: int, tpu: str) -> list[Finding]:
    """Return all findings."""
    pipeline = list(nodes.nodes_of(dataset))
    found = [*_sequential(dataset, pipeline), *_python(pipeline), *_caches(pipeline), *_images(dataset, pipeline)]
    found += [*_batches(dataset, pipeline, replicas), *_shuffles(pipeline), *_files(pipeline, tpu)]
    return found


def has_too_few_threads(dataset: nodes.Node) -> bool:
    """Return whether a map opens files on the threads that TensorFlow has for all; an interleave has its own."""
    maps = (node for node in nodes.nodes_of(dataset) if nodes.class_name(node) in (nodes.MAP, nodes.PARALLEL_MAP))
    opens_files = any(nodes.effects_of(node).reads_files for node in maps)
    return opens_files and not dataset.options().threading.private_threadpool_size


def _sequential(dataset: nodes.Node, pipeline: list[nodes.Node]) -> Iterator[Finding]:
    """Find what does not run in parallel. TensorFlow itself makes maps without state, and batches, parallel."""
    inside = {id(one) for node in pipeline if is_reader(node) for one in nodes.nodes_of(node)}  # of ours
    own = [node for node in pipeline if id(node) not in inside]
    of_maps = [(node, nodes.effects_of(node)) for node in own if nodes.class_name(node) == nodes.MAP]
    drawing = [node for node, effects in of_maps if effects.draws and not effects.runs_python]
    if drawing:
        names = ", ".join(dict.fromkeys(map(nodes.function_name, drawing)))
        what = f"map({names}) draws random numbers in turn, so it works on one element at a time."
        yield Finding("map", what, f".map({nodes.function_name(drawing[0])}, {_PARALLEL})")
    if dataset.options().autotune.enabled is False:
        what = "Autotuning is off: maps and batches without num_parallel_calls are made one at a time."
        yield Finding("autotune", what, "dataset, without options.autotune.enabled = False")
    found: set[str] = set()
    for node in own:
        kind, name = nodes.class_name(node), nodes.function_name(node)
        parallel = f".interleave({name}, cycle_length=16, {_PARALLEL})"
        if kind in found:
            continue
        if kind == nodes.INTERLEAVE:
            yield Finding("interleave", f"interleave({name}) reads one of its inputs at a time.", parallel)
        elif kind == nodes.FLAT_MAP and nodes.effects_of(node).reads_files:
            yield Finding("flat_map", f"flat_map({name}) opens one file after the other.", parallel)
        else:
            continue
        found.add(kind)
    if has_too_few_threads(dataset):
        what = (
            f"Files are opened by a thread for each core ({os.cpu_count()}), which wait for storage most of the time."
        )
        yield Finding("threads", what, _OPTION)


def _python(pipeline: list[nodes.Node]) -> Iterator[Finding]:
    for node in pipeline:
        effects, name = nodes.effects_of(node), nodes.function_name(node)
        if effects.is_generator:
            yield Finding(
                "from-generator",
                "from_generator runs Python, one element at a time, however many cores there are.",
                "tf.data.Dataset.from_tensor_slices((x, y)), or TFRecord files written once",
            )
        elif effects.runs_python:
            yield Finding(
                "python",
                f"{nodes.method_name(node)}({name}) runs Python (numpy_function or py_function), which takes turns "
                "with all other Python of this process.",
                f"def {name}(...): with TensorFlow's functions, tf.io.decode_jpeg and tf.image say",
            )


def _caches(pipeline: list[nodes.Node]) -> Iterator[Finding]:
    for node in pipeline:
        if nodes.class_name(node) != nodes.CACHE:
            continue
        upstream = list(nodes.nodes_of(node))[1:]
        names = {nodes.class_name(one) for one in upstream}
        if nodes.SHUFFLE in names and not _is_before_shuffle(node, pipeline):
            what = "cache comes after shuffle: every epoch has the order of the first."
            yield Finding("cache-after-shuffle", what, ".cache().shuffle(...)")
        if any(nodes.effects_of(one).draws for one in upstream):
            what = "cache comes after random augmentation: every epoch has the pictures of the first."
            yield Finding("cache-after-random", what, ".cache().map(augment, num_parallel_calls=tf.data.AUTOTUNE)")
        if names & nodes.ANY_BATCH and _is_before_shuffle(node, pipeline, _nodes_of_same_elements):
            what = "cache comes after batch and before shuffle: whole batches are shuffled, not examples."
            yield Finding("cache-after-batch", what, ".cache().shuffle(...).batch(...)")
        if nodes.class_name(upstream[0]) == nodes.PREFETCH:
            what = "cache comes right after prefetch, which then has nothing to do after the first epoch."
            yield Finding("cache-after-prefetch", what, ".cache().prefetch(tf.data.AUTOTUNE)")


def _is_before_shuffle(
    node: nodes.Node,
    pipeline: list[nodes.Node],
    upstream: Callable[[nodes.Node], Iterator[nodes.Node]] = nodes.nodes_of,
) -> bool:
    shuffles = (one for one in pipeline if nodes.class_name(one) == nodes.SHUFFLE)
    return any(one is node for shuffle in shuffles for one in upstream(shuffle))


def _nodes_of_same_elements(shuffle: nodes.Node) -> Iterator[nodes.Node]:
    """Yield the nodes before a shuffle, back to where batches are unbatched."""
    for node in nodes.nodes_of(shuffle):
        if nodes.method_name(node) in ("unbatch", "flat_map", "interleave"):
            return
        yield node


def _images(dataset: nodes.Node, pipeline: list[nodes.Node]) -> Iterator[Finding]:
    for spec in tf.nest.flatten(dataset.element_spec):
        if not isinstance(spec, tf.TensorSpec) or spec.dtype not in (tf.float32, tf.float64):
            continue
        if spec.shape.rank is None or spec.shape.rank < 3 or spec.shape[-1] not in (1, 3, 4):
            continue
        times = spec.dtype.size
        if spec.shape.rank >= 4 or any(nodes.effects_of(node).casts_bytes for node in pipeline):
            yield Finding(
                "float-images",
                f"Images go to the devices as {spec.dtype.name}: {times} times the bytes of uint8, if they come from "
                "8-bit files.",
                "keep uint8 in the pipeline, and begin the model with keras.layers.Rescaling(1 / 255)",
            )
            return


def _batches(dataset: nodes.Node, pipeline: list[nodes.Node], replicas: int) -> Iterator[Finding]:
    batches = [node for node in pipeline if nodes.class_name(node) in nodes.ANY_BATCH]
    sizes = _sizes(dataset)
    if "" in sizes or (not batches and None not in sizes and _has_no_hidden_batch(pipeline)):
        unit = _ROWS * replicas * 16
        yield Finding("unbatched", "The elements are examples and no batches.", f"dataset = dataset.batch({unit})")
        return
    size = sizes.pop() if len(sizes) == 1 else None
    if size is None and batches:
        size = nodes.attribute(batches[0], "_batch_size")
    if isinstance(size, int):
        yield from _size(size, _ROWS * replicas, replicas)
    if batches and not all(isinstance(one, int) for one in _sizes(dataset)):
        yield from _tail(batches[0], None in sizes or size not in sizes)


def _sizes(dataset: nodes.Node) -> set[Any]:
    specs = tf.nest.flatten(dataset.element_spec)
    return {_rows(spec) for spec in specs if type(spec).__name__ != "NoneTensorSpec"}


def _rows(spec: Any) -> Any:
    """Return the batch size: `None` if it is unknown, and empty for scalars."""
    shape = getattr(spec, "shape", None)
    if shape is None or shape.rank is None:
        return None
    return shape[0] if shape.rank else ""


def _has_no_hidden_batch(pipeline: list[nodes.Node]) -> bool:
    """Return whether no source or unknown transformation gives batches."""
    for node in pipeline:
        if not nodes.is_known(node) and nodes.inputs_of(node):
            return False
        if nodes.effects_of(node).is_generator or nodes.class_name(node) == nodes.TENSORS:
            return False
    return True


def _size(size: int, unit: int, replicas: int) -> Iterator[Finding]:
    where = f"on {counted(replicas, 'replica')}"
    if size < unit:
        what = f"A batch has {size} examples: {where} fewer than 8 each, and a TPU works on 8 rows at a time."
        yield Finding("batch-small", what, f".batch({unit * 16})  # 128 a replica")
    elif size % unit:
        what = f"A batch has {size} examples, which {where} is no multiple of 8 each: a TPU fills the rest up."
        yield Finding("batch-multiple", what, f".batch({-(-size // unit) * unit})")


def _tail(node: nodes.Node, is_open: bool) -> Iterator[Finding]:
    """Find a last batch of another size."""
    size, (upstream,) = nodes.attribute(node, "_batch_size"), nodes.inputs_of(node)
    count = int(upstream.cardinality())
    if nodes.attribute(node, "_drop_remainder") or count < 0 or not count % size or not is_open:
        return
    yield Finding(
        "tail",
        f"The last batch has {count % size} examples and the others {size}: a TPU compiles the step twice.",
        f"dataset = kte.data.pad_batches(dataset, {size}), or .batch({size}, drop_remainder=True)",
    )


def _shuffles(pipeline: list[nodes.Node]) -> Iterator[Finding]:
    for node in pipeline:
        if nodes.class_name(node) != nodes.SHUFFLE:
            continue
        upstream = list(nodes.nodes_of(node))[1:]
        count, size = int(upstream[0].cardinality()), nodes.attribute(node, "_buffer_size")
        is_shuffled = any(nodes.class_name(one) == nodes.SHUFFLE for one in upstream)
        if not is_shuffled and 0 <= size < count * _PART:
            what = f"shuffle({size}) mixes each example with its {size} neighbours only, of {count}."
            yield Finding("shuffle-small", what, f".shuffle({count}), or shuffle the names of the files first")


def _files(pipeline: list[nodes.Node], tpu: str) -> Iterator[Finding]:
    """Find files that are many and small, or that the TPU cannot reach."""
    if not any(nodes.effects_of(one).reads_files or nodes.class_name(one).startswith("readers.") for one in pipeline):
        return
    names, count = _file_names(pipeline)
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


def _file_names(pipeline: list[nodes.Node]) -> tuple[list[str], int]:
    """Return up to 20 names of the files that a pipeline reads, and their number."""
    for node in pipeline:
        if nodes.class_name(node) == nodes.SLICES:
            for tensor in nodes.source_tensors(node):
                if tensor.dtype == tf.string and tensor.shape.rank == 1:
                    return [name.decode(errors="replace") for name in tensor[:20].numpy()], int(tensor.shape[0])
    return [], 0
