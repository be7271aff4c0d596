"""The registry of operators; the only module that walks the catalog.

A module of a family, `catalog/{family}/`, declares operators: every `OpSpec` with a public name.
Modules whose name starts with `_` have code that several modules of the family share. A declaration
with twins gives one operator for each of them.
"""

import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from operator import itemgetter
from types import MappingProxyType, ModuleType

from collector.model.case import Case
from collector.model.lookup import Lookup
from collector.ops import catalog
from collector.ops.spec import OpSpec
from collector.ops.torch_operators import torch_operator


def find_operator(kernel_type: str) -> OpSpec | None:
    """Return the declaration of a kernel type, or of an operator of torch; None if there is
    none."""
    found = _declared().get(kernel_type)
    return found[1] if found else torch_operator(kernel_type)


def family_of(kernel_type: str) -> str:
    """Return the catalog family that declares a kernel type; empty if none does."""
    found = _declared().get(kernel_type)
    return found[0] if found else ""


def is_product(kernel_type: str) -> bool:
    """Return whether a kernel multiplies matrices."""
    return family_of(kernel_type) == "matmul"


def all_ops() -> tuple[OpSpec, ...]:
    """Return every declaration, sorted by kernel type."""
    return tuple(op for _, op in _declared().values())


def lookups() -> Iterator[tuple[str, Lookup]]:
    """Yield each kernel type with each of its lookups; of twins, the declared one first."""
    for op in declarations():
        for kernel_type in (op.kernel, *op.twins):
            yield from ((kernel_type, lookup) for lookup in op.lookups)


def declarations() -> Iterator[OpSpec]:
    """Yield every declaration once; `all_ops` has one for each of its twins too."""
    return (op for name in _modules() for op in _declarations(name))


@cache
def ops_of(operator: str) -> tuple[OpSpec, ...]:
    """Return the declarations of the kernels in which the duration of a model's operator is looked
    up, in the order in which they are tried."""
    found = [(lookup.order, kernel) for kernel, lookup in lookups() if lookup.operator == operator]
    return tuple(_declared()[kernel][1] for _, kernel in sorted(found, key=itemgetter(0)))


def fused_attention() -> OpSpec:
    """Return the attention of inference: the lengths of its requests decide its duration, and
    serving stacks and consumers record them in columns of their own."""
    (op,) = ops_of("tensor_cast.attention.default")
    return op


@cache
def _declared() -> Mapping[str, tuple[str, OpSpec]]:
    """Return the family and the declaration of each kernel type, sorted by kernel type."""
    found = {
        op.kernel: (name.split(".")[-2], op)
        for name in _modules()
        for each in _declarations(name)
        for op in _with_twins(each)
    }
    return MappingProxyType(dict(sorted(found.items(), key=itemgetter(0))))


def _with_twins(op: OpSpec) -> list[OpSpec]:
    names = (op.kernel, *op.twins)
    return [replace(op, kernel=n, twins=tuple(t for t in names if t != n)) for n in names]


def _modules() -> list[str]:
    families = (import_module(name) for name in _names(catalog))
    modules = (name for family in families for name in _names(family))
    return [name for name in modules if not name.rpartition(".")[2].startswith("_")]


def _names(package: ModuleType) -> list[str]:
    return [m.name for m in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")]


def _declarations(name: str) -> list[OpSpec]:
    values = vars(import_module(name)).items()
    return [op for name, op in values if isinstance(op, OpSpec) and not name.startswith("_")]


def twins_of(case: Case) -> Iterator[Case]:
    """Yield the case, then the same tensors under each kernel type that the call may launch."""
    yield case
    op = find_operator(case.kernel_type)
    for kernel_type in op.twins if op is not None else ():
        yield replace(case, kernel_type=kernel_type)
