"""Tokens that lie by expert, whose scales are their expert's own. A row tells how many groups there
are, and not how many tokens each of them has."""

from typing import Any

from collector.case import Case
from collector.ops.parts.shares import even
from collector.ops.slots import Shape, given, input_shape


def group_counts(case: Case, groups: int) -> Shape:
    """How many rows of the first input each group has; none where there is no input `groups`."""
    slot = given(case, groups)
    return even(input_shape(case, 0)[0], slot.numel) if slot else ()


def scale_groups(wide: Any, scales: Any, counts: Shape) -> None:
    """Rows of each group by the group's own scales, in place."""
    for rows, own in zip(wide.split(counts), scales, strict=True):
        rows.mul_(own)
