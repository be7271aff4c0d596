"""Cases of several ranks: which cases those are, how many ranks a case needs, and in how many
rounds its calls are made.
"""

from dataclasses import replace
from typing import TypeAlias

from collector.model.case import Case
from collector.model.record import CaseRecord
from collector.model.vocabulary import EP_SIZE
from collector.ranks import distribution
from collector.ranks.collective import collective_case_of, is_collective
from collector.ranks.distribution import DistributeCall
from collector.ranks.experts import KERNELS, ExpertCall, call_of, imbalance_of

RoutedCall: TypeAlias = ExpertCall | DistributeCall
"""A call of a mixture of experts: its duration depends on the routing of its tokens."""

_OF_EXPERTS = (*KERNELS, *distribution.DISTRIBUTE_KERNELS)
ROUNDS = 3  # over all cases: slow changes fall between the rounds of a case


def is_of_gangs(case: Case) -> bool:
    """Return whether a case exchanges data between ranks, so that one rank cannot run it alone."""
    kernel = case.kernel_type
    if kernel in distribution.DISTRIBUTE_KERNELS:
        return not distribution.is_of_one_rank(case)
    return is_collective(kernel) or kernel in KERNELS


def with_ep_size(record: CaseRecord, ep_size: int | None) -> CaseRecord:
    """Return the record of a kernel that sends to ranks of experts, with its number of such ranks.

    It is added only if the row does not report it. Every other record is returned unchanged,
    because `EP Size` is part of the identity of a case."""
    kernel = record.kernel_type
    if ep_size is None or kernel not in _OF_EXPERTS or record.extra.get(EP_SIZE):
        return record
    if kernel in distribution.DISTRIBUTE_KERNELS and distribution.records_ranks(record.case):
        return record
    return replace(record, extra={**record.extra, EP_SIZE: str(ep_size)})


def ranks_needed(case: Case) -> int:
    """Return how many ranks such a case needs. Raises BadInput for a row that does not record it,
    or that is contradictory."""
    if is_collective(case.kernel_type):
        return collective_case_of(case).ranks
    imbalance_of(case)
    return routed_call(case).ep_size


def routed_call(case: Case) -> RoutedCall:
    """Return the call of a row of a mixture of experts. Raises BadInput as `ranks_needed`."""
    if case.kernel_type in distribution.DISTRIBUTE_KERNELS:
        return distribution.distribute_call(case)
    return call_of(case)
