"""`campaign.yaml`: what to measure, from which sources, for which stack, on how many devices.

The file is read once, here, into immutable values. An unknown key and a value of the wrong kind or
out of range are refused with their line, so that a typing mistake never causes a wrong database.
Paths are relative to the file. `docs/reference/campaign-file.md` describes every key.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from collector.codec.document import Entry, Fields, Value, read_document
from collector.codec.errors import BadInput
from collector.codec.files import MOST_YAML_BYTES, read_small_file
from collector.model import keys
from collector.model.case import normal_kernel_type
from collector.model.measurement import CACHES, CONTEXT, Library
from collector.model.plan import (
    Limits,
    MeasureSettings,
    PlannedOperators,
    ShardSettings,
    UpgradeFrom,
)
from collector.model.stack import BACKEND_SYNONYMS, BACKENDS
from collector.model.vocabulary import CAUSAL_MASK, FULL_MASK
from collector.ops.own import OperatorFile, find_operator_file
from collector.store.opening import checked_address
from jobs.campaign.source_kinds import (
    CasesSource,
    CollectivesSource,
    ProfileSource,
    Source,
    read_sources,
)

# The share of a curve's cases that a campaign measures, and the tolerance for the others.

SHARE = 0.25


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """Settings of curves of which a part is measured.

    At most the `share` of each curve is measured, or less if nearly all of the others are known to
    the `tolerance`, a share of their duration."""

    tolerance: float
    share: float = SHARE


def read_sampling(entry: Entry) -> SamplingSettings:
    """Return the settings of `sampling`. Raise BadInput, with the line, for invalid ones."""
    found = entry.fields(("tolerance", "share"), required=("tolerance",))
    share = found.read("share", Entry.percentage, SHARE)
    return SamplingSettings(found["tolerance"].percentage(), share)


# How each case of a campaign is measured: the repeats, the cache, the counters.

# The names of msprof's groups of counters.
AIC_METRICS = (
    "PipeUtilization",
    "ArithmeticUtilization",
    "Memory",
    "MemoryL0",
    "MemoryUB",
    "ResourceConflictRatio",
    "L2Cache",
    "MemoryAccess",
)
# The largest number of repeats if a precision ends them and the campaign sets no number.
_MOST_FOR_PRECISION = 1000


def read_measure(entry: Entry) -> MeasureSettings:
    """Return the settings of `measure`. Raise BadInput, with the line, for invalid ones."""
    found = entry.fields(("budget_s", "repeats", "precision", "cache", "aic_metrics"))
    default = MeasureSettings()
    precision = _precision(found)
    most = default.max_repeats if precision is None else _MOST_FOR_PRECISION
    bounds = (default.min_repeats, most, default.repeat_count)
    least, most, fixed = found.read("repeats", lambda entry: _repeats(entry, bounds), bounds)
    return MeasureSettings(
        budget_s=found.read("budget_s", Entry.positive, default.budget_s),
        min_repeats=least,
        max_repeats=most,
        repeat_count=fixed,
        cache=found.read("cache", lambda entry: entry.choice(CACHES), default.cache),
        aic_metrics=found.read("aic_metrics", _metrics, default.aic_metrics),
        precision=precision,
    )


def _precision(found: Fields) -> float | None:
    """Return the requested precision. Raise BadInput if other settings conflict with it."""
    if "precision" not in found:
        return None
    entry = found["precision"]
    if "repeats" in found and not found["repeats"].is_list:
        raise entry.refusal(
            "`precision` chooses the number of repeats, but `repeats` fixes it: remove one of them"
        )
    cache = found.read("cache", lambda entry: entry.choice(CACHES), "warm")
    if cache != "warm":
        between = "flushes the cache" if cache == "cold" else "runs other launches"
        problem = f"requires consecutive launches (`cache: warm`); `{cache}` {between} in between"
        raise entry.refusal(problem)
    return entry.percentage()


def _repeats(entry: Entry, default: tuple[int, int, int | None]) -> tuple[int, int, int | None]:
    if not entry.is_list:
        return default[0], default[1], entry.integer(1)
    bounds = [item.integer(1) for item in entry.items()]
    if len(bounds) != 2 or bounds[0] > bounds[1]:
        raise entry.refusal(f"expected [fewest, most] or one integer, got {bounds}")
    return bounds[0], bounds[1], None


def _metrics(entry: Entry) -> tuple[str, ...]:
    entry.distinct_texts()
    metrics = tuple(item.choice(AIC_METRICS) for item in entry.items())
    if len(metrics) > 1 and "PipeUtilization" not in metrics:
        raise entry.refusal("several groups must include PipeUtilization, which gives the duration")
    return metrics


# The cost that a campaign accepts to assess the quality of its durations.

REPEAT_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class QualitySettings:
    """Settings of quality.

    Each case is measured in `sessions`, or with one, `repeat_share` of them in a second one. If
    `budget_device_h` is set, the least known cases are measured again for that many hours of device
    time."""

    repeat_share: float = REPEAT_SHARE
    budget_device_h: float | None = None
    sessions: int = 1


_MOST_SESSIONS = 100


def read_quality(entry: Entry) -> QualitySettings:
    """Return the settings of `quality`. Raise BadInput, with the line, for invalid ones."""
    found = entry.fields(("repeat_share", "budget_device_h", "sessions"))
    if "sessions" in found and "repeat_share" in found:
        raise found["sessions"].refusal("expected either sessions or repeat_share")
    return QualitySettings(
        found.read("repeat_share", Entry.share, REPEAT_SHARE),
        found.read("budget_device_h", Entry.positive, None),
        found.read("sessions", _sessions, 1),
    )


def _sessions(entry: Entry) -> int:
    if (count := entry.integer(1)) > _MOST_SESSIONS:
        raise entry.mismatch(f"at most {_MOST_SESSIONS}", str(count))
    return count


# Values of launches that a campaign gives if no row of a profile has them.

_MASKS = (CAUSAL_MASK, FULL_MASK)
_LIBRARIES = (Library.CANN.value, Library.VLLM_ASCEND.value)


@dataclass(frozen=True, slots=True)
class RuntimeValues:
    """Runtime values for rows that lack them.

    `kv_lengths` are numbers of keys of each request of a paged cache; a row becomes one case for
    each. `masks` are the parts that attention masks with a whole mask, likewise. `libraries` select
    the kernel if both CANN and vLLM-Ascend have one of its type; without any, it is the one of the
    stack."""

    kv_lengths: tuple[int, ...] = ()
    masks: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()


def read_runtime(entry: Entry) -> RuntimeValues:
    """Return the values of `runtime`. Raise BadInput, with the line, for invalid ones."""
    found = entry.fields(("kv_length", "mask", "library"))
    if not found:
        raise entry.refusal("expected at least one of kv_length, mask and library")
    return RuntimeValues(
        _each(found.get("kv_length"), "length", lambda item: item.integer(1)),
        _each(found.get("mask"), "mask", lambda item: item.choice(_MASKS)),
        _each(found.get("library"), "library", lambda item: item.choice(_LIBRARIES)),
    )


def _each(entry: Entry | None, what: str, read: Callable[[Entry], Value]) -> tuple[Value, ...]:
    """Return the distinct items of a list with at least one item; none without the list."""
    if entry is None:
        return ()
    values = tuple(read(item) for item in entry.items())
    if not values:
        raise entry.refusal(f"expected at least one {what}, got an empty list")
    if len(set(values)) < len(values):
        raise entry.refusal(f"a {what} is listed twice")
    return values


UPDATES = ("all", "missing-only", "precision")

_CAMPAIGN_FILE_KEYS = (
    *("campaign", "sources", "operators", "update", "target", "backend", "devices", "measure"),
    *("shards", "limits", "quality", "sampling", "runtime", "op_mapping", "store"),
)
_ADDRESSES = ("s3://", "file://")
_USUAL = MeasureSettings()
_ALL = "all"
_STORED_OPERATORS = re.compile(r"(?P<name>[^/@]+\.py)@(?P<sha256>[0-9a-f]{64})")


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


TARGET_KEYS = tuple(field.name for field in fields(Target))


@dataclass(frozen=True, slots=True)
class Campaign:
    """A valid campaign file. `operators` is None for all of them, `target` None for `here`.
    `operator_files` are read, but executed only where their operators are needed;
    `stored_operators` are those that the store has, as `opmeter launch` names them."""

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
    sampling: SamplingSettings | None
    runtime: RuntimeValues
    op_mapping: Path | None
    store: str | None
    operator_files: tuple[OperatorFile, ...] = ()
    stored_operators: tuple[PlannedOperators, ...] = ()

    @property
    def planned_operators(self) -> tuple[PlannedOperators, ...]:
        """Return all its files of operators."""
        own = (PlannedOperators(file.name, file.sha256) for file in self.operator_files)
        return (*own, *self.stored_operators)

    @property
    def device(self) -> str:
        """Return the name of the target's device; empty before it is known."""
        return (self.target.device if self.target else None) or ""


def load_campaign(path: Path) -> Campaign:
    """Return the campaign of a file. Raise BadInput, with the line, for an invalid one."""
    try:
        text = read_small_file(path, MOST_YAML_BYTES).decode("utf-8-sig")
    except OSError as error:
        reason = error.strerror or error
        raise BadInput(f"the campaign file cannot be read: {reason}", path=path) from error
    except UnicodeDecodeError as error:
        raise BadInput("the campaign file is not valid UTF-8", path=path) from error
    return campaign_from_text(text, path=path, base=path.parent)


def without_collectives(campaign: Campaign) -> Campaign:
    """Return the campaign without the collectives that it names; those of profiles stay.

    Raise BadInput if no other source is left."""
    kept = tuple(one for one in campaign.sources if not isinstance(one, CollectivesSource))
    if not kept:
        raise BadInput(f"campaign {campaign.name} has only collectives as sources")
    return replace(campaign, sources=kept)


def campaign_from_text(text: str, *, path: Path | str, base: Path) -> Campaign:
    """Return the campaign of a text; relative paths are relative to `base`."""
    document = read_document(text, str(path))
    found = document.fields(_CAMPAIGN_FILE_KEYS, required=("campaign", "sources", "backend"))
    read = found.read
    update = read("update", lambda entry: entry.choice(UPDATES), "missing-only")
    quality = read("quality", read_quality, QualitySettings())
    if (update == "precision") != (quality.budget_device_h is not None):
        raise found.get("update", document).refusal(
            "`update: precision` and `quality: {budget_device_h: HOURS}` must be set together"
        )
    sampling = read("sampling", read_sampling, None)
    if sampling is not None and update != "missing-only":
        raise found["sampling"].refusal(
            f"`sampling` requires `update: missing-only`, got `update: {update}`"
        )
    backend = found["backend"].choice(BACKENDS, BACKEND_SYNONYMS)
    runtime = read("runtime", read_runtime, RuntimeValues())
    if runtime.libraries and backend != "npu":
        raise found["runtime"].refusal(f"`library` requires backend npu, got {backend}")
    sources, measure = read_sources(found["sources"], base), read("measure", read_measure, _USUAL)
    if measure.cache == CONTEXT:
        _check_context(found, sources, update)
    return Campaign(
        name=_checked(found["campaign"], keys.campaign_name),
        sources=sources,
        operators=read("operators", _operators, None),
        operator_files=read("operators", lambda entry: _operator_files(entry, base), ()),
        stored_operators=read("operators", _stored_operators, ()),
        update=update,
        target=read("target", _target, None),
        backend=backend,
        devices=read("devices", lambda entry: entry.integer(1), 1),
        measure=measure,
        shards=read("shards", _shards, ShardSettings()),
        limits=read("limits", _limits, Limits()),
        quality=quality,
        sampling=sampling,
        runtime=runtime,
        op_mapping=read("op_mapping", lambda entry: base / entry.text(), None),
        store=read("store", lambda entry: _store(entry, base), None),
    )


def _check_context(found: Mapping[str, Entry], sources: Sequence[Source], update: str) -> None:
    """Raise BadInput if `measure.cache: context` conflicts with other settings.

    It requires sources with the launches before a case, and excludes settings for isolated
    durations."""
    for item, source in zip(found["sources"].items(), sources, strict=True):
        if not isinstance(source, ProfileSource | CasesSource):
            raise item.refusal(
                "`measure.cache: context` replays the launches that preceded a case: expected a "
                "profile, which records the order of launches"
            )
    isolated = [key for key in ("sampling",) if key in found]
    isolated += ["update"] if update == "precision" else []
    for key in isolated:
        raise found[key].refusal(
            "applies to isolated measurements only; remove it, or `measure.cache: context`"
        )


def _checked(entry: Entry, check: Callable[[str], str]) -> str:
    """Return the checked text; a refusal gets the file and line of the campaign."""
    text = entry.text()
    try:
        return check(text)
    except BadInput as error:
        raise BadInput(str(error), path=entry.path, line=entry.line) from error


def _operators(entry: Entry) -> frozenset[str] | None:
    if not entry.is_list:
        if entry.is_mapping or entry.text() != _ALL:
            raise entry.refusal("expected all or a list of kernel types such as [Add, MatMulV3]")
        return None
    if _ALL in entry.distinct_texts():
        if all(map(_is_file, entry.distinct_texts())):
            return None
        raise entry.refusal("all: expected only files of operators next to it, got kernel types")
    names = (item for item in entry.items() if not _is_file(item.text()))
    return frozenset(_checked(item, normal_kernel_type) for item in names)


def _is_file(operator: str) -> bool:
    is_stored = _STORED_OPERATORS.fullmatch(operator) is not None
    return operator == _ALL or operator.endswith(".py") or is_stored


def _operator_files(entry: Entry, base: Path) -> tuple[OperatorFile, ...]:
    """Return the files among the operators. Raise BadInput for one that cannot be read."""
    if not entry.is_list:
        return ()
    names = [item for item in entry.items() if item.text().endswith(".py")]
    return tuple(_operator_file(item, base) for item in names)


def _stored_operators(entry: Entry) -> tuple[PlannedOperators, ...]:
    """Return the files among the operators that the store has: `my_ops.py@SHA256`."""
    items = entry.items() if entry.is_list else ()
    found = (_STORED_OPERATORS.fullmatch(item.text()) for item in items)
    return tuple(PlannedOperators(one["name"], one["sha256"]) for one in found if one)


def _operator_file(entry: Entry, base: Path) -> OperatorFile:
    try:
        return find_operator_file(entry.text(), base)
    except BadInput as error:
        raise entry.refusal(str(error)) from error


def _target(entry: Entry) -> Target | None:
    if not entry.is_mapping:
        if entry.is_list or entry.text() != "here":
            raise entry.refusal("expected here or a mapping such as {device: NAME, torch: 2.9.0}")
        return None
    found = entry.fields(TARGET_KEYS, required=("device",))
    return Target(**{name: value.text() for name, value in found.items()})


def _shards(entry: Entry) -> ShardSettings:
    found = entry.fields(("target_s", "session_s"))
    return ShardSettings(**{name: value.positive() for name, value in found.items()})


def _limits(entry: Entry) -> Limits:
    found = entry.fields(("case_s", "memory_gb"))
    return Limits(**{name: value.positive() for name, value in found.items()})


def _store(entry: Entry, base: Path) -> str:
    """Return a URL unchanged; any other text is a folder."""
    text = entry.text()
    is_address = text.startswith(_ADDRESSES)
    if not is_address and ":" in text.partition("/")[0]:
        raise entry.refusal("expected s3://bucket/prefix, file:///folder or a folder")
    _checked(entry, checked_address)
    return text if is_address else str(base / text)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of `opmeter run`, `plan` and `launch` that decide which cases are measured.

    `upgrade_from` is the older stack of the next plan; without it that of the newest plan counts.
    """

    again: bool = False
    retry_failed: bool = False
    supersede_stack: bool = False
    upgrade_from: UpgradeFrom | None = None
