"""Calls of old Keras: their arguments, and methods that have other names today."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import libcst as cst
import libcst.matchers as m

from keras_tpu_ext.tools.migrate.context import Context
from keras_tpu_ext.tools.migrate.keras_names import moved
from keras_tpu_ext.tools.migrate.names import keyword
from keras_tpu_ext.tools.migrate.roles import DATA, MODEL
from keras_tpu_ext.tools.migrate.special_calls import (
    add_loss,
    build,
    check_monitor,
    load_model,
    of_compile,
    of_layer,
    order_of_weights,
    save,
    schedule_of_floats,
)
from keras_tpu_ext.tools.migrate.tables.old_arguments import ARGUMENTS, DEFAULTS, METHOD_ARGUMENTS, METHODS, ORDERS
from keras_tpu_ext.tools.migrate.templates import with_keyword
from keras_tpu_ext.tools.migrate.values import PLAIN
from keras_tpu_ext.tools.migrate.weight_files import with_weights_file

_FLAG = m.Name("training") | m.Name("True") | m.Name("False")
_STEPS = ("steps_per_epoch", "validation_steps", "steps")


def call(context: Context, original: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
    """Return a call with today's arguments and method; `None` if it stays."""
    name = context.names.of(original.func)
    method = original.func.attr.value if isinstance(original.func, cst.Attribute) else ""
    if method == "numpy" and not original.args:
        return _to_numpy(context, original, updated)
    if not name.startswith(("tf.", "keras.", "numpy.")):
        _tell_flags(context, original)
    made = _without_slash(context, original, updated) if context.roles.is_model_class(name) else updated
    if name.startswith("keras."):
        made = _of_keras(context, original, made, name)
    elif method and not name.startswith(("tf.", "numpy.")):
        made = _of_method(context, original, made, method)
    return None if made is updated else made


def _tell_flags(context: Context, original: cst.Call) -> None:
    """Say where a layer gets `training` by position, of which Keras 3 takes tensors only."""
    flags = [arg for arg in original.args[1:] if m.matches(arg, m.Arg(_FLAG, keyword=None, star=""))]
    if flags and MODEL in context.roles.of(original) and context.roles.called(original) is None:
        context.by_dropin(original, "a layer's training by position")


def _of_keras(context: Context, original: cst.Call, updated: cst.Call, name: str) -> cst.Call:
    """Return a call of a function or class of Keras."""
    today = moved(name)[0] or name
    _tell_other_meanings(context, original, today)
    table = {**ARGUMENTS.get(f"{today.rpartition('.')[0]}.*", {}), **ARGUMENTS.get(today, {})}
    made = with_weights_file(context, original, _with_arguments(context, original, updated, table))
    if name == "keras.callbacks.LearningRateScheduler":
        return schedule_of_floats(context, original, made)
    if name.startswith("keras.layers."):
        of_layer(context, original, name)
    elif name.startswith("keras.callbacks."):
        check_monitor(context, original, name)
    elif name.endswith(".load_model"):
        load_model(context, original)
    return made


def _tell_other_meanings(context: Context, original: cst.Call, name: str) -> None:
    """Say where a default, or the name of an activation, meant something else."""
    needed = DEFAULTS.get(name, "").split()[sum(arg.keyword is None for arg in original.args) :]
    for one in {*needed} - {"-"} - {keyword(arg) for arg in original.args}:
        context.by_dropin(original, f"{context.name(original.func)}() without {one}=")
    for arg in original.args:
        if isinstance(arg.value, cst.SimpleString) and arg.value.raw_value == "hard_sigmoid":
            context.by_dropin(arg.value, "hard_sigmoid")


def _of_method(context: Context, original: cst.Call, updated: cst.Call, method: str) -> cst.Call:
    """Return a call of a method that only Keras's objects have."""
    new = METHODS.get(method, method).partition(" ")[0]
    assert isinstance(original.func, cst.Attribute)
    if not new or (method in ("reset_states", "predict_proba") and context.values.is_model(original.func.value)):
        context.by_dropin(original, f".{method}()")
        return updated
    if new in METHOD_ARGUMENTS:
        rule = of_compile if method == "compile" else _with_steps
        updated = _with_arguments(context, original, rule(context, original, updated), METHOD_ARGUMENTS[new])
    if method in METHODS:
        return _other_method(context, original, updated, METHODS[method])
    is_own = any(method in context.roles.methods(node) for node in context.roles.classes.values())
    if method in ORDERS and not is_own:
        return _by_keyword(context, original, updated, method)
    if method == "set_weights":
        order_of_weights(context, original)
    if method in ("save_weights", "load_weights"):
        return with_weights_file(context, original, updated)
    if method in ("save", "add_loss"):
        (save if method == "save" else add_loss)(context, original)
    return build(context, original, updated) if method == "build" else updated


def _with_arguments(context: Context, original: cst.Call, updated: cst.Call, table: Mapping[str, str]) -> cst.Call:
    """Return a call with the names that its keyword arguments have today."""
    args, changed = [], False
    nodes = {keyword(arg): arg.value for arg in original.args}
    for arg in updated.args:
        old = keyword(arg)
        new = table.get(old, old)
        if new == "?":
            if context.code(nodes[old]) not in ("None", "False"):
                context.by_dropin(nodes[old], f"{old}=")
        elif new != old:
            changed = True
            context.mapped(nodes[old], f"{old}=", "nothing" if new == "-" else f"{new}=")
            if new == "-":
                continue
            arg = _input_shape(arg) if new == "input_shape" else arg.with_changes(keyword=cst.Name(new))
        args.append(arg)
    return updated.with_changes(args=_without_last_comma(updated, args)) if changed else updated


def _without_slash(context: Context, original: cst.Call, updated: cst.Call) -> cst.Call:
    """Return a call without "/" in `name=`, which Keras 3 refuses."""
    for place, arg in enumerate(updated.args):
        text = arg.value
        if keyword(arg) != "name" or not isinstance(text, cst.SimpleString) or "/" not in text.value:
            continue
        if context.program.text.count(str(text.raw_value)) > 1:  # the program asks for it elsewhere
            context.by_dropin(original, text.value)
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
        value = cst.Tuple([cst.Element(value, comma=cst.Comma())])
    return arg.with_changes(keyword=cst.Name("input_shape"), value=value)


def _without_last_comma(call: cst.Call, args: list[cst.Arg]) -> list[cst.Arg]:
    """Return arguments of which the last one ends as that of `call` does."""
    if args and call.args:
        last = call.args[-1]
        args[-1] = args[-1].with_changes(comma=last.comma, whitespace_after_arg=last.whitespace_after_arg)
    return args


def _other_method(context: Context, original: cst.Call, updated: cst.Call, row: str) -> cst.Call:
    """Return a call of a method that has another name today, with keywords for its arguments."""
    new, *parameters = row.split()
    assert isinstance(updated.func, cst.Attribute)
    old = f".{updated.func.attr.value}()"
    pairs = [pair.partition("=") for pair in parameters]
    renames = {before: after or before for before, _, after in pairs}
    if any(arg.star for arg in updated.args) or sum(arg.keyword is None for arg in updated.args) > len(pairs):
        context.by_dropin(original, old, f".{new}()")
        return updated
    args = []
    for place, arg in enumerate(updated.args):
        name = renames.get(keyword(arg), keyword(arg)) if arg.keyword else list(renames.values())[place]
        if name != "-":
            args.append(arg if arg.keyword is None and not place else with_keyword(arg, cst.Name(name)))
    context.mapped(original, old, f".{new}()")
    func = updated.func.with_changes(attr=cst.Name(new))
    return updated.with_changes(func=func, args=_without_last_comma(updated, args))


def _by_keyword(context: Context, original: cst.Call, updated: cst.Call, method: str) -> cst.Call:
    """Return a call with keywords where the order of parameters is another one today."""
    first = 2 if method == "compile" else 0
    is_old = first or (original.args and isinstance(original.args[0].value, cst.BaseString))
    count = sum(arg.keyword is None and not arg.star for arg in updated.args)
    if not is_old or count <= first:
        return updated
    names = ORDERS[method].split()[first:count]
    named = [with_keyword(arg, cst.Name(name)) for name, arg in zip(names, updated.args[first:count], strict=True)]
    context.mapped(original, f".{method}({', '.join(names)})", "the same with keywords")
    return updated.with_changes(args=[*updated.args[:first], *named, *updated.args[count:]])


def _with_steps(context: Context, original: cst.Call, updated: cst.Call) -> cst.Call:
    """Return a call whose numbers of steps are whole; `n / m` is the only sign of one that may not be."""
    targets = next((arg.value for arg in original.args if keyword(arg) == "y"), None)
    targets = original.args[1].value if targets is None and len(original.args) > 1 else targets
    if targets is not None and m.matches(targets, m.Dict([m.DoNotCare()])):
        context.by_dropin(original, "the target of one output by its name")
    if m.matches(original.func, m.Attribute(attr=m.Name("predict") | m.Name("predict_generator"))):
        _tell_inputs_alone(context, original)
    args = []
    for before, arg in zip(original.args, updated.args, strict=True):
        if keyword(arg) in _STEPS and _is_quotient(context, before.value):
            context.mapped(before.value, f"{keyword(arg)}={context.code(before.value)}", "math.ceil(...)")
            arg = arg.with_changes(value=cst.Call(cst.parse_expression("math.ceil"), [cst.Arg(arg.value)]))
        args.append(arg)
    return updated if args == [*updated.args] else updated.with_changes(args=args)


def _tell_inputs_alone(context: Context, original: cst.Call) -> None:
    """Say where `predict` gets a generator of inputs, for which Keras 3 wants tuples of one."""
    for one in _values(context, original.args[0].value) if original.args else ():
        function = context.roles.called(one) if isinstance(one, cst.Call) else None
        if function is not None and m.findall(function, m.Yield(~m.Tuple())):
            context.by_dropin(original, "a generator of inputs alone")


def _is_quotient(context: Context, value: cst.BaseExpression) -> bool:
    return any(m.matches(one, m.BinaryOperation(operator=m.Divide())) for one in _values(context, value))


def _values(context: Context, value: cst.BaseExpression) -> Sequence[cst.CSTNode]:
    return context.names.values.get(context.names.of(value), []) if isinstance(value, cst.Name) else [value]


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
