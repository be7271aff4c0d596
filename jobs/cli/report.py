"""`opmeter report`: HTML pages."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collector.codec.errors import BadInput
from collector.codec.text import counted, percent
from jobs.cli import options
from jobs.cli.diff import (
    ChosenSide,
    LaterSideArgument,
    SideArgument,
    chosen_side,
    common_directories,
)
from jobs.cli.look_up import campaign_of
from jobs.cli.recordings import RECORDING_SUFFIX
from jobs.cli.terminal import say

if TYPE_CHECKING:
    from collector.report.compare_pages import ComparedSide, StepWeights
    from collector.report.database_pages import WorkloadCoverage
    from jobs.campaign.campaign_file import Campaign
    from jobs.planning.coverage import CoveredCase
    from jobs.planning.predicted_passes import LaunchedPass
    from jobs.planning.step_time import PassTimer, TimedPass

_RELOAD_S, _IDLE_TIMES = 30, 4.0  # a slow store is read less often
OutputOption = Annotated[
    Path, typer.Option("--output", "-o", help="folder to write: new, or with an earlier report")
]
LanguageOption = Annotated[str, typer.Option("--lang", help="language of the labels: en or zh")]
ProfilesOption = Annotated[
    list[Path] | None,
    typer.Option("--profile", help="profile whose coverage is shown; may be given again"),
]
ModelsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        help="model whose coverage is shown, with its layout: qwen3-32b:tp=4; may be given again",
    ),
]


def database_report_command(
    version: Annotated[int | None, typer.Argument(help="version  [default: newest]")] = None,
    *,
    output: OutputOption,
    root: options.DatabaseRootOption = "opmeter-data",
    profile: ProfilesOption = None,
    model: ModelsOption = None,
    lang: LanguageOption = "en",
) -> None:
    """Write the pages of a version of the database: coverage, quality, and each kernel type.

    The folder needs no server: open its index.html. The data of each page are next to it as JSON
    and CSV.

    \b
    Examples:
      opmeter report db -o report
      opmeter report db 3 -o report --profile PROF_000001 --model qwen3-32b:tp=4 --lang zh
    """
    from collector.database.manifest import read_manifest
    from collector.database.snapshot import load_state
    from collector.report.database_pages import DatabaseSource, write_database
    from collector.report.pages import Folder
    from collector.store.opening import address_of
    from jobs.cli.opening import chosen_commit, open_database

    folder = Folder(output, lang)
    store = open_database(root)
    commit = chosen_commit(store, root, version)
    manifest = read_manifest(store, commit)
    workloads = [
        *((str(path), options.WorkloadOptions(profile=path)) for path in profile or ()),
        *((text, _model_workload(text)) for text in model or ()),
    ]
    covered = {
        place: [
            _covered(name, workload, options.VersionOptions(store.url, str(commit.number), place))
            for name, workload in workloads
        ]
        for place in sorted(manifest.versions)
    }
    source = DatabaseSource(store.url, lambda key: address_of(store.url, key))
    with folder:
        pages = write_database(
            *(folder, source, commit, sorted(manifest.versions)),
            lambda path: load_state(store, commit, manifest, paths=[path]),
            covered,
        )
    say(f"version {commit.number}: {counted(pages, 'page')}, open {output / 'index.html'}")


def _model_workload(text: str) -> options.WorkloadOptions:
    name, _, layout = text.partition(":")
    return options.WorkloadOptions(model=name, layout=layout)


def _covered(
    name: str, workload: options.WorkloadOptions, where: options.VersionOptions
) -> WorkloadCoverage:
    from dataclasses import asdict

    from collector.report.database_pages import WorkloadCoverage
    from jobs.cli.look_up import find_covered
    from jobs.planning.coverage import CoverageStatus, share

    looked_up = find_covered(workload, where)
    found = looked_up.cases
    shares = {status.value: asdict(share(found, status)) for status in CoverageStatus}
    missing = ""
    if looked_up.gaps:
        named = {
            "--profile": workload.profile,
            "--model": workload.model,
            "--layout": workload.layout,
            "--root": where.root,
        }
        missing = _command(("coverage",), {**named, "--missing": "to-measure"})
    return WorkloadCoverage(name, shares, list(_kernels(found)), missing)


def _kernels(found: Sequence[CoveredCase]) -> Iterator[dict[str, object]]:
    """Yield the kernel types of a workload, the longest first, with their time by status."""
    from collections import defaultdict
    from math import fsum
    from statistics import median

    kernels: dict[str, list[CoveredCase]] = defaultdict(list)
    for one in found:
        kernels[one.workload.record.case.kernel_type].append(one)
    whole_us = fsum(one.workload.time_us for one in found) or 1.0
    rows = [(fsum(one.workload.time_us for one in of), name, of) for name, of in kernels.items()]
    for time_us, name, of in sorted(rows, key=lambda row: (-row[0], row[1])):
        status_us: dict[str, float] = defaultdict(float)
        for one in of:
            status_us[one.status.value] += one.workload.time_us
        own = [one.half_width for one in of if one.half_width is not None]
        shares = {status: part / (time_us or 1.0) for status, part in status_us.items()}
        yield {
            "kernel": name,
            "cases": len(of),
            "share": time_us / whole_us,
            "statuses": shares,
            "half_width": median(own) if own else None,
        }


def diff_report_command(
    before: SideArgument,
    after: LaterSideArgument,
    *,
    output: OutputOption,
    root: options.DatabaseRootOption = "opmeter-data",
    other_root: Annotated[
        str | None, typer.Option(help="store of the later one  [default: --root]")
    ] = None,
    workload: options.WorkloadOptions,
    lang: LanguageOption = "en",
) -> None:
    """Write a page of the durations that changed between two versions, or two stacks.

    Each change has an interval. A duration counts as changed as in `opmeter db diff`. With a
    workload, each change is weighted by what it adds to it.

    \b
    Examples:
      opmeter report diff 3 4 -o report
      opmeter report diff CPU_2t/vllm_ascend/A CPU_2t/vllm_ascend/B -o report \\
        --model qwen3-32b --layout tp=4
    """
    from collector.report.compare_pages import write_comparison
    from collector.report.pages import Folder

    folder = Folder(output, lang)
    earlier, later = _sides([chosen_side(root, before), chosen_side(other_root or root, after)])
    step = None
    if workload != options.WorkloadOptions():
        step = _step(workload, options.VersionOptions(root, str(earlier.number), earlier.directory))
    with folder:
        changed = write_comparison(folder, earlier.compared, later.compared, step)
    say(f"{counted(changed, 'changed duration')}, open {output / 'index.html'}")


def campaign_report_command(
    campaign: Annotated[str, typer.Argument(help="name or file of a campaign")],
    *,
    output: OutputOption,
    root: options.RootOption = None,
    namespace: Annotated[
        str | None,
        typer.Option(help="namespace of its Jobs on a cluster  [default: the context's]"),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", "-w", help="write it again until the campaign is merged"),
    ] = False,
    lang: LanguageOption = "en",
) -> None:
    """Write the page of a campaign: a timeline of its devices, the forecast, and what failed.

    With --watch, the page in a browser loads itself again while the campaign runs.

    \b
    Examples:
      opmeter report campaign quickstart -o report
      opmeter report campaign nightly -o report --root s3://perf/opmeter --watch
    """
    from collector.report.campaign_pages import write_campaign
    from collector.report.pages import Folder
    from jobs.cli.opening import open_followed
    from jobs.status.timeline import CampaignReader

    store, name, view = open_followed(campaign, root, namespace)
    reader = CampaignReader(store, name, view)
    while True:
        started = time.monotonic()
        source = reader.read()
        reload_s = _RELOAD_S if watch and not source.is_finished else 0
        with Folder(output, lang) as folder:
            sessions = write_campaign(folder, source, reload_s)
        say(f"{counted(sessions, 'session')}, open {output / 'index.html'}")
        if source.is_finished or not watch:
            return
        time.sleep(max(_RELOAD_S, _IDLE_TIMES * (time.monotonic() - started)))


def compare_report_command(
    profile: Annotated[Path, typer.Argument(help="profile, or a folder of profiles")],
    *,
    output: OutputOption,
    where: options.ComparisonOptions,
    lang: LanguageOption = "en",
) -> None:
    """Write a page about the step of a profile: measured apart, in context and in the profile.

    The difference is shown by cause, as `opmeter compare` prints it.

    \b
    Examples:
      opmeter report compare PROF_000001 -o report
      opmeter report compare PROF_000001 --grid 48,8,2 --directory A/vllm_ascend/B -o report
    """
    from collector.report.pages import Folder
    from collector.report.step_pages import write_step
    from jobs.cli.compare import compared_step

    folder = Folder(output, lang)
    found = compared_step(profile, where)
    with folder:
        compared = write_step(folder, found)
    say(
        f"{compared:,} of {counted(len(found.cases), 'case')} with an isolated duration, "
        f"open {output / 'index.html'}"
    )


def model_report_command(
    model: Annotated[
        str, typer.Argument(help="name of `opmeter model list`, a config.json, or a recording")
    ],
    *,
    output: OutputOption,
    layout: options.LayoutOption = "",
    tokens: Annotated[
        int | None, typer.Option(help="new tokens of the prefill pass  [default: 4096]", min=1)
    ] = None,
    requests: Annotated[
        int | None, typer.Option(help="requests of the decode pass  [default: 16]", min=1)
    ] = None,
    keys: options.DecodedTokensOption = None,
    release: options.ReleaseOption = None,
    grid: options.PlacedRanksOption = options.A3_RANKS,
    where: options.VersionOptions,
    device: options.NewDeviceOption = None,
    lang: LanguageOption = "en",
) -> None:
    """Write a page about the passes of a model: their launches, by layer, with the time of each.

    The times are the database's; where it has none, an estimate at the rates of its device. With
    --device, no database is needed: nothing is measured, and the time of a pass is a range. A
    recording of `opmeter model record` has its own passes and layout.

    \b
    Examples:
      opmeter report model qwen3-32b --layout tp=4 -o report
      opmeter report model qwen3-32b --layout tp=4 -o report --device ATLAS_800_A3_752T_128G_DIE
      opmeter report model qwen3-32b.json.gz --grid 48,8,2 -o report
    """
    from collector.model.stack import backend_of
    from collector.report.model_pages import ModelSubject, PredictedPass, write_model
    from collector.report.pages import Folder
    from collector.workloads.serving import Phase
    from jobs.cli.step import known_version
    from jobs.planning.step_time import StepAssumptions, pass_timer

    folder = Folder(output, lang)
    version, stack = known_version(where, device)
    source: dict[str, object] = {"recording": model}
    if not model.endswith(RECORDING_SUFFIX):
        source = options.WorkloadOptions(model=model, layout=layout, release=release).model_source()
    elif layout or release or tokens or requests or keys:
        raise BadInput(
            "--layout, --release, --tokens, --requests, --context: a recording has its own"
        )
    timer = pass_timer(version, stack, StepAssumptions(), lambda mode: None)
    name, shown_release, passes = _passes(
        campaign_of(source, grid, stack.device),
        (tokens or 4096, requests or 16, keys or 4096),
        backend_of(stack.device),
        timer,
    )
    place = {"--root": where.root, "--version": where.version, "--device": device}
    if version is not None:
        place["--directory"] = version.path
    loads: dict[str, dict[str, object]] = {
        Phase.PREFILL: {"--prompt": tokens or 4096},
        Phase.DECODE: {"--requests": requests or 16, "--context": keys or 4096},
    }
    named = {"--layout": layout, "--release": release, "--grid": grid}
    known = [
        PredictedPass(
            one.phase,
            one.title,
            tuple(map(timer.predict, one.launches)),
            timed.summary,
            _step_words(model, {} if "recording" in source else named | loads[one.phase], place),
        )
        for one, timed in passes
    ]
    subject = ModelSubject(
        name, shown_release, version.path if version else stack.device, version is not None
    )
    with folder:
        share, unknown = write_model(folder, subject, known)
    more = f", {counted(unknown, 'launch', 'launches')} without a time" if unknown else ""
    rest = "" if share == 1 else f", {percent(1 - share)} an estimate"
    say(
        f"{percent(share)} of the time is from the database{rest}{more}, "
        f"open {output / 'index.html'}"
    )


def _step_words(model: str, load: Mapping[str, object], place: Mapping[str, object]) -> str:
    """Return the command that writes what narrows the time of a pass most."""
    return _command(("step", model), {**load, **place, "--misses": "to-measure.jsonl"})


def _command(words: Sequence[str], given: Mapping[str, object]) -> str:
    """Return a command with those of its options that have a value."""
    more = (str(word) for option in given.items() if option[1] for word in option)
    return shlex.join(("opmeter", *words, *more))


def _passes(
    described: Campaign, load: tuple[int, int, int], backend: str, timer: PassTimer
) -> tuple[str, str, list[tuple[LaunchedPass, TimedPass]]]:
    """Return the name and release of a model, and its passes: prefill of `tokens`, and decode of
    `requests` with `keys` tokens each."""
    from collector.workloads.models import read_decoder
    from collector.workloads.recorded_step import read_recording
    from collector.workloads.serving import Batch, Phase
    from jobs.campaign.source_kinds import ModelSource, RecordingSource
    from jobs.planning.predicted_passes import launches_of, passes_of_model, passes_of_recording
    from jobs.planning.step_time import EAGER, GRAPH

    (source,) = described.sources
    if isinstance(source, RecordingSource):
        recording = read_recording(source.path)
        ranks = ", ".join(f"{name}={count}" for name, count in recording.layout.items())
        found = passes_of_recording(recording, source.collectives, backend)
        timed = [
            timer.of_recording(one, launches_of(recording, one, source.collectives, backend))
            for one in recording.passes
        ]
        shown = list(zip(found, timed, strict=True))
        return f"{recording.model}, {ranks}", f"{recording.release}, recorded", shown
    assert isinstance(source, ModelSource)
    tokens, requests, keys = load
    batches = (Batch(Phase.PREFILL, 1, tokens, tokens), Batch(Phase.DECODE, requests, 1, keys))
    model = source.model
    decoder = read_decoder(model) if isinstance(model, Path) else model
    found = passes_of_model(replace(source, model=decoder), batches, backend)
    modes = {Phase.PREFILL: EAGER, Phase.DECODE: GRAPH}
    shown = [(one, timer.of_model(one, modes[Phase(one.phase)])) for one in found]
    return f"{decoder.name}, {source.layout}", source.release, shown


@dataclass(frozen=True, slots=True)
class _Side:
    number: int
    directory: str
    compared: ComparedSide


def _sides(chosen: Sequence[ChosenSide]) -> list[_Side]:
    """Return the durations of both sides, in the version directories that `opmeter db diff`
    compares. Raises BadInput if these are several."""
    named = os.environ.get(options.DIRECTORY_VARIABLE)
    pairs = common_directories(*chosen)
    if len(pairs) > 1:
        pairs = [pair for pair in pairs if named in pair] or pairs
    if len(pairs) > 1:
        known = ", ".join(path for path, _ in pairs)
        raise BadInput(f"expected one version directory, such as 3:DIRECTORY, of {known}")
    return [_side(side, path) for side, path in zip(chosen, pairs[0], strict=True)]


def _side(chosen: ChosenSide, path: str) -> _Side:
    import pyarrow as pa

    from collector.report.compare_pages import COLUMNS, ComparedSide
    from opmeter.database import database_at

    version = database_at(chosen.store, chosen.commit).directory(path)
    tables = [version.arrow(kernel).select(COLUMNS) for kernel in version.kernels]
    if not tables:
        raise BadInput(f"{path} of version {chosen.commit.number} has no durations")
    name = f"{version.path} · {chosen.commit.number}"
    rows = pa.concat_tables(tables, promote_options="permissive").combine_chunks()
    return _Side(chosen.commit.number, version.path, ComparedSide(name, rows))


def _step(workload: options.WorkloadOptions, where: options.VersionOptions) -> StepWeights:
    from collector.report.compare_pages import StepWeights
    from jobs.cli.look_up import find_covered

    found = [one.workload for one in find_covered(workload, where).cases]
    return StepWeights(
        str(workload),
        {one.record.case_id: float(one.launches) for one in found},
        {one.record.case_id: one.time_us for one in found},
    )


COMMANDS: dict[str, Callable[..., int | None]] = {
    "db": database_report_command,
    "compare": compare_report_command,
    "diff": diff_report_command,
    "model": model_report_command,
    "campaign": campaign_report_command,
}
