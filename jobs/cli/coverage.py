"""`opmeter coverage`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jobs.cli.coverage_lines import covered_lines, message_lines, print_json
from jobs.cli.look_up import ServedModel
from jobs.cli.options import (
    CommitOption,
    ConcurrencyOption,
    DirectoryOption,
    GraphSizesOption,
    ImbalanceOption,
    InputOption,
    LayoutOption,
    MaxBatchedTokensOption,
    MixedOption,
    ModelOption,
    OutputOption,
    PhaseOption,
    PredictedTokensOption,
    ProfileOption,
    RanksGridOption,
    ReleaseOption,
    RootOption,
    SkewOption,
)
from jobs.cli.terminal import say


def coverage_verb(
    campaign: Annotated[
        str | None, typer.Argument(help="a campaign.yaml, whose sources are looked up")
    ] = None,
    *,
    root: RootOption = None,
    version: CommitOption = None,
    directory: DirectoryOption = None,
    profile: ProfileOption = None,
    model: ModelOption = None,
    layout: LayoutOption = "",
    concurrency: ConcurrencyOption = None,
    input_tokens: InputOption = None,
    output_tokens: OutputOption = None,
    max_batched_tokens: MaxBatchedTokensOption = None,
    graph_sizes: GraphSizesOption = None,
    phase: PhaseOption = None,
    mixed: MixedOption = False,
    predicted_tokens: PredictedTokensOption = None,
    skew: SkewOption = None,
    imbalance: ImbalanceOption = None,
    release: ReleaseOption = None,
    grid: RanksGridOption = "",
    missing: Annotated[
        Path | None, typer.Option(help="a new folder: what has no duration, as a tree to measure")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="every case, as JSON")] = False,
) -> None:
    """Say how much of what a model or a profile launches a version of the database has; what of the
    rest to measure first, `opmeter plan --budget` says."""
    from jobs.cli.look_up import Asked, Where, check_missing, find_covered, written
    from jobs.planning.coverage import user_metrics

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
    check_missing(missing)
    found = find_covered(Asked(campaign, profile, served, grid), Where(root, version, directory))
    metrics = user_metrics(found.cases, found.free)
    if as_json:
        print_json(found.place, found.cases, metrics)
    else:
        for line in covered_lines(found.place, found.cases, metrics, found.communication_us):
            say(line)
        for line in message_lines(found.cases, campaign, grid):
            say(line)
    if missing is not None:
        say(written(missing, found.gaps), err=True)
