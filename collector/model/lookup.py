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
from typing import Any

Setting = int | str | bool | tuple[str, ...] | Mapping[str, Any]
Settings = Mapping[str, Setting]
NO_SETTINGS: Settings = MappingProxyType({})
# Interpolation along one size, and along the number of elements of the output.
ONE_SIZE: Settings = MappingProxyType({"max_interpolation_dim": 1})
OUTPUT_ELEMENTS: Settings = MappingProxyType({"generic_compute": {"axis": "output_numel"}})


@dataclass(frozen=True, slots=True)
class Lookup:
    """An operator whose duration is that of a kernel.

    Of several kernels of one operator, that of the lowest `order` is looked up first. `settings`
    are further keys of the entry, such as `tc_input_count`: the number of inputs that are compared,
    if the kernel has others after them.

    is_part        the consumer takes the operator apart by a function of its own, and the kernel is
                   one of its parts
    joins          the operator has two tensors where the kernel has both as one, the second behind
                   the first in the last dimension
    collective     the operation of ranks whose duration is added to that of the kernel
    interpolation  how the consumer interpolates between the rows of the kernel, if specified"""

    operator: str
    order: int = 0
    settings: Settings = field(default_factory=lambda: NO_SETTINGS)
    is_part: bool = False
    joins: bool = False
    collective: str = ""
    interpolation: Settings = field(default_factory=lambda: NO_SETTINGS)


def make_lookups(
    *operators: str,
    order: int = 0,
    is_part: bool = False,
    joins: bool = False,
    collective: str = "",
    interpolation: Settings = NO_SETTINGS,
    **settings: Setting,
) -> tuple[Lookup, ...]:
    """Return the lookups of operators that share their settings."""
    more = (MappingProxyType(settings), is_part, joins, collective, interpolation)
    return tuple(Lookup(name, order, *more) for name in operators)
