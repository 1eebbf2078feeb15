"""The code that sets up a TPU becomes one `kte.strategy_scope()`, if all of it and all its uses are understood."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst
import libcst.matchers as m

from keras_tpu_ext.tools.migrate.context import Context
from keras_tpu_ext.tools.migrate.program import Place
from keras_tpu_ext.tools.migrate.tables.tpu import RESOLVERS, STRATEGIES, STRATEGY_ATTRIBUTES, TPU

_SCOPE = "kte.strategy_scope()"
_ONLY_TPU = 'kte.strategy_scope(require="tpu")'
_TALKS = ("builtins.print", "logging.info", "logging.warning", "logging.error", ".logger.info")
_SHOWS = ("builtins.print", "builtins.type", "builtins.str")
_BODY = (cst.Module, cst.IndentedBlock)


class Strategies:
    """What becomes of the strategies of a program.

    Attributes:
        statements: For each statement that is replaced, its new code; `""` where it goes.
        variables: The full names of variables that are strategies.
        renamed: What a global strategy is called now, by its full name.
        inside: All nodes of these statements, by their ids.
        why_not: Why nothing is replaced; empty if all is understood.
    """

    def __init__(self, context: Context) -> None:
        self._context, self._names = context, context.names
        self.statements: dict[cst.CSTNode, str] = {}
        self.variables: set[str] = set()
        self.renamed: dict[str, str] = {}
        self.inside: set[int] = set()
        self.why_not = ""
        self._resolvers: set[str] = set()
        self._functions: set[str] = set()
        self._flags: set[str] = set()  # variables that only say what was found
        self._setup_calls = [one for one in context.roles.all_calls if is_about_tpus(self._names.of(one.func), one)]
        if self._setup_calls:
            self._find()

    def is_strategy(self, node: cst.CSTNode) -> bool:
        """Return whether an expression is a strategy."""
        if isinstance(node, cst.Call):
            name = self._names.of(node.func)
            return name in STRATEGIES or name in self._functions
        return self._names.of(node) in self.variables

    def _find(self) -> None:
        self._collect_variables()
        for body in self._bodies(self._context.wrapper.module):
            self._visit_body(body)
        self._check_calls()
        self._check_uses()
        if self.why_not:
            self.statements.clear()
            self.inside.clear()
            return
        self._rename()

    def _collect_variables(self) -> None:
        """Find variables and functions that are strategies or resolvers, until there are no more."""
        size = -1
        while size != len(self.variables) + len(self._functions) + len(self._resolvers):
            size = len(self.variables) + len(self._functions) + len(self._resolvers)
            for name, values in self._names.values.items():
                if any(self.is_strategy(value) for value in values):
                    self.variables.add(name)
                if any(isinstance(value, cst.Call) and self._names.of(value.func) in RESOLVERS for value in values):
                    self._resolvers.add(name)
            for name, function in self._context.roles.functions.items():
                if any(self.is_strategy(value) for value in self._context.roles.returns[function]):
                    self._functions.add(name)
            self._collect_parameters()

    def _collect_parameters(self) -> None:
        for name, calls in self._context.roles.calls.items():
            function = self._context.roles.functions.get(name)
            if not isinstance(function, cst.FunctionDef):
                continue
            parameters = [one.name.value for one in function.params.params]
            for call in calls:
                for place, arg in enumerate(call.args):
                    by_place = "".join(parameters[place : place + 1])
                    bound = by_place if arg.keyword is None else arg.keyword.value
                    if bound in parameters and self.is_strategy(arg.value):
                        self.variables.add(f"{name}.<locals>.{bound}")

    def _bodies(self, node: cst.CSTNode) -> Iterator[Sequence[cst.CSTNode]]:
        if isinstance(node, _BODY):
            yield node.body
        for child in node.children:
            yield from self._bodies(child)

    def _visit_body(self, body: Sequence[cst.CSTNode]) -> None:
        """Replace, in one block, the statements that only set up a TPU."""
        for statement in body:
            if id(statement) in self.inside:
                continue
            if self._has_setup(statement) and self._is_setup(statement):
                self.inside.update(id(node) for node in _all_nodes(statement))
                new = self._replacement(statement)
                again = any(other in body for other, code in self.statements.items() if code == new)
                self.statements[statement] = "" if again else new

    def _has_setup(self, node: cst.CSTNode) -> bool:
        calls = {id(call) for call in self._setup_calls}
        return any(id(inner) in calls for inner in _all_nodes(node))

    def _replacement(self, statement: cst.CSTNode) -> str:
        nodes = list(_all_nodes(statement))
        raises = any(isinstance(node, cst.Raise) and node.exc is not None for node in nodes)
        scope = _ONLY_TPU if raises else _SCOPE
        if any(isinstance(node, cst.Return) for node in nodes):
            return f"return {scope}"
        assigned = [
            target.target.value
            for node in nodes
            if isinstance(node, cst.Assign) and not m.matches(node.value, m.Name("None"))
            for target in node.targets
            if isinstance(target.target, cst.Name) and self._names.of(target.target) in self.variables
        ]
        return f"{assigned[0]} = {scope}" if assigned else ""

    def _is_setup(self, node: cst.CSTNode) -> bool:
        """Return whether a statement does nothing but set up a TPU, and talk about it."""
        if isinstance(node, (cst.Try, cst.If, cst.Else, cst.ExceptHandler, cst.Finally, cst.IndentedBlock)):
            blocks = [
                child
                for child in node.children
                if isinstance(child, (cst.BaseSuite, cst.If, cst.Else, cst.Finally, cst.ExceptHandler))
            ]
            statements = node.body if isinstance(node, cst.IndentedBlock) else blocks
            return all(self._is_setup(one) for one in statements)
        if isinstance(node, (cst.SimpleStatementLine, cst.SimpleStatementSuite)):
            return all(self._is_small_setup(one) for one in node.body)
        return False

    def _is_small_setup(self, node: cst.BaseSmallStatement) -> bool:
        if isinstance(node, (cst.Pass, cst.Raise)):
            return True
        if isinstance(node, cst.Expr):
            call = node.value
            if isinstance(call, cst.BaseString):
                return True
            name = self._names.of(call.func) if isinstance(call, cst.Call) else ""
            return name in TPU or name in _TALKS
        if isinstance(node, cst.Return):
            return node.value is not None and self.is_strategy(node.value)
        if isinstance(node, cst.Assign) and len(node.targets) == 1:
            name = self._names.of(node.targets[0].target)
            if self._is_of_tpu(node.value):
                return True
            if name.startswith(".") and isinstance(node.value, (cst.SimpleString, cst.Name)):
                if name not in self.variables | self._resolvers:
                    self._flags.add(name)
                return True
            return name.startswith(".") and self._is_address(node.value)
        return False

    def _is_of_tpu(self, value: cst.BaseExpression) -> bool:
        return self.is_strategy(value) or (isinstance(value, cst.Call) and self._names.of(value.func) in TPU)

    def _is_address(self, value: cst.BaseExpression) -> bool:
        """Return whether an expression is a TPU's address."""
        return "TPU_ADDR" in self._context.code(value) or "TPU_NAME" in self._context.code(value)

    def _check_calls(self) -> None:
        for call in self._setup_calls:
            name = self._names.of(call.func)
            is_asked = name in STRATEGIES and isinstance(self._context.parents.get(call), cst.Attribute)
            if id(call) not in self.inside and not is_asked:
                self._refuse(f"{self._place(call)} sets up a TPU and does more")
        called = {id(inner) for call in self._setup_calls for inner in _all_nodes(call.func)}
        for node in _all_nodes(self._context.wrapper.module):
            name = self._names.of(node) if isinstance(node, cst.Attribute) and id(node) not in called else ""
            if name in TPU and ".list_" not in name:
                self._refuse(f"{self._context.name(node)} is used without a call")

    def _refuse(self, why_not: str) -> None:
        self.why_not = self.why_not or why_not

    def _place(self, node: cst.CSTNode) -> Place:
        return self._context.program.place(self._context.line(node))

    def _check_uses(self) -> None:
        """Look at each use of a strategy, or of a resolver, outside what is replaced."""
        for name in (*self.variables, *self._resolvers, *self._flags):
            for node in self._context.roles.loads.get(name, ()):
                if id(node) not in self.inside and not self._is_understood(node, name in self.variables):
                    used = self._context.code(self._context.parents.get(node) or node)
                    self._refuse(f"{self._place(node)} uses `{used[:60]}`")

    def _is_understood(self, node: cst.CSTNode, is_strategy: bool) -> bool:
        """Return whether it is known what a use of a strategy becomes."""
        parent = self._context.parents.get(node)
        if isinstance(parent, cst.Attribute):
            is_other = node is parent.attr  # an attribute of this name, of another object
            return is_other or (is_strategy and parent.attr.value in STRATEGY_ATTRIBUTES)
        if not is_strategy:  # a flag may be set, where nothing asks for it
            return isinstance(parent, cst.AssignTarget) and self._names.of(node) in self._flags
        if isinstance(parent, cst.Arg):
            call = self._context.parents.get(parent)
            function = self._names.of(call.func) if isinstance(call, cst.Call) else ""
            return parent.keyword is node or function in (*self._context.roles.functions, *_SHOWS)
        if isinstance(parent, cst.Assign):
            return all(self._names.of(one.target) in self.variables for one in parent.targets)
        return isinstance(parent, (cst.AssignTarget, cst.Param, cst.NameItem, cst.Del, cst.Return, cst.WithItem))

    def _rename(self) -> None:
        """Call the one global strategy `scope`, unless something else is called so."""
        of_module = [name for name in self.variables if name.count(".") == 1]
        is_free = all(
            isinstance(self._context.parents.get(node), cst.Attribute)
            for node in _all_nodes(self._context.wrapper.module)
            if isinstance(node, cst.Name) and node.value == "scope"
        )
        if len(of_module) == 1 and is_free:
            self.renamed[of_module[0]] = "scope"

    def called(self, variable: str, statement: cst.CSTNode) -> str:
        """Return what a variable of a statement is called now; one of a function keeps its name."""
        nodes = (node for node in _all_nodes(statement) if isinstance(node, cst.Name) and node.value == variable)
        return next(
            (self.renamed[name] for node in nodes if (name := self._names.of(node)) in self.renamed), variable
        )


def is_about_tpus(name: str, call: cst.Call) -> bool:
    """Return whether a call is one of those in the table of TPUs; lists of other devices are not."""
    first = call.args[0].value if call.args else None
    of_tpus = isinstance(first, cst.SimpleString) and "TPU" in first.value
    return name in TPU and (of_tpus or not name.rpartition(".")[2].startswith("list_"))


def _all_nodes(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield node
    for child in node.children:
        yield from _all_nodes(child)
