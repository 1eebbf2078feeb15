"""Arguments, methods and names of old Keras."""

from __future__ import annotations

import re
from collections.abc import Mapping

import libcst as cst
import libcst.matchers as m

from keras_tpu_ext.tools.migrate.context import Context
from keras_tpu_ext.tools.migrate.keras_names import Moved, moved
from keras_tpu_ext.tools.migrate.names import chain
from keras_tpu_ext.tools.migrate.roles import DATA, MODEL
from keras_tpu_ext.tools.migrate.tables.old_arguments import ARGUMENTS, METHOD_ARGUMENTS, METHODS
from keras_tpu_ext.tools.migrate.values import PLAIN

_DROPIN = "what it meant, by the drop-in"
_WRITES_WEIGHTS = ("save_weights", "load_weights")
_OLD_FILE = re.compile(r"(?<!\.weights)\.h5(?=[\"']+$)")


def reference(context: Context, original: cst.Name | cst.Attribute) -> cst.BaseExpression | None:
    """Return where a name of Keras is today; `None` if it stays."""
    name = context.names.of(original)
    if not name.startswith("keras.") or name.startswith("keras.backend.") or name == "keras.backend":
        return None
    found = moved(name)
    if not tell_moved(context, original, context.name(original), found):
        return None
    root = context.names.imports.get(chain(original).partition(".")[0], "")
    if found.name == name and root != "tf":
        return None
    if found.name.rpartition(".")[2] == name.rpartition(".")[2] and root != "tf":
        return None  # the import says where it is
    if found.name != name:
        context.mapped(original, context.name(original), found.name)
    new = found.name
    if new.startswith("tensorflow.keras."):
        new = new.replace("tensorflow.", f"{min(context.tensorflow_names, default='tf')}.", 1)
    return cst.parse_expression(new)


def tell_moved(context: Context, node: cst.CSTNode, old: str, found: Moved) -> bool:
    """Say why a name has no place in Keras 3, and return whether it has one."""
    if found.write:
        context.out_of_reach(node, old, found.write)
    elif found.on_dropin:
        context.mapped(node, old, _DROPIN, on_dropin=True)
    elif not found.known:
        context.undecided(node, old, "Keras 3 has no such name that is known here")
    return bool(found.name)


def call(context: Context, original: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
    """Return a call with today's arguments and method; `None` if it stays."""
    name = context.names.of(original.func)
    method = original.func.attr.value if isinstance(original.func, cst.Attribute) else ""
    made = updated
    if context.roles.is_model_class(name):
        made = _without_slash(context, original, made)
    if name.startswith("keras."):
        made = _with_arguments(context, original, made, _arguments_of(moved(name).name or name))
        made = _saves_weights(context, original, made, name)
    elif method in METHODS and not name.startswith(("tf.", "numpy.")):
        made = _other_method(context, original, made, METHODS[method])
    elif method in METHOD_ARGUMENTS:
        made = _with_arguments(context, original, made, METHOD_ARGUMENTS[method])
        made = _with_steps(context, original, made)
    elif method in _WRITES_WEIGHTS:
        made = _with_file(context, original, made)
    elif method == "numpy" and not original.args:
        return _to_numpy(context, original, updated)
    return None if made is updated else made


def history_key(context: Context, original: cst.Subscript, updated: cst.Subscript) -> cst.Subscript | None:
    """Return `history.history["lr"]` under today's key."""
    if not m.matches(original.value, m.Attribute(attr=m.Name("history"))) or len(original.slice) != 1:
        return None
    index = original.slice[0].slice
    if (
        not isinstance(index, cst.Index)
        or not isinstance(index.value, cst.SimpleString)
        or index.value.raw_value != "lr"
    ):
        return None
    context.mapped(original, context.code(original), 'history["learning_rate"]')
    new = cst.SubscriptElement(cst.Index(cst.SimpleString('"learning_rate"')))
    return updated.with_changes(slice=[new])


def attribute(context: Context, original: cst.Attribute, updated: cst.Attribute) -> cst.Attribute | None:
    """Return `model.optimizer.lr` under today's name."""
    if not m.matches(original, m.Attribute(value=m.Attribute(attr=m.Name("optimizer")), attr=m.Name("lr"))):
        return None
    context.mapped(original, context.code(original), ".learning_rate")
    return updated.with_changes(attr=cst.Name("learning_rate"))


def _arguments_of(name: str) -> dict[str, str]:
    module = name.rpartition(".")[0]
    return {**ARGUMENTS.get(f"{module}.*", {}), **ARGUMENTS.get(name, {})}


def _with_arguments(context: Context, original: cst.Call, updated: cst.Call, table: Mapping[str, str]) -> cst.Call:
    args, changed = [], False
    for before, arg in zip(original.args, updated.args, strict=True):
        old = arg.keyword.value if arg.keyword is not None else ""
        new = table.get(old, old)
        if new == old:
            args.append(arg)
            continue
        named = f"{old}="
        if new == "?":
            context.mapped(before.value, named, _DROPIN, on_dropin=True)
            args.append(arg)
            continue
        changed = True
        context.mapped(before.value, named, "nothing" if new == "-" else f"{new}=")
        if new != "-":
            args.append(_input_shape(arg) if new == "input_shape" else arg.with_changes(keyword=cst.Name(new)))
    return updated.with_changes(args=_without_last_comma(updated, args)) if changed else updated


def _without_slash(context: Context, original: cst.Call, updated: cst.Call) -> cst.Call:
    """Return a call without "/" in `name=`, which Keras 3 refuses."""
    args = []
    for arg in updated.args:
        text = arg.value
        if m.matches(arg.keyword, m.Name("name")) and isinstance(text, cst.SimpleString) and "/" in text.value:
            context.mapped(original, text.value, text.value.replace("/", "_"))
            arg = arg.with_changes(value=text.with_changes(value=text.value.replace("/", "_")))
        args.append(arg)
    return (
        updated if all(a is b for a, b in zip(args, updated.args, strict=True)) else updated.with_changes(args=args)
    )


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
        equal = (
            arg.equal
            if arg.keyword is not None
            else cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
        )
        args.append(
            arg.with_changes(keyword=keyword, equal=equal if keyword is not None else cst.MaybeSentinel.DEFAULT)
        )
    context.mapped(original, f".{original.func.attr.value}()", f".{new}()")
    func = updated.func.with_changes(attr=cst.Name(new))
    return _with_steps(context, original, updated.with_changes(func=func, args=_without_last_comma(updated, args)))


def _with_steps(context: Context, original: cst.Call, updated: cst.Call) -> cst.Call:
    """Say what becomes of numbers of steps that are not whole; `n / m` is the only sign of one."""
    for arg in original.args:
        if arg.keyword is None or arg.keyword.value not in ("steps_per_epoch", "validation_steps", "steps"):
            continue
        value = arg.value
        if isinstance(value, cst.Name) and len(values := context.names.values.get(context.names.of(value), [])) == 1:
            value = values[0]
        if isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Divide):
            context.mapped(arg.value, f"{arg.keyword.value}={context.code(arg.value)}", _DROPIN, on_dropin=True)
    return updated


def _saves_weights(context: Context, original: cst.Call, updated: cst.Call, name: str) -> cst.Call:
    if name.endswith("ModelCheckpoint") and any(
        m.matches(arg, m.Arg(keyword=m.Name("save_weights_only"), value=m.Name("True"))) for arg in original.args
    ):
        return _with_file(context, original, updated)
    return updated


def _with_file(context: Context, original: cst.Call, updated: cst.Call) -> cst.Call:
    """Return a call whose file of weights ends with `.weights.h5`."""
    for place, arg in enumerate(updated.args):
        if place and (arg.keyword is None or arg.keyword.value not in ("filepath", "filename")):
            continue
        value = _weights_file(arg.value)
        if value is None:
            if not isinstance(arg.value, cst.BaseString) or ".weights.h5" not in context.code(original):
                context.mapped(original, "a file of weights", _DROPIN, on_dropin=True)
            return updated
        context.mapped(original, '".h5"', '".weights.h5"')
        args = [*updated.args[:place], arg.with_changes(value=value), *updated.args[place + 1 :]]
        return updated.with_changes(args=args)
    return updated


def _weights_file(value: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return the name of a file with its new end; `None` if its end is not in this expression."""
    if isinstance(value, cst.SimpleString):
        new = _OLD_FILE.sub(".weights.h5", value.value)
        return value.with_changes(value=new) if new != value.value else None
    if isinstance(value, cst.FormattedString) and isinstance(value.parts[-1], cst.FormattedStringText):
        last = value.parts[-1]
        if last.value.endswith(".h5") and not last.value.endswith(".weights.h5"):
            text = last.with_changes(value=last.value.removesuffix(".h5") + ".weights.h5")
            return value.with_changes(parts=[*value.parts[:-1], text])
    if isinstance(value, cst.BinaryOperation):
        side = "right" if isinstance(value.operator, cst.Add) else "left"
        new_side = _weights_file(getattr(value, side))
        return None if new_side is None else value.with_changes(**{side: new_side})
    if m.matches(value, m.Call(func=m.Attribute(attr=m.Name("format")))):
        assert isinstance(value, cst.Call)
        assert isinstance(value.func, cst.Attribute)
        start = _weights_file(value.func.value)
        return None if start is None else value.with_changes(func=value.func.with_changes(value=start))
    return None


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
