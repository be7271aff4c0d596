"""The operators of a model under which a consumer looks the duration of a kernel up.

A consumer simulates a model by its operators, such as `aten.mm.default`, and a database has the
kernels that they launch. The two names are joined by an `op_mapping.yaml`, whose entries are
written from the declarations of the kernels. Names and settings are those of TensorCast: Ascend/
msmodeling at 84fec85, tensor_cast/ops, profiling_data_source.py, and the op_mapping.yaml of its
data for vLLM-Ascend 0.18.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

Setting = int | str | bool | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Lookup:
    """An operator whose duration is that of a kernel.

    Of several kernels of one operator, that of the lowest `order` is looked up first. `settings`
    are further keys of the entry, such as `tc_input_count`: the number of inputs that are compared,
    if the kernel has others after them."""

    operator: str
    order: int = 0
    settings: Mapping[str, Setting] = field(default_factory=lambda: MappingProxyType({}))


def looked_up(*operators: str, order: int = 0, **settings: Setting) -> tuple[Lookup, ...]:
    """Return the lookups of operators that share their settings."""
    return tuple(Lookup(name, order, MappingProxyType(settings)) for name in operators)
