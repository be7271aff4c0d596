"""`sources` of a campaign file: the kinds of sources of its cases."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from collector.codec.document import Entry, Fields
from collector.codec.errors import BadInput
from collector.codec.text import whole_in_one_line
from collector.model.record import CaseRecord
from collector.ranks import collective
from collector.ranks.topology import Grid
from collector.workloads.deployments import USUAL_RELEASE, check_deployment, check_release
from collector.workloads.layout import (
    NZ_SETTINGS,
    ExpertLaunch,
    Layout,
    Quantisation,
    layout_of,
)
from collector.workloads.models import Decoder, bundled_decoder, unknown_model
from collector.workloads.serving import Phase, Serving

# `collectives` of a campaign's sources: operations over ranks, by sizes and groups, or those of a
# profile's step.

AUTO = "auto"  # the mode that is closest to production, by operation and size
_COLLECTIVES_KEYS = (
    *("operations", "bytes", "max_bytes", "dtype", "groups", "ranks", "grid", "tiers"),
    *("mode", "environment"),
)
_A3, _DTYPE = Grid((48, 8, 2)), "bfloat16"
_SIZE = re.compile(r"[a-z]+|[1-9][0-9]{0,12}")


@dataclass(frozen=True, slots=True)
class CollectivesSource:
    """All combinations of operations, sizes and groups.

    `ranks` are started at once; a tier with several groups among them is measured with one group
    alone, and with all at once."""

    operations: tuple[str, ...]
    sizes: tuple[str, ...]  # bytes, or names of size grids
    max_bytes: int | None
    dtype: str
    groups: tuple[int, ...]
    ranks: int
    grid: Grid
    tiers: tuple[int, ...]  # empty: the tier of the nearest ranks
    mode: str
    environment: str


@dataclass(frozen=True, slots=True)
class StepCollectives:
    """Data about a profile's collectives that the profile lacks, and how to measure them.

    They are the arrangement of the ranks, the dtype if its trace has none, and the number of ranks
    with experts."""

    grid: Grid
    dtype: str = "bfloat16"
    mode: str = AUTO
    environment: str = ""
    ep_size: int | None = None


def read_step_collectives(entry: Entry) -> StepCollectives:
    """Return the settings of a profile's collectives.

    Raises BadInput, with the line, for invalid ones."""
    found = entry.fields(("grid", "dtype", "mode", "environment", "ep_size"))
    return StepCollectives(
        grid=found.read("grid", _grid, _A3),
        dtype=found.read("dtype", _dtype, _DTYPE),
        mode=found.read("mode", _mode, AUTO),
        environment=found.read("environment", _environment, ""),
        ep_size=found.read("ep_size", lambda entry: entry.integer(2), None),
    )


def read_collectives(entry: Entry) -> CollectivesSource:
    """Return the source of a mapping. Raises BadInput, with the line, for an invalid one."""
    found = entry.fields(_COLLECTIVES_KEYS, required=("groups",))
    groups = tuple(item.integer(2) for item in found["groups"].items())
    ranks = found.read("ranks", lambda entry: entry.integer(2), max(groups))
    grid = found.read("grid", _grid, _A3)
    if ranks > grid.size:
        raise entry.refusal(f"expected at most {grid.size} ranks for the grid {grid}, got {ranks}")
    if ranks < max(groups):
        raise found["ranks"].refusal(f"expected groups of at most {ranks} ranks, got {max(groups)}")
    return CollectivesSource(
        operations=found.read("operations", _operations, tuple(collective.OPERATIONS)),
        sizes=found.read("bytes", _sizes, ("full",)),
        max_bytes=found.read("max_bytes", lambda entry: entry.integer(1), None),
        dtype=found.read("dtype", _dtype, _DTYPE),
        groups=groups,
        ranks=ranks,
        grid=grid,
        tiers=tuple(item.integer(0) for item in found["tiers"].items()) if "tiers" in found else (),
        mode=found.read("mode", _mode, AUTO),
        environment=found.read("environment", _environment, ""),
    )


def _mode(entry: Entry) -> str:
    return entry.choice((AUTO, *collective.MODES))


def _operations(entry: Entry) -> tuple[str, ...]:
    if not entry.is_list and entry.text() == "all":
        return tuple(collective.OPERATIONS)
    entry.distinct_texts()
    return tuple(item.choice(tuple(collective.OPERATIONS)) for item in entry.items())


def _sizes(entry: Entry) -> tuple[str, ...]:
    items = entry.items() if entry.is_list else [entry]
    for item in items:
        if not _SIZE.fullmatch(item.text()):
            raise item.refusal("expected a number of bytes or the name of a size grid")
    return tuple(item.text() for item in items)


def _dtype(entry: Entry) -> str:
    try:
        return collective.dtype_named(entry.text())
    except BadInput as error:
        raise entry.refusal(str(error)) from error


def _grid(entry: Entry) -> Grid:
    grid = Grid(tuple(item.integer(1) for item in entry.items()))
    if grid.size > collective.MOST_RANKS:
        raise entry.refusal(f"expected at most {collective.MOST_RANKS} ranks, got {grid.size}")
    return grid


def _environment(entry: Entry) -> str:
    settings = sorted(f"{name}={value.text()}" for name, value in entry.mapping().items())
    try:
        return collective.checked_environment(" ".join(settings))
    except BadInput as error:
        raise entry.refusal(str(error)) from error


# `model` of a campaign's sources: a model, its layout over devices, and its serving load.

KEYS = ("layout", "serving", "release")  # besides `model`
_SERVING = (
    *("concurrency", "input", "output", "max_batched_tokens", "graph_sizes", "phase", "mixed"),
    *("predicted_tokens", "skew", "imbalance"),
)
_PERCENTS = ("skew", "imbalance")
_BATCHED_TOKENS = 8192
_RANKS = ("tp", "dp", "ep")
# The first of each is the default of a layout.
_CHOICES: dict[str, tuple[str, ...]] = {
    "sequence_split": ("false", "true"),
    "quantisation": tuple(Quantisation),
    "nz": NZ_SETTINGS,
    "experts": tuple(ExpertLaunch),
}


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The steps of a model, which is bundled or the path of a config.json.

    The file is read when cases are made, not here. With `collectives`, the messages between its
    ranks are cases too."""

    model: Decoder | Path
    layout: Layout
    serving: Serving
    release: str
    collectives: StepCollectives | None = None


def read_model(found: Fields, base: Path) -> ModelSource:
    """Return the source of the keys `model`, KEYS and `collectives`.

    A file name is relative to `base`. Raises BadInput, with the line, for an invalid value."""
    reported = found["model"]
    for key in ("layout", "serving"):
        if key not in found:
            raise reported.refusal(f"a model requires the key {key!r} in the same source")
    release = found.read("release", Entry.text, USUAL_RELEASE)
    layout = _layout(found["layout"])
    _check(found.get("release", reported), check_release, release)
    word = reported.text()
    model = bundled_decoder(word) or base / word
    if isinstance(model, Decoder):
        _check(found["layout"], check_deployment, model, layout, release)
    elif model.suffix != ".json":
        raise reported.refusal(str(unknown_model(word)))
    collectives = found.read("collectives", read_step_collectives, None)
    return ModelSource(model, layout, _serving(found["serving"]), release, collectives)


def _check(entry: Entry, check: Callable[..., object], *values: object) -> None:
    """Raise the BadInput of a check as an error of the entry that has the value."""
    try:
        check(*values)
    except BadInput as error:
        raise entry.refusal(str(error).removeprefix("layout: ")) from error


def _layout(entry: Entry) -> Layout:
    """Read a layout as keys, or as the text that commands take and print."""
    if not entry.is_mapping:
        text = entry.text()
        _check(entry, layout_of, text)
        return layout_of(text)
    found = entry.fields((*_RANKS, *_CHOICES))
    tp, dp, ep = (found[key].integer(1) if key in found else 1 for key in _RANKS)
    chosen = {
        key: found[key].choice(allowed) if key in found else allowed[0]
        for key, allowed in _CHOICES.items()
    }
    return Layout(
        *(tp, dp, ep, chosen["sequence_split"] == "true"),
        quantisation=Quantisation(chosen["quantisation"]),
        nz=int(chosen["nz"]),
        experts=ExpertLaunch(chosen["experts"]),
    )


def _serving(entry: Entry) -> Serving:
    found = entry.fields(_SERVING, required=_SERVING[:3])
    sizes = found["graph_sizes"].items() if "graph_sizes" in found else []
    return Serving(
        tuple(item.integer(1) for item in found["concurrency"].items()),
        found["input"].integer(1),
        found["output"].integer(1),
        found.read("max_batched_tokens", lambda entry: entry.integer(1), _BATCHED_TOKENS),
        tuple(item.integer(1) for item in sizes),
        (Phase(found["phase"].choice(tuple(Phase))),) if "phase" in found else tuple(Phase),
        mixed="mixed" in found and found["mixed"].choice(("false", "true")) == "true",
        **{
            field: found.read(key, lambda entry: entry.integer(0), 0)
            for key, field in (("predicted_tokens", "predicted"), *((p, p) for p in _PERCENTS))
        },
    )


_KINDS = (
    *("profile", "tree", "bundled", "cases", "collectives", "model", "recording"),
    *("misses", "manifest", "density", "static_kernels"),
)
_UNNAMED = "cases"
_OF_CASES = ("communication_us", "name")
_BAD_ROWS = "bad_rows"
_SOURCE_KINDS_KEYS = (*_KINDS, "stack", _BAD_ROWS, *_OF_CASES, *KEYS)
_OF_STEPS = (
    "profile",
    "model",
    "recording",
)  # with one of them, `collectives` is not a separate source
# Keys of a few kinds: the kinds, and what they are.
_ALLOWED = {
    "stack": (("profile", "cases"), "a profile or parsed cases"),
    _BAD_ROWS: (("profile",), "a profile"),
    **dict.fromkeys(_OF_CASES, (("cases",), "cases that another machine parsed")),
    **dict.fromkeys(KEYS, (("model",), "a model")),
}
_SHA256 = re.compile(r"[0-9a-f]{64}")
_BUNDLED = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")


@dataclass(frozen=True, slots=True)
class ProfileSource:
    """A folder or file that an Ascend profiler wrote.

    `same_stack`: the user states that it was recorded on the target stack, so that its durations
    may be stored with the measured ones. With `collectives`, the messages between its ranks are
    cases too. `skip_bad_rows` omits invalid rows, and files that are no profile."""

    path: Path
    same_stack: bool
    collectives: StepCollectives | None = None
    skip_bad_rows: bool = False


@dataclass(frozen=True, slots=True)
class TreeSource:
    path: Path


@dataclass(frozen=True, slots=True)
class BundledSource:
    name: str


@dataclass(frozen=True, slots=True)
class MissesSource:
    """A file of the cases that queries of a database missed."""

    path: Path


@dataclass(frozen=True, slots=True)
class ManifestSource:
    """A file of queries that a database must answer, by workload."""

    path: Path


@dataclass(frozen=True, slots=True)
class DensitySource:
    """A density standard: the sizes that it requires on the lines of the other sources' cases."""

    path: Path


@dataclass(frozen=True, slots=True)
class StaticKernelsSource:
    """A folder of the operators that torchair compiled for their shapes."""

    path: Path


@dataclass(frozen=True, slots=True)
class RecordingSource:
    """A file of `opmeter model record`. With `collectives`, its messages are cases too."""

    path: Path
    collectives: StepCollectives | None = None


@dataclass(frozen=True, slots=True)
class CasesSource:
    """A table of cases in the store, by its hash, which was parsed on another machine.

    `name` describes its source, and the part of it that could not become cases. `communication_us`
    is the profile's time in communication, which makes no cases."""

    sha256: str
    same_stack: bool
    communication_us: float = 0.0
    name: str = _UNNAMED


@dataclass(frozen=True, slots=True)
class GivenSource:
    """Cases that a command was given, without a campaign file."""

    records: tuple[CaseRecord, ...]


_OF_FILES: dict[str, Callable[[Path], "Source"]] = {
    "tree": TreeSource,
    "misses": MissesSource,
    "manifest": ManifestSource,
    "density": DensitySource,
    "static_kernels": StaticKernelsSource,
}


Source = (
    ProfileSource
    | TreeSource
    | BundledSource
    | CasesSource
    | CollectivesSource
    | ModelSource
    | RecordingSource
    | MissesSource
    | ManifestSource
    | DensitySource
    | StaticKernelsSource
    | GivenSource
)


def read_sources(entry: Entry, base: Path) -> tuple[Source, ...]:
    """Return the sources of a list, in its order; relative paths are relative to `base`.

    Raises BadInput, with the line, for an invalid or duplicate source."""
    seen: list[Source] = []
    for item in entry.items():
        source = _source(item, base)
        if _position(source) in map(_position, seen):
            raise item.refusal("duplicate source")
        seen.append(source)
    if all(isinstance(source, DensitySource) for source in seen):
        raise entry.refusal("expected another source, with the cases that `density` makes denser")
    return tuple(seen)


def _source(entry: Entry, base: Path) -> Source:
    found = entry.fields(_SOURCE_KINDS_KEYS)
    is_step = any(kind in found for kind in _OF_STEPS)
    kinds = [k for k in _KINDS if k in found and not (is_step and k == "collectives")]
    if len(kinds) != 1:
        got = " and ".join(kinds) or "none of them"
        raise entry.refusal(f"expected exactly one of {', '.join(_KINDS)}, got {got}")
    (kind,) = kinds
    for key, (allowed, what) in _ALLOWED.items():
        if key in found and kind not in allowed:
            raise found[key].refusal(f"allowed only for {what}")
    same_stack = "stack" in found and found["stack"].choice(("target",)) == "target"
    if kind == "profile":
        step = found.read("collectives", read_step_collectives, None)
        skip = _BAD_ROWS in found and found[_BAD_ROWS].choice(("refuse", "skip")) == "skip"
        return ProfileSource(base / found[kind].text(), same_stack, step, skip)
    if kind == "cases":
        sha256 = found[kind].text()
        if not _SHA256.fullmatch(sha256):
            raise found[kind].refusal(
                f"expected the sha256 of a case table (64 hex digits), got {sha256!r}"
            )
        took_us = found.read("communication_us", Entry.positive, 0.0)
        name = whole_in_one_line(found.read("name", Entry.text, _UNNAMED))
        return CasesSource(sha256, same_stack, took_us, name)
    if kind == "model":
        return read_model(found, base)
    if kind == "recording":
        step = found.read("collectives", read_step_collectives, None)
        return RecordingSource(base / found[kind].text(), step)
    if kind == "collectives":
        return read_collectives(found[kind])
    if kind in _OF_FILES:
        return _OF_FILES[kind](base / found[kind].text())
    name = found[kind].text()
    if not _BUNDLED.fullmatch(name):
        raise found[kind].refusal(
            f"expected the name of a bundled sample such as quickstart, got {name!r}"
        )
    return BundledSource(name)


def _position(source: Source) -> Source | Path | str:
    """Return what a campaign may name once."""
    if isinstance(source, ProfileSource | RecordingSource | MissesSource | ManifestSource):
        return source.path
    return source.sha256 if isinstance(source, CasesSource) else source
