"""The list of cases of the parity suite: pure Python, the same on every Keras and every backend.

A case names one value of each dimension below; `arrays.py` and `programs.py` say what the names mean. Not all
values go together (`why_not`). `sample` draws cases so that every two values meet that can, and then more of them.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
from typing import Any

from kind_of_keras import DIVIDES_REGULARIZERS

SEED = int(os.environ.get("KTE_PARITY_SEED", "1"))
# Some 120 cover every two values that can meet, and the rest repeats them in other company.
NUMBER_OF_CASES = int(os.environ.get("KTE_PARITY_CASES", "160"))
NUMBER_OF_SHARDED_CASES = NUMBER_OF_CASES * 3 // 4
DEVICES = 8  # of a mesh
# What decides how a loss is divided, scaled, windowed and masked: every value of these is met on each runtime in what
# `make test` runs, `gate.txt`.
IMPORTANT = (
    *("model", "extras", "loss", "reduction", "weights", "clip", "upkeep", "scale", "overflow", "accumulation"),
    "data",
)
TRIES = 2000  # draws after which two values count as impossible to have together; a test lists those pairs

# Each value with its weight in the draw: a case on eight replicas takes four times as long as one on two, and a
# graph twice as long as running eagerly.
DIMENSIONS: dict[str, dict[Any, int]] = {
    "model": {"dense": 3, "words": 3, "list": 1, "dict": 1, "dict of words": 1},
    "extras": {
        "no extras": 4,
        "regularizers": 1,
        "activity regularizer": 1,
        "add_loss": 1,
        "add_loss per example": 1,
        "own compute_loss": 1,
    },
    "loss": {"mse": 3, "huber": 1, "crossentropy": 1, "ignored classes": 1},
    "reduction": {"sum_over_batch_size": 2, "sum": 1, "mean_with_sample_weight": 2, "mean": 1, "none": 1},
    "weights": {
        "unweighted": 3,
        "per example": 2,
        "per timestep": 1,
        "per output": 1,
        "per class": 1,
        "half of them zero": 1,
        "all zero": 1,
    },
    # (examples, batch size): three batches and more, of which the last may be short
    "batches": {(96, 32): 2, (70, 32): 2, (65, 32): 1, (99, 33): 1, (9, 3): 1, (3, 1): 1, (48, 8): 1, (53, 10): 1},
    "optimizer": dict.fromkeys(
        ["SGD", "momentum", "Adam", "Adamax", "Nadam", "RMSprop", "Adagrad", "Adadelta", "Ftrl", "Lamb"], 1
    ),
    "clip": {"unclipped": 2, "clipnorm": 1, "clipvalue": 1, "global_clipnorm": 1},
    "upkeep": {"no upkeep": 3, "weight decay": 1, "EMA": 1, "EMA overwriting": 1, "EMA and weight decay": 1},
    "scale": {"unscaled": 3, "1024": 1, "dynamic": 1, "LossScale": 1, "LossScaleOptimizer": 1},
    "overflow": {"finite": 3, "overflow": 1},
    "accumulation": {"every batch": 4, "2 in compile": 1, "3 in compile": 1, "2 in optimizer": 1},
    "steps_per_execution": {1: 6, 4: 1, "auto": 1},
    "data": {"arrays": 5, "padded": 1},
    "run": {"graph": 1, "eager": 1},
    "metrics": {"no metrics": 2, "metrics": 1},
    "then": {"fit": 8, "evaluate": 1, "predict": 1},
    "replicas": {2: 12, 8: 1},
}
# The same for models that are sharded over a mesh of eight devices, on Keras 3 on JAX only. Their replicas are its
# data axis: it is 8x1, 4x2, 2x4 or 1x8. Eager steps take five times as long.
SHARDED: dict[str, dict[Any, int]] = {
    **DIMENSIONS,
    "run": {"graph": 8, "eager": 1},
    "replicas": {8: 1, 4: 1, 2: 1, 1: 1},
    "shard": {"fsdp": 1, "tensor": 1, "both": 1},
}
REPLICAS = {"fsdp": (8,), "tensor": (1,), "both": (2, 4)}
DEFAULTS = (
    *("no extras", "unclipped", "no upkeep", "unscaled", "finite", "every batch", "no metrics", "fit", "arrays"),
    "unsharded",
)


@dataclasses.dataclass(frozen=True)
class Case:
    """One value of each dimension; the defaults are the plainest training there is."""

    model: str = "dense"
    extras: str = "no extras"
    loss: str = "mse"
    reduction: str = "sum_over_batch_size"
    weights: str = "unweighted"
    batches: tuple[int, int] = (96, 32)
    optimizer: str = "SGD"
    clip: str = "unclipped"
    upkeep: str = "no upkeep"
    scale: str = "unscaled"
    overflow: str = "finite"
    accumulation: str = "every batch"
    steps_per_execution: int | str = 1
    data: str = "arrays"
    run: str = "graph"
    metrics: str = "no metrics"
    then: str = "fit"
    replicas: int = 8
    shard: str = "unsharded"

    def __str__(self) -> str:
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return ", ".join(_words(name, value) for name, value in values.items() if value not in DEFAULTS)

    @classmethod
    def parse(cls, words: str) -> Case:
        """Return the case that `str` shows as `words`."""
        return cls(**{name: value for name, value in map(_VALUES.__getitem__, words.split(", "))})

    @property
    def outputs(self) -> list[str]:
        """The names of the outputs; `""` for the only one."""
        return ["a", "b"] if self.model in ("list", "dict", "dict of words") else [""]

    @property
    def has_timesteps(self) -> bool:
        """Whether the first output has a time axis, and a mask from the embedding."""
        return self.model in ("words", "dict of words")

    @property
    def is_sharded(self) -> bool:
        """Whether the model is sharded over a mesh."""
        return self.shard != "unsharded"

    @property
    def is_classes(self) -> bool:
        """Whether the first output is that of a classifier."""
        return self.loss in ("crossentropy", "ignored classes")

    @property
    def window(self) -> int:
        """Number of batches in a step."""
        return 1 if self.accumulation == "every batch" else int(self.accumulation[0])

    @property
    def reductions(self) -> list[str]:
        """The reduction of each output's loss: the second output has another one."""
        others = {
            "sum_over_batch_size": "sum",
            "sum": "mean_with_sample_weight",
            "mean_with_sample_weight": "mean",
            "mean": "sum_over_batch_size",
            "none": "none",
        }
        return [self.reduction, others[self.reduction]][: len(self.outputs)]


def _words(name: str, value: Any) -> str:
    how = {
        "batches": "{0[0]} by {0[1]}",
        "steps_per_execution": "spe {0}",
        "replicas": "{0} replicas",
        "shard": "shard {0}",
    }
    return how.get(name, "{0}").format(value)


_VALUES = {
    _words(name, value): (name, value)
    for name, values in {**SHARDED, "replicas": (1, 2, 3, 4, 8)}.items()
    for value in values
}

# Where `TPUModel` was once found not to be equal, each in its smallest form; they run whatever the seed is.
FOUND = (
    Case(extras="own compute_loss", reduction="none", run="eager", replicas=2),
    Case(extras="own compute_loss", model="words", run="eager", replicas=2),
    Case(model="list", steps_per_execution=4, replicas=2),
    Case(
        optimizer="Adam", scale="LossScaleOptimizer", overflow="overflow", accumulation="2 in optimizer", replicas=2
    ),
    Case(model="words", batches=(3, 1), scale="LossScale", overflow="overflow", run="eager", replicas=2),
)


def joined_batches_are_exact(case: Case) -> bool:
    """Return whether a window is the same as one step on its batches joined.

    A window weighs each batch by its number of examples. That gives the loss of the joined batch where each
    batch's loss is a sum of terms of the examples, over their number.
    """
    of_examples = all(
        reduction in ("sum_over_batch_size", "mean")
        or (reduction == "mean_with_sample_weight" and case.weights == "unweighted")
        for reduction in case.reductions
    )
    own_losses = case.extras in ("no extras", "regularizers", "add_loss")
    # Before Keras 3.14 it is a sum over the batch.
    own_losses |= case.extras == "activity regularizer" and DIVIDES_REGULARIZERS
    # In a graph Keras counts every batch alike in the history of one of several outputs, short or joined.
    examples, batch = case.batches
    counted = len(case.outputs) == 1 or case.run == "eager" or examples % (batch * case.window) == 0
    return of_examples and own_losses and counted and not case.has_timesteps and case.loss != "ignored classes"


def own_accumulation_is_exact(case: Case) -> bool:
    """Return whether a window is the same as one of Keras's optimizers on one device.

    They count every batch alike, drop an incomplete window at the end, and move averages at every batch.
    """
    examples, batch = case.batches
    return examples % (batch * case.window) == 0 and not case.upkeep.startswith("EMA")


RULES: dict[str, Any] = {
    "only sequences have timesteps": lambda c: c.weights == "per timestep" and not c.has_timesteps,
    "only several outputs have weights each": lambda c: c.weights == "per output" and len(c.outputs) == 1,
    "Keras takes class_weight for one output of classes": lambda c: (
        c.weights == "per class" and (c.loss != "crossentropy" or c.model != "dense")
    ),
    "Keras cannot add unreduced losses of other shapes": lambda c: (
        c.reduction == "none" and (c.model == "dict of words" or c.extras not in ("no extras", "own compute_loss"))
    ),
    "an overflow needs a loss that scales": lambda c: c.overflow == "overflow" and c.scale == "unscaled",
    "an infinite target is no class, and huber's gradient stays finite": lambda c: (
        c.overflow == "overflow" and c.loss != "mse"
    ),
    "Keras skips overflows by batch, not by window": lambda c: (
        c.overflow == "overflow" and c.window > 1 and not joined_batches_are_exact(c)
    ),
    "padded batches have weights, and Keras takes no class_weight beside them": lambda c: (
        c.data == "padded" and c.weights == "per class"
    ),
    "a layer that computes one number from its batch computes it with the padded rows": lambda c: (
        c.data == "padded" and c.extras == "add_loss"
    ),
    "eagerly Keras weighs the history of one of several outputs by its batch": lambda c: (
        c.data == "padded" and len(c.outputs) > 1 and c.run == "eager" and c.batches[0] % c.batches[1] != 0
    ),
    "no reference for this window": lambda c: (
        c.window > 1 and not joined_batches_are_exact(c) and not own_accumulation_is_exact(c)
    ),
    "a mesh with eight devices has these replicas": lambda c: c.is_sharded and c.replicas not in REPLICAS[c.shard],
}


def why_not(case: Case) -> str:
    """Return why these values cannot be had together, or `""`."""
    return next((reason for reason, forbids in RULES.items() if forbids(case)), "")


def draw(generator: random.Random, dimensions: dict[str, dict[Any, int]], **fixed: Any) -> Case:
    """Return a case, possible or not, with some of its values fixed."""
    drawn = {name: generator.choices(list(values), list(values.values()))[0] for name, values in dimensions.items()}
    return Case(**{**drawn, **fixed})


def pairs_of(case: Case) -> set[tuple[tuple[str, Any], tuple[str, Any]]]:
    """Return every two values that meet in `case`."""
    values = [(field.name, getattr(case, field.name)) for field in dataclasses.fields(case)]
    return set(itertools.combinations(values, 2))


def all_pairs(dimensions: dict[str, dict[Any, int]]) -> dict[tuple[tuple[str, Any], tuple[str, Any]], None]:
    """Return every two values of two dimensions, in a fixed order."""
    return {
        ((a, u), (b, v)): None
        for a, b in itertools.combinations(dimensions, 2)
        for u, v in itertools.product(dimensions[a], dimensions[b])
    }


def sample(dimensions: dict[str, dict[Any, int]], number: int, seed: int = SEED) -> tuple[list[Case], list[Any]]:
    """Return cases in which every two values meet that can, and the pairs that cannot.

    Args:
        dimensions: The values, with the weight of each in the draw.
        number: Of cases; those that cover all pairs come first.
        seed: Of the draw.
    """
    generator, missing = random.Random(seed), all_pairs(dimensions)
    chosen: dict[Case, None] = {}
    impossible = []
    while missing:
        pair = next(iter(missing))
        tries = (draw(generator, dimensions, **dict(pair)) for _ in range(TRIES))
        possible = list(itertools.islice((case for case in tries if not why_not(case)), 25))
        if not possible:
            impossible.append(pair)
            del missing[pair]
            continue
        best = max(possible, key=lambda case: len(pairs_of(case) & missing.keys()))
        missing = {pair: None for pair in missing if pair not in pairs_of(best)}
        chosen[best] = None
    while len(chosen) < number:
        case = draw(generator, dimensions)
        if not why_not(case):
            chosen[case] = None
    return list(chosen), impossible
