"""What goes to the process that trains for a parity check, and what comes back."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from keras_tpu_ext._parity.builder import BuilderSource

Batch = tuple[Any, Any, Any]
Key = tuple[str, str]  # what happens, and what of it is compared

# What each part of a check is called where it could not be run.
PARTS = {
    "steps": "one step",
    "gradients": "one step",
    "evaluate": "uneven tail, evaluate",
    "predict": "uneven tail, predict",
    "tail": "uneven tail, fit",
    "inf": "an inf in one replica",
}


@dataclasses.dataclass(frozen=True)
class Job:
    """What one process has to do.

    Attributes:
        builder: Where the function is that makes the model.
        batch: `x`, `y` and `sample_weight` as structures of arrays; `None` where there is none.
        replicas: Number of replicas of the check.
        distributed: Whether this process is the one with the replicas, and not the one with one device.
        steps: Number of training steps with the batch.
        start: The weights to start from; `None` starts from the model's own.
        path: The `sys.path` under which the function is found.
        backend: Keras's backend in this process; empty for that of the process which started it.
    """

    builder: BuilderSource
    batch: Batch
    replicas: int
    distributed: bool
    steps: int
    start: list[Any] | None
    path: list[str]
    backend: str = ""


@dataclasses.dataclass(frozen=True)
class Quantity:
    """One thing to compare.

    Attributes:
        kind: `"series"`, numbers that are compared one by one; `"arrays"`, compared as one long vector; or
            `"exact"`, which must be equal.
        values: One array for a series, else one an array of the quantity.
        names: The name of each array, where it has one.
        note: What there is to say about it.
    """

    kind: Literal["series", "arrays", "exact"]
    values: list[Any]
    names: tuple[str, ...] = ()
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Part:
    """What came of one part of the check.

    Attributes:
        quantities: What is to be compared, in the order of the report.
        error: What went wrong, in one line; empty where nothing did.
        unchecked: Why there is nothing to compare; empty where there is.
    """

    quantities: dict[Key, Quantity] = dataclasses.field(default_factory=dict)
    error: str = ""
    unchecked: str = ""


@dataclasses.dataclass(frozen=True)
class Facts:
    """What a look at the model has told.

    Attributes:
        is_exact: Whether it is a `TPUModel`.
        compute_dtypes: The dtypes that its layers compute in.
        local_normalisations: Batch normalisations that train and see their own replica only, by name and path.
        silenced: Layers whose dropout was switched off, by name and path.
        random: Other layers that draw random numbers, by name and path.
        framework: What the framework is called, such as `"TensorFlow"`.
        plain_model: What is not that of one device where this framework trains a plain `keras.Model`.
    """

    is_exact: bool
    compute_dtypes: tuple[str, ...]
    local_normalisations: tuple[str, ...]
    silenced: tuple[str, ...]
    random: tuple[str, ...]
    framework: str = ""
    plain_model: str = ""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one process reports.

    Attributes:
        facts: What the model is made of.
        start: The weights that it started from.
        parts: Each part of the check by name.
        rounding: The same parts on one device, with rounding alone changed; empty on several replicas.
    """

    facts: Facts
    start: list[Any]
    parts: dict[str, Part]
    rounding: dict[str, Part]


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why a process has nothing to report.

    Attributes:
        text: The sentence to show.
        is_argument: Whether the fault is in what the user gave.
    """

    text: str
    is_argument: bool
