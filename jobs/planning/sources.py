"""The sources of a campaign as tables of cases, with notes on how they were read."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import fsum
from pathlib import Path

from collector.codec.canonical import sha256_hex
from collector.codec.errors import BadInput, DamagedObject, NotFound, stored
from collector.codec.files import read_small_file
from collector.codec.scratch import scratch_folder
from collector.codec.text import counted
from collector.database.layout import OP_MAPPING, is_result
from collector.database.op_mapping import check_op_mapping
from collector.database.op_mapping_writing import is_written
from collector.model import keys
from collector.model.case import known_states
from collector.model.demand import demanded_records, read_manifest_file, read_misses
from collector.model.measurement import CONTEXT
from collector.model.plan import PlannedSource
from collector.model.record import CaseRecord, read_table, with_state_of, write_table
from collector.model.vocabulary import LIBRARY, MASK, MEAN_LENGTH
from collector.ops.own import find_operator, own_operators
from collector.ops.refusals import DECLARATION_ERRORS, requires_static_kernel
from collector.ops.runtime import with_runtime_columns
from collector.profiles.bundled import write_bundled_profile
from collector.profiles.kernel_details import Profile, read_profile
from collector.profiles.static_kernels import read_static_kernels
from collector.ranks.gangs import is_of_gangs, with_ep_size
from collector.singlehost.version_files import TreeCases, read_tree
from collector.store.base import Store
from jobs.campaign import source_kinds
from jobs.campaign.campaign_file import Campaign, RuntimeValues
from jobs.planning import generated_sources
from jobs.planning.demand import read_standard, required_by
from opmeter.cases import check_columns

# Cases of kernels that both CANN and vLLM-Ascend have, as a campaign requests them.
#
#     SparseFlashAttention                             of the library with which the stack serves
#     with `runtime: {library: [cann]}`                of CANN: `Runtime library` in its row
#     with `runtime: {library: [cann, vllm-ascend]}`   a case of each
#
# A row that names a library keeps it. The profile time of a row stays with the first case that is
# made from it, so that shares remain correct.


def of_libraries(records: Iterable[CaseRecord], libraries: Sequence[str]) -> Iterator[CaseRecord]:
    """Yield the records, with a case per requested library for kernels that two libraries have."""
    for record in records:
        op = find_operator(record.case.kernel_type)
        is_served = op is not None and op.npu.served and record.case.attribute(LIBRARY) is None
        if not libraries or not is_served:
            yield record
            continue
        for number, library in enumerate(libraries):
            requested = replace(record, extra={**record.extra, LIBRARY: library})
            yield requested if number == 0 else replace(requested, profile=None)


# Cases of rows that lack values on which their time depends, with values that a campaign names.
#
#     FusedInferAttentionScore, a paged cache, no lengths     refused: lengths unknown
#     with `runtime: {kv_length: [1024, 4096]}`               the same row, refused, and a case of
#                                                             each length
#     FlashAttentionScore with a whole mask                   refused: mask unknown
#     with `runtime: {mask: [causal]}`                        the same row, refused, and a case
#
# The row keeps its profile time, because the value at which it ran is unknown. So the measurable
# share of a profile's time in a summary stays correct, and the new cases are added to it.


def lacks_runtime_values(record: CaseRecord) -> bool:
    """Return whether the time depends on values that the row and its columns do not have."""
    op = find_operator(record.case.kernel_type)
    if op is None or record.case.inputs is None:
        return False
    try:
        return bool(op.missing_metadata(record.case))
    except DECLARATION_ERRORS:  # the outcome of the case records the error
        return False


def cases_at_assumed_values(
    records: Sequence[CaseRecord], runtime: RuntimeValues
) -> tuple[CaseRecord, ...]:
    """Return a case at each of these values for rows that lack them.

    Cases that are already present are left out, for example from a table that was made elsewhere
    with these values."""
    values = [*((MEAN_LENGTH, f"{length:.6f}") for length in runtime.kv_lengths)]
    values += [(MASK, mask) for mask in runtime.masks]
    lacking_values = (
        [record for record in records if lacks_runtime_values(record)] if values else []
    )
    tried = [_with(record, *value) for record in lacking_values for value in values]
    kinds = {record.kernel_type for record in lacking_values}
    there = {record.case_id for record in records if record.kernel_type in kinds}
    found = (one for one in tried if not lacks_runtime_values(one))
    return tuple(one for one in found if completed_case(one).case_id not in there)


def completed_case(record: CaseRecord) -> CaseRecord:
    """Return the record with every column that its launch depends on.

    Return it unchanged if a missing value cannot be guessed."""
    op = find_operator(record.case.kernel_type)
    if op is None or record.case.inputs is None or lacks_runtime_values(record):
        return record
    try:
        return with_runtime_columns(record, op)
    except DECLARATION_ERRORS:  # the outcome of the case records the error
        return record


def _with(record: CaseRecord, column: str, text: str) -> CaseRecord:
    return replace(record, extra={**record.extra, column: text}, profile=None)


_REASONS = 5  # of sizes that make no case, in the name of a source


@dataclass(frozen=True, slots=True)
class LoadedSource:
    """A source that was read; its table is stored and hashed."""

    planned: PlannedSource
    table: bytes
    records: tuple[CaseRecord, ...]


def load_sources(campaign: Campaign, store: Store) -> tuple[LoadedSource, ...]:
    """Return every source of a campaign, read from its location.

    If cases are measured in the context of earlier launches, the records have these. A record of
    unknown state gets that of the only case of known state.

    Raises BadInput for a source that cannot be read, and for a file of operators that is not in the
    store."""
    for file in campaign.stored_operators:
        key = keys.operator_file(campaign.name, file.sha256)
        if not any(info.key == key for info in store.list(key)):
            raise BadInput(
                f"campaign {campaign.name}: {file.name} is not stored under {key} in {store.url}; "
                "upload it from the machine with the file: opmeter launch CAMPAIGN"
            )
    loaded = [
        _assuming(_less_results(source, _load(source, campaign, store)), campaign)
        for source in campaign.sources
    ]
    loaded = list(_densified(campaign, loaded))
    states = known_states(one.case for source in loaded for one in source.records)
    return tuple(
        replace(
            source,
            records=tuple(
                with_state_of(one, states[one.case]) if one.case in states else one
                for one in source.records
            ),
        )
        for source in loaded
    )


def _less_results(source: source_kinds.Source, loaded: LoadedSource) -> LoadedSource:
    """Return a source without the results that its rows name. Only a tree has durations, while a
    recording or a file of misses may name any column."""
    if isinstance(source, (source_kinds.TreeSource, source_kinds.CasesSource)):
        return loaded
    if not any(is_result(name) for record in loaded.records for name in record.extra):
        return loaded
    records = tuple(
        replace(one, extra={name: text for name, text in one.extra.items() if not is_result(name)})
        for one in loaded.records
    )
    planned = loaded.planned
    return _loaded(
        *(planned.name, records),
        same_stack=planned.same_stack,
        communication_us=planned.communication_us,
    )


def _assuming(loaded: LoadedSource, campaign: Campaign) -> LoadedSource:
    """Return a source with the cases that the campaign's runtime values add to it."""
    runtime, planned = campaign.runtime, loaded.planned
    requested = tuple(of_libraries(loaded.records, runtime.libraries))
    added = cases_at_assumed_values(requested, runtime)
    reported = []
    if requested != loaded.records:
        of_both = sum(one.case.attribute(LIBRARY) is not None for one in requested)
        reported.append(f"{counted(of_both, 'case')} of {' or '.join(runtime.libraries)}")
    masked = sum(MASK in one.extra for one in added)
    if len(added) > masked:
        lengths = ", ".join(f"{length:,}" for length in runtime.kv_lengths)
        reported.append(
            f"{counted(len(added) - masked, 'case')} at assumed KV lengths of {lengths}"
        )
    if masked:
        reported.append(f"{counted(masked, 'case')} with {' or '.join(runtime.masks)} masks")
    if not reported:
        return loaded
    return _loaded(
        f"{planned.name} (with {', '.join(reported)})",
        (*requested, *added),
        same_stack=planned.same_stack,
        communication_us=planned.communication_us,
    )


def _load(source: source_kinds.Source, campaign: Campaign, store: Store) -> LoadedSource:
    match source:
        case source_kinds.TreeSource(path):
            tree = read_tree(path)
            _check_columns(tree)
            name = f"tree ({reported})" if (reported := tree.repeated_rows_note()) else "tree"
            return _loaded(name, tree.records, same_stack=False)
        case source_kinds.ProfileSource(path, same_stack, step, skip_bad_rows):
            in_context = campaign.measure.cache == CONTEXT
            profile = read_profile([path], skip_bad_rows=skip_bad_rows, with_contexts=in_context)
            left = _left_out(profile)
            name = f"profile ({left})" if left else "profile"
            if step is not None:
                name, profile = _whole_step(profile, path, step, campaign)
            return _profile(name, profile, same_stack=same_stack)
        case source_kinds.CollectivesSource():
            return _collectives(source, campaign)
        case source_kinds.ModelSource():
            return _model(source, campaign)
        case source_kinds.MissesSource(path):
            misses = read_misses(path)
            total = sum(one.count for one in misses)
            name = f"misses ({counted(total, 'query', 'queries')})"
            records = demanded_records(one.demand for one in misses)
            return _loaded(name, records, same_stack=False)
        case source_kinds.ManifestSource(path):
            demands = read_manifest_file(path)
            critical = sum(one.is_critical for one in demands)
            workloads = {name for one in demands for name in one.workloads}
            name = f"manifest ({critical} critical; {counted(len(workloads), 'workload')})"
            return _loaded(name, demanded_records(demands), same_stack=False)
        case source_kinds.StaticKernelsSource(path):
            static = read_static_kernels(path)
            others = f", {static.others:,} dynamic only" if static.others else ""
            compiled = counted(static.compiled, "operator")
            name = f"static kernels ({compiled} static and dynamic{others})"
            return _loaded(name, static.records, same_stack=False)
        case source_kinds.DensitySource():
            return _loaded("density", (), same_stack=False)  # see _densified
        case source_kinds.RecordingSource():
            return _recording(source, campaign)
        case source_kinds.GivenSource(records):
            return _loaded("cases of the command", records, same_stack=False)
        case source_kinds.CasesSource():
            return _stored(source, campaign, store)
        case source_kinds.BundledSource(name):
            with bundled_profile(name) as path:
                profile = read_profile([path])
            return _profile(f"bundled:{name}", profile, same_stack=False)


def _check_columns(tree: TreeCases) -> None:
    """Raise BadInput for a misspelt column of a tree: what it says of a case would be lost."""
    for file, names in tree.columns.items():
        try:
            check_columns(names)
        except BadInput as error:
            raise BadInput(str(error), path=file, line=1) from error


def _densified(campaign: Campaign, loaded: Sequence[LoadedSource]) -> Iterator[LoadedSource]:
    """Yield the sources; those of density standards with what they require of the others' cases."""
    cases = [record.case for source in loaded for record in source.records]
    for source, found in zip(campaign.sources, loaded, strict=True):
        if not isinstance(source, source_kinds.DensitySource):
            yield found
            continue
        standard = read_standard(source.path)
        required = required_by(standard, cases, campaign.backend, path=source.path)
        reasons = [f"{n:,} refused: {why}" for why, n in Counter(required.refused).most_common()]
        if len(reasons) > _REASONS:
            reasons[_REASONS:] = [f"refused for {len(reasons) - _REASONS} more reasons"]
        name = f"density ({'; '.join(reasons)})" if reasons else "density"
        yield _loaded(name, demanded_records(required.demands), same_stack=False)


def _left_out(profile: Profile) -> str:
    """Return what was omitted from a profile: captures without kernels, and what is bad, if the
    campaign requested that."""
    report = profile.report
    omitted = (
        counted(len(report.skipped), "bad row"),
        counted(len(report.unusable), "unusable file"),
        counted(len(report.unanalysed), "capture without kernels", "captures without kernels"),
    )
    left = [text for text in omitted if not text.startswith("0 ")]
    return f"{' and '.join(left)} omitted" if left else ""


def _profile(name: str, profile: Profile, *, same_stack: bool) -> LoadedSource:
    communication_us = round(fsum(entry.total_us for entry in profile.communication), 3)
    return _loaded(name, profile.records, same_stack=same_stack, communication_us=communication_us)


def _whole_step(
    profile: Profile, path: Path, step: source_kinds.StepCollectives, campaign: Campaign
) -> tuple[str, Profile]:
    """Return a profile's kernels and the collectives between its ranks, with a name."""
    collectives, found = generated_sources.step_records(path, step, campaign.backend)
    generated_sources.check_named_collectives(collectives, campaign)
    reasons = Counter[str]()
    for one in found:
        if one.collective is None:
            reasons[one.reason] += one.count
            continue
        if one.tier_assumed:
            reasons[f"tier {one.collective.tier} assumed"] += one.count
        if one.is_derived:
            reasons["size derived from the sent bytes"] += one.count
    rows = ((counted(count, "row"), reason) for reason, count in sorted(reasons.items()))
    left = _left_out(profile)
    reported = "; ".join((*([left] if left else []), *(f"{count}: {why}" for count, why in rows)))
    name = f"profile with {counted(len(collectives), 'collective')}"
    kernels = tuple(with_ep_size(one, step.ep_size) for one in profile.records)
    whole = replace(profile, records=(*kernels, *collectives))
    return f"{name} ({reported})" if reported else name, whole


def _collectives(source: source_kinds.CollectivesSource, campaign: Campaign) -> LoadedSource:
    records, left_out = generated_sources.collective_records(source, campaign.backend)
    generated_sources.check_named_collectives(records, campaign)
    reasons = Counter(one.reason for one in left_out)
    reported = "; ".join(f"{count} omitted: {reason}" for reason, count in sorted(reasons.items()))
    if not records:
        raise BadInput(f"sources: no collective is left to measure; {reported}")
    name = f"collectives ({reported})" if reported else "collectives"
    return _loaded(name, records, same_stack=False)


def _model(source: source_kinds.ModelSource, campaign: Campaign) -> LoadedSource:
    found = generated_sources.model_records(source, campaign.backend)
    if source.collectives is not None:
        generated_sources.check_named_collectives(
            (one for one in found.records if is_of_gangs(one.case)), campaign
        )
    passes = counted(len(found.batches), "pass", "passes")
    name = f"model {found.decoder.name} ({source.layout}; {passes} of {source.release})"
    return _loaded(name, found.records, same_stack=False)


def _recording(source: source_kinds.RecordingSource, campaign: Campaign) -> LoadedSource:
    found = generated_sources.recorded_cases(source, campaign.backend)
    if source.collectives is not None:
        generated_sources.check_named_collectives(
            (one for one in found.records if is_of_gangs(one.case)), campaign
        )
    recording = found.recording
    passes = counted(len(recording.passes), "pass", "passes")
    reasons = [f"; {counted(n, 'message')} omitted: {why}" for why, n in found.left_out.items()]
    name = f"recording of {recording.model} ({passes} of {recording.release}{''.join(reasons)})"
    return _loaded(name, found.records, same_stack=False)


def _stored(source: source_kinds.CasesSource, campaign: Campaign, store: Store) -> LoadedSource:
    sha256 = source.sha256
    key = keys.source(campaign.name, sha256)
    try:
        table = store.get(key)
    except NotFound as error:
        raise BadInput(
            f"campaign {campaign.name}: no cases under {key} in {store.url}; upload them from "
            "the machine with the profile: opmeter launch CAMPAIGN"
        ) from error
    if sha256_hex(table) != sha256:
        raise DamagedObject(
            f"{key} in {store.url}: the content does not match the hash in its name"
        )
    with stored():
        records = completed_records(read_table(table, path=key))
    if campaign.measure.cache != CONTEXT:
        records = tuple(replace(record, before=()) for record in records)
    elif not any(record.before for record in records):
        raise BadInput(
            f"campaign {campaign.name}: the cases under {key} lack the launches before them, which "
            "`measure.cache: context` requires; parse the profile again with that setting"
        )
    named = (source.name, sha256, len(records), source.same_stack, source.communication_us)
    planned = PlannedSource(*named, compute_us=_compute_us(records))
    return LoadedSource(planned, table, records)


def completed_records(records: Iterable[CaseRecord]) -> tuple[CaseRecord, ...]:
    """Return the records with every column that their launches depend on.

    A case is complete before it is planned, so that a replay assumes nothing that its row does not
    have. A record with a missing value that cannot be guessed is unchanged, and is refused."""
    known: dict[int, tuple[CaseRecord, CaseRecord]] = {}  # records before others are shared

    def neighbour(record: CaseRecord) -> CaseRecord:
        if id(record) not in known:  # hold the record, so that its id is not reused
            known[id(record)] = (record, completed_case(record))
        return known[id(record)][1]

    return tuple(
        replace(completed_case(record), before=tuple(map(neighbour, record.before)))
        if record.before
        else completed_case(record)
        for record in records
    )


@contextmanager
def bundled_profile(name: str) -> Iterator[Path]:
    with scratch_folder("sample") as folder:
        yield write_bundled_profile(name, folder)


def _loaded(
    name: str,
    records: tuple[CaseRecord, ...],
    *,
    same_stack: bool,
    communication_us: float = 0.0,
) -> LoadedSource:
    # A process that reads the table, such as a controller, does not have the files of operators.
    if of_files := {op.kernel for op in own_operators()}:
        records = tuple(
            completed_case(one) if one.case.kernel_type in of_files else one for one in records
        )
    table = write_table(records)
    sha256 = sha256_hex(table)
    named = (name, sha256, len(records), same_stack, communication_us)
    planned = PlannedSource(*named, compute_us=_compute_us(records))
    return LoadedSource(planned, table, completed_records(records))


def _compute_us(records: Iterable[CaseRecord]) -> float:
    return round(fsum(one.profile.total_us for one in records if one.profile is not None), 3)


# The op_mapping.yaml that the version of a campaign gets.


def op_mapping_of(campaign: Campaign) -> str | None:
    """Return the text for the version: of the file that the campaign names, else of its trees."""
    path = campaign.op_mapping or _op_mapping_of_trees(campaign)
    if path is None:
        return None
    text = _read_unchanged(path)
    check_op_mapping(text, path=path)
    return text


def _op_mapping_of_trees(campaign: Campaign) -> Path | None:
    """Return the mapping of the tree sources if they agree; most have none or there is one tree.
    One that opmeter wrote is left out: a version gets its own where it is pulled."""
    folders = [
        source.path for source in campaign.sources if isinstance(source, source_kinds.TreeSource)
    ]
    found = (path for path in (folder / OP_MAPPING for folder in folders) if path.exists())
    paths = [path for path in found if not is_written(_read_unchanged(path).encode())]
    for other in paths[1:]:
        if _read_unchanged(other) != _read_unchanged(paths[0]):
            message = f"the op_mapping differs from {paths[0]}; set one op_mapping in the campaign"
            raise BadInput(message, path=other)
    return paths[0] if paths else None


def _read_unchanged(path: Path) -> str:
    """Return the text of a file unchanged, with its line ends and byte order mark."""
    try:
        return read_small_file(path).decode()
    except OSError as error:
        reason = error.strerror or error
        raise BadInput(f"the op_mapping cannot be read: {reason}", path=path) from error
    except UnicodeDecodeError as error:
        raise BadInput("the op_mapping is not valid UTF-8", path=path) from error


def static_cases(campaign: Campaign, sources: Iterable[LoadedSource]) -> int:
    """Return how many cases of a campaign have a kernel that an NPU builds for their shapes."""
    if campaign.backend != "npu":
        return 0
    return sum(requires_static_kernel(one.case) for source in sources for one in source.records)
