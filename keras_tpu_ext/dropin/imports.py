"""Modules under names that nobody else has, or that somebody else has for Keras 2."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec

Find = Callable[[str], types.ModuleType | None]


class _Finder(MetaPathFinder):
    """Finds the modules that a function knows."""

    def __init__(self, find: Find) -> None:
        self.find = find

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module that is there."""
        del path, target
        module = self.find(fullname)
        return None if module is None else ModuleSpec(fullname, AnotherName(module), is_package=True)


class AnotherName(Loader):
    """Puts a module that is there under one more name."""

    def __init__(self, module: types.ModuleType) -> None:
        self._module = module

    def exec_module(self, module: types.ModuleType) -> None:
        """Make the module the one of the spec's name; the import system takes it from there."""
        assert module.__spec__ is not None
        sys.modules[module.__spec__.name] = self._module


def provide(find: Find, *, first: bool) -> None:
    """Let imports find modules.

    Args:
        find: Returns the module of a name, or None.
        first: Whether it is asked before all others, or when nobody else has found a module.
    """
    sys.meta_path.insert(0 if first else len(sys.meta_path), _Finder(find))
