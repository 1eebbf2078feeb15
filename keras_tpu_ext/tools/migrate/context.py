"""What the rules of a migration share: what is known of the program, and what was found in it."""

from __future__ import annotations

import libcst as cst
from libcst import metadata

from keras_tpu_ext.tools.migrate.names import Names, chain
from keras_tpu_ext.tools.migrate.program import Program
from keras_tpu_ext.tools.migrate.report import MAPPED, NOT_DECIDED, OUT_OF_REACH, Finding
from keras_tpu_ext.tools.migrate.roles import Roles
from keras_tpu_ext.tools.migrate.values import Values

_BINDING = (cst.ImportAlias, cst.ImportFrom, cst.AsName, cst.FunctionDef, cst.ClassDef)
_MARKED = "# keras-tpu-ext migrate: {}: {}"


class Context:
    """A program, what its names mean, and what was found.

    Attributes:
        on_dropin: Whether the written program needs the drop-in, on which `history` has its old keys.
        wrapper: The program's syntax tree.
        names: What its names mean.
        roles: What its functions are for.
        values: What its expressions are.
        parents: The node around each node.
        marks: Comments to put before statements.
        tensorflow_names: What TensorFlow is called, `tf` for instance.
    """

    def __init__(self, program: Program, *, on_dropin: bool = False) -> None:
        self.program, self.on_dropin = program, on_dropin
        self.wrapper = metadata.MetadataWrapper(cst.parse_module(program.text))
        self.names = Names(self.wrapper)
        self.roles = Roles(self.wrapper, self.names)
        self.values = Values(self.roles)
        self.parents = self.roles.parents
        self.marks: dict[cst.CSTNode, list[str]] = {}
        self.tensorflow_names = {alias for alias, name in self.names.imports.items() if name == "tf"}
        self._positions = self.wrapper.resolve(metadata.PositionProvider)
        self._findings: dict[tuple[str, str, str, str], Finding] = {}

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found, in the order of the program."""
        return tuple(sorted(self._findings.values(), key=lambda one: (one.place.cell or 0, one.place.line)))

    def mapped(self, node: cst.CSTNode, old: str, new: str) -> None:
        """Note that an old name becomes a new one in the written program."""
        self._tell(node, MAPPED, old, new, False)

    def by_dropin(self, node: cst.CSTNode, old: str, new: str = "what it meant", why: str = "") -> None:
        """Note that an old name stays and is a new one by the drop-in, and why, if there is more to say."""
        self._tell(node, MAPPED, old, f"{new}, by the drop-in{': ' * bool(why)}{why}", True)

    def undecided(self, node: cst.CSTNode, old: str, why: str) -> None:
        """Note what reading cannot decide; the line stays, with a comment, and on the drop-in."""
        self._tell(node, NOT_DECIDED, old, why, True)
        self._mark(node, _MARKED.format(NOT_DECIDED, f"{old}: {why}"))

    def out_of_reach(self, node: cst.CSTNode, old: str, write: str) -> None:
        """Note what cannot run on JAX, and what to write."""
        self._tell(node, OUT_OF_REACH, old, f"write {write}", True)
        self._mark(node, _MARKED.format(OUT_OF_REACH, f"{old}: write {write}"))

    def line(self, node: cst.CSTNode) -> int:
        """Return the line of a node in the program's text."""
        return int(self._positions[node].start.line)

    def is_maximal(self, node: cst.Name | cst.Attribute) -> bool:
        """Return whether a chain of names is not part of a longer one, nor a name that stands for itself."""
        parent = self.parents.get(node)
        if isinstance(parent, cst.Attribute):
            return False
        if isinstance(parent, cst.Arg):
            return node is parent.value
        if isinstance(parent, cst.Param):
            return node is not parent.name
        return not isinstance(parent, _BINDING)

    def statement(self, node: cst.CSTNode) -> cst.CSTNode:
        """Return the innermost whole statement around a node."""
        found: cst.CSTNode | None = node
        while found is not None and not isinstance(found, (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
            found = self.parents.get(found)
        return node if found is None else found

    def code(self, node: cst.CSTNode) -> str:
        """Return the code of a node, on one line."""
        return " ".join(self.wrapper.module.code_for_node(node).split())

    def name(self, node: cst.CSTNode) -> str:
        """Return how a node is named in findings: the chain of names, or its code."""
        return chain(node) or self.code(node)

    def _mark(self, node: cst.CSTNode, comment: str) -> None:
        comments = self.marks.setdefault(self.statement(node), [])
        if comment not in comments:
            comments.append(comment)

    def _tell(self, node: cst.CSTNode, kind: str, old: str, text: str, on_dropin: bool) -> None:
        place = self.program.place(self.line(node))
        finding = Finding(place, kind, old, text, on_dropin)
        self._findings.setdefault((str(place), kind, old, text), finding)
