"""Descriptions of quantised weights."""

import json

import pytest

from collector.codec.errors import BadInput
from collector.engine.model_folder import DESCRIPTION, find_model
from collector.engine.quantised import WeightScheme

pytestmark = pytest.mark.fast


def test_weights_are_described_for_the_layers_and_those_that_draft():
    config = find_model("deepseek-v3").quantised(WeightScheme.W4A8)
    found = json.loads(config.files[DESCRIPTION])
    assert (found["version"], found["group_size"]) == ("1.0.0", 0)
    kinds = {name.removesuffix(".weight"): kind for name, kind in found.items()}
    for name, kind in (
        ("lm_head", "FLOAT"),
        ("model.layers.0.self_attn.q_a_proj", "W8A8"),
        ("model.layers.0.self_attn.kv_b_proj", "FLOAT"),
        ("model.layers.1.mlp.down_proj", "W8A8_DYNAMIC"),
        ("model.layers.1.mlp.experts.0.up_proj", "W4A8_DYNAMIC"),
        ("model.layers.1.mlp.gate", "FLOAT"),
        ("model.layers.61.self_attn.o_proj", "FLOAT"),  # drafts tokens
        ("model.layers.61.shared_head.head", "FLOAT"),
    ):
        assert kinds[name] == kind, name
    assert not any(name.startswith("model.layers.62.") for name in kinds)
    dense = find_model("qwen3-32b")
    assert dense.quantised(WeightScheme.W8A8).sha256 != dense.sha256
    for model, scheme in ((dense, WeightScheme.W4A8), (config, WeightScheme.W8A8)):
        with pytest.raises(BadInput):  # no experts; described already
            model.quantised(scheme)


def test_queries_of_an_indexer_are_quantised_and_its_norm_has_a_bias():
    config = find_model("deepseek-v3.2").quantised(WeightScheme.W8A8)
    found = json.loads(config.files[DESCRIPTION])
    indexer = "model.layers.1.self_attn.indexer"
    assert found[f"{indexer}.wq_b.weight"] == "W8A8"
    assert found[f"{indexer}.wk.weight"] == found[f"{indexer}.weights_proj.weight"] == "FLOAT"
    assert [name for name in found if "norm.bias" in name and ".1." in name] == [
        f"{indexer}.k_norm.bias"
    ]


@pytest.mark.parametrize("scheme", [WeightScheme.BF16, WeightScheme.W8A8])
def test_weights_of_a_config_give_way_to_those_of_a_scheme(tmp_path, scheme):
    """vLLM refuses a second description, and checkpoints that were converted have none."""
    inner = {"num_hidden_layers": 1, "quantization_config": {"quant_method": "fp8"}}
    whole = {"text_config": inner, "quantization_config": {"quant_method": "fp8"}}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    found = find_model(str(tmp_path)).quantised(scheme)
    assert json.loads(found.files["config.json"]) == {"text_config": {"num_hidden_layers": 1}}
    assert found.is_quantised == (scheme is not WeightScheme.BF16)


def test_keys_and_values_of_eight_bits_have_scales_in_each_layer():
    found = json.loads(find_model("qwen3-32b").quantised(WeightScheme.W8A8C8).files[DESCRIPTION])
    assert found["kv_cache_type"] == "C8"
    scales = [name for name in found if "kv_cache_scale" in name]
    assert len(scales) == 2 * 64
    with pytest.raises(BadInput):  # latent attention
        find_model("deepseek-v3").quantised(WeightScheme.W8A8C8)
