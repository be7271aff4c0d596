"""Operators of torch, which are what a CPU and a GPU run where no kernel is declared.

A profile of a CPU or a GPU has a row `aten.native_layer_norm_backward` where a kernel of an NPU is
not known. Its operator is called as it is: torch's schema gives the arguments, the row their
tensors, and the column `Runtime torch_arguments` the rest, as a JSON object by the names of the
schema. Arguments that have their defaults are left out.

A tensor is an object, and takes the next input of the row. It is contiguous, unless it has
`strides`. What cannot be made again has `refused`, with the reason, and takes no input. Other
values are JSON; dtypes, layouts and memory formats are texts as torch prints them. Devices and
generators are not recorded.

The values of a tensor are known by `Runtime torch_values`, an object by the position of the input,
which does not distinguish cases: integers have the range in which they are drawn, `from` to
`below`, and may be `sorted`, since indices decide what is read and must not leave it; a mask that
decides a size has its number of `true` values.

Every tensor that an operator updates begins with zeros, since repeats would otherwise let it grow
without bound, or vanish. Other floating-point numbers are between 0.05 and 0.95, which roots,
logarithms and probabilities accept.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from importlib import import_module
from math import isfinite, prod
from operator import attrgetter
from typing import Any

from collector.codec.errors import CaseRejected
from collector.model.case import Case, Slot
from collector.model.vocabulary import TORCH_ARGUMENTS, TORCH_VALUES, torch_dtype_of
from collector.ops.spec import Call, Constraint, OpSpec, TensorMaker

STRIDES, LEAST, BELOW, SORTED = "strides", "from", "below", "sorted"
TRUE, REFUSED = "true", "refused"
# Those of torch itself, with the module that registers each; operators of others are declared in a
# file of the user.
_LIBRARIES = {"aten": "", "mkldnn": "", "fsdp": "torch.distributed.fsdp"}
_SIGNATURE = "x?+ -> y?+"
_ASSUMES = "values are random; integers are in their recorded range"
_EXACT = 4.0  # up to which halves are recorded as they are
_IN_TRAINING = "in training"  # no name of an argument
_LOW, _HIGH = 0.05, 0.95


@lru_cache(maxsize=4096)
def torch_operator(kernel_type: str) -> OpSpec | None:
    """Return the declaration of an operator of torch; None if the name is not of one."""
    library, _, name = kernel_type.partition(".")
    if library not in _LIBRARIES or not name:
        return None
    operator, _, overload = name.partition(".")
    call = f"torch.ops.{library}.{operator}.{overload or 'default'}"
    return OpSpec(
        kernel_type,
        call,
        _SIGNATURE,
        reference=partial(_launch, call),
        build=partial(_build, call),
        constraints=(Constraint("its recorded arguments do not fit its tensors", _is_readable),),
        missing_metadata=_reason_of_refusal,
        written=_none if "empty" in operator.split("_") else _all,
        assumes=_ASSUMES,
        is_of_torch=True,
    )


def _none(case: Case) -> int | None:
    """Return that no row of the outputs is written: the operator only allocates them."""
    return 0 if all(slot.shape for slot in case.outputs or ()) else None


def _all(case: Case) -> int | None:
    return None


def recorded_number(value: float) -> float:
    """Return the number that stands for a floating-point argument.

    Rates and scales change from step to step and not the time: only their sign and whether they
    exceed 1 are kept. Halves up to 4 and what is not finite may select another algorithm."""
    if not isfinite(value) or (abs(value) <= _EXACT and (value * 2).is_integer()):
        return value
    stands = 0.1 if abs(value) < 1 else 1.1
    return stands if value > 0 else -stands


def _reason_of_refusal(case: Case) -> str:
    """Return why an argument of a case cannot be made again; empty if all can."""
    if not _is_readable(case):
        return ""  # which the constraint says
    return next((str(one[REFUSED]) for one in _objects(_arguments(case)) if REFUSED in one), "")


def _is_readable(case: Case) -> bool:
    if case.attribute(TORCH_ARGUMENTS) is None:
        return True
    try:
        tensors = sum(REFUSED not in one for one in _objects(_arguments(case)))
    except (ValueError, RecursionError):
        return False
    return tensors == len(case.inputs or ())


def _arguments(case: Case) -> Mapping[str, Any]:
    """Return the recorded arguments by name. Raises ValueError for other text."""
    found = json.loads(case.attribute(TORCH_ARGUMENTS) or "{}")
    if not isinstance(found, dict):
        raise ValueError(f"{TORCH_ARGUMENTS}: expected an object")
    return found


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield what is recorded of each tensor, and what is refused, in order."""
    for one in value.values() if isinstance(value, Mapping) else value:
        if isinstance(one, dict):
            yield one
        elif isinstance(one, list):
            yield from _objects(one)


def _launch(name: str, torch: Any, *args: Any, **kwargs: Any) -> Any:
    """Call an operator. Those with an argument `train` also read torch's mode, which is off where
    cases are launched."""
    operator = attrgetter(name.removeprefix("torch."))(torch)
    if not kwargs.pop(_IN_TRAINING, False):
        return operator(*args, **kwargs)
    with torch.enable_grad():
        return operator(*args, **kwargs)


def _build(name: str, case: Case, make: TensorMaker) -> Call:
    """Return the arguments of an operator. Raises CaseRejected for one that torch does not have,
    and for arguments that were not recorded."""
    if module := _LIBRARIES[name.split(".")[2]]:
        import_module(module)
    operator = make.torch
    for part in name.split(".")[1:]:
        operator = getattr(operator, part, None)
    if operator is None:
        raise CaseRejected(f"torch {make.torch.__version__} has no {name}")
    maker = _ArgumentMaker(case, make)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for argument in operator._schema.arguments:
        value = maker.value(argument)
        if not argument.kwarg_only:
            args.append(value)
        elif value is not None:
            kwargs[argument.name] = value
        if argument.name == "train" and value:
            kwargs[_IN_TRAINING] = True
    return Call(*args, **kwargs)


class _ArgumentMaker:
    """Makes the arguments of one case in the order of the schema."""

    def __init__(self, case: Case, make: TensorMaker) -> None:
        self._make = make
        self._slots = enumerate(case.inputs or ())
        self._known = json.loads(case.attribute(TORCH_VALUES) or "{}")
        self._is_recorded = case.attribute(TORCH_ARGUMENTS) is not None
        self._given = _arguments(case)
        self._is_written = False

    def value(self, argument: Any) -> Any:
        """Return the value of an argument of the schema. Raises CaseRejected if it has none."""
        alias = argument.alias_info
        self._is_written = alias is not None and alias.is_write
        kind = str(argument.type)
        if argument.name in self._given:
            return self._read(self._given[argument.name])
        if not self._is_recorded and "Tensor" in kind:  # a case that a user wrote
            if "List" in kind:
                return [self._tensor(*place, None) for place in self._slots]
            if (place := next(self._slots, None)) is not None:
                return self._tensor(*place, None)
        if argument.name == "device":
            return self._make.empty((), "FLOAT").device
        if argument.has_default_value():
            return argument.default_value
        if kind.startswith("Optional["):
            return None
        raise CaseRejected(f"argument '{argument.name}': expected a value, and none is recorded")

    def _read(self, value: Any) -> Any:
        if isinstance(value, dict):
            return self._tensor(*next(self._slots), value.get(STRIDES))
        if isinstance(value, list):
            return [self._read(one) for one in value]
        if isinstance(value, str) and value.startswith("torch."):
            name = value.removeprefix("torch.")
            dtype = torch_dtype_of(name)
            if dtype is not None:
                return self._make.dtype(dtype.spelling)
            return getattr(self._make.torch, name, value)  # or the text of a message
        return value

    def _tensor(self, at: int, slot: Slot, strides: Sequence[int] | None) -> Any:
        shape, values = slot.shape or (), self._known.get(str(at), {})
        if strides is None:
            return self._values(shape, slot.dtype, values)
        ends = ((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        size = 1 + sum(ends) if all(shape) else 0
        return self._values((size,), slot.dtype, values).as_strided(shape, strides)

    def _values(self, shape: Sequence[int], dtype: str, known: Mapping[str, Any]) -> Any:
        make = self._make
        if TRUE in known:
            return (make.permutation(prod(shape), "INT64") < known[TRUE]).view(shape)
        if BELOW in known:
            found = make.integers(shape, dtype, known.get(LEAST, 0), known[BELOW])
            return found.flatten().sort().values.view(shape) if known.get(SORTED) else found
        if not make.dtype(dtype).is_floating_point:
            return make.normal(shape, dtype)
        if self._is_written:
            return make.full(shape, dtype, 0.0)
        return make.uniform(shape, dtype, _LOW, _HIGH)
