"""Cases of several ranks at once: which kernel types they are, and how many ranks one needs."""

from collector.case import Case
from collector.collective_case import collective_case, is_collective
from collector.expert_call import KERNELS, call_of, imbalance_of


def is_of_gangs(kernel_type: str) -> bool:
    """Whether a kernel type exchanges something between ranks, so that one alone cannot run it."""
    return is_collective(kernel_type) or kernel_type in KERNELS


def ranks_of(case: Case) -> int:
    """How many ranks a case of such a kernel type needs. BadInput for a row that does not say, or
    that contradicts itself."""
    if is_collective(case.kernel_type):
        return collective_case(case).ranks
    imbalance_of(case)
    return call_of(case).ep_size
