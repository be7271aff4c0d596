"""The profiler rows of the ranks' calls: which rows they are, and when each call ran."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

from collector.codec.errors import BadInput
from collector.codec.files import MOST_TABLE_BYTES, read_small_file
from collector.codec.table import csv_rows
from collector.model.case import Case
from collector.model.measurement import Proof
from collector.model.vocabulary import INPUT_CELLS, OUTPUT_CELLS
from collector.quality.identity import Cells, Comparison
from collector.replay.kineto import Event

KERNEL_DETAILS = "kernel_details.csv"
_NEEDED = ("Name", "Type", "Start Time(us)", "Duration(us)")
_TENSORS = (*INPUT_CELLS, *OUTPUT_CELLS)
_NCCL = re.compile(r"nccl\w*Kernel")  # ncclDevKernel_AllReduce_..., ncclSymkDevKernel_...
_MICROSECONDS = re.compile(r"[0-9]{1,18}(\.[0-9]{1,9})?")
# A kernel of the call's expansion on vector cores, within the row of the call itself.
_AIV = "AivKernel"


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """The time of a kernel by the wall clock of its machine, and the tensor cells of its row."""

    start_ns: int
    duration_ns: int
    cells: Cells = field(default=(), compare=False)

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.duration_ns


def nccl_spans(kernels: Iterable[Event]) -> list[Span]:
    """Return the nccl kernels among the kernels of a gpu; one call may have several."""
    found = (Span(one.start_ns, one.duration_ns) for one in kernels if _NCCL.match(one.name))
    return sorted(found)


def npu_spans(path: Path, kernel_type: str) -> list[Span]:
    """Return the rows of a kernel type in a `kernel_details.csv`. A call may have two rows with the
    same start: one on Stream `N/A` and one on the stream that ran it. Raises BadInput for another
    file."""
    try:
        text = read_small_file(path, MOST_TABLE_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"expected a CSV in UTF-8: {error}", path=path) from error
    (_, header), *rows = list(csv_rows(text.splitlines(keepends=True), path=path)) or [(1, [])]
    if missing := [name for name in _NEEDED if name not in header]:
        raise BadInput(f"missing column {missing[0]!r}", path=path, line=1)
    name, kind, start, duration = (header.index(one) for one in _NEEDED)
    tensors = [(one, header.index(one)) for one in _TENSORS if one in header]
    found: dict[int, Span] = {}
    for line, row in rows:
        if len(row) <= max(name, kind, start, duration):
            continue
        if row[kind].strip() != kernel_type or _AIV in row[name]:
            continue
        try:
            cells = tuple((one, row[place]) for one, place in tensors if place < len(row))
            span = Span(_ns(row[start]), _ns(row[duration]), cells)
        except ValueError as error:
            raise BadInput(f"expected times: {error}", path=path, line=line) from error
        if span.duration_ns > 0:
            same = span.start_ns // 1000
            found[same] = max(found.get(same, span), span, key=lambda one: one.duration_ns)
    return sorted(found.values())


def spans_of_calls(spans: Sequence[Span], calls: int) -> list[Span]:
    """Return the time of each call, from its first kernel to its last. Each call has equally many
    kernels; return none if the kernels cannot be assigned to calls."""
    if not spans or len(spans) % calls:
        return []
    each = len(spans) // calls
    parts = [spans[at : at + each] for at in range(0, len(spans), each)]
    return [
        Span(part[0].start_ns, max(one.end_ns for one in part) - part[0].start_ns) for part in parts
    ]


def _ns(text: str) -> int:
    """Convert microseconds with three decimals; a float64 cannot hold those since 1970."""
    if not _MICROSECONDS.fullmatch(text.strip()):
        raise ValueError(f"expected a number of microseconds, got {text.strip()[:40]!r}")
    return int(Decimal(text.strip()) * 1000)


# Whether the kernels that ranks launched are the call of the case, by each rank's profiler records.
#
# A rank reports `proved`, `unverified` or the differences; without records it reports nothing.

OTHER_TENSORS = "kernel ran on other tensors"  # prefix of the reason of a substituted case


def proof_of_calls(spans: Sequence[Span], calls: int, requested: Case) -> str:
    """Compare a rank's records with the case; unverified if a call has several kernels."""
    if len(spans) != calls:
        return Proof.UNVERIFIED
    comparison = Comparison(requested)
    found = [comparison.of(dict(span.cells)) for span in spans]
    if other := next((one for one in found if one.differences), None):
        return f"{OTHER_TENSORS}: {'; '.join(other.differences)}"
    return Proof.PROVED if all(one.is_proved for one in found) else Proof.UNVERIFIED


def proof_of_ranks(proofs: Mapping[int, str]) -> str:
    """Return the result over all ranks: the differences of the first rank with other tensors, or
    the weakest proof."""
    for rank, text in proofs.items():
        if text.startswith(OTHER_TENSORS):
            return f"{OTHER_TENSORS} in rank {rank}{text.removeprefix(OTHER_TENSORS)}"
    return weakest_proof(proofs.values())


def weakest_proof(proof_texts: Iterable[str]) -> Proof:
    """Return the weakest of the proofs."""
    proofs = {Proof(text) for text in proof_texts}
    if not proofs or Proof.NONE in proofs:
        return Proof.NONE
    return Proof.UNVERIFIED if Proof.UNVERIFIED in proofs else Proof.PROVED
