"""What an expression is, as far as its program says: a value of Keras, or a plain one, or neither for certain."""

from __future__ import annotations

from typing import Any

import libcst as cst

from keras_tpu_ext.tools.migrate.names import chain, keyword
from keras_tpu_ext.tools.migrate.roles import FunctionNode, Roles

KERAS, PLAIN, UNKNOWN = "Keras", "plain", "unknown"

_MODELS = ("keras.Model", "keras.Sequential", "keras.models.", "keras.applications.")
_INPUTS = ("keras.Input", "keras.layers.Input")
_PLAIN_MODULES = ("tf.", "numpy.", "math.", "builtins.", "pandas.", "sklearn.", "os.", "json.", "glob.", "random.")
_PLAIN_METHODS = (
    "predict",
    "numpy",
    "astype",
    "tolist",
    "as_list",
    "get_weights",
    "format",
    "take",
    "batch",
    "predict_on_batch",
)
_LITERALS = (cst.BaseNumber, cst.BaseString, cst.Lambda, cst.Dict, cst.Set, cst.BaseComp)
# Of these an expression is what its parts are.
_PARTS = {
    cst.BinaryOperation: ("left", "right"),
    cst.BooleanOperation: ("left", "right"),
    cst.IfExp: ("body", "orelse"),
    cst.Subscript: ("value",),
    cst.UnaryOperation: ("expression",),
}
_DEPTH = 12


class Values:
    """What the expressions of a program are."""

    def __init__(self, roles: Roles) -> None:
        self._roles, self._names = roles, roles.names
        self._busy: set[object] = set()

    def kind(self, node: cst.CSTNode) -> str:
        """Return `KERAS`, `PLAIN` or `UNKNOWN`."""
        if node in self._busy:
            return ""  # what a variable is made of itself says nothing of it
        if len(self._busy) > _DEPTH:
            return UNKNOWN
        self._busy.add(node)
        try:
            return self._kind(node)
        finally:
            self._busy.discard(node)

    def is_callable_of_keras(self, node: cst.CSTNode) -> bool:
        """Return whether an expression is a layer or a model."""
        if isinstance(node, cst.Call):
            name = self._names.of(node.func)
            if name.startswith("keras.applications."):
                return True
            function = self._roles.called(node)
            if function is not None:
                return any(self.is_callable_of_keras(one) for one in self._roles.returns[function])
            return self._roles.is_model_class(name) and name.rpartition(".")[2][:1].isupper()
        name = self._names.of(node)
        if not name.startswith(".") or node in self._busy:
            return False
        self._busy.add(node)
        try:
            return any(self.is_callable_of_keras(one) for one in self._names.values.get(name, ()))
        finally:
            self._busy.discard(node)

    def is_model(self, node: cst.CSTNode, *, own: bool = False) -> bool:
        """Return whether an expression is a model; with `own`, one of the program's classes."""
        values = self._names.values.get(self._names.of(node), ())
        made = [self._names.of(value.func) for value in values if isinstance(value, cst.Call)]
        return any(
            (name in self._roles.classes and self._roles.is_model_class(name))
            or (not own and name.startswith(_MODELS))
            for name in made
        )

    def is_sequential(self, node: cst.CSTNode) -> bool:
        """Return whether an expression is a `Sequential` for certain."""
        values = self._names.values.get(self._names.of(node), ())
        made = [self._names.of(one.func) if isinstance(one, cst.Call) else "" for one in values]
        return bool(made) and {*made} <= {"keras.Sequential", "keras.models.Sequential"}

    def _kind(self, node: cst.CSTNode) -> str:
        if isinstance(node, _LITERALS):
            return PLAIN
        if isinstance(node, (cst.Tuple, cst.List)):
            return self._of_all(one.value for one in node.elements)
        if isinstance(node, cst.Comparison):
            return self._of_all((node.left, *(one.comparator for one in node.comparisons)))
        if parts := _PARTS.get(type(node)):
            return self._of_all(getattr(node, part) for part in parts)
        if isinstance(node, cst.Call):
            return self._of_call(node)
        return self._of_name(node)

    def _of_all(self, nodes: Any) -> str:
        nodes = [*nodes]
        return _joined({self.kind(node) for node in nodes}, "" if nodes else PLAIN)

    def _of_call(self, node: cst.Call) -> str:
        name = self._names.of(node.func)
        if name in _INPUTS:
            return KERAS
        args = [arg.value for arg in node.args]
        is_layer = self.is_callable_of_keras(node.func) or name.startswith(("keras.layers.", "keras.ops."))
        if is_layer and not (name.startswith("keras.layers.") and name.rpartition(".")[2][:1].isupper()):
            return KERAS
        if name.startswith(("tf.", "keras.backend.")) or self._roles.called(node) is not None:
            kind = self._of_all(args)
            return UNKNOWN if kind == PLAIN and not name.startswith("tf.") else kind
        if name.startswith(_PLAIN_MODULES):
            return PLAIN
        if isinstance(node.func, cst.Attribute):
            if node.func.attr.value in _PLAIN_METHODS:
                return PLAIN
            return self.kind(node.func.value)
        return UNKNOWN

    def _of_name(self, node: cst.CSTNode) -> str:
        name = self._names.of(node)
        if name.startswith(("builtins.", "numpy.", "math.", "tf.")):
            return PLAIN
        if isinstance(node, cst.Attribute):
            if node.attr.value in ("output", "input", "outputs", "inputs"):
                return KERAS
            if node.attr.value in ("shape", "dtype", "name", "ndim"):
                return PLAIN
            return UNKNOWN if chain(node).startswith("self.") else self.kind(node.value)
        if not name.startswith("."):
            return UNKNOWN
        values = self._names.values.get(name, ())
        kinds = {self.kind(value) for value in values}
        function = self._parameter_of(node, name)
        if function is not None:
            kinds.add(self._of_parameter(function, name.rpartition(".")[2]))
        return _joined(kinds, UNKNOWN)

    def _parameter_of(self, node: cst.CSTNode, name: str) -> FunctionNode | None:
        """Return the function of which a name is a parameter."""
        function = self._roles.function_of(node)
        if function is None:
            return None
        last = name.rpartition(".")[2]
        parameters = (*function.params.params, *function.params.kwonly_params, *function.params.posonly_params)
        return function if any(one.name.value == last for one in parameters) else None

    def _of_parameter(self, function: FunctionNode, name: str) -> str:
        """Return what a parameter is, by what the function is called with."""
        if not isinstance(function, cst.FunctionDef):
            return UNKNOWN
        names = [one.name.value for one in function.params.params]
        place = names.index(name) if name in names else None
        kinds = set()
        for call in self._roles.calls.get(self._roles.name_of(function), ()):
            for index, arg in enumerate(call.args):
                if keyword(arg) == name or (arg.keyword is None and index == place):
                    kinds.add(self.kind(arg.value))
        return _joined(kinds, UNKNOWN)


def _joined(kinds: set[str], nothing: str) -> str:
    """Return what a value is that is made of values of these kinds; `nothing` if there are none."""
    if KERAS in kinds or UNKNOWN in kinds:
        return KERAS if KERAS in kinds else UNKNOWN
    return PLAIN if PLAIN in kinds else nothing
