"""Which operators this project can replay: the one place that walks the catalogue.

Every module of `catalog/` holds exactly one `OP`; those whose name starts with `_` hold what
several declarations share.
A declaration with twins stands for each of them.
"""

import pkgutil
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from types import MappingProxyType

from collector.ops import catalog
from collector.ops.spec import OpSpec


def find(kernel_type: str) -> OpSpec | None:
    """The declaration of a kernel type; None where there is none."""
    return _by_kernel().get(kernel_type)


def all_ops() -> tuple[OpSpec, ...]:
    """Every declaration, sorted by kernel type."""
    return tuple(_by_kernel().values())


@cache
def _by_kernel() -> Mapping[str, OpSpec]:
    declared = (_declaration(name) for name in _modules())
    ops = sorted((op for each in declared for op in _with_twins(each)), key=lambda op: op.kernel)
    return MappingProxyType({op.kernel: op for op in ops})


def _with_twins(op: OpSpec) -> list[OpSpec]:
    """An operator under each name of its family."""
    names = (op.kernel, *op.twins)
    return [replace(op, kernel=n, twins=tuple(t for t in names if t != n)) for n in names]


def _modules() -> list[str]:
    names = (module.name for module in pkgutil.iter_modules(catalog.__path__))
    return [f"{catalog.__name__}.{name}" for name in names if not name.startswith("_")]


def _declaration(name: str) -> OpSpec:
    op = getattr(import_module(name), "OP", None)
    if not isinstance(op, OpSpec):
        raise TypeError(f"{name}: one OP = OpSpec(...) is wanted")
    return op
