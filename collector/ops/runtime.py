"""Completion of the `Runtime ...` columns of a record, so that a case fully describes its launch.

A profile records shapes. Other inputs of a launch (lengths, heads, modes) take their likeliest
values. A plan records these values in columns, so that a row of the database describes what was
measured, and a reader of the row finds the lengths that were used.
"""

from dataclasses import replace

from collector.codec.errors import CaseRejected
from collector.model.record import CaseRecord
from collector.model.vocabulary import COMPLETENESS, OPERATOR_FILE
from collector.ops.registry import find_operator
from collector.ops.spec import OpSpec, no_columns

# Consumers of the database require complete columns of these kernels before they interpolate.
_COMPLETE = frozenset(
    {"SparseFlashAttention", "LightningIndexer", "LightningIndexerVllm", "LightningIndexerQuant"}
)
_UNFILLED = frozenset({"", "profile_shapes_only"})


def with_runtime_columns(record: CaseRecord, op: OpSpec) -> CaseRecord:
    """Return the record with every Runtime column that its launch depends on.

    Existing values do not change, except a completeness of `profile_shapes_only`. A record whose
    case the operator refuses, and a record without such columns, are returned unchanged."""
    if op.file and not _has_value(record, OPERATOR_FILE):
        record = replace(record, extra={**record.extra, OPERATOR_FILE: op.file})
    if op.runtime is no_columns:
        return record
    try:
        op.check(record.case, "npu")  # the NPU has every layout that other backends have
    except CaseRejected:
        return record
    columns = op.runtime(record.case)
    if not columns:
        return record
    missing = {name: text for name, text in columns.items() if not _has_value(record, name)}
    extra = {**record.extra, **missing}
    if extra.get(COMPLETENESS, "").strip() in _UNFILLED:
        filled = "complete" if op.family & _COMPLETE else "runtime_values"
        extra[COMPLETENESS] = filled
    return record if extra == record.extra else replace(record, extra=extra)


def completed_as_declared(record: CaseRecord) -> CaseRecord:
    """Return the record completed by its operator; unchanged if no operator is declared."""
    op = find_operator(record.case.kernel_type)
    return with_runtime_columns(record, op) if op is not None else record


def _has_value(record: CaseRecord, name: str) -> bool:
    return bool(record.extra.get(name, "").strip())
