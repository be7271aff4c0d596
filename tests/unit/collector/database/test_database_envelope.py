"""Durations above those of larger cases are found in a version, in any spelling."""

import random
from dataclasses import replace

import pytest

from collector.database.curves import Envelope, envelope_of
from collector.database.plan_state import read_results
from collector.database.rows import case_rows
from collector.database.version_quality import Verdict, VersionQuality, quality_of, shown_version
from collector.model.record import CaseRecord
from collector.model.stack import Stack
from collector.model.vocabulary import INPUT_DTYPES
from collector.ops.together import FEW
from collector.store.in_memory import MemoryStore
from jobs.status.lines import version_quality_lines
from tests.unit.collector.database.campaign_maker import (
    STACK,
    MadePlan,
    MadeShard,
    Tried,
    plan_of,
    record_of_shapes,
    write_campaign,
)
from tests.unit.collector.naming import names

pytestmark = pytest.mark.fast

NPU = Stack(device="ATLAS_800_A2_376T_64G", torch="2.9.0")
MADE = MadePlan([], stack=NPU)
CORES = ("AI_VECTOR_CORE", "MIX_AIC", "AI_CPU")
SPELLED = ('"{r},{c};{r},{c}"', "{r},{c};{r},{c}", "({r}, {c});({r}, {c})")


def record(rows: int, columns: int, spelled: str = SPELLED[0], core: str = "MIX_AIC") -> CaseRecord:
    shapes = spelled.format(r=rows, c=columns)
    return record_of_shapes("Add", shapes, f"{rows},{columns}", core=core)


def found(timed: list[tuple[CaseRecord, float]], device: str = NPU.device) -> Envelope:
    made = plan_of(MADE)
    cases = case_rows(made, [one for one, _ in timed]).sort_by("case")
    return envelope_of(cases, {one.case_id: us for one, us in timed}, device)


@pytest.mark.parametrize("count", [FEW // 2, 9 * FEW])
def test_case_is_compared_only_with_cases_that_differ_in_sizes(count):
    """Read together or one by one; AI_CPU is another kernel, other cores, blanks and quotes are
    spellings."""
    draw, timed = random.Random(count), {}
    for _ in range(count):
        reported = (*draw.choices(range(1, 20), k=2), draw.choice(SPELLED), draw.choice(CORES))
        timed[record(*reported).case_id] = (reported, draw.uniform(1, 40))
    above = {
        name
        for name, ((rows, columns, _, core), us) in timed.items()
        for (other_rows, other_columns, _, other), other_us in timed.values()
        if (other_rows >= rows and other_columns >= columns)
        and ((core == "AI_CPU") == (other == "AI_CPU"))
        and us > max(2 * other_us, other_us + 5)
    }
    reported = found([(record(*reported), us) for reported, us in timed.values()])
    assert {one.case.case_id for one in reported.above} == above
    for one in reported.above:
        assert one.mean_us == timed[one.case.case_id][1]
        assert one.larger_us == timed[one.larger.case_id][1] < one.mean_us / 2


def test_case_of_another_dtype_is_on_another_envelope():
    small, large = record(8, 8), record(16, 16)
    cells = {**large.cells, INPUT_DTYPES: "FLOAT;FLOAT"}
    assert len(found([(small, 90.0), (large, 30.0)]).above) == 1
    assert found([(small, 90.0), (replace(large, cells=cells), 30.0)]) == Envelope()


def test_cpu_and_empty_tables_have_no_envelope():
    assert found([(record(8, 8), 90.0), (record(16, 16), 30.0)], STACK.device) == Envelope()
    assert found([]) == Envelope()


def quality(*means_us: float) -> VersionQuality:
    records = [record(8 * at, 64) for at in range(1, len(means_us) + 1)]
    session = {one.case_id: Tried(us) for one, us in zip(records, means_us, strict=True)}
    made = MadePlan([MadeShard("s", records, [session])], stack=NPU)
    store = MemoryStore()
    state = read_results(store, write_campaign(store, made)).state
    return quality_of(shown_version(state, NPU.version_path))


def test_quality_counts_cases_above_the_envelope_as_warned():
    reported = quality(90.0, 30.0, 40.0, 99.0, 41.0)
    assert (reported.suspect, reported.warned, reported.refused) == ({"envelope": 2}, 2, {})
    lines = [*version_quality_lines(reported, Verdict(0.1, 5, 0, {}))]
    assert any(names(line, 2, 5, "envelope") for line in lines)
    assert names(lines[1], 5, 0)
    clean = quality(28.0, 30.0, 40.0, 41.0, 55.0)
    assert (clean.suspect, clean.warned) == ({}, 0)
