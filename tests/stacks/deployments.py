"""`python -m tests.stacks.deployments [WORD...]`: records again the deployments of the package.

A word is part of a file's name; without one, all are recorded. Each takes one to three minutes with
the environments of `opmeter model record`. `tests/stacks/test_stacks_deployments.py` compares small
ones with what the software launches. Read the difference of a file before it is committed.
"""

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from collector.recording.engine import EngineSettings, GraphMode, record_model
from collector.recording.formulas import Constants, solved_deployment
from collector.recording.model_cuts import Config, find_config
from collector.recording.quantised import WeightScheme
from collector.recording.recorded_calls import PassTokens
from collector.shapes.deployments import PackagedDeployment, file_name, write_deployment
from collector.shapes.layout import ExpertLaunch, Layout, Quantisation, layout_of
from collector.shapes.step import PAGE

FOLDER = Path(__file__).parents[2] / "collector" / "data" / "recordings"
# Unlike any size of a model, so that they are recognised in shapes.
_PAGES, _TABLE_WIDTHS = 7919, (251, 61)
_SPLIT_TOKENS = 1000  # vLLM-Ascend: dense models split passes of more tokens than this
_MOST_TOKENS, _MOST_REQUESTS = 8192, 256  # limits of the engine: vLLM's default, and its graphs'

Range = tuple[int, int, tuple[PassTokens, ...]]


@dataclass(frozen=True, slots=True)
class Recipe:
    """A deployment to record, with decodes in graphs."""

    model: str
    release: str
    layout: str

    @property
    def file_name(self) -> str:
        return file_name(self.model, self.release, layout_of(self.layout))


def config_of(recipe: Recipe) -> Config:
    """Return the model of a recipe, quantised as its layout says."""
    config, scheme = find_config(recipe.model), layout_of(recipe.layout).quantisation
    return config if scheme is Quantisation.BF16 else config.quantised(WeightScheme(scheme))


def _prefill(*loads: tuple[int, int]) -> tuple[PassTokens, ...]:
    return tuple(PassTokens("prefill", requests, each, each) for requests, each in loads)


def _decode(*loads: tuple[int, int]) -> tuple[PassTokens, ...]:
    return tuple(PassTokens("decode", requests, 1, keys) for requests, keys in loads)


def _chunks(*loads: tuple[int, int]) -> tuple[PassTokens, ...]:
    """Return the last parts of prompts, behind so many parts of the largest size."""
    return tuple(
        PassTokens("prefill", 1, each, parts * _MOST_TOKENS + each) for parts, each in loads
    )


def constants_of(config: Config) -> Constants:
    """Return the pages of the cache and of a request, for a model of so many tokens."""
    width = next(one for one in _TABLE_WIDTHS if one * PAGE <= config.max_tokens)
    return Constants(_PAGES, width)


def ranges_of(layout: Layout, longest: int) -> tuple[Range, ...]:
    """Return what is recorded of requests of at most `longest` tokens: ranges in which every pass
    launches the same."""
    decodes = _decode((1, 211), (1, 333), (3, 150), (13, 271), (16, 190), (77, 201), (250, 140))
    decode = (1, _MOST_REQUESTS, decodes)
    has_chunks = longest > 2 * _MOST_TOKENS + 4099
    if layout.ep > 1:
        return _ranges_of_experts(decode)
    if layout.sequence_split:
        last = _SPLIT_TOKENS // layout.tp * layout.tp  # tokens are padded before they are compared
        small = _prefill((1, 11), (3, 101), (2, 37), (1, last - 1), (1, last))
        large = _prefill((1, last + 1), (3, 1367), (5, 411), (5, 1600), (1, 4099))
        found = [(1, last, small), (last + 1, _MOST_TOKENS, large), decode]
        if has_chunks:
            found.append((1, last, _chunks((1, 11), (1, 301), (1, last - 1), (2, last))))
            found.append((last + 1, _MOST_TOKENS, _chunks((1, last + 1), (2, 4099), (1, 3008))))
        return tuple(found)
    every = _prefill((1, 11), (3, 101), (1, 1001), (5, 1600), (1, 4099))
    chunks = _chunks((1, 11), (2, 301), (1, 3008), (2, 4099))
    return (1, _MOST_TOKENS, every), decode, *([(1, _MOST_TOKENS, chunks)] if has_chunks else [])


def _ranges_of_experts(decode: Range) -> tuple[Range, ...]:
    """Return what is recorded of a mixture of experts: passes of at most as many tokens as the
    largest graph are dispatched with a mask (mc2_tokens_capacity of vLLM-Ascend)."""
    small = _prefill((1, 11), (3, 41), (2, 37))
    large = _prefill((1, _MOST_REQUESTS + 1), (3, 1367), (5, 411), (5, 1600), (1, 4099))
    return decode, (1, _MOST_REQUESTS, small), (_MOST_REQUESTS + 1, _MOST_TOKENS, large)


def environment_of(layout: Layout) -> Mapping[str, str]:
    """Return the variables of vLLM-Ascend that make a layout."""
    is_fused = layout.ep > 1 and layout.experts is ExpertLaunch.FUSED
    return {
        "VLLM_ASCEND_ENABLE_NZ": str(layout.nz),
        "VLLM_ASCEND_ENABLE_FLASHCOMM1": str(int(layout.sequence_split)),
        "VLLM_ASCEND_ENABLE_FUSED_MC2": str(int(is_fused)),
    }


def settings_of(
    recipe: Recipe, constants: Constants, passes: Sequence[PassTokens]
) -> EngineSettings:
    """Return the settings of the engine that records these passes of a deployment."""
    layout = layout_of(recipe.layout)
    return EngineSettings(
        release=recipe.release,
        passes=tuple(passes),
        tp=layout.tp,
        dp=layout.dp,
        ep=layout.ep,
        graph=GraphMode.FULL_DECODE,
        environment=environment_of(layout),
        options={
            "num_gpu_blocks_override": constants.pages,
            "max_model_len": constants.table_width * PAGE,
            "max_num_batched_tokens": _MOST_TOKENS,
            "max_num_seqs": _MOST_REQUESTS,
        },
    )


def recorded(recipe: Recipe, work: Path) -> PackagedDeployment:
    """Record a deployment, and return it. `work` gets the engine's files."""
    layout = layout_of(recipe.layout)
    config = config_of(recipe)
    constants = constants_of(config)
    ranges = ranges_of(layout, constants.table_width * PAGE)
    passes = [one for *_, loads in ranges for one in loads]
    found = record_model(config, settings_of(recipe, constants, passes), work)
    return solved_deployment(found, str(layout), ranges, constants)


_RELEASES = ("vllm-ascend-0.18", "vllm-ascend-0.23")
_LAYOUTS = {
    "qwen3-32b": ("tp=16,nz=2,sequence_split", "tp=16,nz=2", "tp=4", "tp=1"),
    "llama-3-70b": ("tp=8",),
    "deepseek-v3": ("tp=8,dp=2,ep=16,sequence_split,quantisation=w8a8",),
}
RECIPES = tuple(
    Recipe(model, release, layout)
    for release in _RELEASES
    for model, layouts in _LAYOUTS.items()
    for layout in layouts
)


def main(words: Sequence[str]) -> int:
    """Record the deployments whose file names have one of the words, or all."""
    FOLDER.mkdir(exist_ok=True)
    for recipe in RECIPES:
        if words and not any(word in recipe.file_name for word in words):
            continue
        with tempfile.TemporaryDirectory() as work:
            found = recorded(recipe, Path(work) / "work")
        (FOLDER / recipe.file_name).write_bytes(write_deployment(found))
        print(recipe.file_name, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
