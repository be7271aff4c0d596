"""A model as a source of a campaign: its cases, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from collector.codec.errors import BadInput
from collector.ranks.collective import collective_case_of, is_collective
from collector.ranks.distribution import COMBINE, DISPATCH
from collector.ranks.experts import KERNEL
from collector.ranks.gangs import is_of_gangs, ranks_needed
from collector.store.in_memory import MemoryStore
from collector.workloads.models import bundled_config
from jobs.campaign.campaign_file import campaign_from_text
from jobs.planning.generated_sources import MODEL_STEPS, model_records
from jobs.planning.sources import load_sources
from tests.unit.jobs.printed import missing, raises_naming

pytestmark = pytest.mark.fast

_QWEN = (
    "model: qwen3-32b, layout: {tp: 16, nz: 2}, "
    "serving: {concurrency: [3, 16], input: 500, output: 20, graph_sizes: [4, 16]}"
)
_DSV3 = (
    "model: deepseek-ai/DeepSeek-V3, "
    "layout: {tp: 8, dp: 2, ep: 16, sequence_split: true, quantisation: w8a8}, "
    "serving: {concurrency: [5], input: 500, output: 20}"
)


def campaign(reported, *, devices=16, base=Path()):
    text = f"campaign: c\nsources: [{{{reported}}}]\nbackend: npu\ndevices: {devices}\n"
    return campaign_from_text(text, path="c.yaml", base=base)


def loaded(reported, **more):
    (source,) = load_sources(campaign(reported, **more), MemoryStore())
    return source


def test_each_case_of_the_passes_of_a_model_is_planned_once():
    source = loaded(_QWEN)
    layout = "tp=16,dp=1,ep=1,quantisation=bf16,nz=2"
    named = ["model qwen3-32b", layout, "8", "vllm-ascend-0.18"]
    assert missing(source.planned.name, named) == []
    ids = [record.case_id for record in source.records]
    assert len(set(ids)) == len(ids)
    shapes = [record.cells.get("Input Shapes") for record in source.records]
    assert '"4,5120;320,48,16,16"' in shapes  # three requests are padded to four
    assert not any(is_of_gangs(record.case) for record in source.records)


def test_attention_lengths_are_columns_of_a_case():
    """A long context must be a different case than a short one, although no shape shows it."""
    lengths = {
        record.extra["Runtime actual_seq_lengths_kv_values"].split(",")[0]
        for record in loaded(_QWEN).records
        if record.kernel_type == "FusedInferAttentionScore"
    }
    assert lengths == {"500", "501", "510", "519"}


def test_row_has_its_layers_and_passes_and_the_case_of_any_model():
    found = {record.cells.get("Input Shapes"): record for record in loaded(_QWEN).records}
    layout = "qwen3-32b (tp=16,dp=1,ep=1,quantisation=bf16,nz=2)"
    assert found['"4,3200"'].extra[MODEL_STEPS] == f"{layout}: decode, 64 equal layers x 64"
    norms = found['"16,5120;16,5120;5120;"']
    assert norms.extra[MODEL_STEPS] == f"{layout}: decode, 64 equal layers x 128"
    assert replace(norms, extra={}).case_id == norms.case_id


def test_launches_are_those_of_serving_every_request_once():
    (source,) = campaign(_QWEN).sources
    cases = model_records(source, "npu")
    launches = {
        one.cells["Input Shapes"]: times
        for one, times in zip(cases.records, cases.launches, strict=True)
        if one.kernel_type == "SwiGlu"
    }
    # Of 3 and of 16 requests one prefill with a short prompt each, and 19 decodes in graphs.
    decodes = {'"4,3200"': 19 * 64, '"16,3200"': 19 * 64}
    assert launches == {'"1500,3200"': 64, '"8000,3200"': 64, **decodes}


@pytest.mark.thorough
def test_decode_only_deployment_has_separate_experts():
    reported = _DSV3.replace("quantisation: w8a8", "experts: apart")
    reported = reported.replace("deepseek-ai/DeepSeek-V3", "glm-4.5")
    source = loaded(reported.replace("output: 20", "output: 20, phase: decode"))
    kernels = {record.kernel_type for record in source.records}
    assert {DISPATCH, COMBINE, "GroupedMatmul"} <= kernels
    assert KERNEL not in kernels and "experts=apart" in source.planned.name
    gangs = {ranks_needed(one.case) for one in source.records if is_of_gangs(one.case)}
    assert gangs == {16}


def test_tokens_for_experts_are_sent_in_whole_elements_per_rank():
    """Of 16 ranks, each with 613 of 4,904 tokens, which have 8 experts."""
    reported = _DSV3.replace("quantisation: w8a8", "quantisation: w8a8, experts: apart")
    reported = reported.replace("input: 500, output: 20", "input: 4900, output: 1")
    reported = reported.replace("concurrency: [5]", "concurrency: [1]")
    sent = {
        collective_case_of(record.case).collective.message_bytes
        for record in loaded(f"{reported}, collectives: {{grid: [8, 4, 2]}}").records
        if record.kernel_type == "hcom_alltoallv_"
    }
    assert sent and all(size % (2 * 16) == 0 for size in sent)


def test_experts_are_cases_of_all_their_ranks():
    (experts,) = {
        ranks_needed(record.case)
        for record in loaded(_DSV3).records
        if record.kernel_type == KERNEL
    }
    assert experts == 16


def test_messages_are_cases_on_request():
    source = loaded(f"{_QWEN}, collectives: {{grid: [48, 8, 2]}}")
    found = [
        collective_case_of(record.case)
        for record in source.records
        if is_collective(record.kernel_type)
    ]
    assert {(one.collective.operation, one.collective.message_bytes) for one in found} == {
        *(("all_reduce", requests * 5120 * 2) for requests in (4, 16)),  # decode
        *(("all_gather", requests * 9496 * 2) for requests in (3, 16)),  # logits
        *(("all_reduce", requests * 500 * 5120 * 2) for requests in (3, 16)),  # prefill
    }
    assert {one.collective.tier for one in found} == {1}  # 16 dies of one server


def test_messages_over_more_ranks_than_devices_are_refused():
    with raises_naming(BadInput, "16", "8"):
        loaded(f"{_QWEN}, collectives: {{grid: [1, 8, 2]}}", devices=8)


def test_config_file_next_to_the_campaign_is_a_model(tmp_path):
    """One with the values of a bundled model has its recordings; another one is to be recorded."""
    config = json.loads(bundled_config("qwen3-vl-8b"))
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "config.json").write_text(json.dumps(config))
    reported = "layout: {}, serving: {concurrency: [1], input: 8, output: 2}"
    source = loaded(f"model: small/config.json, {reported}", base=tmp_path)
    assert missing(source.planned.name, ["model small", "tp=1"]) == []
    config["text_config"]["num_hidden_layers"] = 3
    (tmp_path / "small" / "config.json").write_text(json.dumps(config))
    with raises_naming(BadInput, f"opmeter model record {tmp_path}/small/config.json"):
        loaded(f"model: small/config.json, {reported}", base=tmp_path)


def test_layout_is_read_as_commands_print_it():
    as_text = _QWEN.replace("{tp: 16, nz: 2}", "'tp=16,nz=2'")
    assert campaign(as_text).sources == campaign(_QWEN).sources != campaign(_DSV3).sources


@pytest.mark.parametrize(
    ("reported", "field", "data"),
    [
        ("model: qwen3-32b", "model", ["layout"]),
        ("model: gpt-5, layout: {}, serving: {}", "model", ["'gpt-5'", "qwen3-32b"]),
        (_QWEN.replace("tp: 16", "tp: 3"), "layout", ["tp=3", "64"]),
        (_QWEN.replace("tp: 16", "pp: 2"), "layout", ["'pp'", "tp, dp, ep"]),
        (_QWEN.replace("{tp: 16, nz: 2}", "'tp=16,pp=2'"), "layout", ["'pp=2'", "tp=, dp="]),
        (_QWEN.replace("nz: 2", "nz: 7"), "layout.nz", ["1", "0", "2", "'7'"]),
        (_QWEN.replace("input: 500, ", ""), "serving", ["'input'"]),
        (f"{_QWEN}, release: vllm-9", "release", ["'vllm-9'", "vllm-ascend-0.18"]),
        (f"{_QWEN}, stack: target", "stack", ["profile"]),
        ("bundled: quickstart, layout: {}", "layout", ["model"]),
        ("profile: x, serving: {}", "serving", ["model"]),
    ],
)
def test_invalid_model_source_is_refused_with_its_line(reported, field, data):
    with pytest.raises(BadInput) as refused:
        campaign(reported)
    place = f"c.yaml:2: sources[0].{field}: "
    assert str(refused.value).startswith(place)
    assert missing(str(refused.value).removeprefix(place), data) == []
