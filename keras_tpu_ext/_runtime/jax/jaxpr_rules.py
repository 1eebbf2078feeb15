"""Where the batch axis goes in each of JAX's operations.

An operation without a rule mixes the rows for all that is known. Names are those of `jax.lax`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from keras_tpu_ext._runtime.common import batch_axis
from keras_tpu_ext._runtime.common.batch_axis import CONSTANT, Contraction, Operand, Value, first_mixed, mixed, rows

# What these do is in `jaxpr_axis.py`.
CONTROL_FLOW = ("cond", "while", "scan")


class Shape(NamedTuple):
    """A shape: `sizes` with `None` where a size depends on the number of rows, and `real` for one such number."""

    sizes: Sequence[int | None]
    real: Sequence[int]


class Equation(NamedTuple):
    """An operation in two jaxprs that were made for different numbers of rows."""

    name: str  # name of the primitive
    params: Mapping[str, Any]  # its parameters in the first jaxpr
    others: Mapping[str, Any]  # its parameters in the second one
    values: tuple[Value, ...]  # what is known of its operands
    shapes: tuple[Shape, ...]  # their shapes
    results: tuple[Shape, ...]  # the shapes of its results

    @property
    def rank(self) -> int:
        """The rank of the first operand."""
        return len(self.shapes[0].sizes)

    @property
    def operands(self) -> list[Operand]:
        """The operands, each with its rank."""
        return [Operand(value, len(shape.sizes)) for value, shape in zip(self.values, self.shapes, strict=True)]

    def is_whole(self, axis: int, size: int) -> bool:
        """Return whether `size` is that of an axis of the first operand."""
        return bool(self.shapes[0].real[axis] == size)


# Takes an operation with operands of which one is not constant, and none is mixed.
Rule = Callable[[Equation], Value]


def value_of(equation: Equation) -> list[Value]:
    """Return what is known of the results of an operation; see `jaxpr_axis.py` for the sizes of constants."""
    if equation.name in _EACH:
        return list(equation.values)
    is_constant, rule = all(value.kind == "constant" for value in equation.values), _RULES.get(equation.name)
    found, known = CONSTANT, first_mixed(equation.values)
    if rule is None and not is_constant:
        unknown = mixed(f"{equation.name} is unknown", is_certain=False)
        found = known if known is not None and known.is_certain else unknown
    elif _depends_on_size(equation):
        found = mixed(f"{equation.name} uses the number of rows")
    elif known is not None:
        found = known
    elif rule is not None and not is_constant:
        found = rule(equation)
    return [found] * len(equation.results)


# Parameters that say what the shapes of operands and results do, or that are no numbers.
_SHAPES = (
    "shape sizes new_sizes dimensions limit_indices slice_sizes padding_config sharding out_sharding jaxprs jaxpr "
    "call_jaxpr fun_jaxpr aval out_avals reps branches"
)


def _depends_on_size(equation: Equation) -> bool:
    """Return whether a parameter depends on the number of rows that is not part of a shape."""
    params, others = equation.params, equation.others
    if equation.name == "pad":  # only how much comes after an axis is part of a shape
        befores = [[(low, inner) for low, _, inner in each["padding_config"]] for each in (params, others)]
        return befores[0] != befores[1]
    simple = (int, float, str, tuple, bool)
    numbers = {key: (value, others.get(key)) for key, value in params.items() if isinstance(value, simple)}
    return any(one != other and one == one and key not in _SHAPES.split() for key, (one, other) in numbers.items())


def _if_rows(rule: Callable[[Equation, Value], Value]) -> Rule:
    """Return the rule of an operation that gives its first operand another shape, if that has rows."""

    @functools.wraps(rule)
    def of_first(equation: Equation) -> Value:
        value = equation.values[0]
        return rule(equation, value) if value.kind == "rows" else value

    return of_first


def _elementwise(equation: Equation) -> Value:
    return batch_axis.elementwise(equation.operands, equation.name, _LINEAR.get(equation.name))


_LINEAR: dict[str, batch_axis.Linear] = {
    **dict.fromkeys(("add", "add_any", "sub", "neg", "copy", "reduce_precision", "convert_element_type"), "add"),
    "mul": "multiply",
    "div": "divide",
}


def _first(equation: Equation) -> Value:
    """Axes come or go after those of the operand, such as the random bits of keys."""
    return equation.values[0]


@_if_rows
def _broadcast(equation: Equation, value: Value) -> Value:
    return rows(equation.params["broadcast_dimensions"][value.axis], value.per_row)


def _reshape(equation: Equation) -> Value:
    old, new = equation.shapes[0], equation.results[0]
    return batch_axis.reshape(equation.values[0], [size or 0 for size in old.sizes], new.sizes, equation.name)


@_if_rows
def _squeeze(equation: Equation, value: Value) -> Value:
    return rows(value.axis - sum(axis < value.axis for axis in equation.params["dimensions"]), value.per_row)


def _transpose(equation: Equation) -> Value:
    return batch_axis.transpose(equation.values[0], equation.params["permutation"])


def _together(equation: Equation) -> Value:
    """Return the value of the operands of one shape together; the others are numbers to start from."""
    return batch_axis.elementwise(equation.operands, equation.name)


def _reduce(key: str, how: str) -> Rule:
    """Return the rule of a reduction over the axes in the parameter `key`."""

    def rule(equation: Equation) -> Value:
        value = equation.values[0] if len(equation.values) == 1 else _together(equation)
        return batch_axis.reduce(value, equation.params[key], equation.name, how)

    return rule


def _along(key: str) -> Rule:
    """Return the rule of an operation that combines entries along the axis or axes in the parameter `key`."""

    def rule(equation: Equation) -> Value:
        axes = equation.params.get(key, -1)
        axes = [axes] if isinstance(axes, int) else axes
        return batch_axis.along(_together(equation), [axis % equation.rank for axis in axes], equation.name)

    return rule


def _along_last(equation: Equation, count: int) -> Value:
    found = {value for value in equation.values if value.kind != "constant"}
    if len(found) > 1 or any(len(shape.sizes) != equation.rank for shape in equation.shapes):
        return mixed(equation.name)
    return batch_axis.along(found.pop(), range(equation.rank - count, equation.rank), equation.name)


def _of_matrices(equation: Equation) -> Value:
    return _along_last(equation, 2)


def _fft(equation: Equation) -> Value:
    return _along_last(equation, len(equation.params["fft_lengths"]))


def _concatenate(equation: Equation) -> Value:
    return batch_axis.concatenate(equation.values, equation.params["dimension"], equation.name)


def _pad(equation: Equation) -> Value:
    both = _elementwise(equation)
    if both.kind != "rows":
        return both
    is_same = all(params["padding_config"][both.axis] == (0, 0, 0) for params in (equation.params, equation.others))
    return both if is_same else mixed(f"{equation.name} adds rows")


@_if_rows
def _slice(equation: Equation, value: Value) -> Value:
    params = equation.params
    strides = params["strides"] or [1] * equation.rank
    is_whole = not params["start_indices"][value.axis] and strides[value.axis] == 1
    is_whole = is_whole and equation.is_whole(value.axis, params["limit_indices"][value.axis])
    return value if is_whole else mixed(f"{equation.name} takes some of the rows")


def _dynamic_slice(equation: Equation) -> Value:
    value, *indices = equation.values
    if (bad := _not_constant(indices, equation.name)) is not None:
        return bad
    if value.kind == "rows" and not equation.is_whole(value.axis, equation.params["slice_sizes"][value.axis]):
        return mixed(f"{equation.name} takes some of the rows")
    return value


def _dynamic_update_slice(equation: Equation) -> Value:
    if (bad := _not_constant(equation.values[2:], equation.name)) is not None:
        return bad
    both = batch_axis.elementwise(equation.operands[:2], equation.name)
    if both.kind != "rows":
        return both
    is_whole = equation.is_whole(both.axis, equation.shapes[1].real[both.axis])
    return both if is_whole else mixed(f"{equation.name} changes some of the rows")


def _not_constant(indices: Sequence[Value], where: str) -> Value | None:
    """Return what becomes of indices that are not constant; `None` if all are."""
    other = next((value for value in indices if value.kind != "constant"), None)
    return None if other is None else mixed(other.reason or where)


def _gather(equation: Equation) -> Value:
    (value, index), numbers = equation.values, equation.params["dimension_numbers"]
    if value.kind not in ("constant", "rows") or index.kind not in ("constant", "rows"):
        return value if index.kind == "constant" else mixed(index.reason or value.reason)
    of_index = [i for i in range(len(equation.results[0].sizes)) if i not in numbers.offset_dims]
    if value.kind == "constant":
        is_vector = index.axis >= len(of_index)  # the rows are parts of one index
        return mixed(equation.name) if is_vector else rows(of_index[index.axis], index.per_row)
    batching = tuple(getattr(numbers, "operand_batching_dims", ()))
    if value.axis in batching:
        axis = numbers.start_indices_batching_dims[batching.index(value.axis)]
        is_same = index in (CONSTANT, rows(axis, value.per_row))
        return rows(of_index[axis], value.per_row) if is_same else mixed(equation.name)
    if index.kind == "rows":
        return mixed(f"{equation.name} looks rows up by rows", is_certain=False)
    if value.axis in numbers.collapsed_slice_dims or not equation.is_whole(
        value.axis, equation.params["slice_sizes"][value.axis]
    ):
        return mixed(f"{equation.name} takes some of the rows")
    window = _window(equation, (*numbers.collapsed_slice_dims, *batching))
    return rows(numbers.offset_dims[window.index(value.axis)], value.per_row)


def _window(equation: Equation, without: Sequence[int]) -> list[int]:
    return [axis for axis in range(equation.rank) if axis not in without]


def _scatter(equation: Equation) -> Value:
    (value, index, update), numbers = equation.values, equation.params["dimension_numbers"]
    if any(each.kind in ("sum", "mean", "size") for each in equation.values):
        return mixed(next(each.reason for each in equation.values if each.reason))
    if value.kind == "constant":
        is_sum = equation.name.endswith("add")
        return Value("sum", reason=equation.name) if is_sum else mixed(equation.name, is_certain=False)
    batching = tuple(getattr(numbers, "operand_batching_dims", ()))
    if value.axis in batching:
        axis = numbers.scatter_indices_batching_dims[batching.index(value.axis)]
        of_index = [i for i in range(len(equation.shapes[2].sizes)) if i not in numbers.update_window_dims]
        is_same = index in (CONSTANT, rows(axis, value.per_row))
        is_same = is_same and update in (CONSTANT, rows(of_index[axis], value.per_row))
        return value if is_same else mixed(equation.name)
    if index.kind == "constant" and value.axis not in numbers.inserted_window_dims:
        window = _window(equation, (*numbers.inserted_window_dims, *batching))
        axis = numbers.update_window_dims[window.index(value.axis)]
        if equation.is_whole(value.axis, equation.shapes[2].real[axis]) and update.kind == "rows":
            return value if update.axis == axis else mixed(equation.name)
    return mixed(f"{equation.name} changes some of the rows", is_certain=False)


def _dot(equation: Equation) -> Value:
    contracted, batch = equation.params["dimension_numbers"]
    one, other = (
        Contraction(value, rank, tuple(along), tuple(over))
        for (value, rank), along, over in zip(equation.operands, batch, contracted, strict=True)
    )
    return batch_axis.contract(one, other, equation.name)


def _convolution(equation: Equation) -> Value:
    (value, kernel), params = equation.values, equation.params
    numbers = params["dimension_numbers"]
    if kernel.kind != "constant" or params["batch_group_count"] != 1:
        return mixed(equation.name, is_certain=False)
    if value.kind != "rows":
        return value
    is_batch = value.axis == numbers.lhs_spec[0]
    return rows(numbers.out_spec[0], value.per_row) if is_batch else mixed(equation.name)


def _reduce_window(equation: Equation) -> Value:
    value, params = _together(equation), equation.params
    if value.kind != "rows":
        return value if value.kind == "mixed" else mixed(value.reason)
    moves = (*params["window_strides"][value.axis : value.axis + 1], *params["padding"][value.axis])
    dilated = [(params.get(key) or [1] * equation.rank)[value.axis] for key in ("base_dilation", "window_dilation")]
    is_same = (params["window_dimensions"][value.axis], *moves, *dilated) == (1, 1, 0, 0, 1, 1)
    return value if is_same else mixed(f"{equation.name} over the rows")


def _stack(equation: Equation) -> Value:
    """A new axis, along which there are the operands."""
    value, axis = _together(equation), equation.params["axis"]
    return rows(value.axis + (axis <= value.axis), value.per_row) if value.kind == "rows" else value


def _unstack(equation: Equation) -> Value:
    value, axis = _along("axis")(equation), equation.params["axis"]
    return rows(value.axis - (axis < value.axis), value.per_row) if value.kind == "rows" else value


@_if_rows
def _tile(equation: Equation, value: Value) -> Value:
    return value if equation.params["reps"][value.axis] == 1 else mixed(f"{equation.name} repeats the rows")


# Every result is one of the operands.
_EACH = ("device_put", "optimization_barrier")
_ELEMENTWISE = (
    "abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp clz complex "
    "conj convert_element_type copy copy_p cos cosh digamma div eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge "
    "gt igamma igamma_grad_a igammac imag integer_pow is_finite le le_to lgamma log log1p logistic lt lt_to max min "
    "mul mulhi name ne neg nextafter not or polygamma population_count pow random_fold_in random_gamma "
    "random_gamma_grad real reduce_precision regularized_incomplete_beta rem round rsqrt select_n shift_left "
    "shift_right_arithmetic shift_right_logical sharding_constraint sign sin sinh sqrt square stop_gradient sub tan "
    "tanh threefry2x32 xor zeta"
)
# For each rule the names of operations.
_TABLE: list[tuple[str, Rule]] = [
    (_ELEMENTWISE, _elementwise),
    ("random_bits random_split random_wrap random_unwrap random_seed bitcast_convert_type", _first),
    ("cumsum cumprod cummax cummin cumlogsumexp top_k split", _along("axis")),
    ("sort", _along("dimension")),
    ("approx_top_k", _along("reduction_dimension")),
    ("rev", _along("dimensions")),
    ("reduce_sum", _reduce("axes", "sum")),
    ("argmax argmin reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor", _reduce("axes", "other")),
    ("reduce", _reduce("dimensions", "other")),
    ("reduce_window reduce_window_sum reduce_window_max reduce_window_min", _reduce_window),
    ("scatter scatter-add scatter_add scatter_sub scatter_mul scatter_min scatter_max", _scatter),
    ("scatter-sub scatter-mul scatter-min scatter-max", _scatter),
    ("cholesky lu geqrf qr svd eigh eig triangular_solve", _of_matrices),
    ("broadcast_in_dim", _broadcast),
    ("reshape", _reshape),
    ("squeeze", _squeeze),
    ("transpose", _transpose),
    ("concatenate", _concatenate),
    ("stack", _stack),
    ("unstack", _unstack),
    ("tile", _tile),
    ("pad", _pad),
    ("slice", _slice),
    ("dynamic_slice", _dynamic_slice),
    ("dynamic_update_slice", _dynamic_update_slice),
    ("gather", _gather),
    ("dot_general", _dot),
    ("conv_general_dilated", _convolution),
    ("fft", _fft),
]
_RULES: dict[str, Rule] = {name: rule for names, rule in _TABLE for name in names.split()}
