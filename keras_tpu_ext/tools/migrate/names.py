"""What the names in a program mean, by its imports: `K.mean` is `keras.backend.mean`, wherever `K` comes from."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import libcst as cst
from libcst import metadata

from keras_tpu_ext.tools.migrate.tables.keras_names import KERAS_NAMES
from keras_tpu_ext.tools.migrate.tables.old_modules import ROOTS

_PREFIXES = {**ROOTS, "tensorflow.compat.v2": "tf", "tensorflow": "tf"}


def canonical(name: str) -> str:
    """Return a full name with `tf` and `keras` as its start, whichever way they were imported."""
    for old, start in _PREFIXES.items():
        if name == old or name.startswith(f"{old}."):
            return start + name.removeprefix(old)
    return name


def chain(node: cst.CSTNode | None) -> str:
    """Return `"a.b.c"` for a name or attributes of a name, and `""` for anything else."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute) and (start := chain(node.value)):
        return f"{start}.{node.attr.value}"
    return ""


def keyword(arg: cst.Arg) -> str:
    """Return the keyword of an argument; empty if it has none."""
    return "" if arg.keyword is None else arg.keyword.value


def all_nodes(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield a node and all that are in it."""
    yield node
    for child in node.children:
        yield from all_nodes(child)


class Names:
    """The full names of a program's names.

    Attributes:
        values: For each variable, by its full name, the expressions that it is assigned.
        imports: What each name is that `import ... as` binds.
        stars: Modules of which all names were imported, and are known here.
        unknown_stars: The same, of which they are not known.
    """

    def __init__(self, wrapper: metadata.MetadataWrapper) -> None:
        self._qualified = wrapper.resolve(metadata.QualifiedNameProvider)
        self.values: dict[str, list[cst.BaseExpression]] = defaultdict(list)
        self.imports: dict[str, str] = {}
        self._aliases: dict[str, str] = {}
        self.stars: list[str] = []
        self.unknown_stars: list[str] = []
        wrapper.module.visit(_Collector(self))
        for name, values in self.values.items():
            found = {self.of(value) for value in values}
            if len(found) == 1 and (one := found.pop()) and not one.startswith((".", "builtins.")):
                self._aliases[name] = one

    def of(self, node: cst.CSTNode | None) -> str:
        """Return the full name of a name or of attributes of one.

        It starts with a dot if it is the program's own, and is empty if it is not certain or `node` is another
        expression.
        """
        if node is None or not chain(node):
            return ""
        found: Any = self._qualified.get(node, ())
        names = {self._full(one) for one in (found() if callable(found) else found)}
        if not names:
            return self._from_star(chain(node))
        return names.pop() if len(names) == 1 else ""

    def _full(self, found: Any) -> str:
        if found.source is metadata.QualifiedNameSource.IMPORT:
            return canonical(found.name.lstrip("."))
        if found.source is metadata.QualifiedNameSource.BUILTIN:
            return str(found.name)
        name = f".{found.name}"
        for end in _ends(name):
            if name[:end] in self._aliases:
                return self._aliases[name[:end]] + name[end:]
        return name

    def _from_star(self, name: str) -> str:
        """Return the full name of what only an import of all names of a module can have bound."""
        first = name.partition(".")[0]
        module = next((one for one in reversed(self.stars) if first in KERAS_NAMES[one]), None)
        return f"{module}.{name}" if module else ""


def _ends(name: str) -> Iterator[int]:
    """Yield where the parts of a dotted name end, the longest first."""
    yield len(name)
    yield from (found.start() for found in reversed(list(re.finditer(r"(?<!>)\.(?!<)", name))) if found.start())


def _elements(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    return [one.value for one in node.elements] if isinstance(node, (cst.Tuple, cst.List)) else []


class _Collector(cst.CSTVisitor):
    def __init__(self, names: Names) -> None:
        self._names = names

    def visit_Import(self, node: cst.Import) -> None:
        for one in node.names:
            name = chain(one.name)
            if one.asname is None:
                self._names.imports[name.partition(".")[0]] = canonical(name.partition(".")[0])
            else:
                self._names.imports[chain(one.asname.name)] = canonical(name)

    def visit_ImportFrom(self, node: cst.ImportFrom) -> None:
        if isinstance(node.names, cst.ImportStar) and node.module is not None:
            module = canonical(chain(node.module))
            (self._names.stars if module in KERAS_NAMES else self._names.unknown_stars).append(module)

    def visit_Assign(self, node: cst.Assign) -> None:
        for target in node.targets:
            self._assign(target.target, node.value)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        if node.value is not None:
            self._assign(node.target, node.value)

    def visit_AugAssign(self, node: cst.AugAssign) -> None:
        self._assign(node.target, node.value)

    def visit_For(self, node: cst.For) -> None:
        for value in _elements(node.iter) or [node.iter]:
            self._assign(node.target, value)

    def visit_With(self, node: cst.With) -> None:
        for item in node.items:
            if item.asname is not None:
                self._assign(item.asname.name, item.item)

    def _assign(self, target: cst.BaseExpression, value: cst.BaseExpression) -> None:
        if isinstance(target, (cst.Tuple, cst.List)):
            values = _elements(value)
            if len(values) != len(target.elements):
                values = [value] * len(target.elements)
            for one, its in zip(target.elements, values, strict=True):
                self._assign(one.value, its)
        elif name := self._names.of(target):
            self._names.values[name].append(value)
