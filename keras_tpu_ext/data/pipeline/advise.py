"""`advise`: findings on an input pipeline, each with the line to write."""

from __future__ import annotations

from typing import Any

from keras_tpu_ext import hardware
from keras_tpu_ext.checks.arguments import integer
from keras_tpu_ext.data._tensorflow import check_dataset
from keras_tpu_ext.data.pipeline.findings import Advice, find


def advise(dataset: Any, *, replicas: int = 1, tpu: str | bool = "auto") -> Advice:
    """Find what makes `dataset` slow, or wrong on a TPU, each with the line to write; nothing is run.

    TensorFlow itself makes maps without state, and batches, parallel, and prefetches the end; what it does not do is
    found here. Whether the pipeline is fast enough for a model, `kte.callbacks.HostBottleneck` measures in its `fit`.

    Args:
        dataset: The `tf.data.Dataset` of batches that goes to `fit`.
        replicas: Number of replicas that share a batch, such as `scope.num_replicas`; 1 by default.
        tpu: The TPU that `dataset` is for, as in `kte.strategy_scope`; a TPU at a `grpc://` address cannot read local
            files.

    Returns:
        An `Advice`, a list of `Finding`s with `.ok`, `.to_dict()` and a readable `str()`.

    Raises:
        ArgumentError: If `dataset` is not a `tf.data.Dataset`, or `replicas` is not a positive number.
        MissingExtraError: If TensorFlow is not installed.

    Example:
        ```python
        import tensorflow as tf
        import keras_tpu_ext as kte

        dataset = tf.data.Dataset.range(1000).map(lambda x: x * x).shuffle(50).cache().batch(100)
        advice = kte.data.advise(dataset)
        print(advice)
        for finding in advice:
            print(finding.kind, finding.write)
        ```
    """
    check_dataset(dataset, "kte.data.advise")
    integer("advise", "replicas", replicas, example="scope.num_replicas")
    address = hardware.find_tpu(tpu)
    return Advice(find(dataset, int(replicas), address.address if address else ""))
