"""Follow the batch axis through a function, by its jaxprs for two sizes of the batch.

What differs between the two is what depends on the number of rows: the axes of the batch, and numbers made from it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from keras_tpu_ext._runtime.common.batch_axis import CONSTANT, Value, first_mixed, join, mixed, of_examples, rows
from keras_tpu_ext._runtime.common.missing_names import private
from keras_tpu_ext._runtime.common.types import Nest
from keras_tpu_ext._runtime.jax.batch import OF_EXAMPLES, followed
from keras_tpu_ext._runtime.jax.jaxpr_rules import CONTROL_FLOW, Equation, Shape, value_of

_summarize: Any = private("jax._src.source_info_util:summarize")

# A prime and a number with many divisors: a reshape into pairs fails for the one, and code that asks whether rows
# come in pairs does something else for the other. More than twice as many, so that a half or a quarter of the rows
# differs, too. Not larger: code may make NumPy arrays of these sizes.
SIZES = (29, 60)
_NUMBER = "the number of rows is used as a number"


@dataclasses.dataclass(frozen=True)
class Argument:
    """An abstract array; `None` in its shape is the number of rows."""

    shape: tuple[int | None, ...]
    dtype: Any

    def of(self, size: int) -> jax.ShapeDtypeStruct:
        """Return it for a number of rows."""
        return jax.ShapeDtypeStruct([size if one is None else one for one in self.shape], self.dtype)

    @property
    def value(self) -> Value:
        """What is known of it."""
        return rows(self.shape.index(None)) if None in self.shape else CONSTANT


def follow(function: Callable[..., Nest], *arguments: Nest) -> tuple[Any, str]:
    """Return the value of each output of `function`, and an operation with effects on rows if there is one.

    It takes structures of `Argument` as arrays; it is traced twice, and nothing is computed.
    """
    traces, outputs = [], None
    for size in SIZES:
        at_size = jax.tree.map(lambda one, size=size: one.of(size), arguments)
        # A function of its own: JAX keeps traces by function and shapes.
        with followed():
            jaxpr, outputs = jax.make_jaxpr(lambda *given: function(*given), return_shape=True)(*at_size)
        traces.append(jaxpr)
    structure, walk = jax.tree.structure(outputs), _Walk()
    entries = [_Entry(leaf.value) for leaf in jax.tree.leaves(arguments)]
    try:
        found = [entry.value for entry in walk.closed(traces, entries)]
    except _DiffersError:
        found = [mixed("what is computed depends on the number of rows")] * structure.num_leaves
    return jax.tree.unflatten(structure, found), walk.effect


class _DiffersError(Exception):
    """The two jaxprs have different operations."""


class _Entry(NamedTuple):
    """What is known of a variable; `numbers` are its values in the two jaxprs, if it is made of numbers only."""

    value: Value
    numbers: tuple[np.ndarray, np.ndarray] | None = None


class _Walk:
    """Walks through two jaxprs at once."""

    effect = ""  # an operation with effects on something else than constants

    def closed(self, jaxprs: Sequence[Any], inputs: Sequence[_Entry]) -> list[_Entry]:
        """Return the entries of the outputs of two closed jaxprs."""
        if len(jaxprs[0].consts) != len(jaxprs[1].consts):
            raise _DiffersError
        consts = [_of_numbers(*pair) for pair in zip(*(jaxpr.consts for jaxpr in jaxprs), strict=True)]
        return self.open([jaxpr.jaxpr for jaxpr in jaxprs], consts, inputs)

    def open(self, jaxprs: Sequence[Any], consts: Sequence[_Entry], inputs: Sequence[_Entry]) -> list[_Entry]:
        """Return the entries of the outputs of two jaxprs, given those of their constants and inputs."""
        first, second = jaxprs
        starts = [[*jaxpr.constvars, *jaxpr.invars] for jaxpr in jaxprs]
        known = dict(zip(zip(*starts, strict=True), [*consts, *inputs], strict=True))
        if len(first.eqns) != len(second.eqns):
            raise _DiffersError

        def read(pair: tuple[Any, Any]) -> _Entry:
            if all(hasattr(each, "val") for each in pair):
                return _of_numbers(*(np.asarray(each.val, each.aval.dtype) for each in pair))
            if pair not in known:
                raise _DiffersError
            return known[pair]

        for pair in zip(first.eqns, second.eqns, strict=True):
            if pair[0].primitive.name != pair[1].primitive.name or len(pair[0].invars) != len(pair[1].invars):
                raise _DiffersError
            entries = [read(each) for each in zip(*(equation.invars for equation in pair), strict=True)]
            results = zip(*(equation.outvars for equation in pair), strict=True)
            known.update(zip(results, self._equation(pair, entries), strict=True))
        return [read(each) for each in zip(first.outvars, second.outvars, strict=True)]

    def _equation(self, pair: Sequence[Any], entries: list[_Entry]) -> list[_Entry]:
        one, other = pair
        name = one.primitive.name
        if (folded := _folded(pair, entries)) is not None:
            return folded
        values = [entry.value for entry in entries]
        if one.effects and name not in CONTROL_FLOW and any(value.kind != "constant" for value in values):
            self.effect = self.effect or name
        shapes = [_shape(*variables) for variables in zip(one.invars, other.invars, strict=True)]
        results = [_shape(*variables) for variables in zip(one.outvars, other.outvars, strict=True)]
        equation = Equation(name, one.params, other.params, tuple(values), tuple(shapes), tuple(results))
        if name in _CALLS.split() and _has_own_gradient(one) and set(values) != {CONSTANT}:
            unknown = mixed(f"the gradient of {name}, which may combine rows", is_certain=False)
            found = [_Entry(first_mixed(values) or unknown)] * len(results)
        elif name in _CALLS.split():
            found = self._called(equation, _inner(pair), entries)
        elif name == "custom_linear_solve":
            found = self._solved(pair, entries)
        elif name in CONTROL_FLOW:
            found = [_Entry(value) for value in getattr(self, f"_{name}")(equation, entries)]
        else:
            found = [_Entry(value) for value in value_of(equation)]
        reasons = {value.reason for value in values}
        return [
            _Entry(_located(_settled(entry.value, shape, name), one, reasons), entry.numbers)
            for entry, shape in zip(found, results, strict=True)
        ]

    def _called(self, equation: Equation, inner: Sequence[Any], entries: list[_Entry]) -> list[_Entry]:
        if equation.params.get("name") == OF_EXAMPLES:
            return [_Entry(of_examples(equation.values))] * len(equation.results)
        if not hasattr(inner[0], "consts"):
            return self.open(inner, [], entries)
        skipped = len(entries) - len(inner[0].jaxpr.invars)  # a rule of its own may have arguments before
        return self.closed(inner, entries[max(0, skipped) :])

    def _solved(self, pair: Sequence[Any], entries: list[_Entry]) -> list[_Entry]:
        """Return what a linear solver makes of the constants that are its own, and of the right-hand sides."""
        counts = pair[0].params["const_lengths"]
        before = counts.matvec + counts.vecmat
        consts, sides = entries[before : before + counts.solve], entries[sum(counts) :]
        return self.closed([equation.params["jaxprs"].solve for equation in pair], [*consts, *sides])

    def _cond(self, equation: Equation, entries: list[_Entry]) -> list[Value]:
        branches = zip(*(params["branches"] for params in (equation.params, equation.others)), strict=True)
        found = [[entry.value for entry in self.closed(branch, entries[1:])] for branch in branches]
        joined = found[0]
        for values in found[1:]:
            joined = [join(*pair, "cond") for pair in zip(joined, values, strict=True)]
        return _if_decided(entries[0].value, joined, "the branch of a cond")

    def _while(self, equation: Equation, entries: list[_Entry]) -> list[Value]:
        for_test, for_body = equation.params["cond_nconsts"], equation.params["body_nconsts"]
        test_consts, consts = entries[:for_test], entries[for_test : for_test + for_body]
        tests, bodies = ([params[key] for params in (equation.params, equation.others)] for key in _OF_WHILE)
        carry = _fixpoint(
            [entry.value for entry in entries[for_test + for_body :]],
            lambda carry: [entry.value for entry in self.closed(bodies, [*consts, *map(_Entry, carry)])],
        )
        (test,) = self.closed(tests, [*test_consts, *map(_Entry, carry)])
        return _if_decided(test.value, carry, "the number of rounds of a loop")

    def _scan(self, equation: Equation, entries: list[_Entry]) -> list[Value]:
        params, bodies = equation.params, [each["jaxpr"] for each in (equation.params, equation.others)]
        constants, carried = params["num_consts"], params["num_carry"]
        consts, xs = entries[:constants], equation.values[constants + carried :]
        over_rows = params["length"] != equation.others["length"]
        if over_rows and any(entry.value.kind != "constant" for entry in entries[: constants + carried]):
            return [mixed("a scan over the rows")] * len(equation.results)
        # Over rows a round sees one row: what it makes of it is a row of the outputs, unless it is carried on.
        one_row = mixed("a scan over the rows carries something from row to row", is_certain=False)
        sliced = [one_row if over_rows and value.kind == "rows" else _slice(value) for value in xs]
        outputs: list[Value] = []

        def round_(carry: list[Value]) -> list[Value]:
            given = [*consts, *map(_Entry, [*carry, *sliced])]
            results = [entry.value for entry in self.closed(bodies, given)]
            outputs[:] = results[carried:]
            return results[:carried]

        carry = _fixpoint([entry.value for entry in entries[constants : constants + carried]], round_)
        if over_rows and _has_sizes(bodies):
            return [mixed(_NUMBER)] * len(equation.results)
        if over_rows and carried:  # what is carried depends on the number of rounds; backwards, so does each round
            carry = [one_row] * carried
            if params["reverse"]:
                return [mixed("a scan over the rows begins with the last")] * len(equation.results)
        return [*carry, *(_stacked(value, one_row) for value in outputs)]


# What these call is part of the function, as it stands.
_CALLS = (
    "jit pjit closed_call core_call core_closed_call remat remat2 checkpoint composite custom_jvp_call "
    "custom_vjp_call custom_vjp_call_jaxpr"
)
_OF_WHILE = ("cond_jaxpr", "body_jaxpr")


def _of_numbers(one: Any, other: Any) -> _Entry:
    """Return the entry of a constant of the two jaxprs."""
    if one is other:
        return _Entry(CONSTANT)
    one, other = np.asarray(one), np.asarray(other)
    if one.shape != other.shape:
        differ = [axis for axis in range(one.ndim) if one.shape[axis] != other.shape[axis]]
        axis, shorter = differ[0], np.asarray(one)
        prefix = np.take(shorter, np.arange(min(one.shape[axis], other.shape[axis])), axis)
        same = len(differ) == 1 and np.array_equal(prefix, np.take(other, np.arange(prefix.shape[axis]), axis))
        per_row = one.shape[axis] // SIZES[0]
        return _Entry(rows(axis, per_row) if same and per_row else mixed(_NUMBER))
    numbers = (one, other) if not one.ndim else None
    if _are_equal(one, other):
        return _Entry(CONSTANT, numbers)
    if jax.dtypes.issubdtype(one.dtype, np.number):
        per_row, second = (each.astype("float64") / size for each, size in zip((one, other), SIZES, strict=True))
        if np.allclose(per_row, second, rtol=1e-6, atol=0.0):
            return _Entry(Value("size", reason=_NUMBER), numbers)
    return _Entry(mixed(_NUMBER), numbers)


def _are_equal(one: np.ndarray, other: np.ndarray) -> bool:
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"))


def _folded(pair: Sequence[Any], entries: Sequence[_Entry]) -> list[_Entry] | None:
    """Return what an operation makes of numbers of which one depends on the number of rows; else `None`."""
    name, numbers = pair[0].primitive.name, [entry.numbers for entry in entries if entry.numbers is not None]
    if not entries or len(numbers) < len(entries) or name in CONTROL_FLOW or name in _CALLS.split():
        return None
    if name != "convert_element_type" and all(_are_equal(*one) for one in numbers):
        return None
    results = []
    for i, equation in enumerate(pair):
        with jax.ensure_compile_time_eval():
            found = equation.primitive.bind(*[one[i] for one in numbers], **equation.params)
        results.append(found if equation.primitive.multiple_results else [found])
    return [_of_numbers(*each) for each in zip(*results, strict=True)]


def _inner(pair: Sequence[Any]) -> list[Any]:
    """Return the jaxprs that two equations call."""
    key = next(key for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in pair[0].params)
    return [equation.params[key] for equation in pair]


def _shape(one: Any, other: Any) -> Shape:
    real, others = (getattr(each.aval, "shape", ()) for each in (one, other))  # a token has none
    if len(real) != len(others):
        raise _DiffersError
    return Shape([None if size != second else size for size, second in zip(real, others, strict=True)], real)


def _settled(value: Value, shape: Shape, where: str) -> Value:
    """Return a value that fits the axes of a result whose size depends on the number of rows."""
    if value.kind not in ("constant", "rows"):
        return value
    axes = [axis for axis, size in enumerate(shape.sizes) if size is None]
    if not axes:
        return value if value.kind == "constant" else mixed(where, is_certain=False)
    if len(axes) > 1:
        return mixed(f"{where} compares rows with rows")
    per_row, rest = divmod(shape.real[axes[0]], SIZES[0])
    if value.kind == "constant" and axes[0] and where in ("random_bits", "random_split"):
        return mixed(f"{where} draws others for another number of rows", is_certain=False)
    if value.kind == "constant":
        return mixed(f"{where} makes something that is not as long as the batch") if rest else rows(axes[0], per_row)
    return value if value == rows(axes[0], per_row) and not rest else mixed(where, is_certain=False)


def _located(value: Value, equation: Any, known: set[str]) -> Value:
    """Return the value with the layer and the line of code where its reason is, if that is new."""
    if not value.reason or value.reason in known or _LOCATION.search(value.reason):
        return value
    own = [line for line in _frames(equation) if not re.search(r"[/\\](keras|keras_tpu_ext)[/\\]", line)]
    scopes = [part for part in str(equation.source_info.name_stack).split("/") if part and "(" not in part]
    where = "".join([f" in `{'/'.join(scopes)}`" if scopes else "", f" at {own[-1]}" if own else ""])
    return dataclasses.replace(value, reason=value.reason + where)


def _frames(equation: Any) -> list[str]:
    """Return the lines of code, but for JAX's, that made an operation, from the outermost on."""
    lines: list[str] = _summarize(equation.source_info, num_frames=40).splitlines()
    return lines


def _has_own_gradient(equation: Any) -> bool:
    """Return whether an operation has a gradient of the user's."""
    place = _place(equation.params.get("bwd", equation.params.get("jvp_jaxpr_fun")))
    if _OF_JAX in place:
        place = _place(getattr(equation.params.get("call_jaxpr"), "jaxpr", None))
    if _OF_JAX in place:  # of `jax.custom_gradient`: whoever calls it, perhaps by Keras, has made it
        place = [place, *(line for line in _frames(equation) if not re.search(r"[/\\]keras[/\\]", line))][-1]
    return bool(place) and not re.search(r"[/\\](jax|keras|keras_tpu_ext)[/\\]", place)


def _place(function: Any) -> str:
    """Return the place of the code that a jaxpr, or a function in its parameters, was made of."""
    return str(getattr(getattr(function, "debug_info", None), "func_src_info", ""))


_OF_JAX = "custom_derivatives.py"
_LOCATION = re.compile(r" in `| at .*:\d")


def _if_decided(by: Value, values: list[Value], where: str) -> list[Value]:
    if by.kind == "constant":
        return values
    return [by if by.kind == "mixed" else mixed(f"{where} depends on {by.reason or 'rows'}")] * len(values)


def _fixpoint(carry: list[Value], step: Callable[[list[Value]], list[Value]]) -> list[Value]:
    while True:
        after = [join(*pair, "a loop") for pair in zip(carry, step(carry), strict=True)]
        if after == carry:
            return carry
        carry = after


def _slice(value: Value) -> Value:
    """Return the value of one slice of an array along its first axis."""
    return rows(value.axis - 1, value.per_row) if value.kind == "rows" else value


def _stacked(value: Value, one_row: Value) -> Value:
    """Return the value of slices along a new first axis."""
    if value == one_row:
        return CONSTANT  # which becomes rows, by its shape
    return rows(value.axis + 1, value.per_row) if value.kind == "rows" else value


def _has_sizes(jaxprs: Sequence[Any]) -> bool:
    """Return whether two closed jaxprs differ, as their numbers or parameters do where they use a size."""
    return _without_names(jaxprs[0]) != _without_names(jaxprs[1])


def _without_names(jaxpr: Any) -> str:
    return re.sub(r"0x[0-9a-f]+", "", str(jaxpr))
