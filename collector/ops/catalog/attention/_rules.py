"""Rules of a row's reading, which finds either all sizes of a call or the rule that the row breaks:
the same reading answers whether a case can be launched, and with what."""

from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

from collector.case import Case
from collector.errors import CaseRejected
from collector.ops.spec import Constraint

_Call = TypeVar("_Call")


class Misfit(CaseRejected):
    """A row breaks a rule."""

    def __init__(self, rule: StrEnum):
        super().__init__(rule.value)
        self.rule = rule


def rules_of(read: Callable[[Case], object], rules: type[StrEnum]) -> tuple[Constraint, ...]:
    """Each rule of the reading as a constraint."""
    return tuple(_is_kept(read, rule) for rule in rules)


def limit(
    read: Callable[[Case], _Call | StrEnum], text: str, holds: Callable[[_Call], bool]
) -> Constraint:
    """A limit of the function, for rows that can be read; others break a rule of the reading."""

    def check(case: Case) -> bool:
        call = read(case)
        return isinstance(call, StrEnum) or holds(call)

    return Constraint(text, check)


def _is_kept(read: Callable[[Case], object], rule: StrEnum) -> Constraint:
    return Constraint(rule.value, lambda case: read(case) is not rule)
