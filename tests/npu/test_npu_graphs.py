"""What the stock torchair makes of each fixture row that a graph launches: the op, its inputs, its
attributes. CANN's graph engine, which makes kernels of it, is not available here.

The files in graph_calls/ are exact; `python -m tools calls` writes them.
"""

from typing import Any

import pytest

from tests.fixtures.row_checks import failing
from tests.npu.fakecann.build import FakeCann
from tests.npu.graphed import (
    Graphed,
    answers,
    graph_path,
    graph_rows,
    graph_text,
    graphs_in,
    kernels_of_graphs,
)

pytestmark = [pytest.mark.npu, pytest.mark.torch, pytest.mark.slow]

KERNELS = kernels_of_graphs()
# Besides a kernel: a host's list of lengths made a tensor; outputs written in place, until the
# engine finds that their memory may be shared.
BESIDE = {
    "FusedInferAttentionScore": {"Pack"},
    "IncreFlashAttention": {"Pack"},
    "Scatter": {"TensorMove", "Assign"},
}


@pytest.fixture(scope="module")
def results(fake: FakeCann) -> list[dict[str, Any]]:
    """Every row, and a sum whose kernel is built for its shape, by one process."""
    return answers(fake, [*graph_rows(KERNELS), "static"])


@pytest.fixture(scope="module")
def made(results: list[dict[str, Any]]) -> dict[str, list[Graphed]]:
    return graphs_in(results[:-1])


def test_every_row_becomes_a_graph_of_its_kernel(made):
    def check(row):
        kernel = row.case.kernel_type
        assert row.error == ""
        assert row.kernels.count(kernel) == 1, row.ops
        assert set(row.kernels) - {kernel} <= BESIDE.get(kernel, set())

    assert set(made) == set(KERNELS)
    rows = [row for of_kernel in made.values() for row in of_kernel]
    assert failing(rows, check, lambda row: row.case.describe()) == []


def test_graph_is_that_of_the_golden_file(made):
    def check(kernel):
        path = graph_path(kernel)
        again = f"record again, and read the difference: python -m tools calls {kernel}"
        assert path.exists() and graph_text(made[kernel]) == path.read_text(), again

    assert failing(KERNELS, check) == []


def test_a_static_kernel_is_requested_from_torchair_as_documented(results):
    answer = results[-1]
    assert (answer["row"], answer["error"]) == ("static", "")
    assert answer["ops"] == ["reduce-overhead, static kernels 1, True"]
