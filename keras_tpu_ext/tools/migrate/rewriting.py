"""Walks through a program once: says what becomes of it, and makes the modern one."""

from __future__ import annotations

from typing import Any

import libcst as cst
import libcst.matchers as m

from keras_tpu_ext.tools.migrate import functions, imports, keras_calls, old_keras
from keras_tpu_ext.tools.migrate.context import Context
from keras_tpu_ext.tools.migrate.names import chain
from keras_tpu_ext.tools.migrate.roles import DATA, MODEL
from keras_tpu_ext.tools.migrate.special_calls import set_trainable
from keras_tpu_ext.tools.migrate.strategies import Strategies, is_about_tpus
from keras_tpu_ext.tools.migrate.tables.out_of_reach import LOOPS, STEPS, out_of_reach
from keras_tpu_ext.tools.migrate.tables.stand_ins import STAND_INS, instead
from keras_tpu_ext.tools.migrate.tables.tpu import STRATEGY_ATTRIBUTES, TPU
from keras_tpu_ext.tools.migrate.templates import NO_SPACE

_OF_LABELS = "whether labels have the dimensions of predictions, which Keras 3 gives them only in its own losses"
_LABELS_OF_TWO = "{0} = {0}[:, None] if (len({0}.shape), len({1}.shape)) == (1, 2) else {0}"


def modernized(context: Context) -> cst.Module:
    """Return the modern program; `context` has then what was found."""
    made = context.wrapper.module.visit(_Modernizer(context, Strategies(context)))
    assert isinstance(made, cst.Module)
    return imports.without_unused(made, context.wrapper.module)


class _Modernizer(cst.CSTTransformer):
    def __init__(self, context: Context, strategies: Strategies) -> None:
        self._context, self._strategies = context, strategies
        self._comments: list[cst.EmptyLine] = []  # of statements that went, for the next one

    def leave_Import(self, original_node: cst.Import, updated_node: cst.Import) -> Any:
        return imports.import_module(self._context, original_node) or updated_node

    def leave_ImportFrom(self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom) -> Any:
        return imports.import_from(self._context, original_node) or updated_node

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> Any:
        if (new := self._of_strategy(original_node, updated_node)) is not None:
            return new
        for rule in (functions.call, keras_calls.call):
            if (new := rule(self._context, original_node, updated_node)) is not None:
                return new
        return updated_node

    def leave_Expr(self, original_node: cst.Expr, updated_node: cst.Expr) -> Any:
        return functions.set_value(self._context, original_node, updated_node) or updated_node

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> Any:
        is_maximal = self._context.is_maximal(original_node)
        return self._reference(original_node, updated_node) if is_maximal else updated_node

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> Any:
        context = self._context
        if self._strategies.is_strategy(original_node.value):
            return self._of_strategy_attribute(original_node, updated_node)
        if (new := old_keras.attribute(context, original_node, updated_node)) is not None:
            return new
        if not chain(original_node) or not context.is_maximal(original_node):
            return updated_node
        return self._reference(original_node, updated_node)

    def leave_Assign(self, original_node: cst.Assign, updated_node: cst.Assign) -> cst.Assign:
        set_trainable(self._context, original_node)
        return updated_node

    def leave_Subscript(self, original_node: cst.Subscript, updated_node: cst.Subscript) -> Any:
        return old_keras.history_key(self._context, original_node, updated_node) or updated_node

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> Any:
        owner = self._context.roles.class_of(original_node)
        if owner is not None and self._context.roles.is_model_class(self._context.roles.name_of(owner)):
            if original_node.name.value == "reset_states":
                self._context.mapped(original_node, "def reset_states", "def reset_state")
                return updated_node.with_changes(name=cst.Name("reset_state"))
            if original_node.name.value in STEPS and len(original_node.params.params) == 2:
                step = f"{original_node.name.value}(self, data)"
                self._context.out_of_reach(original_node, step, STEPS[original_node.name.value])
            if original_node.name.value == "call":
                return self._of_call(original_node, updated_node)
        if original_node in self._context.roles.on_labels and len(original_node.params.params) > 1:
            if self._context.roles.is_in_partial(original_node):
                self._context.by_dropin(original_node, f"labels of one dimension in {original_node.name.value}")
                return updated_node
            return self._on_labels(original_node, updated_node)
        return updated_node

    def leave_Lambda(self, original_node: cst.Lambda, updated_node: cst.Lambda) -> Any:
        if original_node in self._context.roles.on_labels and len(original_node.params.params) > 1:
            true = original_node.params.params[0].name
            if m.findall(original_node.body, m.Name(true.value)):
                self._context.by_dropin(original_node, f"{true.value} of one dimension in a lambda")
        return updated_node

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> Any:
        bases = {self._context.names.of(base.value) for base in original_node.bases}
        if bases & {"keras.losses.Loss", "keras.Loss"}:
            self._context.undecided(original_node, f"class {original_node.name.value}", _OF_LABELS)
        return updated_node

    def _of_call(self, original: cst.FunctionDef, updated: cst.FunctionDef) -> cst.FunctionDef:
        """Return `call` with `training=None`, which old Keras gave even where there was no default."""
        params = list(updated.params.params)
        for place, one in enumerate(params):
            if one.name.value == "training" and one.default is None and place == len(params) - 1:
                self._context.mapped(original, "call(..., training)", "training=None")
                params[place] = one.with_changes(default=cst.Name("None"), equal=NO_SPACE)
        return updated.with_changes(params=updated.params.with_changes(params=params))

    def _on_labels(self, original: cst.FunctionDef, updated: cst.FunctionDef) -> cst.FunctionDef:
        """Return a loss or metric whose labels have the two dimensions of Keras 2, if predictions have two."""
        true, predicted = (one.name.value for one in original.params.params[:2])
        new = cst.parse_statement(_LABELS_OF_TWO.format(true, predicted))
        if isinstance(updated.body, cst.SimpleStatementSuite):  # on the line of its `def`
            updated = updated.with_changes(body=cst.IndentedBlock([cst.SimpleStatementLine(updated.body.body)]))
        statements = list(updated.body.body)
        if any(map(new.deep_equals, statements)):
            return updated
        self._context.mapped(
            original, f"{true} of one dimension in {original.name.value}", "two, as predictions have"
        )
        statements.insert(original.get_docstring() is not None, new)
        return updated.with_changes(body=updated.body.with_changes(body=statements))

    def leave_Decorator(self, original_node: cst.Decorator, updated_node: cst.Decorator) -> Any:
        function = self._context.parents.get(original_node)
        decorator = original_node.decorator
        name = self._context.names.of(decorator.func if isinstance(decorator, cst.Call) else decorator)
        if name != "tf.function" or not isinstance(function, cst.FunctionDef):
            return updated_node
        roles = self._context.roles.of(function.body)
        if roles == {MODEL}:
            self._context.mapped(original_node, "@tf.function", "nothing: JAX compiles the step")
            return cst.RemoveFromParent()
        if roles != {DATA}:
            self._context.undecided(original_node, "@tf.function", "whether the function gets values of Keras")
        return updated_node

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        made: Any = super().on_leave(original_node, updated_node)
        if original_node in self._strategies.statements:
            return self._replaced(original_node)
        is_statement = isinstance(original_node, (cst.SimpleStatementLine, cst.BaseCompoundStatement))
        if is_statement and id(original_node) not in self._strategies.inside and isinstance(made, cst.CSTNode):
            made = self._with_comments(original_node, made)
        if isinstance(original_node, cst.IndentedBlock) and not made.body:
            return made.with_changes(body=[cst.SimpleStatementLine([cst.Pass()])])
        return made

    def _reference(self, original: Any, updated: Any) -> Any:
        context, name = self._context, self._context.names.of(original)
        if not name or name.startswith((".", "builtins.")):
            return updated
        if write := out_of_reach(name):
            context.out_of_reach(original, context.name(original), write)
            return updated
        module, _, last = name.rpartition(".")
        if module in STAND_INS:
            if last in STAND_INS[module] or name in STAND_INS:
                context.by_dropin(original, context.name(original), "its stand-in")
            else:
                context.out_of_reach(original, context.name(original), instead(name))
            return updated
        for rule in (functions.reference, old_keras.reference):
            if (new := rule(context, original)) is not None:
                return new
        return updated

    def _of_strategy(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        """Return what a call of TensorFlow's distribution becomes."""
        context, strategies = self._context, self._strategies
        name = context.names.of(original.func)
        if is_about_tpus(name, original):
            self._tell(original, context.name(original.func), TPU[name])
            return None if strategies.why_not else cst.parse_expression("kte.strategy_scope()")
        if not isinstance(original.func, cst.Attribute) or not strategies.is_strategy(original.func.value):
            return None
        method = original.func.attr.value
        if method in LOOPS:
            context.out_of_reach(original, f".{method}()", LOOPS[method])
        elif method in STRATEGY_ATTRIBUTES and not strategies.why_not:
            assert isinstance(updated.func, cst.Attribute)
            return updated.func.value if method == "scope" else updated.args[0].value
        return None

    def _of_strategy_attribute(self, original: cst.Attribute, updated: cst.Attribute) -> cst.Attribute:
        new = STRATEGY_ATTRIBUTES.get(original.attr.value)
        if new is None:
            return updated
        self._tell(original, f".{original.attr.value}", new)
        is_renamed = "replicas" in new and not self._strategies.why_not
        return updated.with_changes(attr=cst.Name("num_replicas")) if is_renamed else updated

    def _tell(self, original: cst.CSTNode, old: str, new: str) -> None:
        if why_not := self._strategies.why_not:
            self._context.by_dropin(original, old, new, why_not)
        else:
            self._context.mapped(original, old, new)

    def _replaced(self, original: Any) -> Any:
        """Return the statement in the place of one that sets up a TPU."""
        code = self._strategies.statements[original]
        above = original.leading_lines
        comments = [*self._comments, *(line for line in above if line.comment)] if self._comments else [*above]
        if not code:
            self._comments = comments
            return cst.RemoveFromParent()
        self._comments = []
        return cst.parse_statement(code).with_changes(leading_lines=comments)

    def _with_comments(self, original: cst.CSTNode, made: Any) -> Any:
        there = {line.comment.value for line in made.leading_lines if line.comment is not None}
        texts = [text for text in self._context.marks.get(original, ()) if text not in there]
        marks = [cst.EmptyLine(comment=cst.Comment(text)) for text in texts]
        added = [*self._comments, *marks] if self._context.roles.function_of(original) is None else marks
        if self._context.roles.function_of(original) is None:
            self._comments = []
        return made.with_changes(leading_lines=[*made.leading_lines, *added]) if added else made
