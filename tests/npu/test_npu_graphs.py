"""What the stock torchair makes of each fixture row that a graph launches: the op, its inputs, its
attributes. CANN's graph engine, which makes kernels of it, is not here.

The files in graph_calls/ are exact; `python -m tests.npu.record` writes them anew.
"""

import pytest

from tests.npu.fakecann.build import FakeCann
from tests.npu.graphed import (
    Graphed,
    answers,
    graph_path,
    graph_text,
    graphs_of,
    kernels_of_graphs,
)

pytestmark = [pytest.mark.npu, pytest.mark.torch, pytest.mark.slow]

KERNELS = kernels_of_graphs()
EACH = pytest.mark.parametrize("kernel", KERNELS)
# Beside a kernel: a host's list of lengths made a tensor; what is written in place, until the
# engine finds that its memory may be.
BESIDE = {
    "FusedInferAttentionScore": {"Pack"},
    "IncreFlashAttention": {"Pack"},
    "Scatter": {"TensorMove", "Assign"},
}


@pytest.fixture(scope="module")
def made(fake: FakeCann) -> dict[str, list[Graphed]]:
    """Every row, by one process."""
    return graphs_of(fake, KERNELS)


@EACH
def test_every_row_becomes_a_graph_of_its_kernel(made, kernel):
    for row in made[kernel]:
        assert row.error == ""
        assert row.kernels.count(kernel) == 1, row.ops
        assert set(row.kernels) - {kernel} <= BESIDE.get(kernel, set())


@EACH
def test_the_graph_is_that_of_the_golden_file(made, kernel):
    path = graph_path(kernel)
    again = f"record again, and read the difference: python -m tests.npu.record {kernel}"
    assert path.exists() and graph_text(made[kernel]) == path.read_text(), again


def test_a_kernel_of_its_own_shape_is_asked_for_as_the_documents_say(fake):
    [answer] = answers(fake, ["static"])
    assert answer["error"] == ""
    assert answer["ops"] == ["reduce-overhead, static kernels 1, True"]
