"""Which functions of a program run in a model, on JAX, and which in an input pipeline, on TensorFlow."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import libcst as cst
from libcst import metadata

from keras_tpu_ext.tools.migrate.keras_names import moved
from keras_tpu_ext.tools.migrate.names import Names, chain, keyword

MODEL, DATA, EAGER = "in a model", "in an input pipeline", "elsewhere"
FunctionNode = cst.FunctionDef | cst.Lambda

# Modules whose classes run in a model, so that a class made from one has methods that do.
_MODEL_CLASSES = (
    "keras.layers.", "keras.models.", "keras.losses.", "keras.metrics.", "keras.regularizers.", "keras.constraints.",
    "keras.initializers.", "keras.optimizers.", "keras.Model", "keras.Sequential", "keras.Layer", "keras.Loss",
    "keras.Metric", "keras.activations.",
)  # fmt: skip
_PLAIN_METHODS = ("get_config", "from_config", "compute_output_shape", "reset_states", "reset_state", "summary")
_OF_DATASETS = (
    "map", "filter", "flat_map", "interleave", "apply", "from_generator", "reduce", "scan", "take_while",
    "group_by_window", "bucket_by_sequence_length", "py_function", "numpy_function",
)  # fmt: skip
_IN_MODEL_KEYWORDS = ("activation", "recurrent_activation", "function", "fn", "loss", "metrics", "weighted_metrics")
_IN_MODEL_ENDS = ("_initializer", "_regularizer", "_constraint")
_WRAPPERS = (
    "builtins.zip",
    "builtins.enumerate",
    "functools.partial",
    "tf.function",
    "tf.autograph.experimental.do_not_convert",
)
_CUSTOM_OBJECTS = ("get_custom_objects", "CustomObjectScope", "custom_object_scope")
_CONTROL = ("tf.", "keras.backend.", "keras.ops.")
_NEUTRAL = ("print", "append", "type", "isinstance")


class Roles:
    """What each function of a program is for, by how it is used."""

    def __init__(self, wrapper: metadata.MetadataWrapper, names: Names) -> None:
        self.names = names
        self.parents = wrapper.resolve(metadata.ParentNodeProvider)
        self.functions: dict[str, FunctionNode] = {}
        self.classes: dict[str, cst.ClassDef] = {}
        self.calls: dict[str, list[cst.Call]] = defaultdict(list)  # of the program's functions, by their full names
        self.loads: dict[str, list[cst.CSTNode]] = defaultdict(list)  # where the program's names are used
        self.returns: dict[FunctionNode, list[cst.BaseExpression]] = defaultdict(list)
        self.on_labels: set[FunctionNode] = set()  # those that `compile` gets as losses or metrics
        self._roles: dict[FunctionNode, set[str]] = defaultdict(set)
        self._called_by: list[tuple[cst.Call, FunctionNode]] = []  # where each function is called, also by `tf.cond`
        self.all_calls: list[cst.Call] = []
        wrapper.module.visit(_Collector(self))
        self._seed_classes()
        for call in self.all_calls:
            self._seed_call(call)
        self._spread()

    def of(self, node: cst.CSTNode) -> set[str]:
        """Return the roles of the code in which `node` stands; empty if nothing says any."""
        function = self.function_of(node)
        while function is not None:
            if self._roles[function]:
                return self._roles[function]
            function = self.function_of(function)
        return set()

    def function_of(self, node: cst.CSTNode) -> FunctionNode | None:
        """Return the innermost function around a node."""
        child, parent = node, self.parents.get(node)
        while parent is not None:
            if isinstance(parent, cst.Lambda) and child is parent.body:
                return parent
            if isinstance(parent, cst.FunctionDef) and child is parent.body:
                return parent
            child, parent = parent, self.parents.get(parent)
        return None

    def class_of(self, node: cst.CSTNode) -> cst.ClassDef | None:
        """Return the innermost class around a node."""
        parent = self.parents.get(node)
        while parent is not None and not isinstance(parent, cst.ClassDef):
            parent = self.parents.get(parent)
        return parent

    def is_model_class(self, name: str) -> bool:
        """Return whether a class, by its full name, is Keras's for models, or made from such a class."""
        node = self.classes.get(name)
        if node is None:
            name = moved(name)[0] or name
            return name.startswith(_MODEL_CLASSES) or name.startswith("tensorflow_addons.")
        return any(self.is_model_class(self.names.of(base.value)) for base in node.bases)

    def calls_of(self, *names: str) -> list[cst.Call]:
        """Return the calls of functions with these full names, or of methods of whatever with these names."""
        return [
            call
            for call in self.all_calls
            if self.names.of(call.func) in names
            or (isinstance(call.func, cst.Attribute) and call.func.attr.value in names)
        ]

    def called(self, call: cst.Call) -> FunctionNode | None:
        """Return the program's function that a call calls; methods of `self`, too."""
        return self._function(call.func)

    def is_in_partial(self, function: FunctionNode) -> bool:
        """Return whether a function is given to `functools.partial`, which may take its first arguments."""
        calls = self.calls_of("functools.partial")
        return any(call.args and self._function(call.args[0].value) is function for call in calls)

    def name_of(self, function: cst.FunctionDef | cst.ClassDef) -> str:
        """Return the full name of a function or class of the program."""
        return self.names.of(function.name)

    def methods(self, node: cst.ClassDef) -> dict[str, cst.FunctionDef]:
        """Return the methods of a class."""
        return {one.name.value: one for one in node.body.body if isinstance(one, cst.FunctionDef)}

    def _function(self, node: cst.BaseExpression) -> FunctionNode | None:
        if isinstance(node, cst.Lambda):
            return node
        if found := self.functions.get(self.names.of(node)):
            return found
        if isinstance(node, cst.Attribute) and chain(node.value) in ("self", "cls"):
            owner = self.class_of(node)
            return None if owner is None else self.methods(owner).get(node.attr.value)
        return None

    def _seed_classes(self) -> None:
        for name, node in self.classes.items():
            if self.is_model_class(name):
                for method, function in self.methods(node).items():
                    self._roles[function].add(EAGER if method in _PLAIN_METHODS else MODEL)

    def _seed_call(self, call: cst.Call) -> None:
        name = self.names.of(call.func)
        method = call.func.attr.value if isinstance(call.func, cst.Attribute) else name.rpartition(".")[2]
        of_keras = name.startswith("keras.") and self.is_model_class(name)
        for place, arg in enumerate(call.args):
            name_of_arg = keyword(arg)
            if method == "compile" and (name_of_arg or place) in (1, "loss", 2, "metrics", "weighted_metrics"):
                self.on_labels.update(self._evaluates_to(arg.value))
            if name_of_arg == "custom_objects" or self._takes_custom_objects(call):
                self._mark(arg.value, MODEL)
            elif method in ("compile", "add_loss", "add_metric") or of_keras:
                in_model = name_of_arg in ("", *_IN_MODEL_KEYWORDS) or name_of_arg.endswith(_IN_MODEL_ENDS)
                self._mark(arg.value, MODEL if in_model else EAGER)
            elif method in _OF_DATASETS:
                self._mark(arg.value, DATA)
            elif name.startswith(_CONTROL) and (function := self._function(arg.value)) is not None:
                self._called_by.append((call, function))
            elif method not in _NEUTRAL and name not in _WRAPPERS:
                self._mark(arg.value, EAGER, only_functions=True)

    def functions_in(self, node: cst.BaseExpression, depth: int = 4) -> Iterator[FunctionNode]:
        """Yield the functions of the program that an expression may evaluate to, and those that make them."""
        function = self._function(node.func if isinstance(node, cst.Call) else node)
        if function is not None:
            yield function
        for inner in self._values(node) if depth else ():
            yield from self.functions_in(inner, depth - 1)

    def _takes_custom_objects(self, call: cst.Call) -> bool:
        """Return whether a call registers functions that models use: `get_custom_objects().update({...})`."""
        function = call.func
        if isinstance(function, cst.Attribute) and isinstance(function.value, cst.Call):
            function = function.value.func
        return self.names.of(function).rpartition(".")[2] in _CUSTOM_OBJECTS

    def _mark(self, node: cst.BaseExpression, role: str, *, only_functions: bool = False) -> None:
        """Give a role to the functions that an expression evaluates to."""
        for function in self._evaluates_to(node, depth=0 if only_functions else 4):
            self._roles[function].add(role)

    def _evaluates_to(self, node: cst.BaseExpression, depth: int = 4) -> Iterator[FunctionNode]:
        function = self._function(node)
        if function is not None:
            yield function
        elif depth:
            for inner in self._values(node):
                yield from self._evaluates_to(inner, depth - 1)

    def _values(self, node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
        """Yield the expressions whose functions are those of `node`."""
        if isinstance(node, (cst.List, cst.Tuple, cst.Set, cst.Dict)):
            yield from (one.value for one in node.elements)
        elif isinstance(node, cst.IfExp):
            yield from (node.body, node.orelse)
        elif isinstance(node, cst.Call):
            function = self.called(node)
            if function is not None:
                yield from self.returns[function]
            elif isinstance(node.func, cst.Attribute) and node.func.attr.value in ("items", "values"):
                yield node.func.value
            elif self.names.of(node.func) in _WRAPPERS or self.is_model_class(self.names.of(node.func)):
                yield from (arg.value for arg in node.args)
        elif name := self.names.of(node):
            yield from self.names.values.get(name, ())

    def _call_of_layer(self, call: cst.Call) -> FunctionNode | None:
        """Return the `call` of the program's layer, or of an instance of it, that a call calls."""
        made = [call.func] if isinstance(call.func, cst.Call) else self.names.values.get(self.names.of(call.func), ())
        classes = (self.classes.get(self.names.of(one.func)) for one in made if isinstance(one, cst.Call))
        return next((self.methods(one).get("call") for one in classes if one is not None), None)

    def _spread(self) -> None:
        """Give each function the roles of those that call it, until nothing changes."""
        edges = [*self._called_by, *((call, self.called(call)) for call in self.all_calls)]
        layers = [(call, self._call_of_layer(call)) for call in self.all_calls]
        changed = True
        while changed:
            changed = False
            for call, function in edges:
                if function is not None and not (roles := self.of(call)) <= self._roles[function]:
                    self._roles[function] |= roles
                    changed = True
            for call, function in layers:
                if function is not None and DATA in self.of(call) and DATA not in self._roles[function]:
                    self._roles[function].add(DATA)
                    changed = True
        for call, function in edges:
            if function is not None and not self.of(call) and self._roles[function]:
                self._roles[function].add(EAGER)


class _Collector(cst.CSTVisitor):
    def __init__(self, roles: Roles) -> None:
        self._roles = roles

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._roles.functions[self._roles.name_of(node)] = node

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self._roles.classes[self._roles.name_of(node)] = node

    def visit_Call(self, node: cst.Call) -> None:
        self._roles.all_calls.append(node)
        if name := self._roles.names.of(node.func):
            self._roles.calls[name].append(node)

    def visit_Name(self, node: cst.Name) -> None:
        if (name := self._roles.names.of(node)).startswith("."):
            self._roles.loads[name].append(node)

    def visit_Return(self, node: cst.Return) -> None:
        function = self._roles.function_of(node)
        if function is not None and node.value is not None:
            self._roles.returns[function].append(node.value)
