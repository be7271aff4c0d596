"""Files of misses and manifests: the requested cases, their origin and urgency."""

import json

import pytest

from collector.codec.errors import BadInput
from collector.model.demand import (
    DEMAND,
    Demand,
    demanded_records,
    manifest_from_lines,
    misses_from_lines,
    record_of_cells,
    urgency_of,
)
from collector.model.record import read_table, write_table

pytestmark = pytest.mark.fast

CELLS = {"Input Shapes": "8,8;8,8", "Input Data Types": "FLOAT;FLOAT"}


def line(workload: str, *, critical: bool = False, rows: int = 8, **more: object) -> bytes:
    query = {"kernel_type": "Add", **CELLS, "Input Shapes": f"{rows},8;{rows},8"}
    one = {"workload_id": workload, "critical": critical, "query": query, **more}
    return json.dumps(one).encode() + b"\n"


def test_a_manifest_has_each_query_once_and_the_critical_ones_first():
    text = line("a") + line("a") + line("b") + b"\n" + line("b", critical=True, rows=16)
    first, second = manifest_from_lines(text + line("c", rows=16), path="m")
    assert (first.is_critical, first.weight, first.workloads) == (True, 2.0, ("b", "c"))
    assert (second.is_critical, second.weight, second.workloads) == (False, 2.0, ("a", "b"))
    assert second.record.cells["Output Shapes"] == "N/A"


@pytest.mark.parametrize(
    "bad",
    [
        b"[]",
        b"{",
        b'{"workload_id": "a", "critical": true}',
        line("a", critical="yes"),  # type: ignore[arg-type]
        line("a", query={"Input Shapes": "8"}),
        line("a", query={"kernel_type": "Add"}),
        line("a", query={"kernel_type": "../Add", **CELLS}),
        line("a", query={"kernel_type": "Add", **CELLS, "Input Shapes": "8,x"}),
        line("a", query={"kernel_type": "Add", **CELLS, "Input Shapes": 8}),
        line("a", query={"kernel_type": "Add", **CELLS, "Duration(us)": "8"}),
        line("a", query={"kernel_type": "Add", **CELLS, "EP Size": "=1+1"}),
        line("a", query={"kernel_type": "Add", **CELLS, "EP Size": "\0"}),
        b"[" * 100_000,
        b"\xff",
    ],
)
def test_invalid_line_of_a_manifest_is_refused_with_its_number(bad: bytes):
    with pytest.raises(BadInput, match=r"^made\.jsonl:2: ") as refused:
        manifest_from_lines(line("a") + bad, path="made.jsonl")
    assert len(str(refused.value).splitlines()) == 1


def test_invalid_line_of_misses_is_refused_with_its_number():
    good = {"kernel_type": "Add", "cells": CELLS, "reason": "outside", "count": 1, "weight": 2.0}
    lines = json.dumps(good).encode() + b"\n"
    (one,) = misses_from_lines(lines + lines, path="m")
    assert (one.count, one.weight) == (2, 4.0)
    for wrong in ({"count": 0}, {"weight": 1e300}, {"cells": {"x": "y"}}, {"kernel_type": "N/A"}):
        with pytest.raises(BadInput, match=r"^m:2: "):
            misses_from_lines(lines + json.dumps({**good, **wrong}).encode(), path="m")


def test_records_are_ordered_by_urgency_and_weight():
    def demand(rows: int, weight: float, critical: bool = False) -> Demand:
        record = record_of_cells("Add", {**CELLS, "Input Shapes": f"{rows},8;{rows},8"})
        return Demand(record, weight, 2, critical)

    demands = [
        demand(1, 5.0),
        demand(2, 60.0),
        demand(3, 1.0, True),
        demand(4, 20.0),
        demand(5, 9.0),
    ]
    found = demanded_records([*demands, demand(4, 6.0)])
    assert [record.cells["Input Shapes"][0] for record in found] == ["3", "2", "4", "5", "1"]
    assert [record.extra[DEMAND] for record in found] == [
        *("critical", "frequent", "frequent", "rare", "rare")
    ]
    assert [record.profile and record.profile.total_us for record in found] == [1, 60, 26, 9, 5]
    again = read_table(write_table(found))
    assert [urgency_of(one) for one in again] == [urgency_of(one) for one in found]
    assert again[0].case_id == demands[2].record.case_id  # its urgency is not part of a case
