"""Requests that the complete serving stack serves in virtual time, against calculations by hand."""

from collections.abc import Sequence

import pytest

from collector.codec.errors import BadInput
from collector.engine.durations import Duration
from collector.engine.engine_process import (
    EngineSettings,
    GraphMode,
    ServedRequest,
    run_served,
)
from tests.stacks.test_stacks_recordings import DENSE, folder_of, release, usual

__all__ = ["release", "usual"]  # fixtures
pytestmark = [pytest.mark.torch, pytest.mark.npu, pytest.mark.slow]

LAYERS = 12
# of each layer an attention, four products and two norms; one product makes the logits
NS = {
    "aclnnFusedInferAttentionScore": 100_000,
    "aclnnMatmul": 10_000,
    "aclnnAddRmsNormBias": 1_000,
    "Hccl": 20_000,
}
STEP_NS = LAYERS * (100_000 + 4 * 10_000 + 2 * 1_000) + 10_000


def duration_of(text: str) -> Duration:
    """Return the duration of a launch, and nothing for the host, copies and small launches."""
    _, _, name = text.partition("(")[0].partition(" ")
    return Duration(0, next((ns for begin, ns in NS.items() if name.startswith(begin)), 0))


def served(release, tmp_path, *, graph=None, tp=1, **more) -> Sequence[Sequence[int]]:
    """Serve three requests at once, one that comes while they decode, and one that comes alone."""
    settings = EngineSettings(release, (), tp=tp, graph=graph, options={"max_num_seqs": 4})
    requests = [ServedRequest(0, 64, 12)] * 3
    requests += [ServedRequest(6_000_000, 100, 4), ServedRequest(500_000_000, 64, 3)]
    return run_served(folder_of(DENSE), settings, requests, duration_of, tmp_path, **more)


@pytest.mark.parametrize("graph", [None, GraphMode.FULL_DECODE])
def test_each_step_takes_the_time_of_its_launches(release, tmp_path, graph):
    found = served(release, tmp_path, graph=graph)
    together = [STEP_NS * step for step in range(1, 13)]
    # The fourth request comes in step 4, while the engine waits for the tokens of this step, and
    # step 5 is scheduled already.
    joined = [STEP_NS * step for step in range(6, 10)]
    alone = [500_000_000 + STEP_NS * step for step in range(1, 4)]
    assert found == [together, together, together, joined, alone]


def test_what_the_host_computes_is_added(usual, tmp_path):
    first, *_, alone = served(usual, tmp_path, has_own_host=True)
    assert all(ns > step * STEP_NS for step, ns in enumerate(first, 1))
    assert alone[0] > 500_000_000 + STEP_NS


@pytest.mark.parametrize("graph", [None, GraphMode.FULL_DECODE])
def test_ranks_that_do_the_same_add_the_time_of_their_messages(usual, tmp_path, graph):
    first, *_ = served(usual, tmp_path, graph=graph, tp=2)
    # two messages of each layer, one for embeddings and one for logits
    messages_ns = (2 * LAYERS + 2) * NS["Hccl"]
    assert first == [(STEP_NS + messages_ns) * step for step in range(1, 13)]


def test_data_parallel_ranks_are_refused(usual, tmp_path):
    settings = EngineSettings(usual, (), dp=2)
    with pytest.raises(BadInput):
        run_served(folder_of(DENSE), settings, [ServedRequest(0, 8, 2)], duration_of, tmp_path)
