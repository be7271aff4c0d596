"""The description of a model, its layout over ranks, and its serving load."""

import json
import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.codec.errors import BadInput
from collector.workloads.layout import ExpertLaunch, Layout, Quantisation, check_layout, layout_of
from collector.workloads.models import (
    bundled_config,
    bundled_configs,
    bundled_decoder,
    find_decoder,
    read_config,
)
from collector.workloads.serving import Batch, Phase, Serving, check_batch, passes, spread
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}


def decoder(**changes):
    return read_config(json.dumps(CONFIG | changes).encode(), name="m", path="config.json")


def test_model_that_is_nearly_bundled_says_in_which_keys_it_differs():
    known = json.loads(bundled_config("qwen3-32b"))
    changes = {"quantization_config": {"bits": 8}, "torch_dtype": "float32", "a_secret": "here"}
    found = read_config(json.dumps(known | changes).encode(), name="m", path="c")
    assert found.unlike == "qwen3-32b but for quantization_config, torch_dtype"
    assert not found.bundled and not decoder().unlike


def test_bundled_model_is_found_by_its_name_and_by_its_owners(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_decoder("Qwen/Qwen3-32B") == find_decoder("qwen3-32b")
    (tmp_path / "qwen3-32b").mkdir()  # a folder of that name does not precede it
    assert find_decoder("qwen3-32b").heads == 64
    for short, name in {
        "dsv3": "deepseek-v3",
        "DeepSeekV3": "deepseek-v3",
        "dsv3.2": "deepseek-v3.2",
        "qwen332b": "qwen3-32b",
        "Qwen/Qwen3_32B": "qwen3-32b",
        "meta-llama/Meta-Llama-3-70B": "llama-3-70b",
        "llama70b": "llama-3-70b",
        "glm51": "glm-5.1",
        "glm52": "glm-5.2",
        **{name: name for name in bundled_configs()},
    }.items():
        found = find_decoder(short)
        assert found.name == found.bundled == name
    for word in ("dsv", "deepseek", "dsv3.json", "/"):
        assert bundled_decoder(word) is None


def test_a_config_is_read_from_its_file_or_its_folder(tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    found = find_decoder(str(folder))
    assert found == find_decoder(str(folder / "config.json"))
    assert (found.name, found.intermediate, found.bundled) == ("tiny", 128, "")


def test_config_with_the_values_of_a_bundled_model_has_its_recordings():
    """As published: with keys on which no launch depends, and without those that are off."""
    published = json.loads(bundled_config("qwen3-32b"))
    published |= {"bos_token_id": 151643, "use_cache": True, "rope_scaling": None}
    published |= {"use_sliding_window": False, "dtype": published.pop("torch_dtype")}
    del published["tie_word_embeddings"]
    for changes, bundled in (
        ({}, "qwen3-32b"),
        ({"num_hidden_layers": 63}, ""),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, ""),
        ({"a_key_of_a_later_release": 1}, ""),
        ({"dtype": "float16"}, ""),
    ):
        text = json.dumps(published | changes).encode()
        assert read_config(text, name="m", path="config.json").bundled == bundled
        of_images = json.dumps({"text_config": published | changes, "vision_config": {}}).encode()
        assert read_config(of_images, name="m", path="config.json").bundled == bundled


@pytest.mark.parametrize(
    "changes", [{"intermediate_size": "64"}, {"num_attention_heads": True}, {"num_experts": -1}]
)
def test_impossible_size_is_refused_with_its_file(changes):
    with pytest.raises(BadInput, match=naming("config.json:", *changes, 0)):
        decoder(**changes)


def test_model_of_any_type_is_read():
    for changes in ({"model_type": "mamba"}, {"model_type": None, "num_attention_heads": None}):
        assert decoder(**changes).name == "m"
    mixture = {"num_local_experts": 8, "num_experts_per_tok": 2}
    found = decoder(**mixture)
    assert (found.experts, found.choices, found.expert_intermediate) == (8, 2, 128)
    mixture |= {"n_shared_experts": 2, "moe_intermediate_size": 32}
    assert (decoder(**mixture).expert_intermediate, decoder(**mixture).shared) == (32, 64)
    assert decoder(**mixture, shared_expert_intermediate_size=96).shared == 96
    check_layout(decoder(**mixture), layout_of("tp=2"))  # without expert parallelism


def test_quantised_weights_require_a_quantised_layout():
    assert decoder(quantization_config=None) == decoder(quantize="") == decoder()
    of_int8 = decoder(quantization_config={"quant_method": "ascend", "bits": 8})
    check_layout(of_int8, layout_of("tp=2,quantisation=w8a8"))
    with pytest.raises(BadInput, match="quantization_config"):
        check_layout(of_int8, layout_of("tp=2"))
    with pytest.raises(BadInput, match="quantised weights"):  # as MindIE and msmodelslim name it
        check_layout(decoder(quantize="w8a8"), layout_of("tp=2"))


@pytest.mark.parametrize("text", ["", "[]", "nonsense", "[" * 100_000])
def test_malformed_config_is_refused(text):
    with pytest.raises(BadInput, match=naming("config.json:")):
        read_config(text.encode(), name="m", path="config.json")


def test_missing_or_binary_config_is_refused(tmp_path):
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    os.mkfifo(tmp_path / "pipe.json")  # which must not be waited for
    (tmp_path / "large.json").write_bytes(b" " * (2 << 20))
    for word in ("config.json", "nowhere.json", "no-such-model", "pipe.json", "large.json"):
        with pytest.raises(BadInput):
            find_decoder(str(tmp_path / word))


@pytest.mark.thorough
@given(st.dictionaries(st.sampled_from([*CONFIG, "kv_lora_rank"]), st.none() | st.integers()))
def test_any_sizes_make_a_decoder_or_are_refused(changes):
    try:
        check_layout(decoder(**changes), Layout())
    except BadInput:
        return


def test_layout_is_parsed_and_formatted():
    layout = layout_of("tp=8, dp=2,ep=16,sequence_split,quantisation=w8a8,nz=2,experts=apart")
    assert layout == Layout(8, 2, 16, True, Quantisation.W8A8, 2, ExpertLaunch.APART)
    assert layout_of(str(layout)) == layout
    assert layout_of("") == Layout()


@pytest.mark.parametrize(
    "text", ["tp", "tp=0", "tp=x", "pp=2", "tp=2,tp=4", "nz=3", "tp=-1", "é=1"]
)
def test_invalid_layout_is_refused(text):
    with pytest.raises(BadInput, match=naming("layout:")):
        layout_of(text)


@pytest.mark.parametrize(
    ("model", "layout"),
    [
        ("qwen3-32b", "tp=3"),
        ("qwen3-32b", "ep=2"),
        ("deepseek-v3", "tp=8,dp=2,ep=8,quantisation=w8a8"),
        ("deepseek-v3", "tp=3,ep=3,quantisation=w8a8"),
    ],
)
def test_layout_that_a_model_cannot_have_is_refused(model, layout):
    with pytest.raises(BadInput, match=naming("layout:")):
        check_layout(find_decoder(model), layout_of(layout))


def test_key_heads_are_shared_or_repeated():
    for tp in (1, 2, 4):
        check_layout(decoder(), Layout(tp))
    with pytest.raises(BadInput, match=naming("layout:", "tp=4", "6 key heads")):
        check_layout(decoder(num_attention_heads=12, num_key_value_heads=6, head_dim=16), Layout(4))


def test_serving_makes_the_passes_of_its_range():
    found = passes(Serving((1, 5), 100, 51, 300, graph_sizes=(1, 8)))
    assert found == {
        Batch(Phase.PREFILL, 1, 100, 100): 1,
        Batch(Phase.DECODE, 1, 1, 101): 12,  # a quarter of 50 decodes is determined by the first
        Batch(Phase.DECODE, 1, 1, 125): 26,
        Batch(Phase.DECODE, 1, 1, 150): 12,
        Batch(Phase.PREFILL, 3, 100, 100): 1,  # as many whole prompts as fit into 300 tokens
        Batch(Phase.PREFILL, 2, 100, 100): 1,  # the remaining ones of 5
        Batch(Phase.DECODE, 8, 1, 101, padding=3): 12,
        Batch(Phase.DECODE, 8, 1, 125, padding=3): 26,
        Batch(Phase.DECODE, 8, 1, 150, padding=3): 12,
    }


@given(st.integers(1, 10_000), st.integers(1, 60), st.integers(0, 99))
def test_uneven_lengths_keep_their_mean_and_bounds(mean, count, percent):
    found = spread(mean, count, percent)
    assert len(found) == count and found == sorted(found)
    assert abs(sum(found) / count - mean) <= 1
    assert min(found) >= max(1, mean * (100 - percent) // 100 - 1)
    assert max(found) <= mean * (100 + percent) // 100 + 1


@pytest.mark.parametrize("phase", list(Phase))
def test_deployment_of_one_phase_has_only_its_passes(phase):
    both = passes(Serving((1, 5), 100, 51, 300))
    alone = passes(Serving((1, 5), 100, 51, 300, phases=(phase,)))
    assert alone == {
        replace(batch, decodes_alone=batch.is_decode): times
        for batch, times in both.items()
        if batch.phase is phase
    }


def test_answer_of_one_token_has_no_decode_pass():
    with pytest.raises(BadInput, match=naming("serving:", "pass")):
        passes(Serving((1,), 100, 1, 300, phases=(Phase.DECODE,)))


def test_prompt_longer_than_a_pass_is_cut_into_chunks_for_each_request():
    chunks = passes(Serving((2,), 700, 1, 300))
    assert [(b.requests, b.queries, b.keys, times) for b, times in chunks.items()] == [
        (1, 300, 300, 2),
        (1, 300, 600, 2),
        (1, 100, 700, 2),
    ]


def test_prompts_share_passes_with_the_answers_of_other_requests():
    found = passes(Serving((3,), 700, 21, 402, mixed=True))
    assert found == {
        Batch(Phase.PREFILL, 1, 400, 400, mixed_decodes=2, followed_keys=710): 3,
        Batch(Phase.PREFILL, 1, 300, 700, mixed_decodes=2, followed_keys=710): 3,
        # of the 20 tokens of each answer 4 shared passes with the two others' chunks
        Batch(Phase.DECODE, 3, 1, 701): 4,
        Batch(Phase.DECODE, 3, 1, 710): 8,
        Batch(Phase.DECODE, 3, 1, 720): 4,
    }
    with pytest.raises(BadInput, match=naming("serving:", "mixed", "phases")):
        passes(Serving((3,), 700, 21, 400, phases=(Phase.DECODE,), mixed=True))


def test_predicted_tokens_have_verifying_and_drafting_passes():
    found = passes(Serving((3,), 100, 13, 500, predicted=2))
    prompt = Batch(Phase.PREFILL, 3, 100, 100, predicted=2)
    answers = [key for key in found if key.phase is Phase.DECODE]
    assert found[prompt] == found[replace(prompt, is_draft=True)] == 1
    # Of 12 tokens three are verified by each pass; each pass and each prompt has two drafts.
    assert sum(found[one] for one in answers if not one.is_draft) == 4
    assert {one.queries for one in answers if not one.is_draft} == {3}
    drafts = [one for one in answers if one.is_draft]
    assert sum(found[one] for one in drafts) == 4 + 4 + 1
    # The second uses the padding of all tokens: a graph's empty requests, or next to a prompt's.
    assert {(one.requests, one.padding, one.idle) for one in drafts if one.queries == 1} == {
        (9, 6, 0),
        (3, 0, 297),
    }
    with pytest.raises(BadInput, match=naming("serving:", "predicted")):
        passes(Serving((3,), 100, 13, 500, predicted=1, mixed=True))


def test_requests_that_no_row_can_hold_are_refused():
    with pytest.raises(BadInput, match=naming("serving:", 1 << 20, "concurrency")):
        passes(Serving(tuple(range(65_336, 65_536)), 128, 512, 8192))


@pytest.mark.thorough
@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=4),
    st.integers(1, 5000),
    st.integers(1, 2000),
    st.integers(100, 9000),
    st.lists(st.integers(1, 256), max_size=5),
    st.booleans(),
)
def test_passes_sum_to_the_served_tokens(concurrency, prompt, answer, most, sizes, mixed):
    found = passes(Serving(tuple(concurrency), prompt, answer, most, tuple(sizes), mixed=mixed))
    new = {Phase.PREFILL: 0, Phase.DECODE: 0}
    for batch, times in found.items():
        check_batch(batch)
        new[batch.phase] += (batch.requests - batch.padding) * batch.queries * times
        new[Phase.DECODE] += batch.mixed_decodes * times
        assert batch.queries <= batch.keys < prompt + answer
        if batch.phase is Phase.PREFILL:
            assert batch.tokens <= most
    served = sum(set(concurrency))
    assert new == {Phase.PREFILL: served * prompt, Phase.DECODE: served * (answer - 1)}


def test_a_path_with_a_nul_is_refused():
    with pytest.raises(BadInput, match="file"):
        find_decoder("a\0b.json")


@pytest.mark.parametrize(
    "batch",
    [
        Batch(Phase.DECODE, 0, 1, 1),
        Batch(Phase.PREFILL, 1, 5, 4),
        Batch(Phase.DECODE, 1 << 17, 1, 9),
        Batch(Phase.DECODE, 1, 1, 1 << 30),
        Batch(Phase.DECODE, 4, 1, 9, padding=4),
        Batch(Phase.DECODE, 4, 1, 9, padding=-1),
        Batch(Phase.PREFILL, 4, 9, 9, padding=1),
        Batch(Phase.DECODE, 4, 1, 9, mixed_decodes=1, followed_keys=9),
        Batch(Phase.PREFILL, 4, 9, 9, mixed_decodes=1),
        Batch(Phase.DECODE, 4, 2, 9),
        Batch(Phase.DECODE, 4, 1, 9, skew=100),
        Batch(Phase.DECODE, 4, 1, 9, imbalance=-1),
        Batch(Phase.DECODE, 4, 1, 9, is_draft=True),
        Batch(Phase.PREFILL, 4, 9, 9, mixed_decodes=1, followed_keys=9, predicted=1),
    ],
)
def test_impossible_pass_is_refused(batch):
    with pytest.raises(BadInput):
        check_batch(batch)


def test_prompt_of_too_many_chunks_is_refused():
    with pytest.raises(BadInput, match=naming("serving:", 4096, "chunks")):
        passes(Serving((1,), 1 << 40, 1, 1))


def test_a_word_that_names_no_model_is_refused():
    with pytest.raises(BadInput, match="unknown model 'nope'"):
        find_decoder("nope")
