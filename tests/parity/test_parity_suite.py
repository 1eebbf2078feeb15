"""The one promise, over the product of what can be combined: N replicas take the steps of one device.

`make test` runs what stands in `gate.txt`: cases in which every value of every dimension is met, on each runtime
those of the `IMPORTANT` ones. Three replicas are enough for one that has a full part of a batch, one
that has less and one that has none, and two where that is no matter; one case on each runtime has eight.

`pytest --tier=exhaustive tests/parity` draws so many cases that all pairs meet, and then more of them;
`KTE_PARITY_SEED=7` draws others, `KTE_PARITY_CASES=1000` more. On JAX it also draws cases of models that are sharded
over a mesh, of which there are at least three for four of the others; all pairs meet in these alone.
"""

import functools
import itertools
from pathlib import Path

import pytest

from keras_tpu_ext import _runtime
from kind_of_keras import DIVIDES_REGULARIZERS, RUNTIMES
from parity import check
from parity.cases import (
    DIMENSIONS,
    FOUND,
    IMPORTANT,
    NUMBER_OF_CASES,
    NUMBER_OF_SHARDED_CASES,
    REPLICAS,
    SEED,
    SHARDED,
    Case,
    all_pairs,
    pairs_of,
    sample,
    why_not,
)

once = pytest.mark.gate_on("keras3_jax")  # what is about the list of cases is the same on all


def gate():
    """Return the cases of each runtime."""
    cases = {}
    for line in Path(__file__).with_name("gate.txt").read_text().splitlines():
        if line.startswith("["):
            of_runtime = cases.setdefault(line.strip("[]"), [])
        elif line:
            of_runtime.append(Case.parse(line))
    return cases


@functools.cache
def sampled():
    return sample(DIMENSIONS, NUMBER_OF_CASES)


@functools.cache
def sampled_sharded():
    return sample(SHARDED, NUMBER_OF_SHARDED_CASES)


def pytest_generate_tests(metafunc):
    if "case" in metafunc.fixturenames:
        (of_gate,) = (cases for runtime, cases in gate().items() if runtime in RUNTIMES)
        everything = metafunc.config.getoption("tier") == "exhaustive"
        # Eager steps are slow on JAX, graphs on TensorFlow.
        in_gate = "eager" if "keras3_tf" in RUNTIMES else "graph"
        found = [case for case in FOUND if everything or case.run == in_gate]
        more = sampled()[0] if everything else []
        if everything and "keras3_jax" in RUNTIMES:
            # A plain model takes the step of a `TPUModel`, and is laid out as one: some cases are enough.
            of_plain = metafunc.function is test_plain_models_in_a_scope_take_the_steps_of_one_device
            more = [*more, *sampled_sharded()[0][:: 4 if of_plain else 1]]
        if not DIVIDES_REGULARIZERS:
            of_gate = [case for case in of_gate if not why_not(case)]
        metafunc.parametrize("case", dict.fromkeys([*found, *of_gate, *more]), ids=str)


def test_replicas_take_the_steps_of_one_device(case):
    print(f"KTE_PARITY_SEED={SEED}: {case!r}")
    start, expected = check.reference(case)
    got = check.ours(case, check.scope_of(case), start)
    assert not check.differences(expected, got, start)


@pytest.mark.exhaustive
def test_plain_models_in_a_scope_take_the_steps_of_one_device(case):
    print(f"KTE_PARITY_SEED={SEED}: {case!r}")
    start, expected = check.reference(case)
    got = check.ours(case, check.scope_of(case), start, _runtime.keras.Model)
    assert not check.differences(expected, got, start)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("dimensions", "number", "sampled"),
    [(DIMENSIONS, NUMBER_OF_CASES, sampled), (SHARDED, NUMBER_OF_SHARDED_CASES, sampled_sharded)],
    ids=["unsharded", "sharded"],
)
def test_every_two_values_meet_that_can(dimensions, number, sampled):
    cases, impossible = sampled()
    assert len(set(cases)) == len(cases) >= number
    met = set().union(*map(pairs_of, cases))
    assert not all_pairs(dimensions).keys() - met - set(impossible)
    assert not any(why_not(case) for case in cases)


@once
def test_in_the_gate_every_value_is_met():
    cases = [case for cases in gate().values() for case in cases]
    assert not any(why_not(case) for case in cases) or not DIVIDES_REGULARIZERS
    assert not values_of(DIMENSIONS) - met(cases, DIMENSIONS)
    assert {case.shard for case in cases} == {"unsharded", "fsdp", "both"}


@once
@pytest.mark.parametrize("runtime", gate())
def test_in_the_gate_every_important_value_is_met_on_each_runtime(runtime):
    # On TensorFlow 2.21 Keras 2 is the one of 2.15, and its step as well.
    important = ("model", "reduction", "weights") if runtime == "keras2_tf221" else IMPORTANT
    assert not values_of(important) - met(gate()[runtime], important)


def values_of(dimensions):
    return {(name, value) for name in dimensions for value in DIMENSIONS[name]}


def met(cases, dimensions):
    return {(name, getattr(case, name)) for case in cases for name in dimensions}


@pytest.mark.exhaustive
def test_the_values_that_cannot_meet_are_these():
    cannot = {(u, v) for (_, u), (_, v) in sampled()[1]}
    meshes = {(replicas, shard) for shard, there in REPLICAS.items() for replicas in there}
    others = {*itertools.product(SHARDED["replicas"], SHARDED["shard"])} - meshes
    assert {(u, v) for (_, u), (_, v) in sampled_sharded()[1]} == cannot | others
    has_no_timesteps, has_one_output = {"dense", "list", "dict"}, {"dense", "words"}
    assert cannot == {
        ("dict of words", "none"),  # unreduced losses of other shapes
        *((extras, "none") for extras in DIMENSIONS["extras"] if extras not in ("no extras", "own compute_loss")),
        *((model, "per timestep") for model in has_no_timesteps),
        *((model, "per output") for model in has_one_output),
        *((model, "per class") for model in DIMENSIONS["model"] if model != "dense"),
        *((loss, "per class") for loss in DIMENSIONS["loss"] if loss != "crossentropy"),
        *((loss, "overflow") for loss in DIMENSIONS["loss"] if loss != "mse"),
        ("per class", "overflow"),
        ("per class", "padded"),
        ("add_loss", "padded"),
        ("unscaled", "overflow"),
    }


@once
def test_a_case_is_told_by_what_is_not_plain():
    assert str(Case(weights="per class", steps_per_execution=4)) == (
        "dense, mse, sum_over_batch_size, per class, 96 by 32, SGD, spe 4, graph, 8 replicas"
    )
    assert all(Case.parse(str(case)) == case for cases in gate().values() for case in cases)
