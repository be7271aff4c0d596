"""The sizes of weights and the rows of attention of models, from their packaged recordings."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from collector.codec.errors import BadInput
from collector.model.vocabulary import INPUT_SHAPES
from collector.workloads import model_rows
from collector.workloads.deployments import USUAL_RELEASE
from collector.workloads.models import Decoder, bundled_config, bundled_configs, find_decoder
from collector.workloads.recorded_step import read_recording

pytestmark = pytest.mark.fast

RECORDED = Path(__file__).parents[3] / "fixtures" / "recordings" / "qwen3-32b_tp=8.json.gz"


def deployments(*names):
    return list(model_rows.deployments_of(map(find_decoder, names), USUAL_RELEASE))


def products_of(*names):
    return model_rows.products_of(deployments(*names))


def experts_of(*names):
    return model_rows.expert_sizes(deployments(*names))


def sizes_of(name):
    """The hidden size and the size of an expert, of a model's own config.json."""
    values = json.loads(bundled_config(name))
    values = values.get("text_config", values)
    each = values.get("moe_intermediate_size") or values["intermediate_size"]
    return values["hidden_size"], each


def test_weights_of_a_model_are_those_of_its_fused_projections():
    qwen = products_of("qwen3-32b")
    assert {(768, 5120), (5120, 512), (3200, 5120), (5120, 1600), (9496, 5120)} <= set(
        qwen
    )  # tp=16
    assert (2560, 5120) in qwen  # tp=4: queries, and two heads of keys and of values
    assert len(qwen) == 25  # of tp=1, 2, 4, 8 and 16
    latent = products_of("deepseek-v3")
    assert {(2112, 7168), (3072, 1536), (7168, 2048), (256, 7168), (16160, 7168)} <= set(latent)


def test_experts_of_a_rank_are_those_of_the_recorded_layouts():
    """Fused ones, and ones that are apart in INT8, in INT4 and in BF16."""
    found = experts_of("deepseek-v3")
    assert found == tuple((count, 7168, 2048) for count in (8, 16, 32))  # ep=32, 16 and 8
    assert experts_of("kimi-k2-thinking") == ((24, 7168, 2048),)
    assert experts_of("gpt-oss-120b") == ((32, 2880, 2880),)
    assert experts_of("qwen3-32b", "llama-3-70b") == ()
    every = bundled_configs()
    found = experts_of(*every, *every)
    assert found == tuple(sorted(set(found)))
    mixtures = {sizes_of(one) for one in every if find_decoder(one).is_moe}
    assert {size[1:] for size in found} == mixtures


def test_rows_of_attention_are_within_the_recorded_loads():
    attention = ("FusedInferAttentionScore", "SparseFlashAttention", "Identity")
    rows = model_rows.rows_of(deployments("qwen3-32b", "deepseek-v3.2"), attention)
    assert len(rows["FusedInferAttentionScore"]) > 1000 and len(rows["SparseFlashAttention"]) > 100
    assert rows["Identity"] == []
    lengths = {
        int(one.extra["Runtime actual_seq_lengths_values"].split(",")[-1])
        for one in rows["FusedInferAttentionScore"]
    }
    assert max(lengths) == 8192


def test_model_of_another_release_has_its_sizes_and_an_unknown_one_is_refused():
    assert products_of("minimax-m2")  # only recorded in 0.23
    with pytest.raises(BadInput, match="opmeter model record"):
        list(model_rows.deployments_of([Decoder("other")], USUAL_RELEASE))


def test_recording_of_a_user_has_its_own_sizes_and_rows():
    """Of Qwen3-32B on 8 ranks, recorded with one load; those of the package are the same."""
    recording = read_recording(RECORDED)
    products = model_rows.products_of([recording])
    assert {(1280, 5120), (5120, 1024), (6400, 5120), (5120, 3200)} < set(products)
    assert set(products) < set(products_of("qwen3-32b"))
    assert model_rows.expert_sizes([recording]) == ()
    (prefill, _) = recording.passes
    without = tuple(replace(one, cells={INPUT_SHAPES: "4;"}) for one in prefill.launches)
    odd = replace(recording, passes=(replace(prefill, launches=without),))
    assert model_rows.products_of([odd]) == ()
    rows = model_rows.rows_of([recording], ["FusedInferAttentionScore", "Identity"])
    assert len(rows["FusedInferAttentionScore"]) == 2 and rows["Identity"] == []
