"""One forward pass of a model as cases: each kernel with its shapes, its layer and its count.

Everything comes from a release's kernel set; nothing is measured or assumed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from collector.codec.errors import BadInput
from collector.model.case import Slot, tensor_cells
from collector.model.record import CaseRecord
from collector.model.vocabulary import ACCELERATOR_CORE, EP_SIZE, OP_STATE, RUNTIME_PREFIX
from collector.ops.expression import align, ceil_div, in_blocks, parse_expression
from collector.ops.parts.tensors import cumulative_ends, equal_parts
from collector.ops.registry import ops_of
from collector.shapes import kernel_set
from collector.shapes.layout import ExpertLaunch, Layout, Quantisation, check_layout, to_record
from collector.shapes.models import Decoder
from collector.shapes.serving import Batch, check_batch

# The names that a pattern of a step may use: numbers and lists of a model with a layout and a pass.

PAGE = 128  # tokens of a page of the cache, as in vLLM-Ascend
_VOCABULARY_PADDING = 64  # vLLM: DEFAULT_VOCAB_PADDING_SIZE
_FEWEST_PAGES = 16

Numbers = Mapping[str, int]
Lists = Mapping[str, tuple[int, ...]]


def is_derived(decoder: Decoder, layout: Layout) -> bool:
    """Return whether kernel sets describe a model in a layout; others are only recorded."""
    return decoder.is_derived and layout.quantisation is not Quantisation.W4A16


def numbers_of(
    decoder: Decoder, layout: Layout, batch: Batch, habits: kernel_set.ReleaseSettings
) -> Numbers:
    """Return the numbers of a pass.

    Lengths are in tokens, sizes in elements; `rank_` means per rank of tp. `routed` is the number
    of rows of experts on a rank with an even load, and `room` the number of rows that it allocates
    for any routing. Raises BadInput for a model that no kernel set describes."""
    if not is_derived(decoder, layout):
        raise to_record(decoder, layout)
    return {
        **{name: int(getattr(layout, name)) for name in ("tp", "dp", "ep", "sequence_split", "nz")},
        "quantised": int(layout.quantisation is not Quantisation.BF16),
        "w4a8": int(layout.quantisation is Quantisation.W4A8),
        "fused": int(layout.experts is ExpertLaunch.FUSED),
        **_of_batch(layout, batch),
        **_of_model(decoder, layout),
        **_of_experts(decoder, layout, batch, habits),
        **_of_attention(decoder, layout, batch, habits),
    }


def lists_of(
    decoder: Decoder, layout: Layout, batch: Batch, habits: kernel_set.ReleaseSettings
) -> Lists:
    """Return the lists of a pass.

    These are the lengths of its requests, of its answers and prompts, and of the part from which
    one rank attends; and the end of each expert's rows on a rank."""
    every = tuple(batch.lengths())
    first = len(every) if batch.is_decode else batch.mixed_decodes
    decodes, prompts = every[:first], every[first:]
    part_queries, part_keys = _part(batch, _parts(layout, habits))
    routed = _routed(decoder, layout, batch)
    return {
        "query_ends": cumulative_ends([queries for queries, _ in every]),
        "key_lengths": tuple(keys for _, keys in every),
        "answer_ends": cumulative_ends([queries for queries, _ in decodes]),
        "answer_keys": tuple(keys for _, keys in decodes),
        "prompt_lengths": tuple(queries for queries, _ in prompts),
        "prompt_ends": cumulative_ends([queries for queries, _ in prompts]),
        "past_ends": cumulative_ends([keys - queries for queries, keys in prompts]),
        "past_lengths": tuple(keys - queries for queries, keys in prompts),
        "part_ends": cumulative_ends(part_queries),
        "part_keys": part_keys,
        "expert_ends": uneven_ends(routed, decoder.experts // layout.ep, batch.imbalance),
    }


def uneven_ends(routed: int, experts: int, percent: int) -> tuple[int, ...]:
    """Return the end of each expert's rows; all experts together have `routed` rows.

    The last ones have the most, `percent` more than an even share, and the first ones `percent`
    less."""
    if not routed:
        return ()
    if not percent:
        return cumulative_ends(equal_parts(routed, experts))
    shares = [100 * (experts - 1 or 1) + percent * (2 * at - experts + 1) for at in range(experts)]
    ends = cumulative_ends(shares)
    return tuple(routed * end // ends[-1] for end in ends)


def _of_batch(layout: Layout, batch: Batch) -> dict[str, int]:
    tokens = batch.tokens
    whole = align(tokens, layout.tp) if layout.sequence_split else tokens
    requests = batch.requests + batch.mixed_decodes
    decodes = batch.requests if batch.is_decode else batch.mixed_decodes
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
        "answers": decodes,
        "answer_tokens": batch.attending if batch.is_decode else batch.mixed_decodes,
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


def _of_experts(
    decoder: Decoder, layout: Layout, batch: Batch, habits: kernel_set.ReleaseSettings
) -> dict[str, int]:
    here = decoder.experts // layout.ep
    split = layout.sequence_split
    routed = _routed(decoder, layout, batch)
    allocated_rows = _sent(layout, batch) * layout.ep * min(here, decoder.choices)
    is_dispatched = batch.tokens <= habits.most_dispatched_tokens
    in_float = decoder.routes_in_float or (decoder.is_mla and habits.routes_latent_in_float)
    switches = ("biases_choices", "gates_shared")
    sizes = ("experts", "choices", "expert_intermediate")
    return {
        **{name: int(getattr(decoder, name)) for name in (*switches, *sizes)},
        "moe": int(decoder.is_moe),
        "routes_in_float": int(in_float),
        "apart": int(decoder.is_moe and layout.experts is ExpertLaunch.APART),
        "rank_experts": here,
        "sent_tokens": _sent(layout, batch),
        "routed": routed,
        "room": allocated_rows,
        "dispatched": int(is_dispatched),
        "expert_rows": allocated_rows if is_dispatched else routed,
        "shared": decoder.shared if split else decoder.shared // layout.tp,
    }


def _of_attention(
    decoder: Decoder, layout: Layout, batch: Batch, habits: kernel_set.ReleaseSettings
) -> dict[str, int]:
    """Return the numbers of latent and of sparse attention.

    One kernel may precede either (`mlapo`): latent attention on decode-only hosts. Where a group
    splits its tokens, each rank attends sparsely from its part with all heads."""
    quantised = layout.quantisation is not Quantisation.BF16
    is_latent = decoder.is_mla and not decoder.is_sparse
    is_small = batch.is_decode and batch.attending <= habits.most_mlapo_tokens
    parts = _parts(layout, habits)
    queries, _ = _part(batch, parts)
    split = int(decoder.is_sparse and parts > 1)
    fits = decoder.is_sparse and quantised and batch.tokens <= habits.most_mlapo_tokens
    return {
        "mlapo": int(is_latent and quantised and batch.decodes_alone and is_small),
        "sparse_split": split,
        "sparse_tokens": ceil_div(batch.tokens, parts),
        "key_tokens": align(batch.tokens, parts),
        "fits_mlapo": int(fits and not split),
        "part_tokens": sum(queries),
        "part_requests": len(queries),
        "part_heads": decoder.heads if split else decoder.heads // layout.tp,
    }


def _parts(layout: Layout, habits: kernel_set.ReleaseSettings) -> int:
    return layout.tp if layout.sequence_split and habits.splits_sparse_attention else 1


def _sent(layout: Layout, batch: Batch) -> int:
    """Return the tokens that one rank sends to experts: its part, even if others have it too."""
    return ceil_div(batch.tokens, layout.tp)


def _routed(decoder: Decoder, layout: Layout, batch: Batch) -> int:
    return _sent(layout, batch) * decoder.choices


def _part(batch: Batch, parts: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the tokens of each request from which one rank attends, and the keys that the last of
    them attends to.

    The rank is the last one of a group whose part is full; with idle tokens it is the first one."""
    each = ceil_div(batch.tokens, parts)
    first = 0 if batch.idle else (batch.tokens // each - 1) * each
    queries, keys, end = [], [], 0
    for count, held in batch.lengths():
        start, end = end, end + count
        here = min(end, first + each) - max(start, first)
        if here > 0:
            queries.append(here)
            keys.append(held - (end - min(end, first + each)))
    return tuple(queries), tuple(keys)


_DYNAMIC = "dynamic"


@dataclass(frozen=True, slots=True)
class StepKernel:
    """A case, its layer in the model, its launches per pass, and the source of its pattern.

    The source is `profile` (of a real step) or `code` (of the release)."""

    layer: str
    record: CaseRecord
    times: int
    source: str


@dataclass(frozen=True, slots=True)
class StepCollective:
    """A collective message of the pass, over ranks of tp or ep; the nearest ranks set its tier."""

    layer: str
    operation: str
    message_bytes: int
    group_size: int
    times: int
    source: str


@dataclass(frozen=True, slots=True)
class Step:
    kernels: tuple[StepKernel, ...]
    collectives: tuple[StepCollective, ...]


def derive_step(
    decoder: Decoder, layout: Layout, batch: Batch, kernels: kernel_set.KernelSet
) -> Step:
    """Return the pass of one rank, in the order of the set.

    Raises BadInput for a layout that the model does not accept, and for behaviour that no set of
    kernels describes."""
    check_layout(decoder, layout)
    check_batch(batch)
    if batch.predicted and not decoder.predictors:
        raise BadInput(f"{decoder.name} has no layer that predicts tokens")
    if not decoder.is_moe and batch.tokens <= kernels.habits.dense_split_above_tokens:
        layout = replace(layout, sequence_split=False)
    names = _described(decoder, layout, batch, kernels)
    if batch.is_draft:
        decoder, layout = _of_draft(decoder), replace(layout, experts=ExpertLaunch.APART)
        names = _described(decoder, layout, batch, kernels)
    lists = lists_of(decoder, layout, batch, kernels.habits)
    found: list[StepKernel] = []
    collectives: list[StepCollective] = []
    for pattern in kernels.patterns:
        times = pattern.times.value(names) if pattern.when.value(names) else 0
        if times < 1:
            continue
        match pattern.launch:
            case kernel_set.CollectivePattern() as what:
                if (size := names[what.group]) > 1:
                    message = (what.operation, what.message.value(names), size)
                    one = StepCollective(pattern.layer, *message, times, pattern.source)
                    collectives.append(one)
                continue
            case kernel_set.ProductPattern() as what:
                records = list(_product(what, names))
            case kernel_set.KernelPattern() as what:
                records = [_kernel(what, names, lists)]
        source = _source_of(pattern, names)
        found += (StepKernel(pattern.layer, record, times, source) for record in records)
    return Step(tuple(found), tuple(collectives))


def _described(
    decoder: Decoder, layout: Layout, batch: Batch, kernels: kernel_set.KernelSet
) -> Numbers:
    """Return the numbers of a pass. Raises BadInput where the release does something that the set
    does not describe."""
    names = numbers_of(decoder, layout, batch, kernels.habits)
    for one in kernels.unknown:
        if one.when.value(names):
            raise BadInput(f"{decoder.name}, {kernels.release}: {one.launch}")
    return names


def _of_draft(decoder: Decoder) -> Decoder:
    """Return the one layer that predicts.

    It has experts where the model has any and, with sparse attention, its own indexer. No release
    fuses its experts."""
    dense = 0 if decoder.is_moe else 1
    return replace(decoder, layers=1, dense_layers=dense, indexers=min(1, decoder.indexers))


def _source_of(pattern: kernel_set.StepPattern, names: Numbers) -> str:
    """Return the source of a pattern; INT8 was seen only in traces of latent attention."""
    is_int8 = (
        isinstance(pattern.launch, kernel_set.ProductPattern) and pattern.launch.scheme != "bf16"
    )
    return "code" if is_int8 and names["quantised"] and not names["mla"] else pattern.source


def _kernel(what: kernel_set.KernelPattern, names: Numbers, lists: Lists) -> CaseRecord:
    inputs, outputs = ([_slot(one, names) for one in side] for side in (what.inputs, what.outputs))
    columns = {
        name if name == EP_SIZE else RUNTIME_PREFIX + name: _column_text(text, names, lists)
        for name, text in what.columns.items()
    }
    return _record(what.kernel, inputs, outputs, columns)


def _record(
    kernel: str, inputs: list[Slot], outputs: list[Slot], extra: Mapping[str, str] | None = None
) -> CaseRecord:
    cells = {OP_STATE: _DYNAMIC, ACCELERATOR_CORE: "", **tensor_cells(inputs, outputs)}
    return CaseRecord(kernel, cells, extra or {})


def _product(what: kernel_set.ProductPattern, names: Numbers) -> Iterator[CaseRecord]:
    """Yield the kernels of a product: one for BF16; for INT8, first the kernel that quantises the
    input, with one given scale or with one per token."""
    rows, width, depth = (one.value(names) for one in (what.rows, what.width, what.depth))
    given, result = (Slot((rows, size), "DT_BF16", "ND") for size in (depth, width))
    if what.scheme == "bf16" or not names["quantised"]:
        weight = Slot((width, depth), "DT_BF16", "ND")
        if what.may_be_nz and names["nz"] > 1:
            weight = in_blocks("DT_BF16", (width, depth))
        bias = {"bias": Slot((width,), "DT_BF16", "ND")} if what.has_bias.value(names) else {}
        yield _call("aten.mm.default", [result], a=given, b=weight, **bias)
        return
    small, weight = Slot((rows, depth), "INT8", "ND"), Slot((depth, width), "INT8", "ND")
    if what.may_be_nz and names["nz"] > 0:
        weight = in_blocks("INT8", (depth, width))
    if what.scheme in ("static", "given"):
        by_column = Slot((depth,), "DT_BF16", "ND")
        if what.scheme == "static":
            quantised = {"x": given, "scale": by_column, "offset": by_column}
            yield _call("tensor_cast.quantize.default", [small], **quantised)
        more = {"bias": Slot((width,), "INT32", "ND")}
    else:
        of_tokens = Slot((rows,), "FLOAT", "ND")
        yield _call("tensor_cast.dynamic_quantize_symmetric.default", [small, of_tokens], x=given)
        more = {"pertoken_scale": of_tokens}
    operands = {"x1": small, "x2": weight, "scale": Slot((width,), "FLOAT", "ND"), **more}
    yield _call("tensor_cast.static_quant_linear.default", [result], **operands)


def _call(operator: str, outputs: list[Slot], **tensors: Slot) -> CaseRecord:
    """Return the row of the first kernel of an operator: the tensors that it is given, in order."""
    op, *_ = ops_of(operator)
    return _record(op.kernel, [tensors[name] for name in op.slots if name in tensors], outputs)


def _slot(pattern: kernel_set.SlotPattern, names: Numbers) -> Slot:
    if pattern.dims is None:
        return Slot(None, pattern.dtype, pattern.format)
    shape = tuple(one.value(names) for one in pattern.dims)
    if any(size < 0 for size in shape):
        raise BadInput(f"a pattern produced the negative shape {shape}")
    if pattern.in_blocks:
        return in_blocks(pattern.dtype, shape)
    return Slot(shape, pattern.dtype, pattern.format)


def _column_text(text: str, names: Numbers, lists: Lists) -> str:
    if text.startswith("'"):
        return text.strip("'")
    if text in lists:
        return ",".join(map(str, lists[text]))
    return str(parse_expression(text).value(names))
