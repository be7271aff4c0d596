"""The arguments that the declarations pass to their functions, determined without torch.

A case is built with stand-ins for tensors: any access or operation gives another stand-in. The
declaration's own `run` then calls a function that records its arguments. Calls that depend on the
numbers in a tensor could differ; no declaration reads them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from collector.model.case import Case
from collector.ops.spec import OpSpec
from tests.fixtures.op_rows import all_rows
from tools.operators.releases.binding import Passed, Schema


class StandIn:
    """A tensor, a dtype, or torch itself: every access gives another one."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return StandIn()

    def __getitem__(self, key: Any) -> Any:
        return StandIn()

    def __len__(self) -> int:
        return 1

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def __iter__(self) -> Iterator[Any]:
        return iter((StandIn(), StandIn(), StandIn(), StandIn()))

    def _another(self, *others: Any) -> Any:
        return StandIn()

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _another
    __floordiv__ = __mod__ = __pow__ = __neg__ = __invert__ = __and__ = __or__ = _another
    __lt__ = __le__ = __gt__ = __ge__ = __matmul__ = __lshift__ = __rshift__ = _another
    __hash__ = object.__hash__


class _Noted(Exception):
    """Raised when the function is called: its outputs are not needed."""

    def __init__(self, passed: Passed):
        super().__init__(passed)
        self.passed = passed


@dataclass(frozen=True, slots=True)
class _Operator:
    """Replaces an operator of torch: it has its schemas as torch does, and records its call."""

    schemas: tuple[Schema, ...]

    def overloads(self) -> list[str]:
        return [f"overload_{number}" for number in range(len(self.schemas))]

    @property
    def __globals__(self) -> dict[str, Any]:
        """The names of the function's module, which a run may look up as it launches."""
        return {"get_ascend_config": StandIn()}

    @property
    def _qualified_op_name(self) -> str:
        """Which library's, which a run may ask for: none."""
        return ""

    def __getattr__(self, name: str) -> Any:
        schema = self.schemas[int(name.removeprefix("overload_"))]
        return SimpleNamespace(_schema=SimpleNamespace(arguments=schema.parameters))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise _Noted(Passed(_are_none(args), tuple((k, v is None) for k, v in kwargs.items())))


def passed_by(op: OpSpec, case: Case, schemas: tuple[Schema, ...]) -> Passed | None:
    """Return what a launch of a case passes to the declared function, if that has these schemas;
    None if it calls another one of torch_npu's operators, which it gets as `npu`."""
    call = op.npu_call(case, StandIn())
    if "npu" in call.kwargs:
        return None
    try:
        (op.graph_of(case) or op.npu).run(_Operator(schemas), *call.args, **call.kwargs)
    except _Noted as noted:
        return noted.passed
    raise AssertionError(f"{op.kernel}: its run calls nothing")


def rows_by_kernel() -> dict[str, list[Case]]:
    """The fixture rows, in order, by kernel type."""
    rows: dict[str, list[Case]] = {}
    for record in all_rows():
        rows.setdefault(record.kernel_type, []).append(record.case)
    return rows


def _are_none(values: tuple[Any, ...]) -> tuple[bool, ...]:
    return tuple(value is None for value in values)
