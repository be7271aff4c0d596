"""`opmeter model` as a user calls it."""

import json

import pytest

from collector.codec.errors import BadInput
from tests.unit.jobs.cli.in_process import invoked
from tests.unit.jobs.printed import missing, numbers

pytestmark = pytest.mark.fast


def model(*words):
    return invoked("model", *words)


def test_bundled_models_are_listed():
    names = [
        *("deepseek-v3", "deepseek-v3.2", "deepseek-v4-flash", "glm-4.5", "glm-4.5-air"),
        *("glm-5.1", "glm-5.2", "gpt-oss-120b", "kimi-k2", "kimi-k2-thinking", "llama-3-70b"),
        *("minimax-m2", "qwen3-235b-a22b", "qwen3-32b", "qwen3-next-80b-a3b", "qwen3-vl-8b"),
        "qwen3.5-397b-a17b",
    ]
    header, *rows = (line.split("\t") for line in model("list").stdout.splitlines())
    assert header == ["model", "release", "layout"]
    assert [*dict.fromkeys(name for name, *_ in rows)] == names
    listed = json.loads(model("list", "--json").stdout)
    assert sum(len(one["layouts"]) for one in listed) == len(rows)


def test_pass_is_printed_as_lines_of_cells():
    message = model("show", "qwen3-32b", "--layout", "tp=16,nz=2", "--tokens", "16").stdout
    header, *rows = (line.split("\t") for line in message.splitlines())
    assert header[:3] == ["layer", "kernel", "times"]
    assert all(len(row) == len(header) for row in rows)
    product = ["64 equal layers", "MatMulV2", "64", "16,5120;320,48,16,16"]
    assert product in [row[:4] for row in rows]
    sent = [(*row[1:3], numbers(row[3])) for row in rows if row[1] == "hcom_allReduce_"]
    assert ("hcom_allReduce_", "129", ["163840", "16"]) in sent  # times, bytes and ranks


def test_kernels_that_no_operator_measures_are_shown_alone():
    words = ("qwen3-next-80b-a3b", "--layout", "tp=4,ep=4,sequence_split", "--phase", "prefill")
    message = model("show", *words, "--tokens", "4096", "--context", "8192", "--missing").stdout
    _, *rows = (line.split("\t") for line in message.splitlines())
    assert {row[1] for row in rows} == {"BroadcastTo", "NonZero"}
    assert {row[2] for row in rows} == {"36"}  # as often as in a pass


@pytest.mark.thorough
def test_padding_requests_of_a_graph_are_not_sampled():
    message = model("show", "qwen3-32b", "--tokens", "16", "--padding", "3").stdout
    found = {row[1]: row[3] for row in (line.split("\t") for line in message.splitlines())}
    assert found["SwiGlu"] == "16,51200" and found["SoftmaxV2"] == "13,151936"


def test_json_of_a_pass_has_the_case_ids_of_a_campaign():
    words = ("--phase", "prefill", "--tokens", "1024", "--requests", "2", "--json")
    reported = json.loads(model("show", "llama-3-70b", "--layout", "tp=8", *words).stdout)
    assert missing(reported["step"], ["prefill", "2 x 512 tokens", "512 keys"]) == []
    (attention,) = (
        one for one in reported["kernels"] if one["Kernel Type"] == "FusedInferAttentionScore"
    )
    assert (attention["phase"], attention["times"]) == ("prefill", 80)
    assert attention["Runtime avg_seq_len"] == "512.000000"  # which planning fills in
    assert {one["operation"] for one in reported["collectives"]} == {"all_reduce", "all_gather"}


@pytest.mark.parametrize(
    ("words", "data"),
    [
        (["nothing"], ["'nothing'", "qwen3-32b"]),
        (["qwen3-32b", "--phase", "training"], ["--phase", "'training'", "prefill", "decode"]),
        (["qwen3-32b", "--layout", "tp=5"], ["tp=5", "64"]),
        (["qwen3-32b", "--tokens", "7", "--requests", "2"], ["--tokens", "7", "2"]),
        (["qwen3-32b", "--tokens", "4", "--padding", "4"], ["decode", "4 x 1 tokens", "4"]),
        (["qwen3-32b", "--phase", "prefill", "--decodes-alone"], ["prefill", "1 x 16 tokens"]),
        (["glm-4.5"], ["opmeter model record glm-4.5", "experts=apart"]),
        (["qwen3-32b", "--release", "vllm-ascend-0.11"], ["vllm-ascend-0.11", "vllm-ascend-0.18"]),
    ],
)
def test_invalid_model_request_is_refused(words, data):
    error = model("show", *words).exception
    assert isinstance(error, BadInput) and missing(str(error), data) == []
