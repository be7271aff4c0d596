"""Cases of rows that do not say what their time depends on, at the values that a campaign names.

    FusedInferAttentionScore, a paged cache, no lengths     refused: lengths unknown
    with `runtime: {kv_length: [1024, 4096]}`               the same row, refused, and a case of
                                                            each length
    FlashAttentionScore beside a whole mask                 refused: mask unknown
    with `runtime: {mask: [causal]}`                        the same row, refused, and a case

The row keeps what the profile spent on it: nobody knows at which of the values. So what a summary
says can be measured of a profile's time stays true, and the new cases stand beside it.
"""

from collections.abc import Sequence
from dataclasses import replace

from collector.ops.refusals import UNFORESEEN
from collector.ops.registry import find
from collector.ops.runtime import completed
from collector.record import CaseRecord
from collector.vocabulary import MASK, RUNTIME_PREFIX
from jobs.campaign.runtime_values import RuntimeValues

_MEAN_LENGTH = RUNTIME_PREFIX + "avg_seq_len"


def is_untold(record: CaseRecord) -> bool:
    """Whether its time depends on what neither its row nor its columns say."""
    op = find(record.case.kernel_type)
    if op is None or record.case.inputs is None:
        return False
    try:
        return bool(op.untold(record.case))
    except UNFORESEEN:  # what becomes of the case is its outcome
        return False


def assumed(records: Sequence[CaseRecord], runtime: RuntimeValues) -> tuple[CaseRecord, ...]:
    """What rows that do not tell it are at each of these values; without what is there already,
    as of a table that was made with these values elsewhere."""
    values = [*((_MEAN_LENGTH, f"{length:.6f}") for length in runtime.kv_lengths)]
    values += [(MASK, mask) for mask in runtime.masks]
    untold = [record for record in records if is_untold(record)] if values else []
    tried = [_with(record, *value) for record in untold for value in values]
    kinds = {record.kernel_type for record in untold}
    there = {record.case_id for record in records if record.kernel_type in kinds}
    found = (one for one in tried if not is_untold(one))
    return tuple(one for one in found if completed_case(one).case_id not in there)


def completed_case(record: CaseRecord) -> CaseRecord:
    """The record with every column that its launch depends on; as it is where nobody can guess what
    it does not tell."""
    op = find(record.case.kernel_type)
    if op is None or record.case.inputs is None or is_untold(record):
        return record
    try:
        return completed(record, op)
    except UNFORESEEN:  # what becomes of the case is its outcome
        return record


def _with(record: CaseRecord, column: str, text: str) -> CaseRecord:
    return replace(record, extra={**record.extra, column: text}, profile=None)
