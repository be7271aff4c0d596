"""Fills in the `Runtime ...` columns of a record, so that a case says all that its launch does.

A profile tells shapes; what else a launch depends on (lengths, heads, modes) is then taken as the
likeliest. A plan names those values, so that a row of the database tells what was measured, and
who reads it finds a query's own lengths there.
"""

from dataclasses import replace

from collector.codec.errors import CaseRejected
from collector.model.record import CaseRecord
from collector.model.vocabulary import RUNTIME_PREFIX
from collector.ops.registry import find
from collector.ops.spec import OpSpec, no_columns

_COMPLETENESS = RUNTIME_PREFIX + "metadata_completeness"
# What a reader of the database wants to see for these kernels before it interpolates.
_COMPLETE = frozenset(
    {"SparseFlashAttention", "LightningIndexer", "LightningIndexerVllm", "LightningIndexerQuant"}
)
_UNFILLED = frozenset({"", "profile_shapes_only"})


def completed(record: CaseRecord, op: OpSpec) -> CaseRecord:
    """The record with every Runtime column filled in on which its launch depends.

    What the record says stays as it is, but for a completeness of `profile_shapes_only`. A record
    whose case the operator refuses, and one without such columns, come back unchanged.
    """
    if op.runtime is no_columns:
        return record
    try:
        op.check(record.case, "npu")  # which has every layout that the others have
    except CaseRejected:
        return record
    columns = op.runtime(record.case)
    if not columns:
        return record
    missing = {name: text for name, text in columns.items() if not _says(record, name)}
    extra = {**record.extra, **missing}
    if extra.get(_COMPLETENESS, "").strip() in _UNFILLED:
        filled = "complete" if op.family & _COMPLETE else "runtime_values"
        extra[_COMPLETENESS] = filled
    return record if extra == record.extra else replace(record, extra=extra)


def completed_as_declared(record: CaseRecord) -> CaseRecord:
    """The record as its operator completes it; as it is where none is declared."""
    op = find(record.case.kernel_type)
    return completed(record, op) if op is not None else record


def _says(record: CaseRecord, name: str) -> bool:
    return bool(record.extra.get(name, "").strip())
