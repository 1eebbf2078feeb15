"""Calls of `tf.*` and `K.*`: in a model they become `keras.ops`, in an input pipeline they stay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import libcst as cst
import libcst.matchers as m

from keras_tpu_ext.tools.migrate import templates
from keras_tpu_ext.tools.migrate.context import Context
from keras_tpu_ext.tools.migrate.names import chain
from keras_tpu_ext.tools.migrate.roles import MODEL
from keras_tpu_ext.tools.migrate.tables.backend import ANYWHERE, BACKEND
from keras_tpu_ext.tools.migrate.tables.keras_names import KERAS_NAMES
from keras_tpu_ext.tools.migrate.tables.out_of_reach import OF_DATA, TF1_NAMES, out_of_reach
from keras_tpu_ext.tools.migrate.tables.tensorflow import TENSORFLOW, canonical_name
from keras_tpu_ext.tools.migrate.values import KERAS, PLAIN

DTYPES = (
    *("float16", "float32", "float64", "bfloat16", "half", "double", "complex64", "bool"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
)
_DTYPE_NAMES = {"half": "float16", "double": "float64"}
_BACKEND = "keras.backend."
_SEEDS = ("tf.random.set_seed", "tf.random.set_random_seed", "tf.set_random_seed", "tf.compat.v1.set_random_seed")
_OF_TODAY = tuple(f"tf.compat.v1.{part}" for part in ("logging", "gfile", "ConfigProto", "GPUOptions", "random"))
_SHAPE = m.Call(func=m.Attribute(attr=m.Name("shape"))) | m.Attribute(attr=m.Name("shape"))
_SIZE = m.Subscript(m.Call(m.Attribute(attr=m.Name("shape"))))
_MAKERS = ("initializer", "name_scope", "variable_scope", "device", "set_seed")  # in a model, but on no value of it


def row_of(name: str) -> str | None:
    """Return the row of a function, by its full name; empty if only the drop-in has it, `None` if nobody."""
    if name.startswith(_BACKEND):
        last = name.removeprefix(_BACKEND)
        return None if last in (*ANYWHERE, *KERAS_NAMES["keras.backend"]) else BACKEND.get(last, "")
    key = canonical_name(name.removeprefix("tf.")) if name.startswith("tf.") else None
    return None if key is None else TENSORFLOW[key]


def call(context: Context, original: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
    """Return what a call of a function of TensorFlow, or of `keras.backend`, becomes; `None` if it stays."""
    name = context.names.of(original.func)
    old = context.name(original.func)
    if name == f"{_BACKEND}get_value" and len(updated.args) == 1 and MODEL not in context.roles.of(original):
        context.mapped(original, old, "keras.ops.convert_to_numpy")
        return updated.with_changes(func=cst.parse_expression("keras.ops.convert_to_numpy"))
    if name in _SEEDS:
        return _seed(context, original, updated)
    if _of_sizes(context, original, name) and context.roles.of(original) == {MODEL}:
        context.mapped(original, old, "the sizes themselves")
        return updated.args[0].value
    row = row_of(name)
    if row is None:
        _tell_unknown(context, original, name)
    if row is None or _sets_learning_rate(context, original) or out_of_reach(name):
        return None
    where = KERAS if name.startswith(_BACKEND) and not row else _where(context, original)
    if where == KERAS and _computes_size(context, original, name):
        where = "a size that TensorFlow computes"
    if where == KERAS:
        return _in_model(context, updated, original, row)
    if where:
        context.undecided(original, old, where)
    return None


def _in_model(context: Context, updated: cst.Call, original: cst.Call, row: str) -> cst.BaseExpression | None:
    """Return a call on values of Keras in the words of its row; `None` if only the drop-in has it, or nobody."""
    name, old = context.names.of(original.func), context.name(original.func)
    if write := OF_DATA.get(canonical_name(name.removeprefix("tf.")) or ""):
        context.out_of_reach(original, old, write)
        return None
    args = [arg.with_changes(value=_dtype(context, arg.value)) for arg in updated.args]
    if name == "tf.cast" and len(args) == 2 and m.matches(args[0].value, _SIZE) and "int" in context.code(args[1]):
        context.mapped(original, old, "the size itself")
        return args[0].value
    if name == "tf.range":
        args = [_size(arg) for arg in args]
    is_rounded = _is_mean_of_integers(row, args)
    made = templates.render(row, updated.with_changes(args=args)) if row and not is_rounded else None
    if made is None:
        context.by_dropin(original, old, "keras.ops")
    else:
        context.mapped(original, old, _function_of(made))
    return made


def _tell_unknown(context: Context, original: cst.Call, name: str) -> None:
    """Say what is in no table and yet is called in a model."""
    last = name.rpartition(".")[2]
    if not name.startswith("tf.") or context.roles.of(original) != {MODEL}:
        return
    if name == "tf.Variable":
        context.by_dropin(original, context.name(original.func), "keras.Variable")
    elif last[:1].islower() and not last.endswith(_MAKERS) and out_of_reach(name) is None:
        context.undecided(original, context.name(original.func), "whether it can compute on JAX")


def _seed(context: Context, original: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
    """Return a seed that Keras takes, too; with it, NumPy and Python begin anew."""
    others = context.roles.calls_of("numpy.random.seed", "random.seed")
    codes = {context.code(arg.value) for call in (original, *others) for arg in call.args}
    if len(codes) != 1:
        new = "the same, and a seed of Keras's random numbers"
        context.by_dropin(original, context.name(original.func), new)
        return None
    context.mapped(original, context.name(original.func), "keras.utils.set_random_seed")
    return updated.with_changes(func=cst.parse_expression("keras.utils.set_random_seed"))


def reference(context: Context, original: cst.Name | cst.Attribute) -> cst.BaseExpression | None:
    """Return what a name of TensorFlow or of `keras.backend` becomes that is not called; `None` if it stays."""
    name = context.names.of(original)
    last = name.rpartition(".")[2]
    if name in _SEEDS:
        return None
    if name == "tf.newaxis":
        context.mapped(original, context.name(original), "None")
        return cst.Name("None")
    first, _, rest = name.removeprefix("tf.").partition(".")
    new = ANYWHERE.get(last) if name.startswith(_BACKEND) else None
    if name.startswith("tf.") and first in TF1_NAMES and row_of(name) is None:
        new = f"{chain(original).partition('.')[0]}.{TF1_NAMES[first]}{'.' * bool(rest)}{rest}"
    if new is not None:
        context.mapped(original, context.name(original), new)
        return cst.parse_expression(new)
    if name.startswith("tf.compat.v1.disable_"):
        context.by_dropin(original, context.name(original), "nothing")
    elif name.startswith("tf.compat.v1.") and not name.startswith(_OF_TODAY):
        context.undecided(original, context.name(original), "what it does in a graph of TensorFlow 1")
    if name == f"tf.{last}" and last in DTYPES and context.roles.of(original) == {MODEL}:
        return _dtype_text(last)
    parent = context.parents.get(original)
    is_called = isinstance(parent, cst.Call) and original is parent.func
    function = templates.function_of(row_of(name) or "")
    if not function or is_called or not _is_given_to_keras(context, original):
        return None
    context.mapped(original, context.name(original), function)
    return cst.parse_expression(function)


def _where(context: Context, original: cst.Call) -> str:
    """Return `KERAS` if a call computes on Keras's values, `""` if it does not, or why that is not certain."""
    around: cst.CSTNode = original
    while isinstance(parent := context.parents.get(around), (cst.Arg, cst.Call)):
        around = parent
        if isinstance(around, cst.Call) and context.names.of(around.func) == "tf.Variable":
            return ""  # its first value, which TensorFlow reads
    roles = context.roles.of(original)
    if roles == {MODEL}:
        return KERAS
    if MODEL in roles:
        return f"its function is used in a model and {' and '.join(sorted(roles - {MODEL}))}"
    if roles:
        return ""
    kinds = {context.values.kind(arg.value) for arg in original.args}
    if KERAS in kinds:
        return KERAS
    if kinds <= {PLAIN} or context.roles.function_of(original) is None:
        return ""
    return "whether it gets a value of Keras"


def _is_mean_of_integers(row: str, args: list[cst.Arg]) -> bool:
    """Return whether a call is a mean of what was cast to integers, which TensorFlow rounds."""
    if not row.startswith("mean(") or not args:
        return False
    value = args[0].value
    cast = m.Call(func=m.Attribute(attr=m.Name("cast")), args=[m.ZeroOrMore(), m.Arg(value=m.SimpleString())])
    return m.matches(value, cast) and "int" in cst.Module([]).code_for_node(value.args[1])  # type: ignore[attr-defined]


def _computes_size(context: Context, original: cst.Call, name: str) -> bool:
    """Return whether a call computes with sizes or joins them: JAX must know a shape before it computes."""
    if name in ("tf.shape", f"{_BACKEND}shape"):
        parent = context.parents.get(original)
        if isinstance(parent, cst.Subscript) and isinstance(parent.slice[0].slice, cst.Slice):
            parent = context.parents.get(parent)
        return isinstance(parent, cst.BinaryOperation)
    last = name.rpartition(".")[2]
    if last in ("prod", "reduce_prod") and original.args:
        return _is_size(context, original.args[0].value)
    if last not in ("concat", "stack") or not original.args:
        return False
    parts = [one for one in _values(context, original.args[0].value) if isinstance(one, (cst.List, cst.Tuple))]
    return any(_is_size(context, part.value) for one in parts for part in one.elements)


def _values(context: Context, value: cst.BaseExpression) -> Sequence[cst.BaseExpression]:
    return context.names.values.get(context.names.of(value), []) if isinstance(value, cst.Name) else [value]


def _is_size(context: Context, value: cst.BaseExpression) -> bool:
    """Return whether an expression has a shape in it, or is a variable, or a part of one, that was given a shape."""
    if m.findall(value, _SHAPE):
        return not _is_number(value)
    value = value.value if isinstance(value, cst.Subscript) else value
    return any(m.matches(one, _SHAPE | m.Subscript(_SHAPE)) for one in _values(context, value))


def _of_sizes(context: Context, original: cst.Call, name: str) -> bool:
    """Return whether a call stacks the sizes that `reshape` is given, which takes a list of them, too."""
    around = context.parents.get(context.parents.get(original, original))
    if name not in ("tf.stack", f"{_BACKEND}stack") or len(original.args) != 1 or not isinstance(around, cst.Call):
        return False
    is_reshape = m.matches(around, m.Call(m.Attribute(attr=m.Name("reshape")), [m.Arg(), m.Arg()]))
    return is_reshape and around.args[1].value is original


def _is_number(value: cst.BaseExpression) -> bool:
    """Return whether an expression is computed from a shape, but as a call of a function that is no size."""
    return isinstance(value, cst.Call) and not m.matches(value, m.Call(func=m.Attribute(attr=m.Name("shape"))))


def _size(arg: cst.Arg) -> cst.Arg:
    """Return an argument without casts: JAX must know it before it computes, and a size that is cast is a value."""

    class Uncast(cst.CSTTransformer):
        def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
            return updated_node.args[0].value if chain(updated_node.func) == "keras.ops.cast" else updated_node

    return arg.visit(Uncast())  # type: ignore[return-value]


def _is_given_to_keras(context: Context, node: cst.CSTNode) -> bool:
    parent = context.parents.get(node)
    around = context.parents.get(parent) if isinstance(parent, cst.Arg) else None
    if context.roles.of(node) == {MODEL}:
        return True
    return isinstance(around, cst.Call) and context.names.of(around.func).startswith("keras.")


def set_value(context: Context, original: cst.Expr, updated: cst.Expr) -> cst.BaseSmallStatement | None:
    """Return `K.set_value(model.optimizer.lr, x)`, a statement, as an assignment."""
    if not isinstance(original.value, cst.Call) or not _sets_learning_rate(context, original.value):
        return None
    assert isinstance(updated.value, cst.Call)
    target, value = (arg.value for arg in updated.value.args)
    context.mapped(original, context.name(original.value.func), f"{cst.Module([]).code_for_node(target)} = ...")
    assert isinstance(target, cst.Attribute)
    return cst.Assign([cst.AssignTarget(target)], value)


def _sets_learning_rate(context: Context, call: cst.Call) -> bool:
    """Return whether a call is `K.set_value(model.optimizer.lr, x)`, and a statement."""
    if context.names.of(call.func) != f"{_BACKEND}set_value" or len(call.args) != 2:
        return False
    rate = m.Attribute(value=m.Attribute(attr=m.Name("optimizer")), attr=m.Name("lr") | m.Name("learning_rate"))
    return m.matches(call.args[0].value, rate) and isinstance(context.parents.get(call), cst.Expr)


def _dtype(context: Context, value: cst.BaseExpression) -> cst.BaseExpression:
    """Return a dtype of TensorFlow as text; any other argument as it is."""
    start, _, last = chain(value).rpartition(".")
    return _dtype_text(last) if start in context.tensorflow_names and last in DTYPES else value


def _dtype_text(name: str) -> cst.BaseExpression:
    return cst.SimpleString(f'"{_DTYPE_NAMES.get(name, name)}"')


def _function_of(made: Any) -> str:
    """Return the function of an expression for a finding, or the expression's kind."""
    return chain(made.func) if isinstance(made, cst.Call) else cst.Module([]).code_for_node(made)
