"""Calls of Keras whose arguments mean something else today: metrics, schedules, files of whole models."""

from __future__ import annotations

import re

import libcst as cst
import libcst.matchers as m

from keras_tpu_ext.tools.migrate.context import Context
from keras_tpu_ext.tools.migrate.old_keras import DROPIN
from keras_tpu_ext.tools.migrate.tables.keras_names import KERAS_NAMES

_METRICS = KERAS_NAMES["keras.metrics"]
_NEW_FILE = re.compile(r"\.keras[\"']$")
_ANY_FILE = re.compile(r"\.(keras|h5|hdf5)[\"']$")


def of_compile(context: Context, original: cst.Call, updated: cst.Call) -> cst.Call:
    """Return `compile` with its metrics as Keras 3 wants them: in a list, for each output, by names of their own."""
    losses = next((arg.value for arg in original.args if _keyword(arg) == "loss"), None)
    outputs = len(losses.elements) if isinstance(losses, (cst.List, cst.Dict)) else 1
    args = []
    for before, arg in zip(original.args, updated.args, strict=True):
        if _keyword(arg) in ("metrics", "weighted_metrics"):
            arg = arg.with_changes(value=_metrics(context, before.value, arg.value, outputs))
        args.append(arg)
    return (
        updated
        if all(a.value is b.value for a, b in zip(args, updated.args, strict=True))
        else updated.with_changes(args=args)
    )


def schedule_of_floats(context: Context, original: cst.Call, updated: cst.Call) -> cst.Call:
    """Return `LearningRateScheduler(f)` so that it gets floats, where `f` computes with TensorFlow."""
    if not updated.args or not any(
        _uses_tensorflow(context, one) for one in context.roles.functions_in(original.args[0].value)
    ):
        return updated
    context.mapped(original, "a schedule that returns a tensor", "float(...)")
    code = context.wrapper.module.code_for_node(updated.args[0].value)
    made = cst.parse_expression(f"lambda *args: float(({code})(*args))")
    return updated.with_changes(args=[updated.args[0].with_changes(value=made), *updated.args[1:]])


def load_model(context: Context, original: cst.Call) -> None:
    """Say that files of old models need the drop-in."""
    path = original.args[0].value if original.args else None
    is_new = isinstance(path, cst.SimpleString) and _NEW_FILE.search(path.value)
    without = any(m.matches(arg, m.Arg(keyword=m.Name("compile"), value=m.Name("False"))) for arg in original.args)
    if not is_new and not without:
        context.mapped(original, "load_model(.h5)", DROPIN, on_dropin=True)


def save(context: Context, original: cst.Call) -> None:
    """Say that Keras 3 saves no model into a folder."""
    assert isinstance(original.func, cst.Attribute)
    path = original.args[0].value if original.args else None
    is_file = not isinstance(path, cst.SimpleString) or _ANY_FILE.search(path.value)
    has_format = any(
        _keyword(arg) in ("save_format", "include_optimizer", "signatures", "options") for arg in original.args
    )
    if context.values.is_callable_of_keras(original.func.value) and (not is_file or has_format):
        context.mapped(original, ".save()", DROPIN, on_dropin=True)


def build(context: Context, original: cst.Call, updated: cst.Call) -> cst.Call:
    """Return `model.build(shape)`, of one of the program's classes, as a call: Keras 3 builds it in no other way."""
    assert isinstance(original.func, cst.Attribute)
    assert isinstance(updated.func, cst.Attribute)
    if len(original.args) != 1 or not context.values.is_own_model(original.func.value):
        return updated
    if not isinstance(original.args[0].value, (cst.Tuple, cst.List)):
        context.mapped(original, "model.build()", DROPIN, on_dropin=True)
        return updated
    context.mapped(original, "model.build(shape)", "model(keras.Input(batch_shape=shape))")
    shape = updated.args[0].with_changes(keyword=cst.Name("batch_shape"), equal=NO_SPACE)
    inputs = cst.Call(cst.parse_expression("keras.Input"), [shape])
    return updated.with_changes(func=updated.func.value, args=[cst.Arg(inputs)])


NO_SPACE = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))


def _metrics(
    context: Context, before: cst.BaseExpression, value: cst.BaseExpression, outputs: int
) -> cst.BaseExpression:
    if _is_one_metric(context, before):
        value = cst.List([cst.Element(value)])
        context.mapped(before, context.code(before), f"[{context.code(before)}]")
    if not isinstance(value, cst.List):
        return value
    value = value.with_changes(elements=[_named(context, before, one) for one in value.elements])
    if outputs > 1 and not any(isinstance(one.value, (cst.List, cst.Tuple)) for one in value.elements):
        context.mapped(before, "one list of metrics for several outputs", "a list for each output")
        return cst.BinaryOperation(cst.List([cst.Element(value)]), cst.Multiply(), cst.Integer(str(outputs)))
    return value


def _named(context: Context, before: cst.BaseExpression, one: cst.BaseElement) -> cst.BaseElement:
    """Return a metric that is given as the name of a class, with the name that it had in `history`."""
    text = one.value.raw_value if isinstance(one.value, cst.SimpleString) else ""
    if not isinstance(text, str) or text not in _METRICS or not text[:1].isupper():
        return one
    old = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", text).lower()
    context.mapped(before, f'"{text}"', f"keras.metrics.{text}")
    return one.with_changes(value=cst.parse_expression(f'keras.metrics.{text}(name="{old}")'))


def _is_one_metric(context: Context, value: cst.BaseExpression) -> bool:
    """Return whether `metrics=` is no list of them."""
    function = value.func if isinstance(value, cst.Call) else value
    name = context.names.of(function)
    return isinstance(value, cst.SimpleString) or name in context.roles.functions or name.startswith("keras.metrics.")


def _uses_tensorflow(context: Context, function: cst.CSTNode) -> bool:
    nodes = [function]
    while nodes:
        node = nodes.pop()
        if context.names.of(node).startswith(("tf.", "keras.backend.")):
            return True
        nodes += node.children
    return False


def _keyword(arg: cst.Arg) -> str:
    return "" if arg.keyword is None else arg.keyword.value
