"""The floor and the limit of each case, held against what a part says was measured.

A worker has asked already. A merge asks again, since a part may come from anywhere; the answer
follows from the plan, the case and the number alone, so that every merge gives the same.
"""

from collections.abc import Iterable

import pyarrow as pa

from collector.measurement import Outcome
from collector.ops.floor import LEAST_US, floor_us
from collector.plan import Plan
from collector.quality.gates import implausible
from collector.record import CaseRecord


def with_implausible(table: pa.Table, records: Iterable[CaseRecord], plan: Plan) -> pa.Table:
    """The rows of a plan's parts; what cannot have been measured of its case has the outcome
    `implausible`, with the reason, and is the same otherwise."""
    known = {record.case_id: record for record in records}
    limit_us = plan.limits.case_s * 1e6
    outcomes, reasons = table["outcome"].to_pylist(), table["reason"].to_pylist()
    rows = zip(table["case"].to_pylist(), table["mean_us"].to_pylist(), strict=True)
    changed = False
    for at, (case_id, mean_us) in enumerate(rows):
        if outcomes[at] != Outcome.OK or not mean_us:
            continue
        record = known.get(case_id)
        least_us = LEAST_US if record is None else floor_us(record.case, plan.stack)
        if reason := implausible(float(mean_us), floor_us=least_us, limit_us=limit_us):
            outcomes[at], reasons[at], changed = Outcome.IMPLAUSIBLE.value, reason, True
    if not changed:
        return table
    return _with_column(_with_column(table, "outcome", outcomes), "reason", reasons)


def _with_column(table: pa.Table, name: str, texts: list[str]) -> pa.Table:
    at = table.column_names.index(name)
    return table.set_column(at, name, pa.array(texts, table.schema.field(name).type))
