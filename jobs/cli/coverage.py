"""`opmeter coverage`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collector.counting import counted
from collector.errors import BadInput
from jobs.cli.coverage_lines import (
    budget_lines,
    covered_lines,
    message_lines,
    print_json,
)
from jobs.cli.one_source import ServedModel, campaign_of
from jobs.cli.options import (
    CommitOption,
    DatabaseRootOption,
    DirectoryOption,
    RanksGridOption,
)
from jobs.cli.shown_version import open_version
from jobs.cli.terminal import say

if TYPE_CHECKING:
    from collector.database.state import State
    from collector.record import CaseRecord


def coverage_verb(
    campaign: Annotated[
        str | None, typer.Argument(help="a campaign.yaml, whose sources are looked up")
    ] = None,
    *,
    root: DatabaseRootOption = "opmeter-data",
    version: CommitOption = None,
    directory: DirectoryOption = None,
    profile: Annotated[Path | None, typer.Option(help="instead of a campaign: a profile")] = None,
    model: Annotated[
        str | None, typer.Option(help="or a name of `opmeter model list`, or a config.json")
    ] = None,
    layout: Annotated[str, typer.Option(help="of the model: tp=8,sequence_split,...")] = "",
    concurrency: Annotated[
        list[int] | None, typer.Option(help="requests that it serves at once  [1, 8, 32]", min=1)
    ] = None,
    input_tokens: Annotated[
        int | None, typer.Option("--input", help="tokens of a prompt  [4096]", min=1)
    ] = None,
    output_tokens: Annotated[
        int | None, typer.Option("--output", help="tokens of an answer  [512]", min=1)
    ] = None,
    max_batched_tokens: Annotated[
        int | None, typer.Option(help="in one pass  [8192]", min=1)
    ] = None,
    graph_sizes: Annotated[
        list[int] | None, typer.Option(help="a decode is padded to the next of them", min=1)
    ] = None,
    phase: Annotated[
        str | None, typer.Option(help="prefill or decode, of a deployment of one phase")
    ] = None,
    mixed: Annotated[
        bool, typer.Option("--mixed", help="prompts pass beside the answers of others")
    ] = False,
    predicted_tokens: Annotated[
        int | None, typer.Option(help="after each, by the model's layer for it (MTP)", min=0)
    ] = None,
    skew: Annotated[
        int | None, typer.Option(help="percent: answers have more and fewer keys", min=0, max=99)
    ] = None,
    imbalance: Annotated[
        int | None, typer.Option(help="percent: experts have more and fewer rows", min=0, max=99)
    ] = None,
    release: Annotated[
        str | None, typer.Option(help="the serving stack  [vllm-ascend-0.18]")
    ] = None,
    grid: RanksGridOption = "",
    budget: Annotated[
        float | None,
        typer.Option(help="device-hours: what is worth measuring first, and what it brings", min=0),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option("--curve", help="a new SVG file: what measuring brings for its hours"),
    ] = None,
    missing: Annotated[
        Path | None, typer.Option(help="a new folder: what has no duration, as a tree to measure")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="every case, as JSON")] = False,
) -> None:
    """Say how much of what a model or a profile launches a version of the database has."""
    from collector.database.query import answers
    from collector.database.record_rows import case_records
    from collector.ops.registry import find
    from collector.store.atomic import write_whole
    from jobs.cli.curve_picture import curve_svg
    from jobs.cli.opening import open_campaign
    from jobs.planning.coverage import Standing, covered, user_metrics
    from jobs.planning.coverage_sources import launched
    from jobs.planning.forecast import peaks_of
    from jobs.planning.worth import curve, gains, within

    served = ServedModel(
        model or "",
        layout,
        tuple(concurrency or ()),
        input_tokens,
        output_tokens,
        max_batched_tokens,
        tuple(graph_sizes or ()),
        phase,
        release,
        mixed,
        predicted_tokens,
        skew,
        imbalance,
    )
    _check(campaign, profile, model, served, grid)
    if picture is not None and (budget is None or picture.exists()):
        raise BadInput("--curve wants --budget, and a file that is not there yet", path=picture)
    if missing is not None and missing.exists():
        raise BadInput("a folder that is not there yet is wanted for --missing", path=missing)
    shown = open_version(root, version, directory)
    state, place, peaks = shown.state, shown.place, peaks_of(shown.stack)
    if campaign is not None:
        described = open_campaign(campaign)
    else:
        source = {"profile": str(profile)} if profile is not None else served.source()
        described = campaign_of(source, grid, shown.stack.device)
    wanted = launched(described, shown.store, peaks)
    answered = answers(state, place)
    cases = {
        case_id: record.case
        for case_id, record in case_records(state.cases)
        if (answer := answered.get(case_id)) and answer.is_good
    }
    failed = {case_id for case_id, answer in answered.items() if not answer.is_good}
    found = covered(wanted.cases, cases, failed)
    metrics = user_metrics(found, _free(state, place))
    if as_json:
        print_json(place, found, metrics)
    else:
        for line in covered_lines(place, found, metrics, wanted.communication_us):
            say(line)
        for line in message_lines(found, campaign, grid):
            say(line)
    gaps = [
        one.wanted.record
        for one in sorted(found, key=lambda one: -one.wanted.time_us)
        if one.standing is not Standing.EXACT
    ]
    if budget is not None:
        ordered = gains(found, described, peaks, find)
        points = curve(found, ordered)
        for line in () if as_json else budget_lines(points, budget):
            say(line)
        if picture is not None:
            title = f"{model or profile or campaign}: time with a duration in {place}"
            write_whole(picture, curve_svg(points, budget, str(title)).encode())
        gaps = [gain.record for gain in within(ordered, budget)]
    if missing is not None:
        say(_written(missing, gaps), err=True)


def _check(
    campaign: str | None, profile: Path | None, model: str | None, served: ServedModel, grid: str
) -> None:
    """Raise BadInput for options that go with nothing that is named."""
    if sum(bool(one) for one in (campaign, profile, model)) != 1:
        raise BadInput("one of CAMPAIGN, --profile and --model is wanted")
    if not model and served != ServedModel(""):
        raise BadInput("options of a model want --model: a campaign and a profile say theirs")
    if campaign and grid:
        raise BadInput("--grid: a campaign says which messages it wants, by `collectives`")


def _free(state: State, place: str) -> frozenset[str]:
    from collector.database.op_mapping import zero_cost_kernels

    mapping = state.versions[place].op_mapping
    return zero_cost_kernels(mapping.text) if mapping is not None else frozenset()


def _written(folder: Path, gaps: Sequence[CaseRecord]) -> str:
    """The records, written as a tree's version in their order."""
    from collector.collective_case import is_collective
    from collector.database.columns import case_cells
    from collector.singlehost.version_files import VersionFiles

    kernels = [record for record in gaps if not is_collective(record.kernel_type)]
    if not kernels:
        return "nothing is written: no kernel is to be measured"
    files = VersionFiles.read(folder)
    for record in kernels:
        files.append(record.kernel_type, case_cells(record))
    files.write()
    left = len(gaps) - len(kernels)
    told = f", {counted(left, 'message')} left out" if left else ""
    return f"{counted(len(kernels), 'case')} in {folder}{told}; a campaign's source: tree: {folder}"
