"""The floor and the limit of each case, held against what a part says was measured.

A worker has asked already. A merge asks again, since a part may come from anywhere; the answer
follows from the plan, the case and the number alone, so that every merge gives the same.
"""

from collections.abc import Iterable, Mapping

import pyarrow as pa

from collector.measurement import Outcome
from collector.ops.floor import LEAST_US, floor_us, most_floor_us
from collector.plan import Plan
from collector.quality.gates import implausible
from collector.record import CaseRecord


def most_floors_us(records: Iterable[CaseRecord], plan: Plan) -> dict[str, float]:
    """What the floor of each case is at most, by case id."""
    # The case first: the id that is asked for next is then of a case that is at hand.
    cases = ((record.case, record) for record in records)
    return {record.case_id: most_floor_us(case, plan.stack) for case, record in cases}


def with_implausible(
    table: pa.Table,
    records: Iterable[CaseRecord],
    plan: Plan,
    most_us: Mapping[str, float] | None = None,
) -> pa.Table:
    """The rows of a plan's parts; what cannot have been measured of its case has the outcome
    `implausible`, with the reason, and is the same otherwise. `most_us` is what is known of
    `most_floors_us`: of a number above it nobody works out the floor itself."""
    known = {record.case_id: record for record in records}
    limit_us, bounds_us = plan.limits.case_s * 1e6, most_us or {}
    outcomes, reasons = table["outcome"].to_pylist(), table["reason"].to_pylist()
    rows = zip(table["case"].to_pylist(), table["mean_us"].to_pylist(), strict=True)
    changed = False
    for at, (case_id, text) in enumerate(rows):
        if outcomes[at] != Outcome.OK or not text:
            continue
        mean_us = float(text)
        if case_id in bounds_us and bounds_us[case_id] <= mean_us <= limit_us:
            continue
        record = known.get(case_id)
        least_us = LEAST_US if record is None else floor_us(record.case, plan.stack)
        if reason := implausible(mean_us, floor_us=least_us, limit_us=limit_us):
            outcomes[at], reasons[at], changed = Outcome.IMPLAUSIBLE.value, reason, True
    if not changed:
        return table
    return _with_column(_with_column(table, "outcome", outcomes), "reason", reasons)


def _with_column(table: pa.Table, name: str, texts: list[str]) -> pa.Table:
    at = table.column_names.index(name)
    return table.set_column(at, name, pa.array(texts, table.schema.field(name).type))
