"""`opmeter model record` up to the start of the engine, and the display of a recording."""

import json
import shlex
from dataclasses import replace

import pytest

from collector.codec.errors import BadInput
from collector.engine import engine_process
from collector.engine.recorded_calls import PassTokens
from collector.profiles.bundled import write_bundled_profile
from collector.workloads.layout import layout_of
from collector.workloads.recorded_step import read_recording, write_recording
from tests.unit.collector.engine.test_engine_calls import GATHER, MATMUL, recording_of
from tests.unit.jobs.cli.in_process import invoked

pytestmark = pytest.mark.fast


@pytest.fixture
def ran(monkeypatch):
    """The settings with which the engine would run; it returns the same recording."""
    found = []

    def record_model(model, settings, work):
        found.append((model, settings))
        return recording_of(MATMUL, GATHER)

    monkeypatch.setattr(engine_process, "record_model", record_model)
    return found


def test_recording_is_written_and_shown(ran, tmp_path):
    path = tmp_path / "tiny.json.gz"
    words = ("--layout", "tp=16,ep=16", "--graph", "full-decode", "--env", "A=1", "--env", "B=2")
    sizes = ("--tokens", "512", "--prompts", "2", "--requests", "8", "--context", "1024")
    invoked("model", "record", "qwen3-32b", "--output", str(path), *words, *sizes)
    ((model, settings),) = ran
    assert model.name == "qwen3-32b"
    assert (settings.tp, settings.ep, settings.graph) == (16, 16, "full-decode")
    assert settings.environment == {"A": "1", "B": "2"}
    prefill, decode = PassTokens("prefill", 2, 256, 256), PassTokens("decode", 8, 1, 1024)
    assert settings.passes == (prefill, decode)
    assert read_recording(path) == recording_of(MATMUL, GATHER)
    shown = invoked("model", "show", str(path)).stdout.splitlines()
    rows = [line.split("\t")[1:3] for line in shown[1:]]
    assert rows == [["MatMulV2", "64"], ["all_gather", "64"]]
    reported = json.loads(invoked("model", "show", str(path), "--json").stdout)
    assert reported["passes"][0]["launches"][0]["call"] == MATMUL


def test_kernels_are_derived_again_from_the_calls(tmp_path):
    path, output = tmp_path / "old.json.gz", tmp_path / "new.json.gz"
    found = recording_of(MATMUL, GATHER)
    (one,) = found.passes
    launches = tuple(replace(launch, kernel="OldName") for launch in one.launches)
    path.write_bytes(write_recording(replace(found, passes=(replace(one, launches=launches),))))
    done = invoked("model", "derive", str(path), "--output", str(output))
    assert done.stdout.strip() == f"wrote {output}: 1 of 1 pass changed"
    assert read_recording(output) == found
    with pytest.raises(BadInput):
        raise invoked("model", "derive", str(path), "--output", "new.json").exception


_DSV3 = "tp=8,dp=2,ep=16,sequence_split,quantisation=w8a8"
QWEN35 = {
    "model_type": "qwen3_5_moe",
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "text_config": {
        "model_type": "qwen3_5_moe_text",
        "hidden_size": 2048,
        "num_hidden_layers": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "max_position_embeddings": 262144,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_value_head_dim": 128,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "vocab_size": 248320,
        "shared_expert_intermediate_size": 512,
        "full_attention_interval": 4,
    },
}


@pytest.mark.parametrize(
    "shown",
    [
        ("my models/q35.json", "--layout", "tp=4,ep=4"),
        ("gpt_oss-120B", "--layout", "tp=8,ep=8", "--release", "vllm-ascend-0.18"),
        ("kimi-k2-thinking", "--layout", "tp=8,dp=2,ep=16,quantisation=w4a16"),
        ("qwen3-32b", "--layout", "tp=16,nz=0"),
        ("llama-3-70b", "--layout", "tp=8", "--phase=prefill", "--tokens=64", "--context=999"),
        (
            "deepseek-v3",
            "--layout",
            _DSV3,
            "--tokens=8",
            "--requests=4",
            "--predicted=1",
            "--draft",
        ),
    ],
)
def test_suggested_recording_runs_as_printed(ran, tmp_path, monkeypatch, shown):
    """As a user copies it into a shell: a file by its path, its layout and the release."""
    (tmp_path / "my models").mkdir()
    (tmp_path / "my models" / "q35.json").write_text(json.dumps(QWEN35))
    monkeypatch.chdir(tmp_path)
    done = invoked("model", "show", *shown)
    printed = str(done.exception)
    command = printed[printed.index("opmeter model record") :]
    recorded = invoked(*shlex.split(command)[1:])
    assert recorded.exception is None, command
    ((_, settings),) = ran
    assert str(layout_of(shown[2])).startswith(
        f"tp={settings.tp},dp={settings.dp},ep={settings.ep}"
    )
    assert settings.release == "vllm-ascend-0.18" and settings.graph == "full-decode"
    assert len(list(tmp_path.glob("*.json.gz"))) == 1


def test_drafting_requests_decode_with_parts_of_prompts(ran, tmp_path):
    path = tmp_path / "drafting.json.gz"
    sizes = ("--tokens", "512", "--prompts", "2", "--earlier", "768", "--requests", "8")
    words = ("--layout", "tp=8,dp=2,ep=16", "--speculative", "1", "--quantization", "w8a8")
    invoked(
        *("model", "record", "deepseek-v3", "--output", str(path), "--phase", "prefill,mixed"),
        *(*words, *sizes),
    )
    ((model, settings),) = ran
    assert model.is_quantised
    assert (settings.ranks, settings.ep, settings.speculative) == (16, 16, 1)
    prefill, mixed = settings.passes
    assert prefill.each() == [(256, 1024)] * 2
    assert mixed.each() == [(2, 4096)] * 8 + [(256, 1024)] * 2


def test_a_profile_is_compared_with_a_recording(tmp_path):
    profile = write_bundled_profile("quickstart", tmp_path / "profile")
    path = tmp_path / "tiny.json.gz"
    path.write_bytes(write_recording(recording_of(MATMUL, GATHER)))
    reported = json.loads(invoked("compare", profile, "--recording", path, "--json").stdout)
    assert reported["time_us"] > 0
    assert reported["recorded_us"] == 0
    assert reported["unmatched"] == ["MatMulV2 4,8;16,8 DT_BF16;DT_BF16"]
    shown = invoked("compare", profile, "--recording", path).stdout
    assert "MatMulV2" in shown
    refused = invoked("compare", profile, "--recording", path, "--force")
    assert isinstance(refused.exception, BadInput)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--output", "a.json"), "--output"),
        (("--output", "no-such-folder/a.json.gz"), "--output"),
        (("--logs", "."), "--logs"),
        (("--generation", "A5"), "--generation"),
        (("--layout", "tp=4,ep=2"), "--layout"),
        (("--layout", "tp=4,quantisation=w8a8"), "--layout"),
        (("--phase", "decode,other"), "--phase"),
        (("--tokens", "9", "--prompts", "2"), "--tokens"),
        (("--tokens", "8", "--earlier", "9"), "--earlier"),
        (("--quantization", "w4a8"), "--quantization"),
        (("--graph", "whole"), "--graph"),
        (("--env", "A"), "--env"),
        (("--engine", "[1]"), "--engine"),
        (("--sampling", "{"), "--sampling"),
    ],
)
def test_unsupported_recording_options_are_refused(ran, tmp_path, monkeypatch, words, named):
    monkeypatch.chdir(tmp_path)
    output = () if "--output" in words else ("--output", "a.json.gz")
    done = invoked("model", "record", "qwen3-32b", *output, *words)
    assert isinstance(done.exception, BadInput)
    assert str(done.exception).startswith(named)
    assert not ran


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--generation", "A5"),
        ("--logs", "."),
        ("--layout", "tp=4,quantisation=w8a8"),
        ("--mode", "piecewise"),
        ("--env", "A"),
    ],
)
def test_options_of_host_sessions_are_refused_as_those_of_recordings(option, value):
    done = invoked("host", "qwen3-32b", option, value)
    assert isinstance(done.exception, BadInput)
    assert str(done.exception).startswith(option)


def test_truncated_recording_is_refused(tmp_path):
    path = tmp_path / "a.json.gz"
    path.write_bytes(write_recording(recording_of(MATMUL))[:-9])
    assert isinstance(invoked("model", "show", str(path)).exception, BadInput)
