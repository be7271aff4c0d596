"""Chains of a step: every input of a kernel was produced by an earlier kernel of the step."""

from itertools import product
from math import prod

import pytest

from collector.codec.errors import BadInput
from collector.shapes.kernel_set import bundled_releases, find_kernel_set
from collector.shapes.layout import layout_of
from collector.shapes.models import bundled_names, find_decoder
from collector.shapes.serving import Batch, Phase
from collector.shapes.step import derive_step
from tests.unit.collector.shapes.test_shapes_golden import step_of

_DENSE = ("tp=1", "tp=4,nz=2", "tp=16,sequence_split", "tp=8,quantisation=w8a8")
_MIXTURE = (
    "tp=1,dp=16,ep=16,experts=apart",
    "tp=4,dp=4,ep=16,sequence_split,quantisation=w8a8",
    "tp=8,dp=2,ep=16,quantisation=w8a8,nz=2",
    "tp=4,dp=4,ep=16,sequence_split,quantisation=w4a8,experts=apart",
    "tp=4,dp=4,ep=16,sequence_split,quantisation=w8a8,experts=apart",
)
_BATCHES = (
    Batch(Phase.DECODE, 7, 1, 4100),
    Batch(Phase.DECODE, 8, 1, 600, padding=3),
    Batch(Phase.DECODE, 6, 1, 900, decodes_alone=True),
    Batch(Phase.DECODE, 6, 3, 4000, predicted=2),
    Batch(Phase.DECODE, 18, 1, 4000, padding=12, predicted=2, is_draft=True),
    Batch(Phase.DECODE, 2, 1, 1200, predicted=2, is_draft=True, idle=2060),
    Batch(Phase.PREFILL, 3, 1031, 1031),
    Batch(Phase.PREFILL, 2, 128, 700),
    Batch(Phase.PREFILL, 1, 64, 64, mixed_decodes=6, followed_keys=1030),
)

_NORMS = "first norm|norms"
_RESULTS = "down|experts|combine|rows to tokens"
# Of each layer, by input: the layers of which one produces it. Weights, caches that nothing in the
# step wrote, lengths, masks and tables are not listed. Further kernels of a layer read what an
# earlier one of it produced, or the same as the first.
_READS = {
    "embedding": {},
    "draft: norms of both": {0: "embedding"},
    "draft: both": {0: "draft: norms of both", 1: "draft: norms of both"},
    "draft: both to one": {0: "draft: both"},
    "first norm": {0: "embedding|draft: both to one"},
    "norms": {0: "o|sparse: o", 1: "embedding|draft: both to one"},
    "qkv": {0: _NORMS},
    "heads: norm and rotation": {0: "qkv"},
    "heads: norm of queries": {0: "qkv"},
    "heads: norm of keys": {0: "qkv"},
    "heads: rotation": {0: "heads: norm of queries|qkv", 1: "heads: norm of keys|qkv"},
    "cache write": {
        0: "heads: rotation|heads: norm and rotation",
        1: "qkv|heads: norm and rotation",
    },
    "attention": {
        0: "heads: rotation|heads: norm and rotation",
        1: "cache write|heads: rotation|heads: norm and rotation",
        2: "cache write|qkv|heads: norm and rotation",
    },
    "o": {0: "attention|answers: absorbed values|prompts: attention|past: narrow result"},
    "q_a and kv_a": {0: _NORMS},
    "answers: before attention": {0: _NORMS},
    "norm of latent queries": {0: "q_a and kv_a"},
    "answers: q_b": {0: "norm of latent queries"},
    "answers: rotation of queries": {0: "answers: q_b"},
    "answers: cache write": {0: "q_a and kv_a"},
    "answers: absorbed keys": {0: "answers: q_b"},
    "answers: queries by tokens": {0: "answers: absorbed keys"},
    "answers: attention": {
        0: "answers: queries by tokens|answers: absorbed keys|answers: before attention",
        1: "answers: cache write|answers: before attention",
        2: "answers: cache write|answers: before attention",
        24: "answers: rotation of queries|answers: before attention",
        25: "answers: cache write|answers: before attention",
    },
    "answers: absorbed values": {0: "answers: attention"},
    "prompts: q_b": {0: "norm of latent queries"},
    "prompts: rotation of queries": {0: "prompts: q_b"},
    "prompts: cache write": {0: "q_a and kv_a"},
    "prompts: kv_b": {0: "prompts: cache write"},
    "prompts: rotated keys of heads": {0: "prompts: cache write"},
    "prompts: attention": {
        0: "prompts: q_b",
        1: "prompts: kv_b",
        2: "prompts: kv_b",
        24: "prompts: rotation of queries",
        25: "prompts: rotated keys of heads",
    },
    "prompts: attention RINGMLAPrefillBF16Kernel": {
        0: "prompts: q_b",
        1: "prompts: rotation of queries",
        2: "prompts: kv_b",
        3: "prompts: rotated keys of heads",
        4: "prompts: kv_b",
    },
    "past: cache read": {},
    "past: kv_b": {0: "past: cache read"},
    "past: rotated keys of heads": {0: "past: cache read"},
    "past: attention": {
        0: "prompts: q_b",
        1: "past: kv_b",
        2: "past: kv_b",
        24: "prompts: rotation of queries",
        25: "past: rotated keys of heads",
    },
    "past: attention RINGMLAPrefillBF16Kernel": {
        0: "prompts: q_b",
        1: "prompts: rotation of queries",
        2: "past: kv_b",
        3: "past: rotated keys of heads",
        4: "past: kv_b",
        13: "prompts: attention",
        14: "prompts: attention",
    },
    "past: wide parts": {0: "prompts: attention|past: attention"},
    "past: parts joined": {
        0: "prompts: attention",
        1: "past: attention",
        2: "past: wide parts",
        3: "past: wide parts",
    },
    "past: narrow result": {0: "past: parts joined"},
    "sparse: before attention": {0: _NORMS},
    "sparse: q_a and kv_a": {0: _NORMS},
    "sparse: norm of latent queries": {0: "sparse: q_a and kv_a"},
    "indexer: keys": {0: _NORMS},
    "indexer: norm of keys": {0: "indexer: keys"},
    "indexer: rotation of keys": {0: "indexer: norm of keys"},
    "sparse: latent keys": {0: "sparse: q_a and kv_a"},
    "sparse: keys of all ranks": {
        0: "sparse: latent keys",
        1: "sparse: latent keys",
        2: "indexer: rotation of keys|indexer: rotation of queries",
    },
    "sparse: q_b": {0: "sparse: norm of latent queries"},
    "sparse: absorbed keys": {0: "sparse: q_b"},
    "sparse: rotation of queries": {0: "sparse: q_b"},
    "sparse: cache write": {0: "sparse: keys of all ranks", 1: "sparse: keys of all ranks"},
    "sparse: cache write ScatterNdUpdate": {2: "sparse: keys of all ranks"},
    "indexer: cache write ScatterNdUpdate": {
        2: "indexer: rotation of keys|indexer: rotation of queries"
    },
    "indexer: weights of heads": {0: _NORMS},
    "indexer: queries": {0: "sparse: norm of latent queries|sparse: before attention"},
    "indexer: rotation of queries": {0: "indexer: queries"},
    "indexer: rotation of queries _triton_rope": {
        0: "indexer: queries",
        1: "indexer: norm of keys",
    },
    "indexer: choice of keys": {
        0: "indexer: rotation of queries",
        1: "indexer: cache write",
        2: "indexer: weights of heads|indexer: keys",
    },
    "sparse: attention": {
        0: "sparse: absorbed keys|sparse: before attention",
        1: "sparse: latent keys|sparse: cache write|sparse: before attention",
        2: "sparse: latent keys|sparse: cache write|sparse: before attention",
        3: "indexer: choice of keys",
        7: "sparse: rotation of queries|sparse: before attention",
        8: "sparse: latent keys|sparse: cache write|sparse: before attention",
    },
    "sparse: absorbed values": {0: "sparse: attention"},
    "sparse: o": {0: "sparse: absorbed values"},
    "gate_up": {0: "norms"},
    "activation": {0: "gate_up"},
    "down": {0: "activation"},
    "router": {0: "norms"},
    "bias of the choice": {},
    "choice of experts": {0: "router"},
    "weights of experts": {0: "choice of experts"},
    "experts": {0: "norms", 3: "choice of experts", 6: "weights of experts"},
    "dispatch": {0: "norms", 1: "choice of experts"},
    "tokens by experts": {0: "norms", 1: "choice of experts"},
    "tokens at experts": {0: "tokens by experts"},
    "experts' gate_up": {0: "dispatch|tokens at experts|tokens by experts"},
    "experts' gate_up GroupedMatmulSwigluQuant": {
        0: "dispatch|tokens at experts|tokens by experts",
        3: "dispatch|tokens at experts|tokens by experts",
    },
    "experts' activation": {0: "experts' gate_up"},
    "experts' down": {
        0: "experts' gate_up|experts' activation",
        8: "experts' gate_up|experts' activation",
    },
    "combine": {
        0: "experts' down",
        1: "choice of experts",
        2: "dispatch",
        3: "dispatch",
        4: "weights of experts",
        5: "dispatch",
    },
    "rows back in order": {0: "experts' down", 1: "tokens at experts"},
    "rows to tokens": {
        0: "rows back in order|experts' down",
        1: "tokens by experts",
        2: "choice of experts|weights of experts",
    },
    "shared gate_up": {0: "norms"},
    "shared activation": {0: "shared gate_up"},
    "shared down": {0: "shared activation"},
    "gate of the shared expert": {0: "norms"},
    "gate of the shared expert Mul": {0: "gate of the shared expert", 1: "shared down"},
    "draft: sum": {0: _RESULTS, 1: "norms"},
    "draft: last norm": {0: "draft: sum"},
    "lm_head": {0: "norms|draft: last norm"},
    "sampling": {0: "lm_head"},
    "draft: likeliest": {0: "lm_head"},
}
# Layers that the release calls with a transposed view; whether a kernel copies it is not known.
_OF_VIEWS = ("sparse: attention", "sparse: absorbed values")
# Layers whose lines are alternatives, or are independent of each other.
_APART = ("norms", "tokens at experts", "sparse: cache write")


def broken_links(step):
    """Yield the inputs that no kernel produces with their dtype and at least their size."""
    made = {}
    for one in step.kernels:
        made.setdefault(one.layer, []).extend(one.record.case.outputs)
    before = {}
    for one in step.kernels:
        earlier = before.setdefault(one.layer, [])
        reads = _READS.get(f"{one.layer} {one.record.kernel_type}")
        if reads is None:
            reads = _READS[one.layer]
            if earlier and one.layer not in _APART:
                reads = {at: layers for at, layers in reads.items() if at == 0}
        for at, slot in enumerate(one.record.case.inputs):
            layers = reads.get(at)
            if layers is None or slot.shape is None:
                continue
            found = [other for name in layers.split("|") for other in made.get(name, ())]
            if one.layer not in _APART:
                found += earlier
            if one.layer not in _OF_VIEWS:
                found = [other for other in found if not _is_transposed(other, slot)]
            if not any(_carries(source, slot, step) for source in found):
                yield one.layer, one.record.kernel_type, at, str(slot), layers
        earlier.extend(one.record.case.outputs)


def _is_transposed(source, slot):
    """Return whether heads are first in one of the tensors, and tokens in the other one."""
    before, after = ([size for size in one.shape or () if size > 1] for one in (source, slot))
    is_whole = prod(before) == prod(after) and min(len(before), len(after)) > 1
    return is_whole and before[0] != after[0] == before[1]


def _carries(source, slot, step):
    """Return whether an input may be a tensor, a part of it, or its parts gathered from ranks."""
    if source.shape is None or source.dtype != slot.dtype:
        return False
    have, needed = prod(source.shape), prod(slot.shape)
    if needed <= have:
        return True
    # Of more tokens, which ranks gathered or with which a graph is padded. Heads may be first.
    if any(needed // tokens <= have // source.shape[0] for tokens in slot.shape[:2]):
        return True
    return any(
        one.operation == "all_gather"
        and one.message_bytes == source.size_bytes
        and needed <= have * one.group_size
        for one in step.collectives
    )


def test_every_input_of_a_step_is_produced_with_its_dtype_and_size():
    broken, steps = {}, 0
    for release, model in product(map(find_kernel_set, bundled_releases()), bundled_names()):
        decoder = find_decoder(model)
        for layout, batch in product(_MIXTURE if decoder.is_moe else _DENSE, _BATCHES):
            try:
                step = derive_step(decoder, layout_of(layout), batch, release)
            except BadInput:  # the set does not describe it
                continue
            steps += 1
            for link in broken_links(step):
                where = (release.release, model, layout, str(batch))
                broken.setdefault(link[:3], (*link[3:], *where))
    assert steps > 300
    assert not broken


def dtypes_of(step, *layers):
    """(layer, dtype of the first input, dtype of the first output) of each kernel of the layers."""
    cases = [(one.layer, one.record.case) for one in step.kernels if one.layer in layers]
    return [(layer, case.inputs[0].dtype, case.outputs[0].dtype) for layer, case in cases]


_CHOICE = ("router", "bias of the choice", "choice of experts", "weights of experts")


@pytest.mark.fast
def test_experts_are_chosen_in_the_router_dtype_and_weighted_in_float():
    """Recorded in both releases: select_experts, and get_combine_mc_kwargs of the dispatchers."""
    bf16, wide = "DT_BF16", "FLOAT"
    plain = [
        ("router", bf16, bf16),
        ("choice of experts", bf16, bf16),
        ("weights of experts", bf16, wide),
    ]
    in_float = [
        ("router", bf16, wide),
        ("router", wide, wide),
        ("choice of experts", wide, wide),
        ("weights of experts", wide, bf16),
        ("weights of experts", bf16, wide),
    ]
    bias = [("bias of the choice", bf16, wide)]
    apart, fused = "tp=1,dp=16,ep=16,experts=apart", "tp=1,dp=16,ep=16,quantisation=w8a8"
    for model, layout, release, expected in (
        ("qwen3-235b-a22b", apart, "0.18", plain),
        ("qwen3-235b-a22b", apart, "0.23", plain),
        ("deepseek-v3", fused, "0.18", plain),
        ("deepseek-v3", apart, "0.11", plain),
        ("deepseek-v3", fused, "0.23", in_float),
        ("glm-5.2", fused, "0.23", in_float),
        ("glm-4.5", fused, "0.18", [*in_float[:2], *bias, *in_float[2:]]),
    ):
        step = step_of(model, layout, Phase.DECODE, 16, 1, 1024, release=release)
        assert dtypes_of(step, *_CHOICE) == expected, (model, layout, release)
    # Rows that return by an all-to-all are weighted in BF16 (npu_moe_token_unpermute).
    large = step_of("qwen3-235b-a22b", apart, Phase.PREFILL, 1, 2048, 2048)
    assert dtypes_of(large, *_CHOICE) == plain[:2]
