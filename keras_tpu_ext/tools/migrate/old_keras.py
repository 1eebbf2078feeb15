"""Names of old Keras."""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from keras_tpu_ext.tools.migrate.context import Context
from keras_tpu_ext.tools.migrate.keras_names import DROPIN, UNKNOWN, moved
from keras_tpu_ext.tools.migrate.names import chain

# What `evaluate` returns in Keras 3: the metrics in their order, and what a container of others has, by name.
_NAMES_OF_EVALUATE = (
    "list(dict.fromkeys([metric.name for metric in {0}.metrics if metric.name in {0}.get_metrics_result()] "
    "+ sorted({0}.get_metrics_result())))"
)
_REDUCTIONS = {
    "AUTO": "sum_over_batch_size",
    "SUM_OVER_BATCH_SIZE": "sum_over_batch_size",
    "SUM": "sum",
    "NONE": "none",
}


def reference(context: Context, original: cst.Name | cst.Attribute) -> cst.BaseExpression | None:
    """Return where a name of Keras is today; `None` if it stays."""
    name = context.names.of(original)
    if not name.startswith("keras.") or name.startswith("keras.backend.") or name == "keras.backend":
        return None
    if reduction := _REDUCTIONS.get(name.removeprefix("keras.losses.Reduction.")):
        context.mapped(original, context.name(original), reduction)
        return cst.SimpleString(f'"{reduction}"')
    new = today(context, original, context.name(original), name)
    root = context.names.imports.get(chain(original).partition(".")[0], "")
    if not new or (new.rpartition(".")[2] == name.rpartition(".")[2] and root != "tf"):
        return None  # the import says where it is
    if new != name:
        context.mapped(original, context.name(original), new)
    if new.startswith("tensorflow.keras."):
        new = new.replace("tensorflow.", f"{min(context.tensorflow_names, default='tf')}.", 1)
    return cst.parse_expression(new)


def today(context: Context, node: cst.CSTNode, old: str, name: str) -> str:
    """Return where a name of Keras is today; say why, and return an empty text, if it is nowhere."""
    new, why = moved(name)
    if why == DROPIN:
        context.by_dropin(node, old)
    elif why == UNKNOWN:
        context.undecided(node, old, why)
    elif why:
        context.out_of_reach(node, old, why)
    return new


def history_key(context: Context, original: cst.Subscript, updated: cst.Subscript) -> cst.Subscript | None:
    """Return `history.history["lr"]`, or `logs["lr"]` of a callback, under today's key."""
    key = m.SubscriptElement(m.Index(m.SimpleString("'lr'") | m.SimpleString('"lr"')))
    values = m.Attribute(attr=m.Name("history")) | m.Name("logs")
    if context.on_dropin or not m.matches(original, m.Subscript(values, [key])):
        return None
    context.mapped(original, context.code(original), 'history["learning_rate"]')
    new = cst.SubscriptElement(cst.Index(cst.SimpleString('"learning_rate"')))
    return updated.with_changes(slice=[new])


def attribute(context: Context, original: cst.Attribute, updated: cst.Attribute) -> cst.BaseExpression | None:
    """Return `model.optimizer.lr` under today's name, and what `model.metrics_names` was in today's order."""
    if original.attr.value == "metrics_names" and context.on_dropin:
        context.by_dropin(original, ".metrics_names")
    elif original.attr.value == "metrics_names":
        context.mapped(original, context.code(original), "the names of what evaluate returns, in today's order")
        return cst.parse_expression(_NAMES_OF_EVALUATE.format(context.code(original.value)))
    elif original.attr.value == "input_names":
        context.mapped(original, context.code(original), "the names of .inputs")
        return cst.parse_expression(f"[one.name for one in {context.code(original.value)}.inputs]")
    elif original.attr.value in ("input", "output") and context.values.is_sequential(original.value):
        context.mapped(original, context.code(original), f".{original.attr.value}s[0]")
        return cst.parse_expression(f"{context.code(original)}s[0]")
    if not m.matches(original, m.Attribute(value=m.Attribute(attr=m.Name("optimizer")), attr=m.Name("lr"))):
        return None
    context.mapped(original, context.code(original), ".learning_rate")
    return updated.with_changes(attr=cst.Name("learning_rate"))
