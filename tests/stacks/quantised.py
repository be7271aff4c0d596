"""The description of a quantised DeepSeek-V3, as ModelSlim writes it: attention with static scales,
feed-forward and experts with one scale a token."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

_MLP = ("gate_proj", "up_proj", "down_proj")
_STATIC = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj")
_PLAIN = ("kv_b_proj", "q_a_layernorm", "kv_a_layernorm")
_SCALES = ("weight_scale", "weight_offset")
_OF_STATIC = ("input_scale", "input_offset", "quant_bias", "deq_scale")


def description(config: bytes) -> bytes:
    """Return the description of the model of a config.json."""
    kinds = {"model.embed_tokens": "FLOAT", "model.norm": "FLOAT", "lm_head": "FLOAT"}
    values = json.loads(config)
    for number in range(values["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        kinds |= {f"{layer}.{name}": kind for name, kind in _layer(values, number)}
    return json.dumps(dict(_members(kinds))).encode()


def _layer(values: Mapping[str, Any], number: int) -> Iterator[tuple[str, str]]:
    yield from ((name, "FLOAT") for name in ("input_layernorm", "post_attention_layernorm"))
    yield from ((f"self_attn.{name}", "W8A8") for name in _STATIC)
    yield from ((f"self_attn.{name}", "FLOAT") for name in _PLAIN)
    if number < values["first_k_dense_replace"]:
        yield from ((f"mlp.{name}", "W8A8_DYNAMIC") for name in _MLP)
        return
    yield "mlp.gate", "FLOAT"
    experts = [f"experts.{one}" for one in range(values["n_routed_experts"])]
    for place in (*experts, "shared_experts"):
        yield from ((f"mlp.{place}.{name}", "W8A8_DYNAMIC") for name in _MLP)


def _members(kinds: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, kind in kinds.items():
        yield f"{name}.weight", kind
        if kind != "FLOAT":
            parts = _SCALES + (_OF_STATIC if kind == "W8A8" else ())
            yield from ((f"{name}.{part}", kind) for part in parts)
