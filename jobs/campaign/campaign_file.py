"""`campaign.yaml`: what to measure, from which sources, for which stack, on how many devices.

The file is read into frozen values once, here. An unknown key, a value of the wrong kind or out
of range is refused with its line, so that a typing mistake never becomes a wrong database.
Paths are taken relative to the file. `docs/campaign.md` describes every key.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from collector import keys
from collector.case import normal_kernel_type
from collector.errors import BadInput
from collector.measurement import CONTEXT
from collector.plan import Limits, MeasureSettings, ShardSettings
from collector.stack import BACKENDS
from collector.store.opening import checked_address
from jobs.campaign.collectives import CollectivesSource
from jobs.campaign.density import DensitySettings, read_density
from jobs.campaign.document import Entry, read_document
from jobs.campaign.measure import read_measure
from jobs.campaign.quality import QualitySettings, read_quality
from jobs.campaign.runtime_values import RuntimeValues, read_runtime
from jobs.campaign.source_kinds import CasesSource, ProfileSource, Source, read_sources

UPDATES = ("all", "missing-only", "precision")

_KEYS = (
    "campaign",
    "sources",
    "operators",
    "update",
    "target",
    "backend",
    "devices",
    "measure",
    "shards",
    "limits",
    "quality",
    "density",
    "runtime",
    "op_mapping",
    "store",
)
_TARGET_KEYS = ("device", "vllm", "torch", "cann", "driver", "firmware", "torch_npu")
_ADDRESSES = ("s3://", "file://")
_USUAL = MeasureSettings()

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Target:
    """The stack to measure on. A field that is None is filled before planning, or refused."""

    device: str | None = None
    vllm: str | None = None
    torch: str | None = None
    cann: str | None = None
    driver: str | None = None
    firmware: str | None = None
    torch_npu: str | None = None


@dataclass(frozen=True, slots=True)
class Campaign:
    """A campaign file, checked. `operators` is None for all of them, `target` None for `here`."""

    name: str
    sources: tuple[Source, ...]
    operators: frozenset[str] | None
    update: str
    target: Target | None
    backend: str
    devices: int
    measure: MeasureSettings
    shards: ShardSettings
    limits: Limits
    quality: QualitySettings
    density: DensitySettings | None
    runtime: RuntimeValues
    op_mapping: Path | None
    store: str | None


def load_campaign(path: Path) -> Campaign:
    """The campaign of a file. Raises BadInput, with the line, for anything it cannot mean."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        reason = error.strerror or error
        raise BadInput(f"the campaign file cannot be read: {reason}", path=path) from error
    except UnicodeDecodeError as error:
        raise BadInput("the campaign file is not valid UTF-8", path=path) from error
    return campaign_from_text(text, path=path, base=path.parent)


def without_collectives(campaign: Campaign) -> Campaign:
    """The campaign without the collectives that it names; those of profiles stay. BadInput where
    nothing else is left of it."""
    kept = tuple(one for one in campaign.sources if not isinstance(one, CollectivesSource))
    if not kept:
        raise BadInput(f"campaign {campaign.name} has only collectives as sources")
    return replace(campaign, sources=kept)


def campaign_from_text(text: str, *, path: Path | str, base: Path) -> Campaign:
    """The campaign of a text; relative paths are taken from `base`."""
    document = read_document(text, str(path))
    found = document.fields(_KEYS, required=("campaign", "sources", "backend"))

    def read(key: str, reader: Callable[[Entry], Value], default: Value) -> Value:
        return reader(found[key]) if key in found else default

    update = read("update", lambda entry: entry.choice(UPDATES), "missing-only")
    quality = read("quality", read_quality, QualitySettings())
    if (update == "precision") != (quality.budget_device_h is not None):
        raise found.get("update", document).refusal(
            "`update: precision` and `quality: {budget_device_h: HOURS}` must be set together"
        )
    density = read("density", read_density, None)
    if density is not None and update != "missing-only":
        raise found["density"].refusal(
            f"`density` requires `update: missing-only`, got `update: {update}`"
        )
    backend = found["backend"].choice(BACKENDS)
    runtime = read("runtime", read_runtime, RuntimeValues())
    if runtime.libraries and backend != "npu":
        raise found["runtime"].refusal(f"`library` requires backend npu, got {backend}")
    sources, measure = read_sources(found["sources"], base), read("measure", read_measure, _USUAL)
    if measure.cache == CONTEXT:
        _check_context(found, sources, update)
    return Campaign(
        name=_name(found["campaign"]),
        sources=sources,
        operators=read("operators", _operators, None),
        update=update,
        target=read("target", _target, None),
        backend=backend,
        devices=read("devices", lambda entry: entry.integer(1), 1),
        measure=measure,
        shards=read("shards", _shards, ShardSettings()),
        limits=read("limits", _limits, Limits()),
        quality=quality,
        density=density,
        runtime=runtime,
        op_mapping=read("op_mapping", lambda entry: base / entry.text(), None),
        store=read("store", lambda entry: _store(entry, base), None),
    )


def _check_context(found: Mapping[str, Entry], sources: Sequence[Source], update: str) -> None:
    """Raises BadInput where a campaign that measures cases behind what ran before them has no such
    thing, or is about what their numbers alone do not tell."""
    for item, source in zip(found["sources"].items(), sources, strict=True):
        if not isinstance(source, ProfileSource | CasesSource):
            raise item.refusal(
                "`measure.cache: context` replays the launches that preceded a case: expected a "
                "profile, which records the order of launches"
            )
    for key, is_there in (("density", "density" in found), ("update", update == "precision")):
        if is_there:
            problem = (
                "applies to isolated measurements only; remove it, or `measure.cache: context`"
            )
            raise found[key].refusal(problem)


def _name(entry: Entry) -> str:
    return _checked(entry, keys.campaign_name)


def _checked(entry: Entry, check: Callable[[str], str]) -> str:
    """What a check of the ground makes of the text, its refusal with our file and line."""
    text = entry.text()
    try:
        return check(text)
    except BadInput as error:
        raise BadInput(str(error), path=entry.path, line=entry.line) from error


def _operators(entry: Entry) -> frozenset[str] | None:
    if not entry.is_list:
        if entry.is_mapping or entry.text() != "all":
            raise entry.refusal("expected all or a list of kernel types such as [Add, MatMulV3]")
        return None
    entry.distinct_texts()
    return frozenset(_checked(item, normal_kernel_type) for item in entry.items())


def _target(entry: Entry) -> Target | None:
    if not entry.is_mapping:
        if entry.is_list or entry.text() != "here":
            raise entry.refusal("expected here or a mapping such as {device: NAME, torch: 2.9.0}")
        return None
    found = entry.fields(_TARGET_KEYS, required=("device",))
    return Target(**{name: value.text() for name, value in found.items()})


def _shards(entry: Entry) -> ShardSettings:
    found = entry.fields(("target_s", "session_s"))
    return ShardSettings(**{name: value.positive() for name, value in found.items()})


def _limits(entry: Entry) -> Limits:
    found = entry.fields(("case_s", "memory_gb"))
    return Limits(**{name: value.positive() for name, value in found.items()})


def _store(entry: Entry, base: Path) -> str:
    """A URL as it is; anything else is a folder."""
    text = entry.text()
    is_address = text.startswith(_ADDRESSES)
    if not is_address and ":" in text.partition("/")[0]:
        raise entry.refusal("expected s3://bucket/prefix, file:///folder or a folder")
    _checked(entry, checked_address)
    return text if is_address else str(base / text)
