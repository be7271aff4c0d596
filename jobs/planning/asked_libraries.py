"""Cases of kernels that CANN and vLLM-Ascend both have, as a campaign asks for them.

    SparseFlashAttention                             of whichever the stack serves with
    with `runtime: {library: [cann]}`                of CANN: `Runtime library` in its row
    with `runtime: {library: [cann, vllm-ascend]}`   a case of each

A row that names a library itself keeps it. What a profile spent on a row stays with the first case
that it becomes, so that shares remain true.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from collector.ops.registry import find
from collector.record import CaseRecord
from collector.vocabulary import LIBRARY


def of_libraries(records: Sequence[CaseRecord], libraries: Sequence[str]) -> tuple[CaseRecord, ...]:
    """The records, with those of a kernel that two libraries have asked of each of these; as they
    are where none is named."""
    if not libraries:
        return tuple(records)
    return tuple(one for record in records for one in _asked(record, libraries))


def _asked(record: CaseRecord, libraries: Sequence[str]) -> Iterator[CaseRecord]:
    op = find(record.case.kernel_type)
    if op is None or not op.npu.served or record.case.attribute(LIBRARY) is not None:
        yield record
        return
    for number, library in enumerate(libraries):
        asked = replace(record, extra={**record.extra, LIBRARY: library})
        yield asked if number == 0 else replace(asked, profile=None)
