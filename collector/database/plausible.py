"""The floor and the limit of each case, and the work of its cores, held against what a part says
was measured.

A worker has asked already. A merge asks again, since a part may come from anywhere; the answer
follows from the plan, the case and the measurement alone, so that every merge gives the same.
"""

import re
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
from collector.quality.gates import CORE_TIMES, implausible, most_worked_us, outworked
from collector.record import CaseRecord

_OF_COUNTERS = ("n_observed", "n_accepted", "counters")
_CORE_TIME = {name: rf'\["{re.escape(name)}",(?P<us>[-+.0-9eE]+)\]' for name in CORE_TIMES}


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
    worked = _worked_us(table.take(pa.array(doubtful)))
    for place, at in enumerate(doubtful.tolist()):
        record = known.get(table["case"][at].as_py())
        least_us = LEAST_US if record is None else floor_us(record.case, plan.stack)
        mean_us = float(table["mean_us"][at].as_py())
        own = {name: float(worked_us[place]) for name, worked_us in worked.items()}
        reason = implausible(mean_us, floor_us=least_us, limit_us=limit_us)
        if reason := reason or outworked(mean_us, own):
            outcomes[at], reasons[at] = Outcome.IMPLAUSIBLE.value, reason
    return _with_column(_with_column(table, "outcome", outcomes), "reason", reasons)


def _doubtful(table: pa.Table, most: MostFloors, limit_us: float) -> Whole:
    """The places of the good ones that may be below their floor, are above the limit, or took less
    time than their cores worked."""
    is_told = pc.and_(pc.equal(table["outcome"], Outcome.OK), pc.not_equal(table["mean_us"], ""))
    told = np.flatnonzero(is_told.to_numpy())
    rows = table.select(["case", "mean_us", *_OF_COUNTERS]).take(pa.array(told))
    mean_us = rows["mean_us"].cast(pa.float64()).to_numpy()
    is_well = (most.of(rows["case"]) <= mean_us) & (mean_us <= limit_us)
    for worked_us in _worked_us(rows).values():
        is_well &= worked_us <= most_worked_us(mean_us)
    return np.asarray(told[~is_well], np.int64)


def _worked_us(rows: pa.Table) -> dict[str, Floats]:
    """How long the cores of each worked, by the names of the counters; nothing where they do not
    say. Counters are also of a repeat that the outlier rule leaves out of the mean: where there is
    one they are not held against it."""
    is_of_mean = pc.equal(rows["n_observed"], rows["n_accepted"])
    told = {}
    for name, pattern in _CORE_TIME.items():
        found = pc.struct_field(pc.extract_regex(rows["counters"], pattern), "us")
        worked_us = pc.if_else(is_of_mean, found, None).cast(pa.float64())
        told[name] = pc.fill_null(worked_us, 0.0).to_numpy()
    return told


def _with_column(table: pa.Table, name: str, texts: list[str]) -> pa.Table:
    at = table.column_names.index(name)
    return table.set_column(at, name, pa.array(texts, table.schema.field(name).type))
