"""Requests that the complete serving stack serves in virtual time, against calculations by hand."""

import json
from collections.abc import Sequence
from random import Random

import pytest

from collector.codec.errors import BadInput
from collector.engine.durations import Duration
from collector.engine.engine_process import (
    EngineSettings,
    GraphMode,
    record_model,
    run_served,
)
from collector.engine.recorded_calls import PassTokens
from collector.model.demand import read_misses, record_of_cells
from collector.workloads.served_requests import ServedRequest
from jobs.planning.predicted_passes import launches_of
from tests.stacks.test_stacks_recordings import DENSE, DRAFTING, EXPERTS, folder_of
from tests.unit.jobs.cli.in_process import invoked
from tests.unit.jobs.cli.small_model import write_database

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
    (run,) = run_served(folder_of(DENSE), settings, requests, duration_of, tmp_path, **more)
    return run.tokens_ns


@pytest.mark.parametrize("graph", [None, GraphMode.FULL_DECODE])
def test_each_step_takes_the_time_of_its_launches(release, tmp_path, graph):
    found = served(release, tmp_path, graph=graph)
    together = [STEP_NS * step for step in range(1, 13)]
    # The fourth request comes in step 4, while the engine waits for the tokens of this step, and
    # step 5 is scheduled already.
    joined = [STEP_NS * step for step in range(6, 10)]
    alone = [500_000_000 + STEP_NS * step for step in range(1, 4)]
    assert found == [together, together, together, joined, alone]


def test_next_request_is_sent_when_one_ends(usual, tmp_path):
    settings = EngineSettings(usual, (), options={"max_num_seqs": 4})
    requests = [ServedRequest(0, 64, produced) for produced in (4, 6, 3)]
    requests.append(ServedRequest(20 * STEP_NS, 64, 2))
    (run,) = run_served(folder_of(DENSE), settings, requests, duration_of, tmp_path, concurrency=2)
    # The third is sent with the last token of the first, in step 4, and joins step 6: step 5 is
    # scheduled already.
    assert run.begins_ns == [0, 0, 4 * STEP_NS, 20 * STEP_NS]
    steps = [range(1, 5), range(1, 7), range(6, 9), range(21, 23)]
    assert run.tokens_ns == [[STEP_NS * step for step in each] for each in steps]


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


def test_experts_over_ranks_take_the_time_of_their_products(usual, tmp_path):
    def of_experts(text: str) -> Duration:
        attention, products = "aclnnFusedInferAttentionScore" in text, "aclnnGroupedMatmul" in text
        return Duration(0, 100_000 * attention + 50_000 * products)

    settings = EngineSettings(usual, (), tp=2, ep=2, options={"max_num_seqs": 4})
    requests = [ServedRequest(0, 64, 6)]
    (run,) = run_served(folder_of(EXPERTS), settings, requests, of_experts, tmp_path)
    step_ns = LAYERS * (100_000 + 2 * 50_000)
    assert run.tokens_ns == [[step_ns * step for step in range(1, 7)]]


def test_parts_in_graphs_take_the_time_of_their_launches(usual, tmp_path):
    first, *_, alone = served(usual, tmp_path, graph=GraphMode.PIECEWISE)
    # vLLM-Ascend 0.18 waits for the stream before it runs a part, so that the tokens of a step are
    # there when the host comes to the last part of the next one; a step with a prompt, here the
    # fifth, has no graphs. After the last part come the logits.
    last_ns = 3 * 10_000 + 2 * 1_000 + 10_000
    early_ns = [0 if step in (4, 12) else STEP_NS - last_ns for step in range(1, 13)]
    assert first == [STEP_NS * step + ns for step, ns in enumerate(early_ns, 1)]
    assert alone[-1] - alone[-2] == last_ns


def test_drafted_tokens_are_accepted_at_their_share(usual, tmp_path):
    def of_attention(text: str) -> Duration:
        return Duration(0, 100_000 * ("aclnnFusedInferAttentionScore" in text))

    settings = EngineSettings(usual, (), tp=2, ep=2, speculative=1, accepted=0.5)
    requests = [ServedRequest(0, 64, 40)]
    first, second = run_served(
        folder_of(DRAFTING), settings, requests, of_attention, tmp_path, runs=2
    )
    assert first == second
    step_ns = (LAYERS + 1) * 100_000
    chance, expected = Random(0), [0]  # prompts have attention of another name
    while len(expected) < 40:  # each further step has its token, and perhaps the drafted one
        expected += [expected[-1] + step_ns] * (1 + (chance.random() < 0.5))
    assert first.tokens_ns == [expected[:40]]


def test_data_parallel_ranks_are_refused(usual, tmp_path):
    settings = EngineSettings(usual, (), dp=2)
    with pytest.raises(BadInput):
        run_served(folder_of(DENSE), settings, [ServedRequest(0, 8, 2)], duration_of, tmp_path)


def test_emulate_takes_durations_from_a_database(usual, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps(DENSE))
    (tmp_path / "trace").write_text('{"timestamp": 0, "input_length": 64, "output_length": 9}')
    settings = EngineSettings(usual, (PassTokens("decode", 1, 1, 80),))
    recording = record_model(folder_of(DENSE), settings, tmp_path / "recorded")
    launched, _ = launches_of(recording, recording.passes[0], None, "cpu")
    # attention has another length in each step, and random numbers another seed
    known = [one for one in launched if one.kernel_type in ("MatMulV2", "AddRmsNormBias", "SwiGlu")]
    write_database(tmp_path / "data", [one.record for one in known], us=20_000.0)
    words = (
        "--requests",
        "trace",
        "--graph",
        "eager",
        "--root",
        "data",
        "--host-us",
        "0",
        "--json",
    )
    words = (*words, "--misses", "misses.jsonl", "--", "--max-num-seqs", "4")
    found = invoked("emulate", "tiny", *words)
    assert found.exception is None, found.exception
    shown = json.loads(found.stdout)
    assert (shown["requests"], shown["tokens"]) == (1, 9)
    shares = shown["device_time_by_source"]
    assert shares["exact"] > 0.9 and sum(shares.values()) == pytest.approx(1)
    tpot = {one["of"]: one for one in shown["metrics"] if one["metric"] == "TPOT_ms"}
    known_ms = 20 * sum(one.times for one in known)
    assert known_ms < tpot["p50"]["value"] < 1.1 * known_ms
    missed = read_misses(tmp_path / "misses.jsonl")
    narrowing = {record_of_cells(one.kernel_type, one.cells).case_id for one in missed}
    assert narrowing and not narrowing & {one.record.case_id for one in known}
    assert tpot["p50"]["low"] <= tpot["p50"]["value"] <= tpot["p50"]["high"]
