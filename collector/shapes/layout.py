"""How a model is spread over devices, and what one forward pass is given."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from collector.errors import BadInput
from collector.shapes.decoder import Decoder
from collector.shapes.expression import align, ceil_div

PAGE = 128  # tokens of a page of the cache, as vLLM-Ascend has it
_VOCABULARY_PADDING = 64  # vLLM: DEFAULT_VOCAB_PADDING_SIZE
_FEWEST_PAGES = 16
_MOST_REQUESTS, _MOST_TOKENS = 1 << 16, 1 << 24
_RANKS = re.compile(r"[1-9][0-9]{0,4}")
NZ_SETTINGS = ("1", "0", "2")  # the first is that of a layout that does not say


class Quantisation(StrEnum):
    """Of weights and activations."""

    BF16 = "bf16"
    W8A8 = "w8a8"


class Experts(StrEnum):
    """How a layer's experts are launched: FUSED, one DispatchFFNCombine; APART, a dispatch, a
    product for each expert, and a combine."""

    FUSED = "fused"
    APART = "apart"


class Phase(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Layout:
    """`tp` ranks share each layer, `dp` of such groups have requests of their own, and `ep` ranks
    share the experts. With `sequence_split` (FlashComm) what a norm sees is split among the ranks
    of a group, so that its sums are reduce-scatters and gathers; of dense models only where a pass
    has more tokens than the release says. `nz` is vLLM-Ascend's setting:
    which weights lie in FRACTAL_NZ, 0 none, 1 those that are quantised, 2 all of the layers."""

    tp: int = 1
    dp: int = 1
    ep: int = 1
    sequence_split: bool = False
    quantisation: Quantisation = Quantisation.BF16
    nz: int = 1
    experts: Experts = Experts.FUSED

    def __str__(self) -> str:
        sizes = f"tp={self.tp},dp={self.dp},ep={self.ep}"
        split = ",sequence_split" if self.sequence_split else ""
        apart = f",experts={self.experts}" if self.experts is Experts.APART else ""
        return f"{sizes}{split},quantisation={self.quantisation},nz={self.nz}{apart}"


@dataclass(frozen=True, slots=True)
class Batch:
    """One forward pass of one group of `tp` ranks: so many requests, each with `queries` tokens
    that are new and `keys` in all, those among them. The last `padding` of the requests are empty:
    they fill a graph's size, and nobody samples their tokens. They attend to one key: vLLM tells
    their length as 0, and one is the least that replays of attention take."""

    phase: Phase
    requests: int
    queries: int
    keys: int
    padding: int = 0

    def __str__(self) -> str:
        tokens = f"{self.requests} x {self.queries} tokens"
        empty = f", {self.padding} of them empty" if self.padding else ""
        return f"{self.phase} of {tokens} with {self.keys} keys each{empty}"


def layout_of(text: str) -> Layout:
    """`tp=16,ep=1,sequence_split,quantisation=w8a8`. BadInput for what is none."""
    found: dict[str, int | bool | Quantisation | Experts] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = part.partition("=")
        if name in found:
            raise BadInput(f"layout: {name} stands there twice")
        found[name] = _setting(name, value, part)
    return Layout(**found)  # type: ignore[arg-type]  # each by its name, above


def check_layout(decoder: Decoder, layout: Layout) -> None:
    """Raise BadInput where a model cannot be spread so."""
    if min(layout.tp, layout.dp, layout.ep) < 1:
        raise BadInput("layout: tp, dp and ep want to be at least 1")
    for what, size in (("heads", decoder.heads), ("the intermediate size", decoder.intermediate)):
        if size % layout.tp:
            raise BadInput(
                f"layout: tp={layout.tp} does not divide {what} of {decoder.name}, {size}"
            )
    if not decoder.is_mla and max(decoder.kv_heads, layout.tp) % min(decoder.kv_heads, layout.tp):
        raise BadInput(
            f"layout: tp={layout.tp} does not share {decoder.kv_heads} key heads of {decoder.name}"
        )
    if not decoder.is_moe and layout.ep > 1:
        raise BadInput(f"layout: {decoder.name} has no experts, ep=1 is wanted")
    if decoder.is_moe and layout.ep != layout.tp * layout.dp:
        ranks = layout.tp * layout.dp
        raise BadInput(f"layout: experts lie on all {ranks} ranks of tp x dp: ep={ranks} is wanted")
    if decoder.is_moe and decoder.experts % layout.ep:
        raise BadInput(
            f"layout: ep={layout.ep} does not divide {decoder.experts} experts of {decoder.name}"
        )


def check_batch(batch: Batch) -> None:
    """Raise BadInput for a pass that nobody could make."""
    if min(batch.requests, batch.queries) < 1 or batch.keys < batch.queries:
        raise BadInput(f"{batch}: at least one token, and as many keys as tokens, are wanted")
    if not 0 <= batch.padding < batch.requests or (batch.padding and batch.phase is Phase.PREFILL):
        raise BadInput(f"{batch}: a decode with a request that is not empty is wanted")
    if batch.requests > _MOST_REQUESTS or batch.keys > _MOST_TOKENS:
        raise BadInput(
            f"{batch}: at most {_MOST_REQUESTS} requests of {_MOST_TOKENS} tokens are wanted"
        )


def names_of(decoder: Decoder, layout: Layout, batch: Batch) -> Mapping[str, int]:
    """What a pattern may speak of. Lengths are in tokens, sizes in elements; `rank_` is what one
    rank of tp has. Of experts `routed` are the rows that a rank gets where all have as many, and
    `room` those that it has room for, whatever is chosen."""
    tokens = batch.requests * batch.queries
    whole = align(tokens, layout.tp) if layout.sequence_split else tokens
    split = whole // layout.tp if layout.sequence_split else whole
    pages = ceil_div(batch.keys, PAGE)
    return {
        **{name: int(getattr(layout, name)) for name in ("tp", "dp", "ep", "sequence_split")},
        "nz": layout.nz,
        "w8a8": int(layout.quantisation is Quantisation.W8A8),
        "decode": int(batch.phase is Phase.DECODE),
        "prefill": int(batch.phase is Phase.PREFILL),
        "given_tokens": tokens,
        "tokens": whole,
        "split_tokens": split,
        "requests": batch.requests,
        "real_requests": batch.requests - batch.padding,
        "padding": batch.padding,
        "queries": batch.queries,
        "keys": batch.keys,
        "table_width": pages,
        "pages": max(_FEWEST_PAGES, batch.requests * pages),
        "page": PAGE,
        "layers": decoder.layers,
        "hidden": decoder.hidden,
        "vocabulary": decoder.vocabulary,
        "rank_vocabulary": ceil_div(align(decoder.vocabulary, _VOCABULARY_PADDING), layout.tp),
        "rank_intermediate": decoder.intermediate // layout.tp,
        "rank_heads": decoder.heads // layout.tp,
        "rank_kv_heads": max(1, decoder.kv_heads // layout.tp),
        "head_size": decoder.head_size,
        "normalises_heads": int(decoder.normalises_heads),
        "mla": int(decoder.is_mla),
        "q_lora": decoder.q_lora,
        "kv_lora": decoder.kv_lora,
        "nope": decoder.nope,
        "rope": decoder.rope,
        "moe": int(decoder.is_moe),
        "dense_layers": min(decoder.dense_layers, decoder.layers),
        "moe_layers": decoder.layers - min(decoder.dense_layers, decoder.layers),
        "experts": decoder.experts,
        "choices": decoder.choices,
        "biases_choices": int(decoder.biases_choices),
        "rank_experts": decoder.experts // layout.ep,
        "fused": int(layout.experts is Experts.FUSED),
        "apart": int(decoder.is_moe and layout.experts is Experts.APART),
        "routed": split * decoder.choices,
        "room": split * layout.ep * min(decoder.experts // layout.ep, decoder.choices),
        "expert_intermediate": decoder.expert_intermediate,
        "shared_intermediate": decoder.shared_experts * decoder.expert_intermediate,
    }


def _setting(name: str, value: str, part: str) -> int | bool | Quantisation | Experts:
    if name == "sequence_split" and not value:
        return True
    if name == "quantisation" and value in tuple(Quantisation):
        return Quantisation(value)
    if name == "experts" and value in tuple(Experts):
        return Experts(value)
    if name in ("tp", "dp", "ep") and _RANKS.fullmatch(value):
        return int(value)
    if name == "nz" and value in NZ_SETTINGS:
        return int(value)
    wanted = (
        f"tp=, dp=, ep=, nz=, sequence_split, quantisation={' or '.join(Quantisation)}, "
        f"experts={' or '.join(Experts)}"
    )
    raise BadInput(f"layout: {wanted} are wanted, {part!r} came")
