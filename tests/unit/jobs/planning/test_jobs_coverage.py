"""How much of the demand a version covers."""

import itertools
from dataclasses import replace

import pytest

from collector.model.record import CaseRecord
from collector.ranks.collective import Collective, CollectiveCase
from collector.ranks.topology import Grid
from jobs.cli.coverage import covered_lines
from jobs.planning.coverage import CoverageStatus, CoveredCase, covered_cases, share, user_metrics
from jobs.planning.workload import WorkloadCase
from opmeter.answers import MISSES, Channel, Reason
from tests.unit.opmeter.made import recorded, version_of

pytestmark = pytest.mark.fast


def record(kernel, shapes, output=None, dtypes=None, **extra):
    slots = shapes.split(";")
    reported = ";".join(dtypes or ["FLOAT" if shape else "DT_UNDEFINED" for shape in slots])
    cells = {
        "OP State": "dynamic",
        "Accelerator Core": "",
        "Input Shapes": f'"{shapes}"',
        "Input Data Types": reported,
        "Input Formats": ";".join("ND" if shape else "NULL" for shape in slots),
        "Output Shapes": f'"{output or slots[0]}"',
        "Output Data Types": "FLOAT",
        "Output Formats": "ND",
    }
    return CaseRecord(kernel, cells, {f"Runtime {name}": text for name, text in extra.items()})


def product(rows, width=96, depth=64, kernel="MatMulV2"):
    return record(kernel, f"{rows},{depth};{depth},{width}", f"{rows},{width}")


def answers(measured):
    """Return the answers of a version with these cases."""
    known = {one.case_id: one for one in measured}
    version = version_of([recorded(one, 1.0 + at) for at, one in enumerate(known.values())])
    return version.query_record


def statuses(expected, measured, failed=()):
    found = covered_cases(
        [WorkloadCase(one, 1, 1.0) for one in expected],
        answers(measured),
        {one.case_id for one in failed},
    )
    return [str(one.status) for one in found]


def test_a_case_has_a_duration_or_neighbours_or_nothing():
    measured = [record("Exp", "8,64"), record("Exp", "32,64")]
    expected = [
        *(record("Exp", shape) for shape in ("8,64", "16,64", "4,64", "16,128", "32")),
        *(record("Log", "8,64"), record("Exp", "64,64")),
    ]
    assert statuses(expected, measured, failed=[record("Exp", "64,64")]) == [
        *("exact", "between", "outside", "outside", "missing"),
        *("missing", "failed"),
    ]


def test_neighbours_differ_in_sizes():
    measured = [product(16), product(128), product(16, width=192), product(128, width=192)]
    expected = [
        *(product(32), product(20), product(256), product(32, width=192), product(32, width=128)),
        *(product(32, width=256), product(32, kernel="MatMulV3")),
    ]
    assert statuses(expected, measured) == [
        *("between", "between", "outside", "between", "between"),
        *("outside", "between"),
    ]


def test_result_of_a_twin_covers_the_requested_kernel():
    requested, ran = product(4112), product(4112, kernel="MatMulV3")
    assert statuses([requested], [ran], failed=[requested]) == ["exact"]


def test_tokens_of_a_batch_are_its_second_dimension():
    def absorbed(heads, tokens):
        return record(
            "BatchMatMulV2", f"{heads},{tokens},128;{heads},128,512", f"{heads},{tokens},512"
        )

    measured = [absorbed(16, 4), absorbed(16, 16)]
    expected = [absorbed(16, 8), absorbed(8, 8), absorbed(16, 32)]
    assert statuses(expected, measured) == ["between", "outside", "outside"]


def attention(requests, lengths, heads=4, pages=64, width=9, **more):
    slots = [""] * 15
    slots[0], slots[5], slots[6] = f"{requests},{heads},128", f"{requests}", f"{requests}"
    slots[1] = slots[2] = f"{pages},128,128"
    slots[14] = f"{requests},{width}"
    return record(
        "FusedInferAttentionScore",
        ";".join(slots),
        actual_seq_lengths_kv_values=",".join(map(str, lengths)),
        num_heads=str(heads),
        **more,
    )


def test_lengths_are_sizes_and_heads_are_not():
    measured = [attention(2, (100, 100)), attention(2, (400, 400))]
    expected = [
        *(attention(2, (250, 250)), attention(2, (500, 500)), attention(2, (250, 250), heads=8)),
        attention(4, (250, 250, 250, 250)),
    ]
    assert statuses(expected, measured) == ["between", "outside", "missing", "outside"]


def test_attention_is_between_other_batches_and_lengths():
    grid = itertools.product((1, 4, 16, 64), (512, 2048, 8192, 32768))
    measured = [attention(requests, (keys,) * requests) for requests, keys in grid]
    for requests, keys, expected in (
        *((8, 4096, "between"), (2, 1024, "between"), (64, 700, "between"), (4, 2048, "exact")),
        *((100, 1024, "outside"), (8, 40_000, "outside")),
    ):
        one = attention(requests, (keys,) * requests, pages=999, width=77)
        assert statuses([one], measured) == [expected], (requests, keys)


def test_number_of_cache_pages_does_not_distinguish_launches():
    known = attention(2, (100, 300), block_table_valid_blocks="1,3", source_profile="p0")
    served = attention(2, (100, 300), pages=12_307, width=320)
    assert statuses([served], [known]) == ["exact"]
    assert statuses([attention(2, (100, 301), pages=12_307)], [known]) == ["outside"]
    compiled = replace(known, cells=known.cells | {"OP State": "static"})
    assert statuses([served], [compiled]) == ["missing"]


def test_message_between_measured_ones_has_the_same_ranks_and_grid():
    def message(size_bytes, grid=(48, 8, 2)):
        one = Collective("all_reduce", size_bytes, "bfloat16", 2, len(grid) - 1)
        return CollectiveCase(one, Grid(grid), 2, "event").record()

    measured = [message(1024), message(4096)]
    expected = [message(2048), message(8192), message(2048, (1, 1, 2))]
    assert statuses(expected, measured) == ["between", "outside", "missing"]


def test_metrics_equal_an_example_computed_by_hand():
    """MatMulV2: two cases, one with a duration, launched 60 and 4 times. Exp: one, with a duration,
    launched once. Identity: one without, which an op_mapping marks as free."""
    found = [
        CoveredCase(WorkloadCase(record("MatMulV2", "16,64"), 60, 600.0), CoverageStatus.EXACT),
        CoveredCase(WorkloadCase(record("MatMulV2", "32,64"), 4, 80.0), CoverageStatus.BETWEEN),
        CoveredCase(WorkloadCase(record("Exp", "16,64"), 1, 20.0), CoverageStatus.EXACT),
        CoveredCase(WorkloadCase(record("Identity", "16,64"), 15, 100.0), CoverageStatus.MISSING),
    ]
    reported = user_metrics(found, {"Identity"})
    assert reported.m1 == pytest.approx(61 / 80)
    assert reported.m2 == pytest.approx(1 / 3)  # only Exp is complete
    assert reported.m3 == pytest.approx(1 / 2)
    assert reported.m4 == pytest.approx(2 / 3)
    assert reported.m5 == pytest.approx(620 / 800)
    (line,) = [one for one in covered_lines("v", found, reported) if one.startswith("metrics")]
    assert "M1 76.2 % of the launches" in line and "M5 77.5 % of the time" in line
    between = share(found, CoverageStatus.BETWEEN)
    assert (between.cases, between.launches, between.time) == (0.25, 0.05, 0.1)
    assert user_metrics([], ()).m1 is None


def test_case_is_found_in_any_spelling():
    plain = record("Exp", "8,64")
    assert statuses([record("Exp", "8, 64")], []) == ["missing"]
    assert statuses([record("Exp", "(8,64)")], [plain]) == ["exact"]


def test_a_reused_case_is_no_measured_one():
    cases = [record("Exp", f"{rows},64") for rows in (8, 16, 32)]
    of_older = MISSES[Reason.OUTSIDE]._replace(channel=Channel.REUSED, reason=None)
    answer = {one.case_id: of_older for one in cases[1:]}
    answer[cases[0].case_id] = of_older._replace(channel=Channel.POOLED)
    found = covered_cases(
        [WorkloadCase(one, 1, 1.0) for one in cases],
        lambda one: answer[one.case_id],
        {cases[2].case_id},
    )
    assert [one.status for one in found] == ["exact", "reused", "reused"]
    assert user_metrics(found, ()).m1 == 1 / 3


def test_case_that_no_operator_measures_is_unsupported():
    cases = [record("Exp", f"{rows},64") for rows in (8, 16)]
    tried = {one.case_id for one in cases}
    found = covered_cases(
        [WorkloadCase(one, 1, 1.0) for one in cases], answers([]), tried, {cases[0].case_id}
    )
    assert [one.status for one in found] == ["unsupported", "failed"]
