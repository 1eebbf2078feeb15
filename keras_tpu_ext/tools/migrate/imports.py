"""Imports of old names, and those that a migrated program needs no more."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from keras_tpu_ext.tools.migrate.context import Context
from keras_tpu_ext.tools.migrate.keras_names import moved
from keras_tpu_ext.tools.migrate.names import canonical, chain
from keras_tpu_ext.tools.migrate.old_keras import today
from keras_tpu_ext.tools.migrate.tables.out_of_reach import out_of_reach
from keras_tpu_ext.tools.migrate.tables.stand_ins import STAND_INS

Small = cst.BaseSmallStatement
_REMOVABLE = ("tf", "keras.backend", "kaggle_datasets")
_STAYS = "keras.backend"  # `tf.keras` has more of it than `keras`


def import_from(context: Context, original: cst.ImportFrom) -> Small | cst.FlattenSentinel[Small] | None:
    """Return what `from keras.old import name` becomes; `None` if it stays."""
    module = canonical(chain(original.module)) if original.module is not None and not original.relative else ""
    if isinstance(original.names, cst.ImportStar):
        return _star(context, original, module)
    if not (
        module.startswith("keras") or (module == "tf" and any(chain(one.name) == "keras" for one in original.names))
    ):
        for one in original.names:
            _tell_package(context, original, f"{module}.{chain(one.name)}")
        return None
    modules: dict[str, list[cst.ImportAlias]] = {}
    for one in original.names:
        source, alias = _moved_alias(context, original, module, one)
        modules.setdefault(source, []).append(alias)
    if list(modules) == [chain(original.module)]:
        return None
    statements = [_from(original, source, aliases) for source, aliases in modules.items()]
    return statements[0] if len(statements) == 1 else cst.FlattenSentinel(statements)


def import_module(context: Context, original: cst.Import) -> cst.Import | cst.RemovalSentinel | None:
    """Return what `import tensorflow.keras.old as name` becomes; `None` if it stays."""
    names = []
    if {chain(one.name) for one in original.names} <= {"keras_tpu_ext.dropin", "keras_tpu_ext.dropin.old_program"}:
        return cst.RemoveFromParent()  # it is written anew where it is needed
    for one in original.names:
        name = canonical(chain(one.name))
        _tell_package(context, original, name)
        if name.startswith("keras.") and not name.startswith(_STAYS) and one.asname is not None:
            new = today(context, original, chain(one.name), name)
            if new and new != chain(one.name):
                one = one.with_changes(name=_dotted(new))
        elif name == "keras" and chain(one.name) != "keras":
            alias = one.asname if one.asname is not None and chain(one.asname.name) != "keras" else None
            one = one.with_changes(name=cst.Name("keras"), asname=alias) if one.asname is not None else one
        names.append(one)
    return (
        original.with_changes(names=names)
        if any(a is not b for a, b in zip(names, original.names, strict=True))
        else None
    )


def without_unused(module: cst.Module, before: cst.Module) -> cst.Module:
    """Return a program without imports of TensorFlow and the like that only the old one used."""
    gone = used(before) - used(module)
    made = module.visit(_Remover(gone))
    assert isinstance(made, cst.Module)
    return made


def _star(context: Context, original: cst.ImportFrom, module: str) -> cst.BaseSmallStatement | None:
    if not module.startswith(("keras", "tf")):
        return None
    new = moved(module)[0] if module.startswith("keras") else ""
    if not new or module in context.names.unknown_stars:
        context.undecided(original, f"from {chain(original.module)} import *", "which names it binds")
        return None
    return _from(original, new, None) if new != chain(original.module) else None


def _moved_alias(
    context: Context, original: cst.ImportFrom, module: str, one: cst.ImportAlias
) -> tuple[str, cst.ImportAlias]:
    """Return the module that has a name today, and the name as it is to be imported."""
    old_module, last = chain(original.module), chain(one.name)
    name = f"{module}.{last}" if module != "tf" or last == "keras" else ""
    if not name or name.startswith(_STAYS) or module == "keras.backend":
        return old_module, one
    if name == "tf.keras":
        return "", one  # `import keras`
    found = today(context, original, name, name)
    new_module, _, new = found.rpartition(".")
    if not found or (new_module, new) == (old_module, last):
        return old_module, one
    if found != name:
        context.mapped(original, name, found)
    if new != last:
        bound = one.asname or cst.AsName(cst.Name(last))
        one = one.with_changes(name=cst.Name(new), asname=bound)
    return new_module, one


def _from(original: cst.ImportFrom, source: str, aliases: list[cst.ImportAlias] | None) -> cst.BaseSmallStatement:
    if source == "":
        assert aliases is not None
        return cst.Import([one.with_changes(comma=cst.MaybeSentinel.DEFAULT) for one in aliases])
    if aliases is None:
        return original.with_changes(module=_dotted(source))
    assert not isinstance(original.names, cst.ImportStar)
    if len(aliases) != len(original.names):
        aliases[-1] = aliases[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    return original.with_changes(module=_dotted(source), names=aliases)


def _dotted(name: str) -> cst.Name | cst.Attribute:
    made = cst.parse_expression(name)
    assert isinstance(made, (cst.Name, cst.Attribute))
    return made


def _tell_package(context: Context, node: cst.CSTNode, name: str) -> None:
    """Say what becomes of a package that is no part of TensorFlow."""
    if write := out_of_reach(name):
        context.out_of_reach(node, name, write)
    elif name in STAND_INS and name != "kaggle_datasets":
        context.by_dropin(node, name, "its stand-in")


def used(module: cst.Module) -> set[str]:
    """Return the names that a program uses, beside those that it only imports."""
    collector = _Used()
    module.visit(collector)
    return collector.names


class _Used(cst.CSTVisitor):
    """Collects the names that a program uses beside importing them."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def visit_Import(self, node: cst.Import) -> bool:
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        node.value.visit(self)
        return False

    def visit_Arg(self, node: cst.Arg) -> bool:
        node.value.visit(self)
        return False

    def visit_Name(self, node: cst.Name) -> None:
        self.names.add(node.value)


class _Remover(cst.CSTTransformer):
    def __init__(self, gone: Iterable[str]) -> None:
        self._gone = set(gone)

    def leave_Import(self, original_node: cst.Import, updated_node: cst.Import) -> cst.Import | cst.RemovalSentinel:
        return self._without(updated_node, updated_node.names, "")

    def leave_ImportFrom(
        self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom
    ) -> cst.ImportFrom | cst.RemovalSentinel:
        if isinstance(updated_node.names, cst.ImportStar):
            return updated_node
        return self._without(updated_node, updated_node.names, f"{canonical(chain(updated_node.module))}.")

    def _without(self, node, names, module):  # type: ignore[no-untyped-def]
        kept = [one for one in names if not self._is_gone(one, module)]
        if len(kept) == len(names):
            return node
        if not kept:
            return cst.RemoveFromParent()
        kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        return node.with_changes(names=kept)

    def _is_gone(self, one: cst.ImportAlias, module: str) -> bool:
        bound = chain(one.asname.name) if one.asname is not None else chain(one.name).partition(".")[0]
        return bound in self._gone and canonical(module + chain(one.name)).startswith(_REMOVABLE)
