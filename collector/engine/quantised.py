"""Descriptions of quantised weights, as ModelSlim writes them and vLLM-Ascend reads them.

W8A8 has static scales in attention, and one scale per token in the feed-forward. W4A8 is the same
with experts' weights of 4 bits, packed in pairs (version 1.0.0) and with one scale per channel
(`group_size` 0). W8A8C8 is W8A8 with keys and values in INT8, with one scale per channel. Routers,
norms, embeddings, the second product of latent keys (`kv_b_proj`), an indexer's products of keys
and weights, and layers that draft tokens stay in floating point. vLLM-Ascend reads the first expert
for all of them (`packed_modules_model_mapping` of its `quantization/modelslim_config.py`).

A description lists norms too. Only the name of an indexer's bias changes calls: with one that has
`norm.bias`, vLLM-Ascend gives every norm a bias. Checkpoints have no others, so that it stays 0.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from collector.codec.errors import BadInput

_FLOAT, _STATIC, _DYNAMIC, _INT4 = "FLOAT", "W8A8", "W8A8_DYNAMIC", "W4A8_DYNAMIC"
_INT8_CACHE = "C8"
_SCALES_OF_CACHE = tuple(
    f"{product}.kv_cache_{name}" for product in ("k_proj", "v_proj") for name in ("scale", "offset")
)
_FEED_FORWARD = ("gate_proj", "up_proj", "down_proj")
_LATENT = ("q_a_proj", "q_b_proj", "q_proj", "kv_a_proj_with_mqa", "o_proj")
_PLAIN = ("q_proj", "k_proj", "v_proj", "o_proj")
_QUERIES_OF_INDEXER = "self_attn.indexer.wq_b"
_BIAS_OF_INDEXER = "self_attn.indexer.k_norm.bias"
_KEPT = (
    *("mlp.gate", "self_attn.kv_b_proj", _QUERIES_OF_INDEXER, "self_attn.indexer.wk"),
    "self_attn.indexer.weights_proj",
)
# vLLM-Ascend 0.18 looks both first products of latent attention up by the name of vLLM.
_OF_DRAFTS = ("embed_tokens", "shared_head.head", "self_attn.fused_qkv_a_proj")
_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts")
_DRAFTING = ("num_nextn_predict_layers", "mtp_num_hidden_layers")


class WeightScheme(StrEnum):
    """Weights as vLLM-Ascend serves them; BF16 is without quantisation."""

    BF16 = "bf16"
    W8A8 = "w8a8"
    W8A8C8 = "w8a8c8"
    W4A8 = "w4a8"


def described_weights(
    scheme: WeightScheme, text: Mapping[str, Any], path: Path | str
) -> Mapping[str, Any]:
    """Return the description of a model, with the layers that draft tokens.

    text  the `config.json` of the language model
    path  where it is, for messages"""
    layers = text.get("num_hidden_layers")
    if type(layers) is not int or layers < 1:
        raise BadInput("num_hidden_layers: expected a positive integer", path=path)
    drafting = next((int(text[key]) for key in _DRAFTING if text.get(key)), 0)
    if scheme is WeightScheme.W4A8 and not any(text.get(key) for key in _EXPERTS):
        raise BadInput(
            f"--quantization: w4a8 is of experts, and {path} has none; a dense model is "
            "recorded from a folder with the quant_model_description.json of ModelSlim"
        )
    if scheme is WeightScheme.W8A8C8 and text.get("kv_lora_rank"):
        raise BadInput(
            "--quantization: w8a8c8 of latent attention is served only by hosts that decode for "
            f"others, which cannot be recorded, and {path} has latent attention"
        )
    found: dict[str, Any] = {}
    if scheme is WeightScheme.W8A8C8:
        found["kv_cache_type"] = _INT8_CACHE
    if scheme is WeightScheme.W4A8:
        found |= {"version": "1.0.0", "group_size": 0}
    for name in ("model.embed_tokens", "model.norm", "lm_head"):
        found[f"{name}.weight"] = _FLOAT
    experts = _INT4 if scheme is WeightScheme.W4A8 else _DYNAMIC
    for number in range(layers + drafting):
        modules = dict(_layer(text, experts))
        if number >= layers:
            modules = dict.fromkeys((*modules, *_OF_DRAFTS), _FLOAT)
        found |= {f"model.layers.{number}.{name}.weight": kind for name, kind in modules.items()}
        if _chooses_keys(text):
            found[f"model.layers.{number}.{_BIAS_OF_INDEXER}"] = _FLOAT
        if scheme is WeightScheme.W8A8C8 and number < layers:
            for name in _SCALES_OF_CACHE:
                found[f"model.layers.{number}.self_attn.{name}"] = _INT8_CACHE
    return found


def _chooses_keys(text: Mapping[str, Any]) -> bool:
    return bool(text.get("index_topk"))


def _layer(text: Mapping[str, Any], experts: str) -> Iterator[tuple[str, str]]:
    """Yield the modules of a layer, of a dense one and of one with experts, and their kinds."""
    for name in _LATENT if text.get("kv_lora_rank") else _PLAIN:
        yield f"self_attn.{name}", _STATIC
    for name in _KEPT:
        yield name, _FLOAT
    if _chooses_keys(text):
        yield _QUERIES_OF_INDEXER, _STATIC
    for name in _FEED_FORWARD:
        yield f"mlp.{name}", _DYNAMIC
        yield f"mlp.shared_experts.{name}", _DYNAMIC
        yield f"mlp.experts.0.{name}", experts
