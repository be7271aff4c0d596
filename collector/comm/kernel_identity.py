"""Whether the kernels that ranks launched are the call that a case asks for, as the profiler of
each of them recorded it.

A rank reports `proved`, `unverified` or the differences; without records it reports nothing.
"""

from collections.abc import Iterable, Mapping, Sequence

from collector.case import Case
from collector.comm.kernels import Span
from collector.measurement import Proof
from collector.quality.identity import Comparison

OTHERWISE = "kernel ran on other tensors"  # prefix of the reason of a substituted case


def told_by(spans: Sequence[Span], calls: int, asked: Case) -> str:
    """Return what a rank's records show of its calls: unverified for several kernels a call."""
    if len(spans) != calls:
        return Proof.UNVERIFIED
    comparison = Comparison(asked)
    found = [comparison.of(dict(span.cells)) for span in spans]
    if other := next((one for one in found if one.differences), None):
        return f"{OTHERWISE}: {'; '.join(other.differences)}"
    return Proof.PROVED if all(one.is_proved for one in found) else Proof.UNVERIFIED


def told_by_all(told: Mapping[int, str]) -> str:
    """Return the result over all ranks: the differences of the first rank with other tensors, or
    the weakest proof."""
    for rank, text in told.items():
        if text.startswith(OTHERWISE):
            return f"{OTHERWISE} in rank {rank}{text.removeprefix(OTHERWISE)}"
    return least(told.values())


def least(told: Iterable[str]) -> Proof:
    """The least that is said."""
    proofs = {Proof(text) for text in told}
    if not proofs or Proof.NONE in proofs:
        return Proof.NONE
    return Proof.UNVERIFIED if Proof.UNVERIFIED in proofs else Proof.PROVED
