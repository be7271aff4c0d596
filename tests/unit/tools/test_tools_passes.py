"""Passes that were kept are read again, and an engine starts only for others."""

import pytest

from collector.engine.engine_process import EngineFailed
from collector.engine.recorded_calls import LoggedCall, PassTokens, recorded_pass
from collector.workloads.recorded_step import Recording
from tools.recordings.deployments import Passes, pass_tokens
from tools.recordings.spaces import LoadSpan, batches_of

pytestmark = pytest.mark.fast

MATMUL = "ACLNN aclnnMm(bf16[{0},64]:ND, bf16[64,32]:ND, bf16[{0},32]:ND, 1)"
DECODES = [PassTokens("decode", requests, 1, 90) for requests in (3, 7)]
REFUSED = PassTokens("prefill", 300, 9, 9)


class SimulatedEngine:
    """An engine whose passes have one product; it refuses more than 256 requests."""

    recording = Recording(
        *("tiny", "0" * 64, "vllm-ascend-0.18", {"tp": 1, "dp": 1, "ep": 1}, "A3", {}),
        *({"graph_sizes": []}, {"vllm": "1"}, "", ()),
    )

    def __init__(self):
        self.ran = []

    def record(self, passes):
        self.ran += passes
        return [
            EngineFailed("too many requests")
            if one.requests > 256
            else recorded_pass(one, [LoggedCall(MATMUL.format(one.requests * one.queries))])
            for one in passes
        ]


def test_kept_passes_need_no_engine(tmp_path):
    engine, path = SimulatedEngine(), tmp_path / "kept" / "tiny.json.gz"
    first = Passes(lambda: engine, path)
    first.record([*DECODES, REFUSED, DECODES[0]])
    assert engine.ran == [*DECODES, REFUSED]
    assert list(first.known) == DECODES
    first.keep()
    again = Passes(lambda: pytest.fail("started"), path)
    again.record(DECODES)
    assert again.known == first.known
    assert again.recording == first.recording


def test_passes_of_loads_have_their_tokens():
    spans = [("decode", 1, False), ("mixed", 9, False), ("prefill", 9, False), ("chunk", 9, True)]
    for phase, least, is_of_one in spans:
        for batch in batches_of(LoadSpan(phase, least, 256, 0, is_of_one, 20000), (8, 16)):
            each = list(pass_tokens(batch).each())
            assert each == [*batch.lengths()][: len(each)], batch
            assert len(each) == batch.requests - batch.padding + batch.mixed_decodes
