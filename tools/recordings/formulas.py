"""Recordings of several loads as one deployment: each number as an expression of the load.

Launches of different loads are the same one where kernel, dtypes, formats, occurrences and the
number of dimensions agree, in their order. A number is an affine expression of one name of
`deployments.load_names`, alone or in parts of the ranks, and all loads have to agree. At the end
every load is derived again and compared with its recording.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from itertools import combinations
from math import gcd
from typing import Any

from collector.codec.errors import OpmeterError
from collector.model.vocabulary import INPUT_CELLS, OUTPUT_CELLS, OUTPUT_SHAPES, RUNTIME_PREFIX
from collector.ops.expression import Expression, align
from collector.recording.recorded_calls import GROUP_ENDS, PassTokens
from collector.shapes.call_order import CallKind
from collector.shapes.deployments import (
    IN_PARTS,
    LaunchPattern,
    LoadRange,
    MessagePattern,
    Occurrences,
    PackagedDeployment,
    group_ends,
    load_lists,
    load_names,
    padded,
    range_phase,
    recorded_load,
    sized,
    step_of_load,
)
from collector.shapes.layout import Layout, layout_of
from collector.shapes.recorded_step import TOKENS_OF_A_KEY, RecordedPass, Recording
from collector.shapes.serving import Batch, Phase
from collector.shapes.step import PAGE

_CELLS = (*INPUT_CELLS, *OUTPUT_CELLS)
_NUMBER = re.compile(r"\d+")
_MOST_CHOICES = 64  # of a token among experts
_FEWEST_LOADS = 3  # two for an expression, and one to check it
_LISTS = (
    RUNTIME_PREFIX + "actual_seq_lengths_values",
    *(RUNTIME_PREFIX + "actual_seq_lengths_kv_values", GROUP_ENDS),
)
_CONDITIONS = (
    *("sampled > 1", "sampled < 2", "tokens > 1", "empty > 0", "empty < 1"),
    *("whole > tokens", "whole == tokens", "part > 1", "part < 2", "earlier > 0", "earlier < 1"),
    *("whole - tokens > 1", "whole - tokens == 1", "decodes > 1"),
    *("chunks > 1", "chunks < 2", "chunks - decodes > 1", "chunks - decodes < 2"),
    *("tokens > 1024", "tokens < 1025", "part > 1024", "part < 1025"),  # batch_matmul_transpose
    # a scalar is copied to one element, or broadcast
    *("empty > 1", "empty == 1", "empty < 1 or empty > 1", "sampled < 2 or empty == 1"),
    # truth values are spread over several elements, at one or two places
    *("whole - tokens < 2", "empty < 2", "sampled > 1 and empty > 1"),
    *("(sampled > 1) + (empty > 1) == 1", "sampled > 1 or empty > 1"),
    # a tensor of one request has another format, or is no copy; prompts may pad to the ranks
    *("requests - decodes < 2", "requests - decodes > 1"),
    *(
        condition.format(requests)
        for requests in ("sampled", "requests - decodes")
        for condition in (
            *("{} < 2 and whole > tokens", "{} > 1 and whole > tokens"),
            *("{} < 2 and whole == tokens", "{} > 1 or whole > tokens"),
        )
    ),
    # as for empty requests, where decodes are not padded to the ranks
    *("whole - sampled > 1", "sampled < 2 or whole - sampled == 1"),
    # truth values of requests, and of tokens that pad them to the ranks
    "sampled > 1 and whole - sampled > 1",
    # states are cleared of new prompts, and of tokens that pad to the ranks
    "earlier < 1 or whole > tokens",
)
_KEYS = "min(tokens, tokens // {} + requests)"
_KEYS_OF_PROMPTS = "min(tokens - decodes, (tokens - decodes) // {} + requests - decodes)"
_TERMS = (
    *("tokens", "whole", "part", "sampled", "requests", "empty", "whole - tokens"),
    *("requests + (whole > tokens)", "whole - sampled", "decodes", "earlier"),
    *("tokens - decodes", "requests - decodes", "requests - empty"),
    *("requests - decodes + (whole > tokens)", "whole - decodes"),
    # states of new prompts, and of the tokens that pad to the ranks
    "(earlier < 1) * (requests - decodes) + (whole > tokens)",
    # rows for keys that are made of 4 and of 128 tokens
    *(_KEYS.format(4), _KEYS.format(128), _KEYS_OF_PROMPTS.format(4), _KEYS_OF_PROMPTS.format(128)),
)
# Columns of the tables of kinds of attention: blocks of 128 keys of 4 and of 128 tokens, of 128
# tokens, and of 32 and 8 tokens. A request of the engine may have four times the tokens of a load,
# so that the first table has a column for each page.
_WIDTHS = (
    *("table_width", "ceil_div(table_width, 32)", "4 * table_width"),
    *("16 * table_width", "64 * table_width"),
)
_OF_ALL = ("chunks", "long_chunks", "longer_chunks", "longest_chunks")
_CHUNKS = (*_OF_ALL, *(f"{chunks} - decodes" for chunks in _OF_ALL))  # whose multiples are sizes


class NotSolved(OpmeterError):
    """A number follows from no expression of the load."""


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
    constants = constants.in_blocks(recording.settings)
    is_graph = any(x.in_graph for one in recording.passes for x in one.launches)
    graph_sizes = tuple(recording.settings["graph_sizes"]) if is_graph else ()
    passes = {(p.phase, p.requests, p.queries, p.keys, p.prompts): p for p in recording.passes}
    empty = PackagedDeployment(
        *(recording.model, recording.config_sha256, {}, recording.release, layout),
        *(recording.device, recording.environment, recording.settings, recording.wheels),
        *(graph_sizes, ()),
    )
    found, ranks = [], layout_of(layout)
    for least, most, tokens in ranges:
        chosen = [passes[p.phase, p.requests, p.queries, p.keys, p.prompts] for p in tokens]
        loads = [_load(one, predicted, graph_sizes, ranks, constants) for one in chosen]
        one = _range(least, most, loads)
        found.append(one)
        for load in loads:
            if only := _differences(one, load):
                raise NotSolved(f"{load.batch}: {'; '.join(only[:6])}")
    return replace(empty, ranges=tuple(found))


def _load(
    found: RecordedPass,
    predicted: int,
    graph_sizes: Sequence[int],
    ranks: Layout,
    constants: Constants,
) -> _Load:
    unpadded = replace(_batch(found), predicted=predicted)
    batch = padded(unpadded, graph_sizes)
    names = dict(load_names(batch, ranks.tp)) | asdict(constants) | {"expert_ranks": ranks.ep}
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


def _range(least: int, most: int, loads: Sequence[_Load]) -> LoadRange:
    phase = range_phase(loads[0].batch)
    if len(loads) < _FEWEST_LOADS:
        raise NotSolved(f"{phase}: expected at least {_FEWEST_LOADS} loads, got {len(loads)}")
    loads, repeated = _without_repeated(loads)
    launches = [
        pattern
        for columns in _by_signature([load.launches for load in loads])
        for pattern in _launches(columns, loads)
    ]
    messages = list(_messages(loads))
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


def _without_repeated(loads: Sequence[_Load]) -> tuple[Sequence[_Load], list[LaunchPattern]]:
    """Return the loads without launches on single numbers whose count follows from the load, such
    as one for each request, and the patterns of these launches."""
    totals = [Counter[str]() for _ in loads]
    shown: dict[str, _Launch] = {}
    for total, load in zip(totals, loads, strict=True):
        for one in filter(_is_scalar, load.launches):
            key = _identity(one)
            total[key] += one.occurrences.outside
            shown.setdefault(key, one)
    names = [load.names for load in loads]
    found = {}
    for key, one in shown.items():
        counts = [total[key] for total in totals]
        if all(counts) and len(set(counts)) > 1:
            repeats = solve(counts, names, f"launches of {one.kernel}")
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
    columns: Sequence[Sequence[_Launch]], loads: Sequence[_Load]
) -> Iterator[LaunchPattern]:
    """Yield the launches of one signature, of which each load has a column. What the loads with the
    most launches do not explain in the others is solved on its own: a launch that is twice in a
    layer of some loads and once in others has another signature there."""
    most = max(map(len, columns))
    whole = [at for at, one in enumerate(columns) if len(one) == most]
    left = [[] if at in whole else list(column) for at, column in enumerate(columns)]
    for number in range(most):
        same = [columns[at][number] for at in whole]
        names = [loads[at].names for at in whole]
        first = same[0]
        what = f"{first.kernel} {first.cells.get('Input Shapes', '')}"
        _check_sizes(first, [loads[at] for at in whole], what)
        cells = {
            name: _shapes([one.cells[name] for one in same], names, what)
            if name.endswith("Shapes")
            else text
            for name, text in first.cells.items()
        }
        extra = {name: text for name, text in first.extra.items() if name not in _LISTS}
        for name in _LISTS:
            texts = [(one.extra[name], loads[at]) for one, at in zip(same, whole, strict=True)
                     if name in one.extra]  # fmt: skip
            if texts:
                solved = _group_ends if name == GROUP_ENDS else _list
                extra[name] = solved(texts, f"{what}: {name}")
        is_there = [
            at in whole or _is_taken(_shown(cells, load), left[at]) for at, load in enumerate(loads)
        ]
        when = "1"
        if not all(
            there or _is_empty(cells, load) for there, load in zip(is_there, loads, strict=True)
        ):
            when = _condition(is_there, loads, what)
        yield LaunchPattern(first.kernel, cells, extra, when, first.occurrences, first.in_graph)
    if any(left):
        yield from _launches(left, loads)


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


def _condition(is_there: Sequence[bool], loads: Sequence[_Load], what: str) -> str:
    for text in _CONDITIONS:
        if [bool(Expression(text).value(load.names)) for load in loads] == list(is_there):
            return text
    lacks = [str(load.batch) for load, there in zip(loads, is_there, strict=True) if not there]
    raise NotSolved(f"{what}: not launched by {'; '.join(lacks)}")


def _shapes(texts: Sequence[str], names: Sequence[Mapping[str, int]], what: str) -> str:
    quote = '"' if texts[0].startswith('"') else ""
    split = [[slot.split(",") for slot in text.strip('"').split(";")] for text in texts]
    slots = []
    for at, slot in enumerate(split[0]):
        sizes = [
            solve([int(one[at][place]) for one in split], names, what)
            for place, size in enumerate(slot)
            if size
        ]
        slots.append(",".join(sizes))
    return quote + ";".join(slots) + quote


def solve(values: Sequence[int], names: Sequence[Mapping[str, int]], what: str) -> str:
    """Return the expression that has these values, with the names of each load.

    A constant that is a multiple of the pages or states is one of them. Raises NotSolved without
    an expression."""
    if len(set(values)) == 1:
        number = values[0]
        for name in ("pages", "states", "pool"):
            if number and (unit := names[0].get(name)) and number % unit == 0:
                return _times(number // unit, name)
        widths = _WIDTHS if names[0].get("pool") else _WIDTHS[:1]
        is_width = (text for text in widths if Expression(text).value(names[0]) == number)
        return next(is_width, str(number))
    best: tuple[bool, bool, int, str] | None = None
    for order, term in enumerate((*_TERMS, *_CHUNKS)):
        terms = [Expression(term).value(one) for one in names]
        if (found := _affine(terms, values)) is None:
            continue
        factor, offset = found
        if offset and term in _CHUNKS:
            continue
        text = f"{offset} + {_times(factor, term)}" if offset else _times(factor, term)
        is_multiple = not offset and factor != 1
        best = min(filter(None, (best, (bool(offset), is_multiple, order, text))))
    if best is not None:
        return best[-1]
    if (rows := _rows_of_first_rank(values, names)) is not None:
        return rows
    raise NotSolved(f"{what}: no expression has the values {values}")


def _rows_of_first_rank(values: Sequence[int], names: Sequence[Mapping[str, int]]) -> str | None:
    """Return a multiple of the rows that the first rank gets for its experts. Every rank sends its
    choices in equal parts to all experts, and what is left to the first ones."""
    experts, ranks = names[0].get("experts", 0), names[0].get("expert_ranks", 1)
    if not experts or experts % ranks:
        return None
    held = experts // ranks
    for choices in range(1, _MOST_CHOICES + 1):
        sent = f"{choices} * part"
        text = f"{ranks} * ({held} * ({sent} // {experts}) + min({held}, {sent} % {experts}))"
        rows = [Expression(text).value(one) for one in names]
        sizes = {Fraction(value, row) for value, row in zip(values, rows, strict=True)}
        if len(sizes) == 1 and (size := sizes.pop()).denominator == 1:
            return text if size == 1 else f"{size} * ({text})"
    return None


def _times(factor: int, term: str) -> str:
    if factor == 1:
        return term
    return f"{factor} * {term if term.isidentifier() else f'({term})'}"


def _affine(terms: Sequence[int], values: Sequence[int]) -> tuple[int, int] | None:
    """Return factor and offset of an affine function; None if there is none."""
    for (x, v), (y, w) in combinations(zip(terms, values, strict=True), 2):
        if x == y:
            continue
        factor, rest = divmod(w - v, y - x)
        offset = v - factor * x
        is_same = all(factor * t + offset == n for t, n in zip(terms, values, strict=True))
        return (factor, offset) if not rest and factor and is_same else None
    return None


def _list(texts: Sequence[tuple[str, _Load]], what: str) -> str:
    """Return the name of the list, of an equal one first."""
    for may_pad in (False, True):
        for name in texts[0][1].lists:
            if all(_is_list(text.split(","), load.lists[name], may_pad) for text, load in texts):
                return name
    raise NotSolved(f"{what}: unknown list {texts[0][0][:80]}")


def _group_ends(texts: Sequence[tuple[str, _Load]], what: str) -> str:
    """Return the text of the ends of the rows of experts, which get equal parts."""
    ends = [[*map(int, text.split(","))] for text, _ in texts]
    rows = solve([one[-1] for one in ends], [load.names for _, load in texts], what)
    found = f"{rows}{IN_PARTS}{len(ends[0])}"
    for one, (_, load) in zip(ends, texts, strict=True):
        if group_ends(found, load.names) != ",".join(map(str, one)):
            raise NotSolved(f"{what}: rows of experts are no equal parts: {one[:8]}")
    return found


def _is_list(recorded: Sequence[str], derived: Sequence[int], may_pad: bool) -> bool:
    """Return whether lists agree; requests that pad may be recorded with 0 keys."""
    pairs = zip(recorded, map(str, derived), strict=False)
    return len(recorded) == len(derived) and all(
        one == other or (may_pad and one == "0") for one, other in pairs
    )


def _messages(loads: Sequence[_Load]) -> Iterator[MessagePattern]:
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
        names = [loads[at].names for at in whole]
        when = "1"
        if len(whole) < len(loads):
            when = _condition([at in whole for at in range(len(loads))], loads, one.operation)
        for number in range(most):
            values = [columns[at][number] for at in whole]
            size = solve(values, names, f"{one.operation} over {one.group_size} ranks")
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
