"""The path of the module that is running, for models that nobody hands over.

Hooks on all modules see every call. A module that is called outside of any other is a root. The first root
with parameters is the model, and its modules have their paths in it; those of other roots begin with the name
of the root's class.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from halfguard.step.parameters import without_wrappers
from halfguard.tracing.operation_places import ModuleStack


class CalledModules(ModuleStack):
    """The modules whose forward is running, outermost first; ``model`` is the first root with parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.model: nn.Module | None = None
        self._entering: Callable[[nn.Module, Any], None] | None = None
        self._names: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()

    def watch(self, entering: Callable[[nn.Module, Any], None]) -> None:
        """Hook all modules; ``entering`` is called with each root and its arguments."""
        self._entering = entering

        def leave(*_: Any) -> None:
            if self._paths:
                self._paths.pop()

        register_module_forward_pre_hook(self.enter)
        register_module_forward_hook(leave, always_call=True)

    def enter(self, module: nn.Module, args: Any) -> None:
        """Note that a module is called."""
        if not self._paths:
            self.name_root(module)
            if self._entering is not None:
                self._entering(module, args)
        self._paths.append(self.path_of(module))

    def path_of(self, module: nn.Module) -> str:
        """Return the path of a module; the name of its class if nothing else is known."""
        return self._names.get(module, type(module).__name__)

    def module_at(self, path: str) -> nn.Module | None:
        """Return the module of a path."""
        return next((module for module, name in self._names.items() if name == path), None)

    @property
    def named(self) -> dict[str, nn.Module]:
        """All modules that were called, or lie in one that was, by their paths."""
        return {path: module for module, path in self._names.items()}

    def has_root(self, module: nn.Module) -> bool:
        """Return whether a module was named before."""
        return module in self._names

    def name_root(self, root: nn.Module) -> None:
        """Give all modules below a root their paths."""
        if root in self._names:
            return
        is_model = self.model is None and next(root.parameters(), None) is not None
        if is_model:
            self.model = root
        prefix = () if is_model else (type(root).__name__,)
        for path, module in root.named_modules():
            plain = without_wrappers(path)
            self._names[module] = ".".join((*prefix, *((plain,) if plain else ())))
