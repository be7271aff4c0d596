"""The floor and the limit of each case, held against what a part says was measured.

A worker has asked already. A merge asks again, since a part may come from anywhere; the answer
follows from the plan, the case and the number alone, so that every merge gives the same.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from collector.database.case_work import work_of
from collector.measurement import Outcome
from collector.ops.floor import LEAST_US, floor_us
from collector.ops.together import Floats, Whole
from collector.plan import Plan
from collector.quality.gates import implausible
from collector.record import CaseRecord


@dataclass(frozen=True, slots=True)
class MostFloors:
    """What the floor of each case is at most: of a number above it nobody works out the floor."""

    cases: pa.ChunkedArray  # their ids
    most_us: Floats

    def of(self, cases: pa.ChunkedArray) -> Floats:
        """Of each of these, without end where it is not known."""
        at = pc.index_in(cases, value_set=self.cases)
        places = pc.fill_null(at, len(self.most_us)).to_numpy()
        found: Floats = np.append(self.most_us, np.inf)[places]
        return found


def most_floors_us(cases: pa.Table, plan: Plan) -> MostFloors:
    """Those of the cases of a plan's records. Nobody asks whether their declarations take them."""
    most_us = work_of(cases, plan.stack, is_checked=False).floors_us(plan.stack)
    return MostFloors(cases["case"].combine_chunks(), np.where(np.isnan(most_us), np.inf, most_us))


def with_implausible(
    table: pa.Table, records: Iterable[CaseRecord], plan: Plan, most: MostFloors
) -> pa.Table:
    """The rows of a plan's parts; what cannot have been measured of its case has the outcome
    `implausible`, with the reason, and is the same otherwise."""
    limit_us = plan.limits.case_s * 1e6
    doubtful = _doubtful(table, most, limit_us)
    if not len(doubtful):
        return table
    known = {record.case_id: record for record in records}
    outcomes, reasons = table["outcome"].to_pylist(), table["reason"].to_pylist()
    for at in doubtful.tolist():
        record = known.get(table["case"][at].as_py())
        least_us = LEAST_US if record is None else floor_us(record.case, plan.stack)
        mean_us = float(table["mean_us"][at].as_py())
        if reason := implausible(mean_us, floor_us=least_us, limit_us=limit_us):
            outcomes[at], reasons[at] = Outcome.IMPLAUSIBLE.value, reason
    return _with_column(_with_column(table, "outcome", outcomes), "reason", reasons)


def _doubtful(table: pa.Table, most: MostFloors, limit_us: float) -> Whole:
    """The places of the good ones that may be below their floor, or are above the limit."""
    is_told = pc.and_(pc.equal(table["outcome"], Outcome.OK), pc.not_equal(table["mean_us"], ""))
    told = np.flatnonzero(is_told.to_numpy())
    rows = table.select(["case", "mean_us"]).take(pa.array(told))
    mean_us = rows["mean_us"].cast(pa.float64()).to_numpy()
    is_between = (most.of(rows["case"]) <= mean_us) & (mean_us <= limit_us)
    return np.asarray(told[~is_between], np.int64)


def _with_column(table: pa.Table, name: str, texts: list[str]) -> pa.Table:
    at = table.column_names.index(name)
    return table.set_column(at, name, pa.array(texts, table.schema.field(name).type))
