"""Recorded deployments: what a model launches in a layout, for any load, from recordings.

A deployment is a file of the package (`collector/data/recordings`), made of recordings of several
loads by `python -m tools recordings`: numbers that differ between loads are expressions of
the load. The names that these may use are in `load_names` and `load_lists`.

    "Input Shapes": "tokens,5120;320,48,16,16"      17 tokens: "17,5120;320,48,16,16"

The file is JSON, compressed with gzip, and its name has the model, the release and the layout. The
file of a family has several layouts, whose ranks are doublings in spans (`tp=2..8`): numbers that
differ between them are expressions of `tp`, `dp` or `ep`, in braces or as `{"of_layout": TEXT}`.
"""

import gzip
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import product
from typing import Any

from collector.codec.canonical import decode_value, json_object, readable_json
from collector.codec.errors import BadInput
from collector.model.record import CaseRecord
from collector.model.vocabulary import (
    ACCELERATOR_CORE,
    OP_STATE,
    OUTPUT_SHAPES,
)
from collector.ops.expression import Expression, align, ceil_div, dims_of
from collector.ops.parts.tensors import cumulative_ends
from collector.ranks.gangs import with_ep_size
from collector.workloads.layout import Layout, check_layout, layout_of, record_it
from collector.workloads.models import Decoder, bundled_name
from collector.workloads.recorded_step import TOKENS_OF_A_KEY
from collector.workloads.serving import Batch, Phase, check_batch
from collector.workloads.step import PAGE, Step, StepCollective, StepKernel, uneven_ends

FORMAT, VERSION = "opmeter deployment", 1
SUFFIX = ".json.gz"
USUAL_RELEASE = "vllm-ascend-0.18"
_FEWEST_PAGES = 16
_OF_WINDOWS = 16  # blocks of a pool for the windows and states of a request
_MOST_EARLIER = 1 << 17  # vLLM-Ascend: latent attention has another launch for more earlier tokens
_SPAN = re.compile(r"(tp|dp|ep)=(\d+)\.\.(\d+)")
_OF_LAYOUT = re.compile(r"\{([^{}]+)\}")
IN_PARTS = " in parts "  # of experts, in a column
# of vLLM's fla/ops; sums take 512 or 1024 tokens, for 8 or 4 heads of a rank
_CHUNKS = {"chunks": 64, "long_chunks": 512, "longer_chunks": 1024, "longest_chunks": 1216}


@dataclass(frozen=True, slots=True)
class Occurrences:
    """How often something is launched in a pass: outside of layers, and per layer of each kind."""

    outside: int
    per_layer: Mapping[str, int]

    def times(self, layers: Mapping[str, int]) -> int:
        """Return the number of launches in a model with so many layers of each kind."""
        return self.outside + sum(n * layers[kind] for kind, n in self.per_layer.items())


@dataclass(frozen=True, slots=True)
class LaunchPattern:
    """A launch of a kernel.

    cells    tensor cells; a size is an expression. Empty where the kernel's tensors are unknown
    columns  further columns: their text, the name of a list of `load_lists`, or a text of
             `group_ends`
    when     an expression: whether the load has the launch
    repeats  an expression: how often, for each of its occurrences"""

    kernel: str
    cells: Mapping[str, str]
    columns: Mapping[str, str]
    when: str
    occurrences: Occurrences
    in_graph: bool
    repeats: str = "1"


@dataclass(frozen=True, slots=True)
class MessagePattern:
    """A collective; `message_bytes` and `when` are expressions."""

    operation: str
    message_bytes: str
    dtype: str
    group_size: int
    when: str
    occurrences: Occurrences
    in_graph: bool


@dataclass(frozen=True, slots=True)
class LoadRange:
    """What passes of a phase launch, from `least` to `most` tokens without padding.

    `loads` are the recorded ones: requests, and of each its new tokens and its tokens in total. In
    mixed passes these are prompts; then follow the decodes, and the tokens of each in total.
    `predicted` as in `serving.Batch`: passes of the model, without the layers that predict."""

    phase: str
    least: int
    most: int
    loads: tuple[tuple[int, ...], ...]
    launches: tuple[LaunchPattern, ...]
    messages: tuple[MessagePattern, ...]
    predicted: int = 0

    def __str__(self) -> str:
        text = f"{self.phase} of {self.least} to {self.most} tokens"
        text += " of one request" if self.is_of_one else ""
        return text + (f" with {self.predicted} predicted" if self.predicted else "")

    def is_of_kind(self, batch: Batch) -> bool:
        """Return whether its passes have the phase and the predicted tokens of a batch."""
        kind = (self.phase, self.predicted)
        return kind == (range_phase(batch), batch.predicted) and not batch.is_draft

    @property
    def is_of_one(self) -> bool:
        """Return whether it was recorded with one prompt or request, as a chunk is."""
        return all(requests == 1 for requests, *_ in self.loads)


@dataclass(frozen=True, slots=True)
class PackagedDeployment:
    """A model in a layout, as a release serves it. Members as in `recorded_step.Recording`.

    graph_sizes  requests to which a decode is padded; empty without graphs"""

    model: str
    config_sha256: str
    layers: Mapping[str, int]
    release: str
    layout: str
    device: str
    environment: Mapping[str, str]
    settings: Mapping[str, Any]
    wheels: Mapping[str, str]
    graph_sizes: tuple[int, ...]
    ranges: tuple[LoadRange, ...]


def write_deployment(deployment: PackagedDeployment | Mapping[str, Any]) -> bytes:
    """Return the bytes of the file of a deployment, or of the content of a family; equal ones give
    equal bytes."""
    content = asdict(deployment) if isinstance(deployment, PackagedDeployment) else deployment
    return gzip.compress(readable_json({"format": FORMAT, "version": VERSION, **content}), mtime=0)


def file_name(model: str, release: str, layout: Layout | str) -> str:
    """Return the name of the file of a deployment or a family."""
    return f"{model}_{release}_{layout}{SUFFIX}"


@cache
def packaged_layouts() -> Mapping[tuple[str, str], tuple[str, ...]]:
    """Return the layouts and families that are part of the package, by model and release."""
    found: dict[tuple[str, str], list[str]] = {}
    for file in sorted(one.name for one in _folder().iterdir()):
        model, release, layout = file.removesuffix(SUFFIX).split("_", 2)
        found.setdefault((model, release), []).append(layout)
    return {key: tuple(layouts) for key, layouts in found.items()}


def packaged_releases() -> tuple[str, ...]:
    """Return the releases of which recordings are part of the package."""
    return tuple(sorted({release for _, release in packaged_layouts()}))


def check_release(release: str) -> None:
    """Raise BadInput for a release of which nothing is recorded."""
    if release not in (known := packaged_releases()):
        raise BadInput(
            f"release {release!r} is not recorded, and cannot be: expected one of "
            f"{', '.join(known)}"
        )


def recorded_layouts(decoder: Decoder, release: str) -> tuple[str, ...]:
    """Return the layouts and families of a model that are part of the package."""
    return packaged_layouts().get((decoder.bundled, release), ())


def find_deployment(model: str, release: str, layout: Layout) -> PackagedDeployment | None:
    """Return the deployment of a layout; None for one that is not in the package."""
    for layouts in packaged_layouts().get((model, release), ()):
        if layout in layouts_in(layouts):
            return _read(file_name(model, release, layouts), layout)
    return None


def layouts_in(layouts: str) -> Iterator[Layout]:
    """Yield the layouts of a file, `tp=2..8` being 2, 4 and 8. Experts use all ranks or one."""
    for parts in product(*(tuple(_sizes(part)) for part in layouts.split(","))):
        one = layout_of(",".join(parts))
        if one.ep in (1, one.tp * one.dp):
            yield one


def _sizes(part: str) -> Iterator[str]:
    if (span := _SPAN.fullmatch(part)) is None:
        yield part
        return
    size = int(span[2])
    while size <= int(span[3]):
        yield f"{span[1]}={size}"
        size *= 2


@cache
def _read(name: str, layout: Layout) -> PackagedDeployment:
    text = gzip.decompress((_folder() / name).read_bytes())
    found = json_object(text, what="a deployment", key=name)
    if (found.pop("format"), found.pop("version")) != (FORMAT, VERSION):
        raise ValueError(f"{name} is no deployment of this version")
    return laid_out(found, layout)


def laid_out(content: Mapping[str, Any], layout: Layout) -> PackagedDeployment:
    """Return the deployment of one layout of a family, or of the only layout of a file."""
    value = _laid_out(content, {"tp": layout.tp, "dp": layout.dp, "ep": layout.ep})
    sizes = content["graph_sizes"]
    if layout.sequence_split:  # the tokens of a graph are divided among the ranks
        sizes = [size for size in sizes if size % layout.tp == 0]
    value |= {"layout": str(layout), "graph_sizes": sizes}
    what = f"{content.get('model')} {layout}"
    return decode_value(PackagedDeployment, value, what="a deployment", key=what)


def _laid_out(value: Any, ranks: Mapping[str, int]) -> Any:
    match value:
        case {"of_layout": str(text)}:
            return Expression(text).value(ranks)
        case dict():
            return {key: _laid_out(one, ranks) for key, one in value.items()}
        case list() | tuple():
            return [_laid_out(one, ranks) for one in value]
        case str() if "{" in value:
            return _OF_LAYOUT.sub(lambda found: str(Expression(found[1]).value(ranks)), value)
    return value


def _folder() -> Any:
    return files("collector") / "data" / "recordings"


def deployed_step(deployment: PackagedDeployment, batch: Batch) -> Step:
    """Return the pass of one rank. Raises BadInput for a load that was not recorded."""
    _check_prompts(batch)
    batch = padded(batch, deployment.graph_sizes)
    chosen, layout = _range(deployment, batch), layout_of(deployment.layout)
    names, lists = load_names(batch, layout.tp), load_lists(batch, layout.tp)
    step = step_of_load(chosen, deployment.layers, names, lists, batch.imbalance)
    ep_size = layout.ep if layout.ep > 1 else None
    kernels = (replace(one, record=with_ep_size(one.record, ep_size)) for one in step.kernels)
    return replace(step, kernels=tuple(kernels))


def step_of_load(
    chosen: LoadRange,
    layers: Mapping[str, int],
    names: Mapping[str, int],
    lists: Mapping[str, tuple[int, ...]],
    imbalance: int = 0,
) -> Step:
    """Return the pass of a load with these numbers and lists; `imbalance` as in `Batch`."""
    kernels = []
    for one in chosen.launches:
        times = one.occurrences.times(layers) if Expression(one.when).value(names) else 0
        times *= Expression(one.repeats).value(names)
        if times and (record := _record(one, names, lists, imbalance)) is not None:
            kernels.append(StepKernel(_layer(one.occurrences), record, times))
    messages = tuple(
        StepCollective(
            *(_layer(one.occurrences), one.operation),
            *(Expression(one.message_bytes).value(names), one.group_size),
            one.occurrences.times(layers),
        )
        for one in chosen.messages
        if Expression(one.when).value(names)
    )
    return Step(tuple(kernels), messages)


def model_step(decoder: Decoder, layout: Layout, batch: Batch, release: str) -> Step:
    """Return the pass of one rank, as the recording of the layout has it.

    Raises BadInput for a layout or a load that is not recorded."""
    check_batch(batch)
    deployment = check_deployment(decoder, layout, release)
    if batch.decodes_alone and decoder.is_latent and layout.quantisation.is_int8:
        raise BadInput(
            f"{decoder.name}, {layout}: {batch} is not recorded, and `opmeter model record` has no "
            "such pass: latent attention in INT8 has another kernel (MLAPO) where a host only "
            "decodes"
        )
    return deployed_step(deployment, batch)


def check_deployment(decoder: Decoder, layout: Layout, release: str) -> PackagedDeployment:
    """Return the deployment of a layout. Raises BadInput for a layout that the model does not
    accept, or that is not part of the package."""
    check_release(release)
    check_layout(decoder, layout)
    if (found := find_deployment(decoder.bundled, release, layout)) is not None:
        return found
    unlike = f" ({decoder.unlike})" if decoder.unlike else ""
    why = f"model {decoder.name!r}{unlike}, {layout}, is not recorded for {release}"
    if known := recorded_layouts(decoder, release):
        why += f": expected one of {'; '.join(known)}"
    elif others := [one for one in packaged_releases() if recorded_layouts(decoder, one)]:
        release = others[-1]
        why += f": expected {release}, with {'; '.join(recorded_layouts(decoder, release))}"
    elif name := bundled_name(decoder.name):
        why += f": its config.json is another one than that of the bundled {name}"
    raise BadInput(f"{why}; {record_it(decoder, layout, release)}")


def _check_prompts(batch: Batch) -> None:
    """Raise BadInput for prompts of as few new tokens as a decode has: an engine replays a graph
    for them, and launches one copy less than for a decode, which was not recorded."""
    if not batch.is_decode and batch.queries <= 1 + batch.predicted:
        raise BadInput(
            f"{batch} is not recorded: expected prompts of at least {2 + batch.predicted} new "
            "tokens: an engine runs shorter ones in the graph of decodes"
        )


def padded(batch: Batch, graph_sizes: Iterable[int]) -> Batch:
    """Return the batch with empty requests up to the next size of a graph, if there is one. A size
    is a number of tokens."""
    if not batch.is_decode or batch.padding:
        return batch
    sizes = (size // batch.queries for size in sorted(graph_sizes) if not size % batch.queries)
    requests = next((one for one in sizes if one >= batch.requests), batch.requests)
    return replace(batch, requests=requests, padding=requests - batch.requests)


def _range(deployment: PackagedDeployment, batch: Batch) -> LoadRange:
    tokens = batch.tokens - batch.padding * batch.queries
    earlier = 0 if batch.is_decode else batch.keys - batch.queries
    most = _MOST_EARLIER // batch.requests // PAGE * PAGE
    for one in deployment.ranges if earlier <= most else ():
        fits = one.least <= tokens <= one.most and (batch.requests == 1 or not one.is_of_one)
        if one.is_of_kind(batch) and fits:
            return one
    recorded = "; ".join(map(str, deployment.ranges))
    if earlier > most:
        recorded = f"at most {most} earlier tokens of each prompt"
    model, layout = Decoder(deployment.model), layout_of(deployment.layout)
    raise BadInput(
        f"{deployment.model}, {deployment.release}, {deployment.layout}: {batch} is not recorded: "
        f"expected {recorded}; {record_it(model, layout, deployment.release, batch)}"
    )


def recorded_load(batch: Batch) -> tuple[int, ...]:
    """Return a batch as `LoadRange.loads` has it."""
    decodes = (batch.mixed_decodes, batch.followed_keys) if batch.mixed_decodes else ()
    return (batch.requests, batch.queries, batch.keys, *decodes)


def batch_of(one: LoadRange, load: Sequence[int]) -> Batch:
    """Return the batch of a recorded load of a range."""
    requests, queries, keys, *decodes = load
    phase = Phase.DECODE if one.phase == Phase.DECODE else Phase.PREFILL
    found = Batch(phase, requests, queries, keys, predicted=one.predicted)
    if decodes:
        found = replace(found, mixed_decodes=decodes[0], followed_keys=decodes[1])
    return found


def range_phase(batch: Batch) -> str:
    """Return the phase of a range: that of the batch, `chunk` of prompts with earlier tokens, or
    `mixed` of prompts, with or without earlier tokens, next to decodes."""
    if batch.mixed_decodes:
        return "mixed"
    is_chunk = not batch.is_decode and batch.keys > batch.queries
    return "chunk" if is_chunk else str(batch.phase)


def _layer(occurrences: Occurrences) -> str:
    return ", ".join(f"{kind} layers" for kind in occurrences.per_layer) or "outside of layers"


def _record(
    pattern: LaunchPattern,
    names: Mapping[str, int],
    lists: Mapping[str, tuple[int, ...]],
    imbalance: int,
) -> CaseRecord | None:
    """Return the record of a launch; None for outputs without elements, which nothing fills."""
    cells = {
        name: sized(text, names) if name.endswith("Shapes") else text
        for name, text in pattern.cells.items()
    }
    written = cells.get(OUTPUT_SHAPES, "").strip('"')
    if not written and pattern.cells.get(OUTPUT_SHAPES, "").strip('"'):
        return None
    columns = {
        name: ",".join(map(str, lists[text]))
        if text in lists
        else row_group_ends(text, names, imbalance)
        for name, text in pattern.columns.items()
    }
    return CaseRecord(pattern.kernel, {OP_STATE: "dynamic", ACCELERATOR_CORE: "", **cells}, columns)


def row_group_ends(text: str, names: Mapping[str, int], imbalance: int = 0) -> str:
    """Return the ends of a number of rows in parts, of a text such as `8 * part in parts 4`.

    Another text is returned as it is; `imbalance` as in `Batch`."""
    rows, is_number, parts = text.partition(IN_PARTS)
    if not is_number:
        return text
    return ",".join(map(str, uneven_ends(Expression(rows).value(names), int(parts), imbalance)))


def sized(text: str, names: Mapping[str, int]) -> str:
    """Return a shape cell with the numbers of its expressions."""
    quote = '"' if text.startswith('"') else ""
    slots = [[size.value(names) for size in dims_of(slot)] for slot in text.strip('"').split(";")]
    shown = ("" if 0 in slot else ",".join(map(str, slot)) for slot in slots)
    return quote + ";".join(shown) + quote


def load_names(batch: Batch, ranks: int) -> Mapping[str, int]:
    """Return the numbers of a pass over `ranks` tensor parallel ranks.

    tokens       new tokens, padded to the size of a graph
    whole        the same, padded to a multiple of the ranks; `part` of them on each rank
    requests     requests, padded; `sampled` tokens have a next token
    empty        requests that pad
    decodes      decodes next to prompts
    earlier      tokens of prompts before those of the pass
    chunks       of 64 new tokens of each request, as linear attention takes them; `long_chunks` of
                 512, `longer_chunks` of 1024 and `longest_chunks` of 1216
    pages        pages of the cache, one of them for tokens that pad; `table_width` of them in the
                 table of a request
    states       states of linear attention
    pool         blocks that kinds of attention share, of which each request has some more for its
                 windows and states"""
    width = ceil_div(batch.most_keys, PAGE)
    requests = batch.requests + batch.mixed_decodes
    pages = requests * width + (align(batch.tokens, ranks) > batch.tokens)
    return {
        "tokens": batch.tokens,
        "whole": align(batch.tokens, ranks),
        "part": ceil_div(batch.tokens, ranks),
        "requests": requests,
        "sampled": batch.sampled,
        "empty": batch.padding,
        "decodes": batch.mixed_decodes,
        "earlier": 0 if batch.is_decode else batch.requests * (batch.keys - batch.queries),
        **{
            name: batch.mixed_decodes + batch.requests * ceil_div(batch.queries, size)
            for name, size in _CHUNKS.items()
        },
        "pages": max(_FEWEST_PAGES, pages),
        "table_width": width,
        "states": max(_FEWEST_PAGES, requests),
        "pool": pages + requests * _OF_WINDOWS,
    }


def load_lists(batch: Batch, ranks: int) -> Mapping[str, tuple[int, ...]]:
    """Return the lists of a pass: of each request its keys, and where its new tokens or its keys
    end among those of all. In those of `whole`, tokens that pad to a multiple of the ranks are one
    more request, with no other keys. In those of keys, every request has a compressed one. Latent
    attention has lists of decodes and of prompts apart, and sparse attention those of the first
    rank, which has the first tokens of all."""
    lengths = tuple(batch.lengths())
    keys = tuple(keys for _, keys in lengths)
    query_ends = cumulative_ends([queries for queries, _ in lengths])
    whole = align(batch.tokens, ranks)
    is_whole, part = whole == batch.tokens, whole // ranks
    prompts = lengths[batch.mixed_decodes :]
    return {
        "query_ends": query_ends,
        "key_lengths": keys,
        "key_ends": cumulative_ends(keys),
        "key_lengths_of_keys": tuple(max(one, TOKENS_OF_A_KEY) for one in keys),
        "query_ends_of_whole": query_ends if is_whole else (*query_ends, whole),
        "key_lengths_of_whole": keys if is_whole else (*keys, whole - batch.tokens),
        "decode_query_ends": query_ends[: batch.mixed_decodes],
        "decode_key_lengths": keys[: batch.mixed_decodes],
        "prompt_query_ends": cumulative_ends([queries for queries, _ in prompts]),
        "prompt_key_lengths": tuple(keys for _, keys in prompts),
        "earlier_ends": cumulative_ends([keys - queries for queries, keys in prompts]),
        "query_ends_of_part": tuple(min(end, part) for end in query_ends),
        "key_lengths_of_part": tuple(
            length - max(0, end - part) if start < part else 0
            for start, end, length in zip((0, *query_ends), query_ends, keys, strict=False)
        ),
    }
