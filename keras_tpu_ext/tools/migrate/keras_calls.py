"""Calls of old Keras: their arguments, and methods that have other names today."""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst
import libcst.matchers as m

from keras_tpu_ext.tools.migrate.context import Context
from keras_tpu_ext.tools.migrate.keras_names import moved
from keras_tpu_ext.tools.migrate.old_keras import DROPIN
from keras_tpu_ext.tools.migrate.roles import DATA, MODEL
from keras_tpu_ext.tools.migrate.special_calls import build, load_model, of_compile, save, schedule_of_floats
from keras_tpu_ext.tools.migrate.tables.old_arguments import ARGUMENTS, METHOD_ARGUMENTS, METHODS
from keras_tpu_ext.tools.migrate.values import PLAIN
from keras_tpu_ext.tools.migrate.weight_files import with_weights_file

_STEPS = ("steps_per_epoch", "validation_steps", "steps")
_OF_ADD_WEIGHT = ("name", "shape", "dtype", "initializer", "regularizer", "trainable")
_NO_SPACE = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))


def call(context: Context, original: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
    """Return a call with today's arguments and method; `None` if it stays."""
    name = context.names.of(original.func)
    method = original.func.attr.value if isinstance(original.func, cst.Attribute) else ""
    if method == "numpy" and not original.args:
        return _to_numpy(context, original, updated)
    made = _without_slash(context, original, updated) if context.roles.is_model_class(name) else updated
    made = _of_keras(context, original, made, name) if name.startswith("keras.") else made
    if not name.startswith(("keras.", "tf.", "numpy.")):
        made = _of_method(context, original, made, method)
    return None if made is updated else made


def _of_keras(context: Context, original: cst.Call, updated: cst.Call, name: str) -> cst.Call:
    """Return a call of a function or class of Keras."""
    made = _with_arguments(context, original, updated, _arguments_of(moved(name).name or name))
    made = _saves_weights(context, original, made, name)
    if name == "keras.callbacks.LearningRateScheduler":
        made = schedule_of_floats(context, original, made)
    elif name.endswith(".load_model"):
        load_model(context, original)
    return made


def _of_method(context: Context, original: cst.Call, updated: cst.Call, method: str) -> cst.Call:
    """Return a call of a method that only Keras's objects have."""
    if method in METHODS:
        return _other_method(context, original, _with_steps(context, original, updated), METHODS[method])
    if method in METHOD_ARGUMENTS:
        rule = of_compile if method == "compile" else _with_steps
        return _with_arguments(context, original, rule(context, original, updated), METHOD_ARGUMENTS[method])
    if method == "save":
        save(context, original)
    rules = {
        "build": build,
        "add_weight": _add_weight,
        "save_weights": with_weights_file,
        "load_weights": with_weights_file,
    }
    return rules[method](context, original, updated) if method in rules else updated


def _arguments_of(name: str) -> dict[str, str]:
    module = name.rpartition(".")[0]
    return {**ARGUMENTS.get(f"{module}.*", {}), **ARGUMENTS.get(name, {})}


def _keyword(arg: cst.Arg) -> str:
    return "" if arg.keyword is None else arg.keyword.value


def _with_arguments(context: Context, original: cst.Call, updated: cst.Call, table: Mapping[str, str]) -> cst.Call:
    args, changed = [], False
    for before, arg in zip(original.args, updated.args, strict=True):
        old = _keyword(arg)
        new = table.get(old, old)
        if new == old:
            args.append(arg)
            continue
        named = f"{old}="
        if new == "?":
            context.mapped(before.value, named, DROPIN, on_dropin=True)
            args.append(arg)
            continue
        changed = True
        context.mapped(before.value, named, "nothing" if new == "-" else f"{new}=")
        if new != "-":
            args.append(_input_shape(arg) if new == "input_shape" else arg.with_changes(keyword=cst.Name(new)))
    return updated.with_changes(args=_without_last_comma(updated, args)) if changed else updated


def _without_slash(context: Context, original: cst.Call, updated: cst.Call) -> cst.Call:
    """Return a call without "/" in `name=`, which Keras 3 refuses."""
    for place, arg in enumerate(updated.args):
        text = arg.value
        if _keyword(arg) != "name" or not isinstance(text, cst.SimpleString) or "/" not in text.value:
            continue
        if context.program.text.count(str(text.raw_value)) > 1:  # the program asks for it elsewhere
            context.mapped(original, text.value, DROPIN, on_dropin=True)
            return updated
        new = text.value.replace("/", "_")
        context.mapped(original, text.value, new)
        changed = arg.with_changes(value=text.with_changes(value=new))
        return updated.with_changes(args=[*updated.args[:place], changed, *updated.args[place + 1 :]])
    return updated


def _input_shape(arg: cst.Arg) -> cst.Arg:
    """Return `input_length=n` as `input_shape=(n,)`."""
    value = arg.value
    if not isinstance(value, (cst.Tuple, cst.List)):
        comma = cst.Comma()
        value = cst.Tuple([cst.Element(value, comma=comma)])
    return arg.with_changes(keyword=cst.Name("input_shape"), value=value)


def _without_last_comma(call: cst.Call, args: list[cst.Arg]) -> list[cst.Arg]:
    """Return arguments of which the last one ends as that of `call` does."""
    if args and call.args:
        args[-1] = args[-1].with_changes(
            comma=call.args[-1].comma, whitespace_after_arg=call.args[-1].whitespace_after_arg
        )
    return args


def _other_method(context: Context, original: cst.Call, updated: cst.Call, row: str) -> cst.Call:
    """Return a call of a method that has another name today, with keywords for its arguments."""
    new, *parameters = row.split()
    assert isinstance(original.func, cst.Attribute)
    assert isinstance(updated.func, cst.Attribute)
    renames = dict(pair.split("=") for pair in parameters if "=" in pair)
    order = [pair.partition("=")[0] for pair in parameters]
    args = []
    for place, arg in enumerate(updated.args):
        if arg.star or (arg.keyword is None and place >= len(order)):
            context.mapped(original, f".{original.func.attr.value}()", f".{new}(), by the drop-in", on_dropin=True)
            return updated
        old = order[place] if arg.keyword is None else arg.keyword.value
        name = renames.get(old, old)
        if name == "-":
            continue
        keyword = None if arg.keyword is None and not place else cst.Name(name)
        equal = arg.equal if arg.keyword is not None else _NO_SPACE
        args.append(
            arg.with_changes(keyword=keyword, equal=equal if keyword is not None else cst.MaybeSentinel.DEFAULT)
        )
    context.mapped(original, f".{original.func.attr.value}()", f".{new}()")
    func = updated.func.with_changes(attr=cst.Name(new))
    return updated.with_changes(func=func, args=_without_last_comma(updated, args))


def _with_steps(context: Context, original: cst.Call, updated: cst.Call) -> cst.Call:
    """Return a call whose numbers of steps are whole; `n / m` is the only sign of one that may not be."""
    args, changed = [], False
    for before, arg in zip(original.args, updated.args, strict=True):
        if _keyword(arg) in _STEPS and _is_quotient(context, before.value):
            new = cst.Call(cst.parse_expression("math.ceil"), [cst.Arg(arg.value)])
            context.mapped(before.value, f"{_keyword(arg)}={context.code(before.value)}", "math.ceil(...)")
            arg, changed = arg.with_changes(value=new), True
        args.append(arg)
    return updated.with_changes(args=args) if changed else updated


def _is_quotient(context: Context, value: cst.BaseExpression) -> bool:
    values = context.names.values.get(context.names.of(value), []) if isinstance(value, cst.Name) else [value]
    return any(isinstance(one, cst.BinaryOperation) and isinstance(one.operator, cst.Divide) for one in values)


def _add_weight(context: Context, original: cst.Call, updated: cst.Call) -> cst.Call:
    """Return `add_weight("name", shape)` with keywords: the order is another one today."""
    if (
        not original.args
        or original.args[0].keyword is not None
        or not isinstance(original.args[0].value, cst.BaseString)
    ):
        return updated
    args = []
    for name, arg in zip(_OF_ADD_WEIGHT, updated.args, strict=False):
        named = arg.keyword is not None or arg.star
        args.append(arg if named else arg.with_changes(keyword=cst.Name(name), equal=_NO_SPACE))
    args += updated.args[len(args) :]
    context.mapped(original, "add_weight(name, ...)", "add_weight(name=...)")
    return updated.with_changes(args=args)


def _saves_weights(context: Context, original: cst.Call, updated: cst.Call, name: str) -> cst.Call:
    if name.endswith("ModelCheckpoint") and any(
        m.matches(arg, m.Arg(keyword=m.Name("save_weights_only"), value=m.Name("True"))) for arg in original.args
    ):
        return with_weights_file(context, original, updated)
    return updated


def _to_numpy(context: Context, original: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
    """Return `model(x).numpy()` as Keras 3 writes it; tensors of TensorFlow keep their method."""
    assert isinstance(original.func, cst.Attribute)
    assert isinstance(updated.func, cst.Attribute)
    value = original.func.value
    inner = value.value if isinstance(value, cst.Subscript) else value
    if isinstance(inner, cst.Call) and context.values.is_callable_of_keras(inner.func):
        context.mapped(original, ".numpy()", "keras.ops.convert_to_numpy")
        return cst.Call(cst.parse_expression("keras.ops.convert_to_numpy"), [cst.Arg(updated.func.value)])
    roles = context.roles.of(original)
    if MODEL in roles:
        context.undecided(original, ".numpy()", "a traced value has none")
    elif (
        DATA not in roles and context.values.kind(value) != PLAIN and context.roles.function_of(original) is not None
    ):
        context.undecided(original, ".numpy()", "whether this is a value of Keras")
    return None
