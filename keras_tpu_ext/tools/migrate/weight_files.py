"""Files of weights, whose names end with `.weights.h5` in Keras 3."""

from __future__ import annotations

import re

import libcst as cst
import libcst.matchers as m

from keras_tpu_ext.tools.migrate.context import Context
from keras_tpu_ext.tools.migrate.names import keyword

_OLD_FILE = re.compile(r"(?<!\.weights)\.h5(?=[\"']+$)")
_CHECKPOINT = "keras.callbacks.ModelCheckpoint"


def with_weights_file(context: Context, original: cst.Call, updated: cst.Call) -> cst.Call:
    """Return a call whose file of weights ends with `.weights.h5`, if the program writes each file that it reads."""
    file = _file(context, original)
    if file is None:
        return updated
    name = context.code(file.value)
    if isinstance(file.value, cst.BaseString) and ".weights.h5" in name:
        return updated
    place = original.args.index(file)
    value = _weights_file(updated.args[place].value)
    if value is None or not _is_written(context):
        context.by_dropin(original, f"the file of weights {name}")
        return updated
    context.mapped(original, '".h5"', '".weights.h5"')
    args = [*updated.args]
    args[place] = args[place].with_changes(value=value)
    return updated.with_changes(args=args)


def _file(context: Context, call: cst.Call) -> cst.Arg | None:
    """Return the argument of a call that is a file of weights."""
    if context.names.of(call.func) == _CHECKPOINT:
        only_weights = m.Arg(keyword=m.Name("save_weights_only"), value=m.Name("True"))
        fifth = call.args[4:5] if all(arg.keyword is None for arg in call.args[:5]) else ()
        if not any(m.matches(arg, only_weights) for arg in call.args) and not any(
            m.matches(arg.value, m.Name("True")) for arg in fifth
        ):
            return None
    elif not m.matches(call.func, m.Attribute(attr=m.Name("save_weights") | m.Name("load_weights"))):
        return None
    return next((arg for arg in call.args if keyword(arg) in ("filepath", "filename")), None) or next(
        (arg for arg in call.args[:1] if arg.keyword is None), None
    )


def _is_written(context: Context) -> bool:
    """Return whether the program writes each file of weights that it reads, and names these files nowhere else."""
    written: list[str] = []
    read: list[str] = []
    for call in context.roles.calls_of("save_weights", "load_weights", _CHECKPOINT):
        if (file := _file(context, call)) is not None:
            is_read = m.matches(call.func, m.Attribute(attr=m.Name("load_weights")))
            (read if is_read else written).append(context.wrapper.module.code_for_node(file.value))
    text = context.program.text
    return {*read} <= {*written} and all(
        text.count(one) == (written + read).count(one) for one in {*written} if _OLD_FILE.search(one)
    )


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
