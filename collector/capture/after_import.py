"""An action right after a module is imported, whenever a program does that."""

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


def after_import(name: str, action: Callable[[ModuleType], None]) -> None:
    """Run an action on a module: now, if it is imported, else after its own code has run. Further
    calls for a module that is awaited do nothing."""
    if module := sys.modules.get(name):
        action(module)
    elif not any(isinstance(one, _AfterImport) and one.name == name for one in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport(name, action))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Lets the other finders find a module, and runs an action after its own code."""

    def __init__(self, name: str, action: Callable[[ModuleType], None]) -> None:
        self.name, self._action = name, action

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self._action(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
