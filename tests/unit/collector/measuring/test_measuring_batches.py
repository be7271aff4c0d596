"""How what is left to measure is cut into sessions."""

from dataclasses import replace

import pytest

from collector.measuring.batches import Batches, next_session
from collector.model.plan import ShardCase
from tests.unit.collector.measuring.pretending import cases, record

pytestmark = pytest.mark.fast


def test_sessions_hold_at_least_one_case_and_about_their_time():
    long = [ShardCase(record("9,9"), 100.0), *cases(3)]
    assert next_session(long, 2.0) == long[:1]
    assert next_session(long[1:], 2.5) == long[1:3]


def test_a_kernel_that_cann_builds_for_its_shapes_keeps_from_those_it_would_be_taken_for():
    def of(state, **extra):
        row = record("2,2")
        row = replace(row, cells={**row.cells, "OP State": state}, extra=extra)
        return ShardCase(row, 1.0)

    plain, static = of("dynamic"), of("static")
    of_graph = of("static", **{"Runtime launched_by": "graph"})
    assert Batches(9.0, backend="npu").next([plain, static, of_graph]) == [plain, of_graph]
    assert Batches(9.0, backend="npu").next([static, plain]) == [static]
    assert Batches(9.0, backend="cpu").next([plain, static]) == [plain, static]
