"""Half of a worker's start-up is torch's compiler front end, which an optimizer's first step imports for nothing.

`torch.optim` and DDP import `torch._dynamo` (1.4 s of 2.9 s on a plain core, in every worker, at every resize) only
to tell the compiler what not to trace. Until somebody compiles, those calls do nothing. So a stand-in answers
them, and makes way for the real module as soon as anything else of it is touched: `torch.compile` works as ever.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_NAME = "torch._dynamo"
_WRAPPED = "__dynamo_disable"  # where torch keeps what `disable` gave for a function


def install() -> bool:
    """Put the stand-in in place, unless the real module is loaded already; whether it was done. Imports torch."""
    import torch

    if _NAME in sys.modules:
        return False
    stand_in = _StandIn()
    sys.modules[_NAME] = stand_in
    torch._dynamo = stand_in
    sys.meta_path.insert(0, stand_in.finder)
    return True


class _StandIn(ModuleType):
    """`torch._dynamo` as far as eager training calls it; everything else is the real one's."""

    def __init__(self) -> None:
        super().__init__(_NAME, __doc__)
        self.__path__: list[str] = []
        self.__spec__ = ModuleSpec(_NAME, None, is_package=True)
        self.finder = _Finder(self)
        self.utils = _Part(self, "utils", get_optimize_ddp_mode=lambda: "ddp_optimizer")
        self.trace_rules = _Part(self, "trace_rules", clear_lru_cache=lambda: None)
        self._disabled: list[Callable[..., Any]] = []

    def graph_break(self, *_: Any, **__: Any) -> None:
        """Nothing is traced, so there is nothing to break."""

    def disable(self, fn: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
        self._disabled.append(fn)
        return fn

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # `inspect` looks through all modules for their files
        return getattr(self.make_way(), name)

    def make_way(self) -> ModuleType:
        """Import the real module in our place."""
        import torch

        if sys.modules.get(_NAME) is self:
            sys.meta_path.remove(self.finder)
            del sys.modules[_NAME]
            torch.__dict__.pop("_dynamo", None)
            for function in self._disabled:
                function.__dict__.pop(_WRAPPED, None)  # torch asks the real one next time
        return importlib.import_module(_NAME)


class _Part(ModuleType):
    """A submodule of which a few functions are known."""

    def __init__(self, whole: _StandIn, name: str, **known: Callable[..., Any]) -> None:
        super().__init__(f"{_NAME}.{name}")
        self._whole = whole
        self.__dict__.update(known)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._whole.make_way()
        return getattr(importlib.import_module(self.__name__), name)


class _Finder(MetaPathFinder):
    """Somebody imports a submodule of the real package: load that first, then give what it loaded."""

    def __init__(self, whole: _StandIn) -> None:
        self._whole = whole

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        if not fullname.startswith(f"{_NAME}."):
            return None
        self._whole.make_way()
        loaded = importlib.import_module(fullname)  # this thread holds its lock already
        return ModuleSpec(fullname, _Loaded(loaded))


class _Loaded(Loader):
    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
