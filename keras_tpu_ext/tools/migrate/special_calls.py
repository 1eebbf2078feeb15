"""Calls of Keras whose arguments mean something else today: metrics, schedules, files of whole models."""

from __future__ import annotations

import re

import libcst as cst
import libcst.matchers as m

from keras_tpu_ext.tools.migrate.context import Context
from keras_tpu_ext.tools.migrate.names import all_nodes, keyword
from keras_tpu_ext.tools.migrate.roles import FunctionNode
from keras_tpu_ext.tools.migrate.tables.keras_names import KERAS_NAMES
from keras_tpu_ext.tools.migrate.tables.old_arguments import ORDERS
from keras_tpu_ext.tools.migrate.templates import NO_SPACE

_METRICS = KERAS_NAMES["keras.metrics"]
_NEW_FILE = re.compile(r"\.keras[\"']$")
_REGULARIZER = re.compile(r"(?<!activity_)\bregularizer=|(?<!activity)_regularizer=")
_SEQUENCES = re.compile(r"return_sequences=True|TimeDistributed|MultiHeadAttention")
_UNTRAINED = re.compile(r"BatchNormalization|WeightNormalization|trainable=False")
_ANY_FILE = re.compile(r"\.(keras|h5|hdf5)[\"']$")


def of_compile(context: Context, original: cst.Call, updated: cst.Call) -> cst.Call:
    """Return `compile` with its metrics as Keras 3 wants them: in a list, for each output, by names of their own."""
    order = [*ORDERS["compile"].split(), *("" for _ in original.args)]
    given = {keyword(arg) or name: arg.value for name, arg in zip(order, original.args, strict=False)}
    loss, weights = given.get("loss"), given.get("loss_weights")
    of_each = next((one for one in (loss, weights) if isinstance(one, (cst.List, cst.Dict))), None)
    outputs = len(of_each.elements) if of_each is not None else 1
    args = []
    for before, arg in zip(original.args, updated.args, strict=True):
        if before.value is loss and isinstance(weights, (cst.List, cst.Dict)):
            arg = arg.with_changes(value=_losses(context, loss, arg.value, weights))
        if keyword(arg) in ("metrics", "weighted_metrics"):
            arg = arg.with_changes(value=_metrics(context, before.value, arg.value, outputs))
        args.append(arg)
    return (
        updated
        if all(a.value is b.value for a, b in zip(args, updated.args, strict=True))
        else updated.with_changes(args=args)
    )


def schedule_of_floats(context: Context, original: cst.Call, updated: cst.Call) -> cst.Call:
    """Return `LearningRateScheduler(f)` so that it gets floats, where `f` computes with TensorFlow."""
    functions = context.roles.functions_in(original.args[0].value) if original.args else ()
    if not any(_uses_tensorflow(context, one) and not _returns_floats(context, one) for one in functions):
        return updated
    context.mapped(original, "a schedule that returns a tensor", "float(...)")
    schedule = updated.args[0].value
    code = context.wrapper.module.code_for_node(schedule)
    code = code if isinstance(schedule, (cst.Name, cst.Attribute, cst.Call)) else f"({code})"
    made = cst.parse_expression(f"lambda *args: float({code}(*args))")
    return updated.with_changes(args=[updated.args[0].with_changes(value=made), *updated.args[1:]])


def load_model(context: Context, original: cst.Call) -> None:
    """Say that files of old models need the drop-in."""
    path = original.args[0].value if original.args else None
    is_new = isinstance(path, cst.SimpleString) and _NEW_FILE.search(path.value)
    without = any(m.matches(arg, m.Arg(keyword=m.Name("compile"), value=m.Name("False"))) for arg in original.args)
    if not is_new and not without:
        context.by_dropin(original, "load_model(.h5)")


def check_monitor(context: Context, original: cst.Call, name: str) -> None:
    """Say where Keras 2 took smaller for better by what is monitored, and Keras 3 asks the metric, or refuses."""
    place = {"EarlyStopping": 0, "ReduceLROnPlateau": 0, "ModelCheckpoint": 1}.get(name.rpartition(".")[2], -1)
    arg = next((arg for arg in original.args if keyword(arg) == "monitor"), None)
    positional = [arg for arg in original.args if arg.keyword is None]
    arg = positional[place] if arg is None and 0 <= place < len(positional) else arg
    mode = next((context.code(arg.value) for arg in original.args if keyword(arg) == "mode"), "'auto'")
    if arg is None or place < 0 or "auto" not in mode or len(positional) > 4:
        return
    code = context.code(arg.value)
    if "loss" not in code and "acc" not in code:
        context.by_dropin(original, f"monitor={code} without mode=")


def add_loss(context: Context, original: cst.Call) -> None:
    """Say that a loss outside of a layer's `call` needs the drop-in."""
    assert isinstance(original.func, cst.Attribute)
    if context.values.is_model(original.func.value):
        context.by_dropin(original, "model.add_loss()")


def set_trainable(context: Context, original: cst.Assign) -> None:
    """Say where a model is frozen after it was compiled: Keras 2 went on as it was compiled.

    And where layers are thawed one by one, which below a frozen model were frozen in Keras 2.
    """
    target = original.targets[0].target
    if not m.matches(target, m.Attribute(attr=m.Name("trainable"))):
        return
    assert isinstance(target, cst.Attribute)
    if context.code(original.value) != "True":
        _tell_regularizers(context, original, context.program.text)
    loop: cst.CSTNode | None = original
    while loop is not None and not isinstance(loop, cst.For):
        loop = context.parents.get(loop)
    if loop is not None and context.code(original.value) == "True" and ".layers" in context.code(loop.iter):
        context.by_dropin(original, "trainable=True of one layer after another")
    model, here = context.names.of(target.value), context.line(original)
    compiled = [context.line(call) for call in context.roles.calls.get(f"{model}.compile", ())]
    if model and any(line < here for line in compiled) and not any(line > here for line in compiled):
        context.by_dropin(original, "trainable= after compile")


def _tell_regularizers(context: Context, original: cst.CSTNode, where: str) -> None:
    """Say where weights may be frozen that have a regularizer: Keras 3 leaves it out of the loss."""
    if _REGULARIZER.search(where):
        context.by_dropin(original, "the regularizer of a frozen weight")


def of_layer(context: Context, original: cst.Call, name: str) -> None:
    """Say where a layer is frozen that has a regularizer, or where its mask may come to a metric, in training."""
    given = {keyword(arg): context.code(arg.value) for arg in original.args}
    if given.get("trainable") == "False":
        _tell_regularizers(context, original, context.code(original))
    has_metrics = any("metrics" in keyword(arg) for call in context.roles.calls_of("compile") for arg in call.args)
    is_masked = given.get("mask_zero") == "True" or name == "keras.layers.Masking"
    if is_masked and has_metrics and _SEQUENCES.search(context.program.text):
        context.by_dropin(original, "the metrics of masked outputs")


def order_of_weights(context: Context, original: cst.Call) -> None:
    """Say where lists of weights may have another order: those of classes with untrained weights, or own ones."""
    for name, node in context.roles.classes.items():
        code = context.code(node)
        own_model = any(context.names.of(base.value).endswith(".Model") for base in node.bases)
        if context.roles.is_model_class(name) and (_UNTRAINED.search(code) or (own_model and "add_weight(" in code)):
            context.by_dropin(original, "the order of weights")
            return


def save(context: Context, original: cst.Call) -> None:
    """Say that Keras 3 saves no model into a folder."""
    assert isinstance(original.func, cst.Attribute)
    path = original.args[0].value if original.args else None
    is_file = not isinstance(path, cst.SimpleString) or _ANY_FILE.search(path.value)
    has_format = any(
        keyword(arg) in ("save_format", "include_optimizer", "signatures", "options") for arg in original.args
    )
    if context.values.is_callable_of_keras(original.func.value) and (not is_file or has_format):
        context.by_dropin(original, ".save()")


def build(context: Context, original: cst.Call, updated: cst.Call) -> cst.Call:
    """Return `model.build(shape)`, of one of the program's classes, as a call: Keras 3 builds it in no other way."""
    assert isinstance(original.func, cst.Attribute)
    assert isinstance(updated.func, cst.Attribute)
    if len(original.args) != 1 or not context.values.is_model(original.func.value, own=True):
        return updated
    if not isinstance(original.args[0].value, (cst.Tuple, cst.List)):
        context.by_dropin(original, "model.build()")
        return updated
    context.mapped(original, "model.build(shape)", "model(keras.Input(batch_shape=shape))")
    shape = updated.args[0].with_changes(keyword=cst.Name("batch_shape"), equal=NO_SPACE)
    inputs = cst.Call(cst.parse_expression("keras.Input"), [shape])
    return updated.with_changes(func=updated.func.value, args=[cst.Arg(inputs)])


def _losses(
    context: Context, before: cst.BaseExpression, value: cst.BaseExpression, weights: cst.List | cst.Dict
) -> cst.BaseExpression:
    """Return a loss for each output, which the weights are of."""
    if _is_one(context, before, "keras.losses."):
        context.mapped(before, "one loss and loss_weights=", "a loss for each output")
        if isinstance(weights, cst.List):
            return cst.BinaryOperation(
                cst.List([cst.Element(value)]), cst.Multiply(), cst.Integer(str(len(weights.elements)))
            )
        names = ", ".join(_keys(context, weights))
        return cst.parse_expression(f"dict.fromkeys([{names}], {context.wrapper.module.code_for_node(value)})")
    if isinstance(before, (cst.List, cst.Dict)) and _keys(context, before) != _keys(context, weights):
        context.by_dropin(before, "loss_weights= by name")
    return value


def _keys(context: Context, node: cst.List | cst.Dict) -> list[str]:
    return sorted(context.code(one.key) for one in node.elements if isinstance(one, cst.DictElement))


def _metrics(
    context: Context, before: cst.BaseExpression, value: cst.BaseExpression, outputs: int
) -> cst.BaseExpression:
    if _is_one(context, before, "keras.metrics."):
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
    """Return a metric, a function or the name of a class, with the name that it had in `history`."""
    code = context.code(one.value)
    text = one.value.raw_value if isinstance(one.value, cst.SimpleString) else ""
    if f".{code}" in context.roles.functions and code != code.lower():
        new = f'keras.metrics.MeanMetricWrapper({code}, name="{code}")'
    elif isinstance(text, str) and text in _METRICS and text[:1].isupper():
        old = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", text).lower()
        new = f'keras.metrics.{text}(name="{old}")'
    else:
        return one
    context.mapped(before, code, new.partition("(")[0])
    return one.with_changes(value=cst.parse_expression(new))


def _is_one(context: Context, value: cst.BaseExpression, module: str) -> bool:
    """Return whether `metrics=` or `loss=` is no list of them."""
    function = value.func if isinstance(value, cst.Call) else value
    name = context.names.of(function)
    return isinstance(value, cst.SimpleString) or name in context.roles.functions or name.startswith(module)


def _returns_floats(context: Context, function: FunctionNode) -> bool:
    returns = [function.body] if isinstance(function, cst.Lambda) else context.roles.returns[function]
    return all(m.matches(one, m.Call(func=m.Name("float"))) for one in returns)


def _uses_tensorflow(context: Context, function: cst.CSTNode) -> bool:
    return any(context.names.of(node).startswith(("tf.", "keras.backend.")) for node in all_nodes(function))
