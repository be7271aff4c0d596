"""How the remaining cases are divided into sessions."""

from dataclasses import replace

import pytest

from collector.measuring.batches import Batches, SessionSize, next_session
from collector.model.plan import MeasureSettings, ShardCase
from tests.unit.collector.measuring.pretending import cases, record, size

pytestmark = pytest.mark.fast


def test_session_has_at_least_one_case_and_about_its_target_duration():
    long = [ShardCase(record("9,9"), 100.0), *cases(3)]
    assert next_session(long, size(2.0)) == long[:1]
    assert next_session(long[1:], size(2.5)) == long[1:3]


def test_sessions_of_short_cases_are_bounded_by_launches_and_disk(tmp_path, monkeypatch):
    short, measure = [replace(case, predicted_s=0.006) for case in cases(3000)], MeasureSettings()
    batches = Batches(SessionSize(240.0, measure, tmp_path), backend="npu")
    assert measure.most_launches() == 107
    assert len(batches.next(short)) == 100_000 // 107
    assert len(Batches(SessionSize(240.0, measure, tmp_path)).next(short)) == 3000  # no msprof
    # In context: each launch after a mark and four launches of other kernels.
    behind = tuple(one.record for one in cases(4))
    context = [replace(one, record=replace(one.record, before=behind)) for one in short]
    assert len(batches.next(context)) == 100_000 // (107 + 5 * 105)
    # Twenty times 2 KiB a launch: 1 GiB is enough for 26,214, a full disk for one case at a time.
    monkeypatch.setenv("OPMETER_VOLUME_BYTES", str(1 << 30))
    assert len(batches.next(short)) == 26_214 // 107
    monkeypatch.setenv("OPMETER_MEASURE_CONCURRENCY", "2")
    assert len(batches.next(short)) == 13_107 // 107
    monkeypatch.setenv("OPMETER_VOLUME_BYTES", "0")
    assert batches.next(short) == short[:1]


def test_statically_compiled_kernels_are_measured_in_separate_sessions():
    def of(state, **extra):
        row = record("2,2")
        row = replace(row, cells={**row.cells, "OP State": state}, extra=extra)
        return ShardCase(row, 1.0)

    plain, static = of("dynamic"), of("static")
    of_graph = of("static", **{"Runtime launched_by": "graph"})
    assert Batches(size(9.0), backend="npu").next([plain, static, of_graph]) == [plain, of_graph]
    assert Batches(size(9.0), backend="npu").next([static, plain]) == [static]
    assert Batches(size(9.0), backend="cpu").next([plain, static]) == [plain, static]
