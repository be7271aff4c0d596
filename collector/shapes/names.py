"""What a pattern of a step may speak of: the numbers and the lists of a model, spread and given a
pass."""

from collections.abc import Mapping
from dataclasses import dataclass

from collector.ops.parts.shares import even, running
from collector.shapes.batch import Batch
from collector.shapes.decoder import Decoder
from collector.shapes.expression import align, ceil_div
from collector.shapes.habits import Habits
from collector.shapes.layout import Experts, Layout, Quantisation

PAGE = 128  # tokens of a page of the cache, as vLLM-Ascend has it
_VOCABULARY_PADDING = 64  # vLLM: DEFAULT_VOCAB_PADDING_SIZE
_FEWEST_PAGES = 16

Numbers = Mapping[str, int]
Lists = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Part:
    """The tokens that one rank attends from: the last rank of a group whose part is full; beside
    tokens of no request the first. How many of them belong to each request that it has any of, and
    the keys that the last one sees."""

    queries: tuple[int, ...]
    keys: tuple[int, ...]


def numbers_of(decoder: Decoder, layout: Layout, batch: Batch, habits: Habits) -> Numbers:
    """Lengths are in tokens, sizes in elements; `rank_` is what one rank of tp has. Of experts
    `routed` are the rows that a rank gets where all have as many, and `room` those that it has room
    for, whatever is chosen."""
    return {
        **_of_layout(layout),
        **_of_batch(layout, batch),
        **_of_model(decoder, layout),
        **_of_experts(decoder, layout, batch, habits.most_dispatched_tokens),
        **_of_latent(decoder, layout, batch, habits),
        **_of_sparse(decoder, layout, batch, habits),
    }


def lists_of(decoder: Decoder, layout: Layout, batch: Batch, habits: Habits) -> Lists:
    """Lengths of the requests of a pass, of its answers and of its prompts, and of the part from
    which one rank attends; and where the rows of each expert of a rank end."""
    every = tuple(batch.lengths())
    first = len(every) if batch.is_decode else batch.followed
    answers, prompts = every[:first], every[first:]
    part = _part(batch, _parts(layout, habits))
    routed = _routed(decoder, layout, batch)
    return {
        "query_ends": running([queries for queries, _ in every]),
        "key_lengths": tuple(keys for _, keys in every),
        "answer_ends": running([queries for queries, _ in answers]),
        "answer_keys": tuple(keys for _, keys in answers),
        "prompt_lengths": tuple(queries for queries, _ in prompts),
        "prompt_ends": running([queries for queries, _ in prompts]),
        "past_ends": running([keys - queries for queries, keys in prompts]),
        "past_lengths": tuple(keys - queries for queries, keys in prompts),
        "part_ends": running(part.queries),
        "part_keys": part.keys,
        "expert_ends": uneven_ends(routed, decoder.experts // layout.ep, batch.imbalance),
    }


def uneven_ends(routed: int, experts: int, percent: int) -> tuple[int, ...]:
    """Where the rows of each expert end, all of them together; the last ones have most, so many
    percent more than evenly, and the first so many less."""
    if not routed:
        return ()
    if not percent:
        return running(even(routed, experts))
    shares = [100 * (experts - 1 or 1) + percent * (2 * at - experts + 1) for at in range(experts)]
    ends = running(shares)
    return tuple(routed * end // ends[-1] for end in ends)


def _of_layout(layout: Layout) -> dict[str, int]:
    return {
        **{name: int(getattr(layout, name)) for name in ("tp", "dp", "ep", "sequence_split")},
        "nz": layout.nz,
        "quantised": int(layout.quantisation is not Quantisation.BF16),
        "w4a8": int(layout.quantisation is Quantisation.W4A8),
        "fused": int(layout.experts is Experts.FUSED),
    }


def _of_batch(layout: Layout, batch: Batch) -> dict[str, int]:
    tokens = batch.tokens
    whole = align(tokens, layout.tp) if layout.sequence_split else tokens
    requests = batch.requests + batch.followed
    answers = batch.requests if batch.is_decode else batch.followed
    pages = ceil_div(batch.most_keys, PAGE)
    prompts = 0 if batch.is_decode else batch.requests
    return {
        "given_tokens": batch.attending,
        "tokens": whole,
        "split_tokens": whole // layout.tp if layout.sequence_split else whole,
        "requests": requests,
        "sampled": batch.sampled,
        "predicted": batch.predicted,
        "draft": int(batch.is_draft),
        "decode": int(batch.is_decode),
        "answers": answers,
        "answer_tokens": batch.attending if batch.is_decode else batch.followed,
        "prompts": prompts,
        "prompt_tokens": prompts * batch.queries,
        "past": prompts * (batch.keys - batch.queries),
        "table_width": pages,
        "pages": max(_FEWEST_PAGES, requests * pages),
        "page": PAGE,
    }


def _of_model(decoder: Decoder, layout: Layout) -> dict[str, int]:
    switches = ("normalises_heads", "biases_qkv", "biases_o", "chooses_by_cann")
    sizes = (
        *("layers", "hidden", "vocabulary", "head_size", "rotated", "heads"),
        *("q_lora", "kv_lora", "nope", "rope"),
        *("chosen", "index_heads", "index_size", "indexers"),
    )
    return {
        **{name: int(getattr(decoder, name)) for name in (*switches, *sizes)},
        "mla": int(decoder.is_mla and not decoder.is_sparse),
        "gqa": int(not decoder.is_mla),
        "sparse": int(decoder.is_sparse),
        "rank_vocabulary": ceil_div(align(decoder.vocabulary, _VOCABULARY_PADDING), layout.tp),
        "rank_intermediate": decoder.intermediate // layout.tp,
        "rank_heads": decoder.heads // layout.tp,
        "rank_kv_heads": max(1, decoder.kv_heads // layout.tp),
        "dense_layers": min(decoder.dense_layers, decoder.layers),
        "moe_layers": decoder.layers - min(decoder.dense_layers, decoder.layers),
    }


def _of_experts(decoder: Decoder, layout: Layout, batch: Batch, dispatched: int) -> dict[str, int]:
    here = decoder.experts // layout.ep
    split = layout.sequence_split
    routed = _routed(decoder, layout, batch)
    room = _sent(layout, batch) * layout.ep * min(here, decoder.choices)
    is_dispatched = batch.tokens <= dispatched
    switches = ("biases_choices", "gates_shared", "routes_in_float")
    sizes = ("experts", "choices", "expert_intermediate")
    return {
        **{name: int(getattr(decoder, name)) for name in (*switches, *sizes)},
        "moe": int(decoder.is_moe),
        "apart": int(decoder.is_moe and layout.experts is Experts.APART),
        "rank_experts": here,
        "sent_tokens": _sent(layout, batch),
        "routed": routed,
        "room": room,
        "dispatched": int(is_dispatched),
        "expert_rows": room if is_dispatched else routed,
        "shared": decoder.shared if split else decoder.shared // layout.tp,
    }


def _of_latent(decoder: Decoder, layout: Layout, batch: Batch, habits: Habits) -> dict[str, int]:
    """Whether one kernel stands before latent attention, as on hosts that only decode."""
    quantised = layout.quantisation is not Quantisation.BF16
    is_small = batch.is_decode and batch.attending <= habits.most_mlapo_tokens
    is_latent = decoder.is_mla and not decoder.is_sparse
    return {"mlapo": int(is_latent and quantised and batch.decodes_alone and is_small)}


def _of_sparse(decoder: Decoder, layout: Layout, batch: Batch, habits: Habits) -> dict[str, int]:
    """Where a group splits the tokens of sparse attention, each rank attends from its part with all
    heads."""
    parts = _parts(layout, habits)
    part = _part(batch, parts)
    split = int(decoder.is_sparse and parts > 1)
    quantised = layout.quantisation is not Quantisation.BF16
    fits = decoder.is_sparse and quantised and batch.tokens <= habits.most_mlapo_tokens
    return {
        "sparse_split": split,
        "sparse_tokens": ceil_div(batch.tokens, parts),
        "key_tokens": align(batch.tokens, parts),
        "fits_mlapo": int(fits and not split),
        "part_tokens": sum(part.queries),
        "part_requests": len(part.queries),
        "part_heads": decoder.heads if split else decoder.heads // layout.tp,
    }


def _parts(layout: Layout, habits: Habits) -> int:
    return layout.tp if layout.sequence_split and habits.splits_sparse_attention else 1


def _sent(layout: Layout, batch: Batch) -> int:
    """The tokens that one rank sends to experts: its part, whether or not others have it too."""
    return ceil_div(batch.tokens, layout.tp)


def _routed(decoder: Decoder, layout: Layout, batch: Batch) -> int:
    return _sent(layout, batch) * decoder.choices


def _part(batch: Batch, parts: int) -> Part:
    each = ceil_div(batch.tokens, parts)
    first = 0 if batch.idle else (batch.tokens // each - 1) * each
    queries, keys, end = [], [], 0
    for count, held in batch.lengths():
        start, end = end, end + count
        here = min(end, first + each) - max(start, first)
        if here > 0:
            queries.append(here)
            keys.append(held - (end - min(end, first + each)))
    return Part(tuple(queries), tuple(keys))
