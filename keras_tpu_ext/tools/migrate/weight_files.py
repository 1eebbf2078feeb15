"""Files of weights, whose names end with `.weights.h5` in Keras 3."""

from __future__ import annotations

import re

import libcst as cst
import libcst.matchers as m

from keras_tpu_ext.tools.migrate.context import Context

_OLD_FILE = re.compile(r"(?<!\.weights)\.h5(?=[\"']+$)")


def with_weights_file(context: Context, original: cst.Call, updated: cst.Call) -> cst.Call:
    """Return a call whose file of weights ends with `.weights.h5`."""
    for place, arg in enumerate(updated.args):
        if place and (arg.keyword is None or arg.keyword.value not in ("filepath", "filename")):
            continue
        value = _weights_file(arg.value)
        if value is None:
            if not isinstance(arg.value, cst.BaseString) or ".weights.h5" not in context.code(original):
                context.mapped(original, "a file of weights", "what it meant, by the drop-in", on_dropin=True)
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
