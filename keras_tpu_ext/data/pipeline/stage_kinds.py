"""The classes of `tf.data` stages that can be made again, each with the operation and the attributes to make it from.

Private names of TensorFlow that this leans on: the classes and attributes of `KINDS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Kind(NamedTuple):
    """A class of stages that can be made again.

    Attributes:
        word: What it is called, such as `"map"`.
        op: The operation that makes it; empty for options, which have a public method.
        own: Its attributes that are arguments of the operation, under the same names without the underscore.
        optional: Those of them that older TensorFlows have not.
        function: The attribute that holds its function; empty if there is none.
        has_structure: Whether it keeps the specification of its elements itself.
    """

    word: str
    op: str
    own: frozenset[str]
    optional: frozenset[str] = frozenset()
    function: str = ""
    has_structure: bool = False


def _kind(word: str, op: str, own: str = "", optional: str = "", function: str = "", structure: bool = False) -> Kind:
    return Kind(word, op, frozenset(own.split()), frozenset(optional.split()), function, structure)


_FILES = "_cycle_length _block_length"
MAP, PARALLEL_MAP = "map_op._MapDataset", "map_op._ParallelMapDataset"
BATCH, PARALLEL_BATCH = "batch_op._BatchDataset", "batch_op._ParallelBatchDataset"
FLAT_MAP, INTERLEAVE = "flat_map_op._FlatMapDataset", "interleave_op._InterleaveDataset"
PARALLEL_INTERLEAVE = "interleave_op._ParallelInterleaveDataset"
PADDED_BATCH, SHUFFLE = "padded_batch_op._PaddedBatchDataset", "shuffle_op._ShuffleDataset"
CACHE, PREFETCH, OPTIONS = "cache_op.CacheDataset", "prefetch_op._PrefetchDataset", "dataset_ops._OptionsDataset"
ZIP, CONCATENATE = "zip_op._ZipDataset", "concatenate_op._ConcatenateDataset"
REPEAT, TAKE, SKIP = "repeat_op._RepeatDataset", "take_op._TakeDataset", "skip_op._SkipDataset"
SLICES, TENSORS = "from_tensor_slices_op._TensorSliceDataset", "from_tensors_op._TensorDataset"

KINDS: Mapping[str, Kind] = {
    MAP: _kind(
        "map", "MapDataset", "_use_inter_op_parallelism _preserve_cardinality", "_force_synchronous", "_map_func"
    ),
    PARALLEL_MAP: _kind(
        "map",
        "ParallelMapDatasetV2",
        "_use_inter_op_parallelism _preserve_cardinality _num_parallel_calls _deterministic",
        "_use_unbounded_threadpool",
        "_map_func",
    ),
    BATCH: _kind("batch", "BatchDatasetV2", "_batch_size _drop_remainder", structure=True),
    PARALLEL_BATCH: _kind(
        "batch",
        "ParallelBatchDataset",
        "_batch_size _drop_remainder _num_parallel_calls _deterministic",
        structure=True,
    ),
    PADDED_BATCH: _kind(
        "padded_batch",
        "PaddedBatchDatasetV2",
        "_batch_size _drop_remainder _padded_shapes _padding_values",
        structure=True,
    ),
    SHUFFLE: _kind("shuffle", "ShuffleDatasetV3", "_buffer_size _seed _seed2 _reshuffle_each_iteration"),
    CACHE: _kind("cache", "CacheDatasetV2", "_filename"),
    PREFETCH: _kind("prefetch", "PrefetchDataset", "_buffer_size"),
    REPEAT: _kind("repeat", "RepeatDataset", "_count"),
    TAKE: _kind("take", "TakeDataset", "_count"),
    SKIP: _kind("skip", "SkipDataset", "_count"),
    "filter_op._FilterDataset": _kind("filter", "FilterDataset", function="_predicate"),
    "take_while_op._TakeWhileDataset": _kind("take_while", "TakeWhileDataset", function="_predicate"),
    FLAT_MAP: _kind("flat_map", "FlatMapDataset", function="_map_func", structure=True),
    INTERLEAVE: _kind("interleave", "InterleaveDataset", _FILES, function="_map_func", structure=True),
    PARALLEL_INTERLEAVE: _kind(
        "interleave",
        "ParallelInterleaveDatasetV4",
        # TensorFlow does not keep the last one: those of the user's cannot be made again, and those made here can.
        f"{_FILES} _num_parallel_calls _buffer_output_elements _prefetch_input_elements _deterministic",
        function="_map_func",
        structure=True,
    ),
    OPTIONS: _kind("with_options", ""),
    "shard_op._ShardDataset": _kind("shard", "ShardDataset", "_num_shards _index"),
    "window_op._WindowDataset": _kind(
        "window", "WindowDataset", "_size _shift _stride _drop_remainder", structure=True
    ),
    "unbatch_op._UnbatchDataset": _kind("unbatch", "UnbatchDataset", structure=True),
    ZIP: _kind("zip", "ZipDataset", structure=True),
    CONCATENATE: _kind("concatenate", "ConcatenateDataset", structure=True),
}
