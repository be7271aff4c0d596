"""`opmeter coverage`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collector.case import shape_text
from collector.counting import counted
from collector.errors import BadInput
from jobs.cli.db import chosen_commit
from jobs.cli.options import CommitOption, DatabaseRootOption
from jobs.cli.terminal import say

if TYPE_CHECKING:
    from collector.database.state import State
    from jobs.campaign.campaign_file import Campaign
    from jobs.planning.coverage import Covered, UserMetrics

_LISTED = 10
_KERNEL_WIDTH = 32


def coverage_verb(
    campaign: Annotated[
        str | None, typer.Argument(help="a campaign.yaml, whose sources are looked up")
    ] = None,
    *,
    root: DatabaseRootOption = "opmeter-data",
    version: CommitOption = None,
    directory: Annotated[
        str | None, typer.Option(help="a version directory  [the only one]")
    ] = None,
    profile: Annotated[Path | None, typer.Option(help="instead of a campaign: a profile")] = None,
    model: Annotated[
        str | None, typer.Option(help="or a name of `opmeter model list`, or a config.json")
    ] = None,
    layout: Annotated[str, typer.Option(help="of the model: tp=8,sequence_split,...")] = "",
    concurrency: Annotated[
        list[int] | None, typer.Option(help="requests that it serves at once  [1, 8, 32]")
    ] = None,
    input_tokens: Annotated[int, typer.Option("--input", help="tokens of a prompt", min=1)] = 4096,
    output_tokens: Annotated[
        int, typer.Option("--output", help="tokens of an answer", min=1)
    ] = 512,
    as_json: Annotated[bool, typer.Option("--json", help="every case, as JSON")] = False,
) -> None:
    """Say how much of what a model or a profile launches a version of the database has."""
    from collector.database.query import answers
    from collector.database.record_rows import case_records
    from collector.database.snapshot import load_state
    from jobs.cli.opening import open_campaign, open_root
    from jobs.planning.coverage import covered, user_metrics
    from jobs.planning.coverage_sources import wanted_cases
    from jobs.planning.forecast import peaks_of

    if sum(one is not None for one in (campaign, profile, model)) != 1:
        raise BadInput("one of CAMPAIGN, --profile and --model is wanted")
    store = open_root(root)
    state = load_state(store, chosen_commit(store, root, version))
    place = chosen_directory(state, directory)
    stack = state.versions[place].shown_stack
    if campaign is not None:
        described = open_campaign(campaign)
    else:
        serving = (tuple(concurrency or (1, 8, 32)), input_tokens, output_tokens)
        described = _described(profile, model, layout, serving, stack.device)
    wanted = wanted_cases(described, store, peaks_of(stack))
    answered = answers(state, place)
    cases = {
        case_id: record.case
        for case_id, record in case_records(state.cases)
        if (answer := answered.get(case_id)) and answer.is_good
    }
    failed = {case_id for case_id, answer in answered.items() if not answer.is_good}
    found = covered(wanted, cases, failed)
    metrics = user_metrics(found, _free(state, place))
    if as_json:
        _print_json(place, found, metrics)
    else:
        for line in _lines(place, found, metrics):
            say(line)


def chosen_directory(state: State, chosen: str | None) -> str:
    """The version directory that is named, or the only one. BadInput for one that is not there."""
    there = sorted(state.versions)
    place = there[0] if chosen is None and len(there) == 1 else chosen
    if place is None or place not in state.versions:
        raise BadInput(f"--directory: one of {', '.join(there)} is wanted")
    return place


def _described(
    profile: Path | None,
    model: str | None,
    layout: str,
    serving: tuple[tuple[int, ...], int, int],
    device: str,
) -> Campaign:
    """The campaign that has what the options name as its only source."""
    import yaml

    from collector.shapes.decoder import bundled_decoder
    from collector.shapes.layout import layout_of
    from jobs.campaign.campaign_file import campaign_from_text

    if profile is not None:
        source: dict[str, object] = {"profile": str(profile)}
    else:
        said = layout_of(layout)
        if Path(model or "").is_dir() and bundled_decoder(model or "") is None:
            model = f"{model}/config.json"
        names = ("tp", "dp", "ep", "nz", "sequence_split")
        requests, prompt, answer = serving
        source = {
            "model": model,
            "layout": {
                **{name: getattr(said, name) for name in names},
                "quantisation": str(said.quantisation),
                "experts": str(said.experts),
            },
            "serving": {"concurrency": list(requests), "input": prompt, "output": answer},
        }
    backend = "cpu" if device.startswith("CPU_") else "npu"
    text = yaml.safe_dump({"campaign": "coverage", "sources": [source], "backend": backend})
    return campaign_from_text(text, path="the options", base=Path.cwd())


def _free(state: State, place: str) -> frozenset[str]:
    from collector.database.op_mapping import zero_cost_kernels

    mapping = state.versions[place].op_mapping
    return zero_cost_kernels(mapping.text) if mapping is not None else frozenset()


def _lines(place: str, found: Sequence[Covered], metrics: UserMetrics) -> Iterator[str]:
    from jobs.planning.coverage import Standing, share

    yield f"version     {place}"
    for standing in Standing:
        of = share(found, standing)
        yield (
            f"{standing:<11} {of.cases:6.1%} of {len(found):,} cases, {of.launches:6.1%} of their "
            f"launches, {of.time:6.1%} of their time"
        )
    told = ("m1", metrics.m1), ("m2", metrics.m2), ("m3", metrics.m3), ("m4", metrics.m4)
    shares = ((name, "-" if value is None else f"{value:.1%}") for name, value in told)
    whole = "-" if metrics.m5 is None else f"{metrics.m5:.1%}"
    yield "metrics     " + ", ".join(f"{n.upper()} {v}" for n, v in (*shares, ("m5", whole)))
    yield from _kernel_lines(found)
    yield from _gap_lines(found)


def _kernel_lines(found: Sequence[Covered]) -> Iterator[str]:
    """A line a kernel type, in the order of its time."""
    from jobs.planning.coverage import Standing, share

    kernels: dict[str, list[Covered]] = defaultdict(list)
    for one in found:
        kernels[one.wanted.record.case.kernel_type].append(one)
    whole = sum(one.wanted.time_us for one in found) or 1.0
    rows = [(sum(one.wanted.time_us for one in of), name, of) for name, of in kernels.items()]
    for time_us, name, of in sorted(rows, key=lambda row: (-row[0], row[1])):
        parts = ", ".join(
            f"{share(of, standing).cases:.0%} {standing}"
            for standing in Standing
            if share(of, standing).cases
        )
        shown = f"{time_us / whole:6.1%} of the time, {counted(len(of), 'case')}"
        yield f"  {name:<{_KERNEL_WIDTH}} {shown}: {parts}"


def _gap_lines(found: Sequence[Covered]) -> Iterator[str]:
    """The cases without a duration that take the most time."""
    from jobs.planning.coverage import Standing

    gaps = [one for one in found if one.standing is not Standing.EXACT]
    if not gaps:
        return
    yield "largest gaps; a campaign with the same source measures what is missing"
    whole = sum(one.wanted.time_us for one in found) or 1.0
    for one in sorted(gaps, key=lambda gap: -gap.wanted.time_us)[:_LISTED]:
        share = one.wanted.time_us / whole
        yield f"  {share:6.1%} {one.standing:<8} {one.wanted.record.case.describe()}"


def _print_json(place: str, found: Sequence[Covered], metrics: UserMetrics) -> None:
    import json
    from dataclasses import asdict

    cases = [
        {
            "case_id": one.wanted.record.case_id,
            "kernel_type": one.wanted.record.case.kernel_type,
            "inputs": [shape_text(slot.shape) for slot in one.wanted.record.case.inputs or ()],
            "launches": one.wanted.launches,
            "time_us": one.wanted.time_us,
            "standing": one.standing,
        }
        for one in found
    ]
    typer.echo(json.dumps({"version": place, "metrics": asdict(metrics), "cases": cases}, indent=1))
