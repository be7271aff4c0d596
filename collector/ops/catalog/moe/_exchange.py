"""Experts on several ranks, in a world of one: all experts are here. That is the reference alone,
since CANN wants 2 ranks and more; rows of larger worlds are cases of a gang.
"""

from collector.case import Case
from collector.ops.slots import input_shape
from collector.vocabulary import EP_SIZE

_MOST_CHOICES = 8


def rows_received(case: Case, ids: int, experts: int) -> int:
    """Rows that one rank with all experts can get: as many as its tokens have choices."""
    tokens, choices = input_shape(case, ids)
    return tokens * min(experts, choices)


def is_one_rank(case: Case) -> bool:
    """Whether the row says nothing of more ranks."""
    return case.attribute(EP_SIZE) in (None, "1")


def tokens_fit(case: Case, tokens: tuple[int, ...], ids: int) -> bool:
    """(T,H) with expert numbers (T, at most 8)."""
    chosen = input_shape(case, ids)
    return len(tokens) == len(chosen) == 2 and chosen[0] == tokens[0] and chosen[1] <= _MOST_CHOICES
