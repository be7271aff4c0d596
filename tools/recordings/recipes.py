"""Recipes of the packaged deployments: models, layouts, and the loads that are recorded first."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from collector.codec.errors import BadInput
from collector.engine.engine_process import (
    EngineSettings,
    GraphMode,
)
from collector.engine.model_folder import ModelFolder, find_model
from collector.engine.quantised import WeightScheme
from collector.engine.recorded_calls import PassTokens
from collector.workloads.deployments import file_name
from collector.workloads.layout import ExpertLaunch, Layout, layout_of, layout_variables
from collector.workloads.recorded_step import (
    Prompts,
)
from collector.workloads.step import PAGE
from tools.recordings.formulas import Constants
from tools.recordings.spaces import MOST_REQUESTS, MOST_TOKENS

FOLDER = Path(__file__).parents[2] / "collector" / "data" / "recordings"
# Unlike any size of a model, so that they are recognised in shapes.
_PAGES, _TABLE_WIDTHS = 7919, (251, 61)
# Models whose kinds of attention take blocks from one pool: for windows, states, and keys of 4 and
# of 128 tokens. vLLM-Ascend's documents serve them with blocks of 128.
_POOLED, _POOL, _POOLED_WIDTH = ("deepseek-v4-flash",), 31991, 386
_SPLIT_TOKENS = 1000  # vLLM-Ascend: dense models split passes of more tokens than this
_LARGEST_GRAPHS = {"gpt-oss-120b": 1024}  # tokens; vLLM: other than 256 requests
# Of linear attention, 0.23 fills tensors of 256 requests to their end: in the largest graph, as
# many elements as it has empty requests.
_BELOW_LARGEST_GRAPH = ("qwen3-next-80b-a3b", "qwen3.5-397b-a17b")
# Of four ranks, whose launches depend on the prompts and on how many tokens pad to the ranks: these
# have more loads.
_MORE_PADDING = ("qwen3-next-80b-a3b", "gpt-oss-120b")
# Where experts are apart, of 160 ones the first rank would get as many rows as there are tokens, of
# five prompts of 1600.
_OF_160_EXPERTS = "glm-4.5"
# Models that are recorded with predicted tokens too, this many after each.
PREDICTING, PREDICTED = ("deepseek-v3",), 1

Range = tuple[int, int, tuple[PassTokens, ...]]


@dataclass(frozen=True, slots=True)
class Recipe:
    """A file to record, with decodes in graphs: one layout, or a family of them, the last of which
    is held out to check the others."""

    model: str
    release: str
    recorded: tuple[str, ...]

    @property
    def layouts(self) -> str:
        """Return the name of the family: ranks that differ are spans."""
        first, *_ = found = [layout_of(text) for text in self.recorded]
        spans = []
        for name in ("tp", "dp", "ep"):
            sizes = sorted({getattr(one, name) for one in found})
            spans.append(f"{name}={'..'.join(dict.fromkeys(map(str, (sizes[0], sizes[-1]))))}")
        *_, rest = str(first).split(",", 3)
        return ",".join((*spans, rest))

    @property
    def file_name(self) -> str:
        return file_name(self.model, self.release, self.layouts)


def folder_of(model: str, layout: str) -> ModelFolder:
    """Return a model, quantised as a layout says; W4A16 is that of its own config.json."""
    folder, scheme = find_model(model), layout_of(layout).quantisation
    return folder.quantised(WeightScheme(scheme)) if scheme.is_int8 else folder


def _prefill(*loads: tuple[int, int]) -> tuple[PassTokens, ...]:
    return tuple(PassTokens("prefill", requests, each, each) for requests, each in loads)


def _decode(*loads: tuple[int, int]) -> tuple[PassTokens, ...]:
    return tuple(PassTokens("decode", requests, 1, keys) for requests, keys in loads)


def _chunks(*loads: tuple[int, int]) -> tuple[PassTokens, ...]:
    """Return the last parts of prompts, after this many parts of the largest size."""
    return tuple(
        PassTokens("prefill", 1, each, parts * MOST_TOKENS + each) for parts, each in loads
    )


def _predicting(*loads: tuple[int, int]) -> tuple[PassTokens, ...]:
    """Return decodes that verify predicted tokens."""
    return tuple(PassTokens("decode", requests, 1 + PREDICTED, keys) for requests, keys in loads)


def _mixed(*loads: tuple[int, int, int, int, int]) -> tuple[PassTokens, ...]:
    """Return decodes and their tokens in total, next to prompts in equal parts."""
    return tuple(
        PassTokens("mixed", decodes, 1, keys, Prompts(requests, each, parts * each))
        for decodes, keys, requests, each, parts in loads
    )


def constants_of(model: ModelFolder) -> Constants:
    """Return the pages of the cache and of a request, for a model of this many tokens."""
    keys = ("n_routed_experts", "num_experts", "num_local_experts")
    experts = next((size for key in keys if (size := model.text.get(key))), 0)
    if model.name in _POOLED:
        return Constants(0, _POOLED_WIDTH, experts=experts, pool=_POOL)
    longest = model.text["max_position_embeddings"]
    width = next(one for one in _TABLE_WIDTHS if one * PAGE <= longest)
    return Constants(_PAGES, width, experts=experts)


def ranges_of(model: str, layout: Layout, longest: int) -> tuple[Range, ...]:
    """Return what is recorded of requests of at most `longest` tokens: ranges in which every pass
    launches the same. Each has loads with and without tokens that pad to the ranks."""
    many = ((229, 150), (27, 180)) if model in _BELOW_LARGEST_GRAPH else ((250, 140),)
    decodes = _decode((1, 211), (1, 333), (3, 150), (13, 271), (16, 190), (77, 201), *many)
    decode = (1, MOST_REQUESTS, decodes)
    has_chunks = longest > 2 * MOST_TOKENS + 4099
    if layout.ep > 1:
        most = _LARGEST_GRAPHS.get(model, MOST_REQUESTS)
        # Fewer than 4 tokens of a prompt have as many compressed keys of either kind, and few ones
        # as many as decodes have tokens: their launches would not be told apart.
        loads = _Loads(6, 16) if model in _POOLED else _Loads(more_padding=model in _MORE_PADDING)
        if model == _OF_160_EXPERTS and layout.experts is ExpertLaunch.APART:
            loads = replace(loads, filling=1592)
        return _ranges_of_experts(decode, has_chunks, most, loads)
    if layout.sequence_split:
        last = _SPLIT_TOKENS // layout.tp * layout.tp  # tokens are padded before they are compared
        small = _prefill((1, 11), (3, 101), (2, 37), (1, 208), (1, last - 1), (1, last))
        large = _prefill((1, last + 1), (3, 1367), (5, 411), (1, 3008), (5, 1600), (1, 4099))
        found = [(1, last, small), (last + 1, MOST_TOKENS, large), decode]
        next_to_few = ((1, 333, 1, 11, 1), (13, 271, 3, 97, 1), (3, 150, 1, last - 4, 2))
        next_to_many = ((1, 333, 1, last, 1), (13, 271, 3, 705, 1), (77, 201, 2, 1013, 2))
        found.append((2, last, _mixed(*next_to_few, (5, 222, 1, 59, 1))))
        found.append((last + 1, MOST_TOKENS, _mixed(*next_to_many, (7, 190, 1, 1001, 1))))
        if has_chunks:
            found.append((1, last, _chunks((1, 11), (1, 208), (1, 301), (1, last - 1), (2, last))))
            found.append(
                (last + 1, MOST_TOKENS, _chunks((1, last + 1), (2, 4099), (1, 2000), (1, 3008)))
            )
        return tuple(found)
    every = _prefill((1, 11), (3, 101), (1, 1001), (5, 1600), (1, 4099))
    chunks = _chunks((1, 11), (2, 301), (1, 3008), (2, 4099))
    mixed = _mixed(
        (1, 333, 1, 11, 1), (13, 271, 3, 102, 1), (3, 150, 1, 1005, 2), (77, 201, 2, 613, 1)
    )
    found = [(1, MOST_TOKENS, every), decode, (2, MOST_TOKENS, mixed)]
    return (*found, (1, MOST_TOKENS, chunks)) if has_chunks else tuple(found)


@dataclass(frozen=True, slots=True)
class _Loads:
    """What the loads of a mixture are: tokens of the smallest prompt, the fewest of a mixed pass,
    those of each of five prompts that fill the ranks, and whether there are further ones with other
    numbers of tokens that pad to the ranks."""

    prompt: int = 3
    mixed: int = 2
    filling: int = 1600
    more_padding: bool = False


def _ranges_of_experts(
    decode: Range, has_chunks: bool, graph: int, loads: _Loads
) -> tuple[Range, ...]:
    """Return what is recorded of a mixture of experts: passes of at most as many tokens as the
    largest graph are dispatched with a mask (mc2_tokens_capacity of vLLM-Ascend), which has another
    kernel for a single token of padding. A single token on each rank is not cut out of rows. Linear
    attention takes up to 1,216 tokens at once."""
    first, last, decodes = decode
    prompts = _prompts_of_experts(graph, loads)
    least, most = (one[:2] for one in prompts)
    found = [(first, last, (*decodes, *_decode((15, 233), (21, 180)))), *prompts]
    if has_chunks:
        few = _chunks((1, loads.prompt), (1, 11), (1, 18), (2, 101), (1, 111), (1, graph - 16))
        many = _chunks((1, graph + 1), (1, graph + 6), (1, graph + 15), (2, 4099), (1, 3008))
        mixed = _mixed(
            *((1, 333, 1, 11, 1), (13, 271, 3, 41, 1), (2, 222, 1, 59, 1)),
            *((3, 150, 2, 37, 3), (5, 301, 1, 98, 4), (1, 190, 3, 23, 3), (5, 160, 1, 75, 3)),
            *((4, 160, 1, 75, 3), (1, 333, 1, 3, 3)),
            *((1, 333, 1, 301, 1), (13, 271, 3, 501, 1), (6, 240, 2, 407, 1)),
            *((3, 150, 1, 1001, 4), (77, 201, 2, 613, 3), (20, 160, 4, 301, 3)),
            *((5, 211, 2, 1501, 1), (4, 170, 1, 601, 3), (9, 170, 1, 903, 3)),
        )
        if loads.more_padding:  # of no token, then of 2, 1 and 3 tokens
            few, many = few + _chunks((1, 208)), many + _chunks((1, 2608))
            mixed += _mixed((6, 170, 2, 900, 1), (10, 180, 1, 1201, 1), (4, 160, 1, 1301, 1))
        sizes = {one: sum(new for new, _ in one.each()) for one in mixed}
        next_to_few = tuple(one for one in mixed if loads.mixed <= sizes[one] <= graph)
        next_to_many = tuple(one for one in mixed if sizes[one] > graph)
        found += [(*least, few), (*most, many)]
        found += [(loads.mixed, graph, next_to_few), (*most, next_to_many)]
    return tuple(found)


def _prompts_of_experts(graph: int, loads: _Loads) -> tuple[Range, Range]:
    small = _prefill(
        *((1, loads.prompt), (1, 11), (1, 18), (1, 21), (3, 41), (2, 37), (1, 208), (1, graph - 1)),
        (1, graph),
    )
    large = _prefill(
        *((1, graph + 1), (1, graph + 6), (1, graph + 521), (3, 1367), (5, 411), (3, 1008)),
        *((5, loads.filling), (1, 4111)),
    )
    if loads.more_padding:
        large += _prefill((1, 1504), (1, 2608))
    return (1, graph, small), (graph + 1, MOST_TOKENS, large)


def ranges_of_predicting() -> tuple[Range, ...]:
    """Return what is recorded of a mixture of experts that predicts tokens: decodes and prompts.
    The largest graph has the same requests."""
    decodes = _predicting((1, 211), (1, 333), (3, 150), (13, 271), (16, 190), (77, 201), (250, 140))
    most = MOST_REQUESTS * (1 + PREDICTED)
    return ((1 + PREDICTED, most, decodes), *_prompts_of_experts(most, _Loads()))


def settings_of(
    release: str,
    layout: Layout,
    constants: Constants,
    passes: Sequence[PassTokens],
    predicted: int = 0,
) -> EngineSettings:
    """Return the settings of the engine that records these passes of a layout."""
    return EngineSettings(
        release=release,
        passes=tuple(passes),
        tp=layout.tp,
        dp=layout.dp,
        ep=layout.ep,
        speculative=predicted,
        graph=GraphMode.FULL_DECODE,
        environment=layout_variables(layout),
        options={
            "num_gpu_blocks_override": constants.pool or constants.pages,
            **({"block_size": PAGE} if constants.pool else {}),
            "max_model_len": constants.longest,
            "max_num_batched_tokens": MOST_TOKENS,
            "max_num_seqs": MOST_REQUESTS,
        },
    )


def _of_ranks(sizes: Sequence[tuple[int, int]], rest: str = "") -> tuple[str, ...]:
    """Return layouts of a mixture of experts, of tensor parallel ranks in data parallel groups."""
    layouts = (f"tp={tp},dp={dp},ep={tp * dp}" for tp, dp in sizes)
    return tuple(f"{one},{rest}" if rest else one for one in layouts)


_RELEASES = ("vllm-ascend-0.18", "vllm-ascend-0.23")
_FEW_RANKS = ((4, 1), (8, 2), (4, 4), (4, 2), (8, 1))
_RANKS = ((4, 2), (8, 4), (4, 4), (8, 2))
_LAYOUTS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "qwen3-32b": (
        ("tp=16,nz=2,sequence_split",),
        ("tp=16,nz=2",),
        ("tp=2", "tp=8", "tp=4"),
        ("tp=1",),
    ),
    "llama-3-70b": (("tp=2", "tp=8", "tp=4"),),
    "deepseek-v3": (_of_ranks(_RANKS, "sequence_split,quantisation=w8a8"),),
    "glm-4.5": (_of_ranks(_RANKS, "sequence_split"),),
    "glm-4.5-air": (_of_ranks(_FEW_RANKS, "sequence_split"),),
    "gpt-oss-120b": (("tp=4,ep=4,sequence_split",),),
    "kimi-k2-thinking": (("tp=16,ep=16,sequence_split,quantisation=w4a16,experts=apart",),),
    "qwen3-next-80b-a3b": (("tp=4,ep=4,sequence_split",),),
    "qwen3.5-397b-a17b": (("tp=16,ep=16",),),
    "qwen3-vl-8b": (("tp=1",),),
    "kimi-k2": (_of_ranks(_RANKS, "sequence_split,quantisation=w8a8"),),
    "qwen3-235b-a22b": (
        _of_ranks(((4, 2), (8, 4), (4, 8), (16, 1), (8, 2)), "sequence_split"),
        _of_ranks(((2, 1), (2, 8), (2, 4)), "sequence_split"),
        _of_ranks(((1, 2), (1, 16), (1, 4))),
    ),
}
# Without VLLM_ASCEND_ENABLE_FUSED_MC2, as by default: a dispatch or an all-to-all, and products.
_APART: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "deepseek-v3": (
        ("tp=8,dp=2,ep=16,sequence_split,quantisation=w8a8,experts=apart",),
        ("tp=8,dp=2,ep=16,sequence_split,quantisation=w4a8,experts=apart",),
    ),
    "glm-4.5": (("tp=8,dp=2,ep=16,sequence_split,experts=apart",),),
    "glm-4.5-air": (("tp=8,ep=8,sequence_split,experts=apart",),),
    "kimi-k2": (("tp=8,dp=2,ep=16,sequence_split,quantisation=w8a8,experts=apart",),),
    "qwen3-235b-a22b": (("tp=8,dp=2,ep=16,sequence_split,experts=apart",),),
}
# Of one release: 0.18 does not know three of the models. In a family of DeepSeek-V3.2, a group has
# 8 ranks: of fewer, more than 1,024 tokens of a rank have other products.
_OF_RELEASE: Mapping[str, Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "vllm-ascend-0.18": {
        "deepseek-v3.2": (_of_ranks(((8, 1), (8, 4), (8, 2)), "sequence_split,quantisation=w8a8"),),
    },
    "vllm-ascend-0.23": {
        "deepseek-v3.2": (("tp=8,dp=2,ep=16,sequence_split,quantisation=w8a8",),),
        "deepseek-v4-flash": (("tp=8,ep=8,sequence_split",),),
        "glm-5.1": (("tp=8,dp=2,ep=16",),),
        "glm-5.2": (("tp=8,dp=2,ep=16",),),
        "minimax-m2": (("tp=4,ep=4,sequence_split",),),
    },
}
RECIPES = tuple(
    Recipe(model, release, layouts)
    for release in _RELEASES
    for found in (_LAYOUTS, _APART, _OF_RELEASE[release])
    for model, files in found.items()
    for layouts in files
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose recipes."""
    parser.add_argument("--release", choices=_RELEASES, help="serving release, all without it")
    parser.add_argument("--model", help="name of a model, all if it is left out")
    parser.add_argument("--layout", default="", help="part of the layouts of a file")
    parser.add_argument(
        "--held-out", type=int, default=8, metavar="N", help="loads of each range to check, 8"
    )
    parser.add_argument(
        "--kept", type=Path, metavar="DIR", help="folder of recordings, read first and written"
    )


def chosen_recipes(options: argparse.Namespace) -> tuple[Recipe, ...]:
    """Return the recipes that options choose. Raises BadInput if there is none."""
    of_release = [one for one in RECIPES if options.release in (None, one.release)]
    models = dict.fromkeys(one.model for one in of_release)
    found = tuple(
        one
        for one in of_release
        if options.model in (None, one.model) and options.layout in one.layouts
    )
    if not found:
        raise BadInput(
            f"--model, --layout: expected a recipe of {', '.join(models)}, "
            f"got {options.model} {options.layout}"
        )
    return found
