"""`advise`: findings on an input pipeline, each with the line to write."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from keras_tpu_ext import hardware
from keras_tpu_ext.checks.arguments import integer, number
from keras_tpu_ext.data._tensorflow import check_dataset
from keras_tpu_ext.data.pipeline.advice import Advice, Finding


def advise(
    dataset: Any,
    *,
    replicas: int = 1,
    tpu: str | bool = "auto",
    measure: bool = True,
    seconds: float = 10.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Advice:
    """Find what makes `dataset` slow, or wrong on a TPU, each with the line to write, the greatest gain first.

    The gain of each rewrite of `kte.data.optimize` is measured: copies of the pipeline, with and without it, run in
    turns, both without shuffles, which cost little and take long to fill. Your iterators, orders and caches are not
    touched. A pipeline that runs your own Python, keeps a state, writes files or joins datasets is not run.

    With autotuning, TensorFlow itself makes stateless maps and batches parallel and prefetches the end. Such a
    finding is listed if a gain is left. Findings that were measured to gain nothing are in `left_out`.

    Args:
        dataset: The `tf.data.Dataset` of batches that goes to `fit`.
        replicas: Number of replicas that share a batch, such as `scope.num_replicas`; 1 by default.
        tpu: The TPU that `dataset` is for, as in `kte.strategy_scope`; a TPU at a `grpc://` address cannot read local
            files.
        measure: Whether to run the pipeline; `True` by default.
        seconds: Total time to measure, in seconds; 10 by default. Slow batches may take longer than their part;
            measuring is given up a minute later.
        clock: Function that returns the time in seconds.

    Returns:
        An `Advice`, a list of `Finding`s with `.ok`, `.to_dict()` and a readable `str()`.

    Raises:
        ArgumentError: If `dataset` is not a `tf.data.Dataset`, or `replicas` or `seconds` is not a positive number.
        MissingExtraError: If TensorFlow is not installed.

    Example:
        ```python
        import tensorflow as tf
        import keras_tpu_ext as kte

        dataset = tf.data.Dataset.range(1000).map(lambda x: x * x).cache().batch(100)
        advice = kte.data.advise(dataset, seconds=1.0)
        print(advice)
        for finding in advice:
            print(finding.kind, finding.gain, finding.write)
        ```
    """
    check_dataset(dataset, "kte.data.advise")
    integer("advise", "replicas", replicas, example="scope.num_replicas")
    number("advise", "seconds", seconds, above=0, example="10.0, or measure=False to run nothing")
    from keras_tpu_ext.data.pipeline.findings import find  # it imports TensorFlow
    from keras_tpu_ext.data.pipeline.measuring import measure_gains

    address = hardware.find_tpu(tpu)
    findings = find(dataset, int(replicas), address.address if address else "")
    kinds = [finding.kind for finding in findings]
    measured = measure_gains(dataset, kinds, seconds, clock) if measure else None
    if measured is None:
        return Advice(findings)
    gains = measured.gains
    findings = [
        dataclasses.replace(one, gain=gains[one.kind], measured=True) if one.kind in gains else one
        for one in findings
    ]
    if measured.failure:
        findings.append(
            Finding("failure", f"The pipeline fails: {measured.failure}", "for batch in dataset.take(1): pass")
        )
    return Advice(findings, measured.note)
