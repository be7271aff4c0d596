"""The sizes of weights and the rows of attention of models, from their packaged recordings."""

import json

import pytest

from collector.codec.errors import BadInput
from collector.shapes.deployments import USUAL_RELEASE
from collector.shapes.model_rows import experts_of, products_of, rows_of
from collector.shapes.models import Decoder, bundled_config, bundled_configs, find_decoder

pytestmark = pytest.mark.fast


def sizes_of(name):
    """The hidden size and the size of an expert, of a model's own config.json."""
    values = json.loads(bundled_config(name))
    values = values.get("text_config", values)
    each = values.get("moe_intermediate_size") or values["intermediate_size"]
    return values["hidden_size"], each


def test_weights_of_a_model_are_those_of_its_fused_projections():
    qwen = products_of([find_decoder("qwen3-32b")], USUAL_RELEASE)
    assert {(768, 5120), (5120, 512), (3200, 5120), (5120, 1600), (9496, 5120)} <= set(
        qwen
    )  # tp=16
    assert (2560, 5120) in qwen  # tp=4: queries, and two heads of keys and of values
    assert len(qwen) == 25  # of tp=1, 2, 4, 8 and 16
    latent = products_of([find_decoder("deepseek-v3")], USUAL_RELEASE)
    assert {(2112, 7168), (3072, 1536), (7168, 2048), (256, 7168), (16160, 7168)} <= set(latent)


def test_experts_of_a_rank_are_those_of_the_recorded_layouts():
    """Fused ones, and ones that are apart in INT8, in INT4 and in BF16."""
    found = experts_of([find_decoder("deepseek-v3")], USUAL_RELEASE)
    assert found == tuple((count, 7168, 2048) for count in (8, 16, 32))  # ep=32, 16 and 8
    assert experts_of([find_decoder("kimi-k2-thinking")], USUAL_RELEASE) == ((24, 7168, 2048),)
    assert experts_of([find_decoder("gpt-oss-120b")], USUAL_RELEASE) == ((32, 2880, 2880),)
    assert experts_of(map(find_decoder, ("qwen3-32b", "llama-3-70b")), USUAL_RELEASE) == ()
    every = tuple(map(find_decoder, bundled_configs()))
    found = experts_of([*every, *every], USUAL_RELEASE)
    assert found == tuple(sorted(set(found)))
    assert {size[1:] for size in found} == {sizes_of(one.name) for one in every if one.is_moe}


def test_rows_of_attention_are_within_the_recorded_loads():
    attention = ("FusedInferAttentionScore", "SparseFlashAttention", "Identity")
    rows = rows_of(map(find_decoder, ("qwen3-32b", "deepseek-v3.2")), USUAL_RELEASE, attention)
    assert len(rows["FusedInferAttentionScore"]) > 1000 and len(rows["SparseFlashAttention"]) > 100
    assert rows["Identity"] == []
    lengths = {
        int(one.extra["Runtime actual_seq_lengths_values"].split(",")[-1])
        for one in rows["FusedInferAttentionScore"]
    }
    assert max(lengths) == 8192


def test_model_of_another_release_has_its_sizes_and_an_unknown_one_is_refused():
    assert products_of([find_decoder("minimax-m2")], USUAL_RELEASE)  # only recorded in 0.23
    with pytest.raises(BadInput, match="opmeter model record"):
        products_of([Decoder("other")], USUAL_RELEASE)
