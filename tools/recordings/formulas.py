"""Recordings of several loads as one deployment: each number as an expression of the load.

Launches of different loads are the same one where kernel, dtypes, formats, occurrences and the
number of dimensions agree, in their order. A number is an affine expression of one name of
`deployments.load_names`, alone or in parts of the ranks, and all loads have to agree. At the end
every load is derived again and compared with its recording. Where other expressions or conditions
fit the loads too, and differ in a load of the range, further loads are chosen to record.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import gcd
from typing import Any

from collector.engine.recorded_calls import GROUP_ENDS, PassTokens
from collector.model.vocabulary import INPUT_CELLS, OUTPUT_CELLS, OUTPUT_SHAPES, RUNTIME_PREFIX
from collector.ops.expression import Expression, align
from collector.workloads.call_order import CallKind
from collector.workloads.deployments import (
    IN_PARTS,
    LaunchPattern,
    LoadRange,
    MessagePattern,
    Occurrences,
    PackagedDeployment,
    load_lists,
    load_names,
    padded,
    range_phase,
    recorded_load,
    row_group_ends,
    sized,
    step_of_load,
)
from collector.workloads.layout import Layout, layout_of
from collector.workloads.recorded_step import TOKENS_OF_A_KEY, RecordedPass, Recording
from collector.workloads.serving import Batch, Phase
from collector.workloads.step import PAGE
from tools.recordings.solver import NotSolved, Solver

_CELLS = (*INPUT_CELLS, *OUTPUT_CELLS)
_NUMBER = re.compile(r"\d+")
_BLOCK, _EQUAL = re.compile(r"block \d+, (\d+) times"), " equal"  # layers
_FEWEST_LOADS = 3  # two for an expression, and one to check it
_LISTS = (
    RUNTIME_PREFIX + "actual_seq_lengths_values",
    *(RUNTIME_PREFIX + "actual_seq_lengths_kv_values", GROUP_ENDS),
)


@dataclass(frozen=True, slots=True)
class Constants:
    """Numbers of the engine that recorded: pages of its cache, and of a request's table; states of
    linear attention, 0 without it. They are unlike every other number, so that they are recognised.
    `experts` is the number in a layer, over all ranks. `pool` is the number of blocks that kinds of
    attention share, each with blocks of its own; `pages` is 0 then."""

    pages: int
    table_width: int
    states: int = 0
    experts: int = 0
    pool: int = 0

    @property
    def longest(self) -> int:
        """Return the largest number of tokens of a request."""
        return self.table_width * PAGE * (TOKENS_OF_A_KEY if self.pool else 1)

    def in_blocks(self, settings: Mapping[str, Any]) -> "Constants":
        """Return the numbers where the engine has blocks of several pages, as it chooses them for
        states as large as a block."""
        each = int(settings.get("block_size", PAGE)) // PAGE
        if each == 1 or self.pool:
            return self
        width = align(self.table_width, each)
        return replace(self, pages=self.pages * each, table_width=width, states=self.pages)


@dataclass(frozen=True, slots=True)
class _Launch:
    """A launch of the model, without the layers that predict tokens, and how often it is made."""

    kernel: str
    cells: Mapping[str, str]
    extra: Mapping[str, str]
    in_graph: bool
    occurrences: Occurrences


@dataclass(frozen=True, slots=True)
class _Message:
    operation: str
    message_bytes: int
    dtype: str
    group_size: int
    in_graph: bool
    occurrences: Occurrences


@dataclass(frozen=True, slots=True)
class Solved:
    """A deployment, and loads that tell apart what fits its recordings, for each range; and how
    many conditions, sizes and lists of each range no load tells apart."""

    deployment: PackagedDeployment
    further: Sequence[Sequence[Batch]]
    left: Sequence[int]


@dataclass(frozen=True, slots=True)
class _Load:
    batch: Batch
    unpadded: Batch
    names: Mapping[str, int]
    lists: Mapping[str, tuple[int, ...]]
    launches: tuple[_Launch, ...]
    messages: tuple[_Message, ...]


def solved_deployment(
    recording: Recording,
    layout: str,
    ranges: Sequence[tuple[int, int, Sequence[PassTokens]]],
    constants: Constants,
    predicted: int = 0,
) -> PackagedDeployment:
    """Return the deployment of a recording's passes; each range has its least and most tokens.
    Where tokens are predicted, these are the launches without the layers that predict.

    Raises NotSolved where the loads of a range do not launch the same."""
    spaces = [()] * len(ranges)
    return solved_in_spaces(recording, layout, ranges, constants, spaces, predicted).deployment


def solved_in_spaces(
    recording: Recording,
    layout: str,
    ranges: Sequence[tuple[int, int, Sequence[PassTokens]]],
    constants: Constants,
    spaces: Sequence[Sequence[Batch]],
    predicted: int = 0,
    known: dict[Any, tuple[LoadRange, Sequence[Batch], int]] | None = None,
) -> Solved:
    """Return the deployment as `solved_deployment` does, and what to record further, so that what
    fits is determined in all loads of each range's space. Loads of a space that the engine does not
    run are none of it. Ranges whose loads are as before are `known`."""
    constants = constants.in_blocks(recording.settings)
    is_graph = any(x.in_graph for one in recording.passes for x in one.launches)
    graph_sizes = tuple(recording.settings["graph_sizes"]) if is_graph else ()
    passes = {(p.phase, p.requests, p.queries, p.keys, p.prompts): p for p in recording.passes}
    empty = PackagedDeployment(
        *(recording.model, recording.config_sha256, {}, recording.release, layout),
        *(recording.device, recording.environment, recording.settings, recording.wheels),
        *(graph_sizes, ()),
    )
    ranks, known = layout_of(layout), {} if known is None else known
    solved = []
    for (least, most, tokens), space in zip(ranges, spaces, strict=True):
        key = (tuple(tokens), len(space))
        if key not in known:
            chosen = [passes[p.phase, p.requests, p.queries, p.keys, p.prompts] for p in tokens]
            loads = [_load(one, predicted, graph_sizes, ranks, constants) for one in chosen]
            batches = [padded(one, graph_sizes) for one in space]
            solver = Solver(
                *([one.names for one in loads], [one.lists for one in loads], batches),
                *([_names(one, ranks, constants) for one in batches], ranks.tp),
            )
            one = _range(least, most, loads, solver)
            for load in loads:
                if only := _differences(one, load):
                    raise NotSolved(f"{load.batch}: {'; '.join(only[:6])}")
            if not predicted:  # a block may have layers that predict
                one = _with_layers(one, list(zip(loads, chosen, strict=True)))
            known[key] = (one, *solver.further())
        solved.append(known[key])
    found, further, left = zip(*solved, strict=True)
    occurrences = [x.occurrences for one in found for x in one.launches]
    occurrences += [x.occurrences for one in found for x in one.messages]
    kinds = sorted({kind for one in occurrences for kind in one.per_layer})
    layers = {kind: int(kind.removesuffix(_EQUAL)) for kind in kinds}
    return Solved(replace(empty, layers=layers, ranges=tuple(found)), further, left)


def _with_layers(one: LoadRange, recorded: Sequence[tuple[_Load, RecordedPass]]) -> LoadRange:
    """Return a range whose launches occur in each of a number of equal layers, where the first load
    that has a launch has it in a block of calls that repeats, and has no other launch like it."""
    patterns: list[LaunchPattern | MessagePattern] = [*one.launches, *one.messages]
    left = {
        at for at, x in enumerate(patterns) if isinstance(x, MessagePattern) or x.repeats == "1"
    }
    found = [one.occurrences for one in patterns]
    for load, passed in recorded:
        there = [at for at in left if Expression(patterns[at].when).value(load.names)]
        shown = {at: _called(patterns[at], load) for at in there}
        alike, places = Counter(shown.values()), passed.places()
        blocks = defaultdict[str, Counter[str]](Counter)
        for at, launch in enumerate(passed.launches):
            key = f"{launch.kernel} {sorted(launch.cells.items())}"
            blocks[key].update(places.get((CallKind.LAUNCH, at), {}))
        for at, sent in enumerate(passed.messages):
            key = f"{sent.operation} {sent.message_bytes}"
            blocks[key].update(places.get((CallKind.MESSAGE, at), {}))
        for at, key in shown.items():
            if alike[key] == 1 and blocks[key].total() == found[at].outside:
                found[at] = _in_layers(blocks[key])
                left.remove(at)
    new = iter(found)
    launches = tuple(replace(x, occurrences=next(new)) for x in one.launches)
    messages = tuple(replace(x, occurrences=next(new)) for x in one.messages)
    return replace(one, launches=launches, messages=messages)


def _called(pattern: LaunchPattern | MessagePattern, load: _Load) -> str:
    """Return what a pattern launches in a load."""
    if isinstance(pattern, MessagePattern):
        return f"{pattern.operation} {Expression(pattern.message_bytes).value(load.names)}"
    return f"{pattern.kernel} {sorted(_shown(pattern.cells, load).items())}"


def _in_layers(places: Mapping[str, int]) -> Occurrences:
    """Return how often something is launched, of the places where it is."""
    outside, per_layer = 0, Counter[str]()
    for place, times in places.items():
        block = _BLOCK.fullmatch(place)
        if block is None or times % int(block[1]):
            outside += times
        else:
            per_layer[f"{block[1]}{_EQUAL}"] += times // int(block[1])
    return Occurrences(outside, dict(per_layer))


def _names(batch: Batch, ranks: Layout, constants: Constants) -> Mapping[str, int]:
    return dict(load_names(batch, ranks.tp)) | asdict(constants) | {"expert_ranks": ranks.ep}


def _load(
    found: RecordedPass,
    predicted: int,
    graph_sizes: Sequence[int],
    ranks: Layout,
    constants: Constants,
) -> _Load:
    unpadded = replace(_batch(found), predicted=predicted)
    batch = padded(unpadded, graph_sizes)
    names = _names(batch, ranks, constants)
    counts = _of_model(found)
    launches = (
        _Launch(one.kernel, one.cells, one.extra, one.in_graph, Occurrences(times, {}))
        for at, one in enumerate(found.launches)
        if (times := counts[CallKind.LAUNCH, at])
    )
    messages = (
        _Message(
            *(one.operation, one.message_bytes, one.dtype, one.group_size, one.in_graph),
            Occurrences(times, {}),
        )
        for at, one in enumerate(found.messages)
        if (times := counts[CallKind.MESSAGE, at])
    )
    lists = load_lists(batch, ranks.tp)
    return _Load(batch, unpadded, names, lists, tuple(launches), tuple(messages))


def _of_model(found: RecordedPass) -> Counter[tuple[CallKind, int]]:
    """Return how often the calls of a pass are made, without those that predict tokens."""
    counts, is_draft = Counter[tuple[CallKind, int]](), False
    for call in found.order.calls:
        if call.kind in (CallKind.DRAFT, CallKind.DRAFT_END):
            is_draft = call.kind is CallKind.DRAFT
        counts[call.kind, call.subject] += not is_draft
    return counts


def _batch(found: RecordedPass) -> Batch:
    prompts = found.prompts
    if prompts is None:
        return Batch(Phase(found.phase), found.requests, found.queries, found.keys)
    return Batch(
        *(Phase.PREFILL, prompts.requests, prompts.queries, prompts.keys),
        mixed_decodes=found.requests,
        followed_keys=found.keys,
    )


def _range(least: int, most: int, loads: Sequence[_Load], solver: Solver) -> LoadRange:
    phase = range_phase(loads[0].batch)
    if len(loads) < _FEWEST_LOADS:
        raise NotSolved(f"{phase}: expected at least {_FEWEST_LOADS} loads, got {len(loads)}")
    loads, repeated = _without_repeated(loads, solver)
    launches = [
        pattern
        for columns in _by_signature([load.launches for load in loads])
        for pattern in _launches(columns, loads, solver)
    ]
    messages = list(_messages(loads, solver))
    sizes = tuple(recorded_load(one.unpadded) for one in loads)
    patterns = (*_joined(launches), *repeated)
    predicted = loads[0].batch.predicted
    return LoadRange(phase, least, most, sizes, patterns, tuple(messages), predicted)


def _by_signature(
    launches: Sequence[Sequence[_Launch]],
) -> Iterable[Sequence[Sequence[_Launch]]]:
    """Return the launches of each load as columns, for each signature.

    Equal calls are one launch with a number of occurrences, and calls of several sizes are equal in
    a load that does not pad. Where the numbers of launches differ between loads, a launch that
    occurs twice as often as another one could is two."""
    counts = [Counter(map(_signature, one)) for one in launches]
    known = {signature for one in counts for signature in one}
    uneven = {one for one in known if len({count[one] for count in counts}) > 1}
    units: dict[str, int] = {}
    for launch in (one for column in launches for one in column):
        if _signature(launch) in uneven:
            kind = _kind(launch)
            units[kind] = gcd(units.get(kind, 0), launch.occurrences.outside)
    found = defaultdict[str, list[list[_Launch]]](lambda: [[] for _ in launches])
    for at, column in enumerate(launches):
        for launch in column:
            unit = units.get(_kind(launch)) if _signature(launch) in uneven else None
            each = _parts(launch, unit or launch.occurrences.outside)
            found[_signature(each[0])][at].extend(each)
    return found.values()


def _parts(launch: _Launch, times: int) -> Sequence[_Launch]:
    """Return equal launches that each occur so often."""
    each = replace(launch, occurrences=Occurrences(times, {}))
    return [each] * (launch.occurrences.outside // times)


def _joined(launches: Iterable[LaunchPattern]) -> Iterator[LaunchPattern]:
    """Yield patterns; equal ones are one that occurs as often as they do together."""
    found: dict[str, LaunchPattern] = {}
    for one in launches:
        key = repr(one)
        if (known := found.get(key)) is not None:
            both = Counter(known.occurrences.per_layer) + Counter(one.occurrences.per_layer)
            outside = known.occurrences.outside + one.occurrences.outside
            found[key] = replace(one, occurrences=Occurrences(outside, dict(both)))
        else:
            found[key] = one
    yield from found.values()


def _without_repeated(
    loads: Sequence[_Load], solver: Solver
) -> tuple[Sequence[_Load], list[LaunchPattern]]:
    """Return the loads without launches on single numbers whose count follows from the load, such
    as one for each request, and the patterns of these launches."""
    totals = [Counter[str]() for _ in loads]
    shown: dict[str, _Launch] = {}
    for total, load in zip(totals, loads, strict=True):
        for one in filter(_is_scalar, load.launches):
            key = _identity(one)
            total[key] += one.occurrences.outside
            shown.setdefault(key, one)
    found = {}
    for key, one in shown.items():
        counts = [total[key] for total in totals]
        if all(counts) and len(set(counts)) > 1:
            repeats = solver.number(counts, range(len(loads)), f"launches of {one.kernel}")
            once = replace(one.occurrences, outside=1)
            found[key] = LaunchPattern(
                *(one.kernel, one.cells, one.extra, "1", once, one.in_graph, repeats)
            )
    left = [_without(load, found) for load in loads]
    return left, list(found.values())


def _without(load: _Load, repeated: Collection[str]) -> _Load:
    """Return the load without these launches on single numbers, by their identities."""
    launches = tuple(
        one for one in load.launches if not (_is_scalar(one) and _identity(one) in repeated)
    )
    return replace(load, launches=launches)


def _identity(launch: _Launch) -> str:
    return repr((launch.kernel, launch.cells, launch.extra, launch.in_graph))


def _is_scalar(launch: _Launch) -> bool:
    """Return whether a launch writes a single number, and is outside of layers."""
    shapes = [text for name, text in launch.cells.items() if name.endswith("Shapes")]
    is_single = bool(shapes) and not launch.cells.get(OUTPUT_SHAPES, "?").strip('";')
    return is_single and not launch.occurrences.per_layer and not "".join(shapes).strip('";1')


def _signature(launch: _Launch) -> str:
    """Return what does not depend on the load, and how often a launch is made."""
    return f"{_kind(launch)} {launch.occurrences.outside}"


def _kind(launch: _Launch) -> str:
    cells = {
        name: [slot.count(",") + bool(slot) for slot in text.strip('"').split(";")]
        if name.endswith("Shapes")
        else text
        for name, text in launch.cells.items()
    }
    columns = {name: text for name, text in launch.extra.items() if name not in _LISTS}
    return repr((launch.kernel, cells, columns, launch.in_graph))


def _launches(
    columns: Sequence[Sequence[_Launch]], loads: Sequence[_Load], solver: Solver
) -> Iterator[LaunchPattern]:
    """Yield the launches of one signature, of which each load has a column. What the loads with the
    most launches do not explain in the others is solved on its own: a launch that is twice in a
    layer of some loads and once in others has another signature there."""
    most = max(map(len, columns))
    whole = [at for at, one in enumerate(columns) if len(one) == most]
    left = [[] if at in whole else list(column) for at, column in enumerate(columns)]
    for number in range(most):
        same = [columns[at][number] for at in whole]
        first = same[0]
        what = f"{first.kernel} {first.cells.get('Input Shapes', '')}"
        if not solver.has_space:
            _check_sizes(first, [loads[at] for at in whole], what)
        with solver.sizes() as sizes:
            cells = {
                name: _shapes([one.cells[name] for one in same], whole, solver, what)
                if name.endswith("Shapes")
                else text
                for name, text in first.cells.items()
            }
            extra = {name: text for name, text in first.extra.items() if name not in _LISTS}
            for name in _LISTS:
                texts = [(one.extra[name], at) for one, at in zip(same, whole, strict=True)
                         if name in one.extra]  # fmt: skip
                if texts and name == GROUP_ENDS:
                    extra[name] = _group_ends(texts, solver, f"{what}: {name}")
                elif texts:
                    extra[name] = solver.list_name(texts, f"{what}: {name}")
            is_there = [
                at in whole or _is_taken(_shown(cells, load), left[at])
                for at, load in enumerate(loads)
            ]
            if not all(
                there or _is_empty(cells, load) for there, load in zip(is_there, loads, strict=True)
            ):
                sizes.when = solver.condition(is_there, what)
            sizes.written = cells.get(OUTPUT_SHAPES, "")
        yield LaunchPattern(
            *(first.kernel, cells, extra, sizes.when, first.occurrences, first.in_graph)
        )
    if any(left):
        yield from _launches(left, loads, solver)


def _check_sizes(launch: _Launch, loads: Sequence[_Load], what: str) -> None:
    """Raise NotSolved for a launch of loads with equal tokens that has a size of them: these loads
    do not tell it from a constant. One token for each rank is a constant of the layout."""
    shapes = ";".join(text for name, text in launch.cells.items() if name.endswith("Shapes"))
    columns = ({load.names[name] for load in loads} for name in ("tokens", "whole", "sampled"))
    sizes = {size for column in columns if len(column) == 1 for size in column} - {1}
    if all(load.names["part"] == 1 for load in loads):
        sizes -= {loads[0].names["whole"]}
    if not sizes.isdisjoint(map(int, _NUMBER.findall(shapes))):
        batches = "; ".join(str(load.batch) for load in loads)
        raise NotSolved(f"{what}: launched by {batches} only; expected a further such load")


def _is_taken(cells: Mapping[str, str], left: list[_Launch]) -> bool:
    """Return whether a launch with these cells was left, and take it."""
    at = next((at for at, one in enumerate(left) if one.cells == cells), None)
    if at is not None:
        del left[at]
    return at is not None


def _shown(cells: Mapping[str, str], load: _Load) -> Mapping[str, str]:
    return {
        name: sized(text, load.names) if name.endswith("Shapes") else text
        for name, text in cells.items()
    }


def _is_empty(cells: Mapping[str, str], load: _Load) -> bool:
    """Return whether a launch has no output in a load, so that nothing is launched."""
    return not _shown(cells, load).get(OUTPUT_SHAPES, "?").strip('"')


def _shapes(texts: Sequence[str], at: Sequence[int], solver: Solver, what: str) -> str:
    quote = '"' if texts[0].startswith('"') else ""
    split = [[slot.split(",") for slot in text.strip('"').split(";")] for text in texts]
    slots = []
    for slot, sizes in enumerate(split[0]):
        found = [
            solver.number([int(one[slot][place]) for one in split], at, what)
            for place, size in enumerate(sizes)
            if size
        ]
        slots.append(",".join(found))
    return quote + ";".join(slots) + quote


def _group_ends(texts: Sequence[tuple[str, int]], solver: Solver, what: str) -> str:
    """Return the text of the ends of the rows of experts, which get equal parts."""
    ends = [[*map(int, text.split(","))] for text, _ in texts]
    rows = solver.number([one[-1] for one in ends], [at for _, at in texts], what)
    found = f"{rows}{IN_PARTS}{len(ends[0])}"
    for one, (_, at) in zip(ends, texts, strict=True):
        if row_group_ends(found, solver.names[at]) != ",".join(map(str, one)):
            raise NotSolved(f"{what}: rows of experts are no equal parts: {one[:8]}")
    return found


def _messages(loads: Sequence[_Load], solver: Solver) -> Iterator[MessagePattern]:
    by_signature: defaultdict[str, list[list[int]]] = defaultdict(lambda: [[] for _ in loads])
    first: dict[str, _Message] = {}
    for at, load in enumerate(loads):
        for one in load.messages:
            where = (one.occurrences.outside, one.occurrences.per_layer, one.in_graph)
            key = repr((one.operation, one.dtype, one.group_size, where))
            first.setdefault(key, one)
            by_signature[key][at].append(one.message_bytes)
    for key, columns in by_signature.items():
        one, most = first[key], max(map(len, columns))
        whole = [at for at, sizes in enumerate(columns) if len(sizes) == most]
        when = "1"
        if len(whole) < len(loads):
            when = solver.condition([at in whole for at in range(len(loads))], one.operation)
        for number in range(most):
            values = [columns[at][number] for at in whole]
            with solver.sizes() as sizes:
                sizes.when = when
                size = solver.number(values, whole, f"{one.operation} over {one.group_size} ranks")
            yield MessagePattern(
                *(one.operation, size, one.dtype, one.group_size, when, one.occurrences),
                one.in_graph,
            )


def differences(
    deployment: PackagedDeployment,
    found: RecordedPass,
    constants: Constants,
    predicted: int = 0,
) -> list[str]:
    """Return what a recorded pass launches and a deployment does not, and the other way round."""
    constants = constants.in_blocks(deployment.settings)
    ranks = layout_of(deployment.layout)
    load = _load(found, predicted, deployment.graph_sizes, ranks, constants)
    tokens = _batch(found).tokens
    (one,) = (
        one
        for one in deployment.ranges
        if one.is_of_kind(load.batch) and one.least <= tokens <= one.most
    )
    return _differences(one, load, deployment.layers)


def _differences(one: LoadRange, load: _Load, layers: Mapping[str, int] | None = None) -> list[str]:
    recorded, derived = Counter[str](), Counter[str]()
    for launch in load.launches:
        text = f"{launch.kernel} {sorted(launch.cells.items())}"
        recorded[text] += launch.occurrences.outside
    for message in load.messages:
        text = f"{message.operation} {message.message_bytes}"
        recorded[text] += message.occurrences.outside
    step = step_of_load(one, layers or {}, load.names, load.lists)
    for kernel in step.kernels:
        cells = sorted(cell for cell in kernel.record.cells.items() if cell[0] in _CELLS)
        derived[f"{kernel.record.kernel_type} {cells}"] += kernel.times
    for sent in step.collectives:
        derived[f"{sent.operation} {sent.message_bytes}"] += sent.times
    only = [f"recorded {n} {case}" for case, n in (recorded - derived).items()]
    return only + [f"derived {n} {case}" for case, n in (derived - recorded).items()]
