"""Rules that declarations share, about what their signatures do not express."""

from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

from collector.codec.errors import CaseRejected
from collector.model.case import Case
from collector.ops.slots import given
from collector.ops.spec import Constraint

T = TypeVar("T")

# NPU kernels refuse tensors without elements.
NOTHING_EMPTY = Constraint(
    "expected no dimension of 0",
    lambda case: all(slot.shape is None or slot.numel > 0 for slot in case.inputs or ()),
)


def accepted(found: T | StrEnum | None) -> T:
    """Return the sizes that were read of a case. Only of cases that the rules accept, from which
    there are sizes, tensors are made and costs are computed; raises CaseRejected for others."""
    if found is None or isinstance(found, StrEnum):
        raise CaseRejected("a rule refuses the case")
    return found


def reads(text: str, read: Callable[[Case], object]) -> Constraint:
    """Require a case from which its operator reads sizes."""
    return Constraint(text, lambda case: read(case) is not None)


def unless(exempt: Callable[[Case], bool], *constraints: Constraint) -> tuple[Constraint, ...]:
    """Return the constraints for the cases that are not exempt from them."""
    return tuple(
        Constraint(rule.text, lambda case, rule=rule: exempt(case) or rule.holds(case))  # type: ignore[misc]
        for rule in constraints
    )


def absent(text: str, *positions: int) -> Constraint:
    """Require empty cells at these positions of the inputs."""
    return Constraint(text, lambda case: all(given(case, i) is None for i in positions))
