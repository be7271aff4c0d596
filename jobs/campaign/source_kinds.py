"""`sources` of a campaign file: where its cases come from, by six kinds."""

import re
from dataclasses import dataclass
from pathlib import Path

from collector.printable import in_one_line
from jobs.campaign.collectives import (
    CollectivesSource,
    StepCollectives,
    read_collectives,
    read_step_collectives,
)
from jobs.campaign.document import Entry
from jobs.campaign.model_source import KEYS as OF_MODELS
from jobs.campaign.model_source import ModelSource, read_model

_KINDS = ("profile", "tree", "bundled", "cases", "collectives", "model")
_UNNAMED = "cases"
_OF_CASES = ("communication_us", "name")
_BAD_ROWS = "bad_rows"
_KEYS = (*_KINDS, "stack", _BAD_ROWS, *_OF_CASES, *OF_MODELS)
_OF_STEPS = ("profile", "model")  # beside them `collectives` is no source of its own
_SHA256 = re.compile(r"[0-9a-f]{64}")
_BUNDLED = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")


@dataclass(frozen=True, slots=True)
class ProfileSource:
    """A folder or file that an Ascend profiler wrote. `same_stack`: the user says that it was
    taken on the target stack, so that its own durations may stand beside the measured ones. With
    `collectives` what its ranks sent each other are cases, too. `skip_bad_rows` leaves out rows
    that are none, and files that are no profile."""

    path: Path
    same_stack: bool
    collectives: StepCollectives | None = None
    skip_bad_rows: bool = False


@dataclass(frozen=True, slots=True)
class TreeSource:
    """A version directory of a tree."""

    path: Path


@dataclass(frozen=True, slots=True)
class BundledSource:
    """A sample that comes with the package."""

    name: str


@dataclass(frozen=True, slots=True)
class CasesSource:
    """A table of cases that lies in the store, by its hash: what was parsed elsewhere. `name` says
    what it was there, and what could not be made a case of it; `communication_us` is what the
    profile spent in communication, which makes no cases."""

    sha256: str
    same_stack: bool
    communication_us: float = 0.0
    name: str = _UNNAMED


Source = ProfileSource | TreeSource | BundledSource | CasesSource | CollectivesSource | ModelSource


def read_sources(entry: Entry, base: Path) -> tuple[Source, ...]:
    """The sources of a list, in its order; relative paths are taken from `base`. Raises BadInput,
    with the line, for one that cannot be meant, or that is listed twice."""
    seen: list[Source] = []
    for item in entry.items():
        source = _source(item, base)
        if any(_same_place(source, other) for other in seen):
            raise item.refusal("duplicate source")
        seen.append(source)
    return tuple(seen)


def _source(entry: Entry, base: Path) -> Source:
    found = entry.fields(_KEYS)
    is_step = any(kind in found for kind in _OF_STEPS)
    of_step = found.pop("collectives", None) if is_step else None
    kinds = [kind for kind in _KINDS if kind in found]
    if len(kinds) != 1:
        got = " and ".join(kinds) or "none of them"
        raise entry.refusal(f"expected exactly one of {', '.join(_KINDS)}, got {got}")
    (kind,) = kinds
    if "stack" in found and kind not in ("profile", "cases"):
        raise found["stack"].refusal("allowed only for a profile or parsed cases")
    if _BAD_ROWS in found and kind != "profile":
        raise found[_BAD_ROWS].refusal("allowed only for a profile")
    for key in _OF_CASES:
        if key in found and kind != "cases":
            raise found[key].refusal("allowed only for cases that another machine parsed")
    for key in OF_MODELS:
        if key in found and kind != "model":
            raise found[key].refusal("allowed only for a model")
    same_stack = "stack" in found and found["stack"].choice(("target",)) == "target"
    if kind == "profile":
        step = read_step_collectives(of_step) if of_step is not None else None
        skip = _BAD_ROWS in found and found[_BAD_ROWS].choice(("refuse", "skip")) == "skip"
        return ProfileSource(base / found[kind].text(), same_stack, step, skip)
    if kind == "cases":
        sha256 = found[kind].text()
        if not _SHA256.fullmatch(sha256):
            raise found[kind].refusal(
                f"expected the sha256 of a case table (64 hex digits), got {sha256!r}"
            )
        took, parsed = (found.get(key) for key in _OF_CASES)
        return CasesSource(
            sha256,
            same_stack,
            took.positive() if took else 0.0,
            in_one_line(parsed.text()) if parsed else _UNNAMED,
        )
    if kind == "model":
        return read_model(found if of_step is None else {**found, "collectives": of_step}, base)
    if kind == "collectives":
        return read_collectives(found[kind])
    if kind == "tree":
        return TreeSource(base / found[kind].text())
    name = found[kind].text()
    if not _BUNDLED.fullmatch(name):
        raise found[kind].refusal(
            f"expected the name of a bundled sample such as quickstart, got {name!r}"
        )
    return BundledSource(name)


def _same_place(one: Source, other: Source) -> bool:
    if isinstance(one, ProfileSource) and isinstance(other, ProfileSource):
        return one.path == other.path
    if isinstance(one, CasesSource) and isinstance(other, CasesSource):
        return one.sha256 == other.sha256
    return one == other
