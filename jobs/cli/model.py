"""`opmeter model`: the models that are known by name, the kernels of one step, and recordings."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collector.codec.errors import BadInput
from collector.ranks.collective import OPERATIONS
from collector.workloads.models import bundled_configs, find_decoder
from collector.workloads.serving import Batch, Phase
from jobs.cli import options
from jobs.cli.recordings import (
    RECORDING_SUFFIX,
    derive_command,
    record_command,
    show_recording,
)
from jobs.cli.terminal import print_json, print_table

if TYPE_CHECKING:
    from collector.model.record import CaseRecord
    from collector.workloads.step import Step

_SHOWN = (0, 1, 2, 3, 6)  # what fits on a terminal
_OPTIONAL = ("output shapes",)
_COLUMNS = (
    *("layer", "kernel", "times", "input shapes", "input dtypes", "input formats"),
    "output shapes",
)
_KEYS_OF_DECODE = 4096


def list_models_command(
    as_json: Annotated[bool, typer.Option("--json", help="print the list as JSON")] = False,
) -> None:
    """List the bundled models, and the layouts of each release that are recorded.

    \b
    Example:
      opmeter model list
    """
    from collector.workloads.deployments import packaged_layouts

    recorded = packaged_layouts()
    releases = sorted({release for _, release in recorded})
    rows = [
        (name, release, recorded.get((name, release), ()))
        for name in bundled_configs()
        for release in releases
    ]
    if as_json:
        names = ("model", "release", "layouts")
        print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    shown = [(name, release, layout) for name, release, layouts in rows for layout in layouts]
    print_table(("model", "release", "layout"), shown)


def show_command(
    model: Annotated[
        str, typer.Argument(help="name of `opmeter model list`, a config.json, or a recording")
    ],
    *,
    layout: Annotated[
        str,
        typer.Option(help="layout: tp=8,dp=2,ep=16,sequence_split,quantisation=w8a8,experts=apart"),
    ] = "",
    phase: Annotated[str, typer.Option(help="phase: decode or prefill")] = "decode",
    tokens: Annotated[int, typer.Option(help="new tokens of the forward pass", min=1)] = 16,
    requests: Annotated[
        int | None,
        typer.Option(help="number of requests  [default: one per token; in prefill one]", min=1),
    ] = None,
    keys: Annotated[
        int | None,
        typer.Option(
            "--context",
            help="tokens of each request in total  [default: 4096; in prefill the new]",
            min=1,
        ),
    ] = None,
    padding: Annotated[
        int,
        typer.Option(help="empty tokens that pad to the size of a graph", min=0),
    ] = 0,
    answers: Annotated[
        int,
        typer.Option(help="decoding requests in the same pass (--phase prefill)", min=0),
    ] = 0,
    predicted: Annotated[
        int, typer.Option(help="tokens predicted after each by the MTP layer", min=0)
    ] = 0,
    skew: Annotated[
        int, typer.Option(help="skew of the lengths of requests, in percent", min=0, max=99)
    ] = 0,
    imbalance: Annotated[
        int, typer.Option(help="imbalance of the experts' load, in percent", min=0, max=99)
    ] = 0,
    decodes_alone: Annotated[
        bool,
        typer.Option("--decodes-alone", help="host that only decodes"),
    ] = False,
    draft: Annotated[
        bool, typer.Option("--draft", help="show the MTP layer instead of the model")
    ] = False,
    release: options.ReleaseOption = None,
    missing: Annotated[
        bool,
        typer.Option("--missing", help="only the kernels that no operator measures"),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print every cell as JSON")] = False,
) -> None:
    """Show the kernels that one forward pass of a model launches on one rank.

    They are from a recording of the package; `opmeter model list` prints its layouts. A recording
    of `opmeter model record` has its passes and its layout; --missing, --json and its file are the
    only options.

    \b
    Examples:
      opmeter model show qwen3-32b --layout tp=4 --tokens 16
      opmeter model show config.json --phase prefill --tokens 4096 --json
      opmeter model show qwen3-32b.json.gz
    """
    if model.endswith(RECORDING_SUFFIX):
        show_recording(Path(model), only_missing=missing, as_json=as_json)
        return
    from collector.workloads.deployments import USUAL_RELEASE, model_step
    from collector.workloads.layout import layout_of

    decoder, reported = find_decoder(model), layout_of(layout)
    batch = replace(
        _batch(phase, tokens, requests, keys),
        padding=padding,
        mixed_decodes=answers,
        followed_keys=_KEYS_OF_DECODE if answers else 0,
        predicted=predicted,
        is_draft=draft,
        skew=skew,
        imbalance=imbalance,
        decodes_alone=decodes_alone,
    )
    release = release or USUAL_RELEASE
    step = model_step(decoder, reported, batch, release)
    if missing:
        step = _not_measured(step)
    title = f"{decoder.name}, {reported}: {batch}, as {release} launches it"
    if as_json:
        _print_step(title, batch, step)
    else:
        _print_table(title, step)


COMMANDS: dict[str, Callable[..., int | None]] = {
    "show": show_command,
    "record": record_command,
    "derive": derive_command,
    "list": list_models_command,
}


def _batch(phase: str, tokens: int, requests: int | None, keys: int | None) -> Batch:
    if phase not in tuple(Phase):
        raise BadInput(f"--phase: expected {' or '.join(Phase)}, got {phase!r}")
    is_decode = phase == Phase.DECODE
    count = requests or (tokens if is_decode else 1)
    if tokens % count:
        raise BadInput(f"--tokens ({tokens}) must be divisible by --requests ({count})")
    queries = tokens // count
    return Batch(Phase(phase), count, queries, keys or (_KEYS_OF_DECODE if is_decode else queries))


def _print_table(title: str, step: Step) -> None:
    rows = _rows(step)
    shown = _SHOWN if sys.stdout.isatty() else range(len(_COLUMNS))
    cells = [[row[at] for at in shown] for row in rows]
    print_table([_COLUMNS[at] for at in shown], cells, title=title, optional=_OPTIONAL)


def _rows(step: Step) -> list[tuple[str, ...]]:
    from collector.model.vocabulary import INPUT_CELLS, OUTPUT_SHAPES

    kernels = [
        (
            *(one.layer, one.record.kernel_type, str(one.times)),
            *(one.record.cells.get(name, "").strip('"') for name in (*INPUT_CELLS, OUTPUT_SHAPES)),
        )
        for one in step.kernels
    ]
    collectives = [
        (
            *(one.layer, OPERATIONS[one.operation].kernel_type, str(one.times)),
            *(f"{one.message_bytes} bytes over {one.group_size} ranks", "DT_BF16", "", ""),
        )
        for one in step.collectives
    ]
    return [*kernels, *collectives]


def _records(step: Step) -> Sequence[CaseRecord]:
    """Return the rows of a step's kernels as a campaign has them."""
    from jobs.planning.sources import completed_records

    return completed_records(one.record for one in step.kernels)


def _not_measured(step: Step) -> Step:
    """Return the step with only the kernels that no operator measures."""
    from collector.ops.refusals import refusal
    from collector.ops.registry import find_operator

    pairs = zip(step.kernels, _records(step), strict=True)
    kernels = tuple(
        one for one, record in pairs if refusal(record.case, find_operator, "npu") is not None
    )
    return replace(step, kernels=kernels, collectives=())


def _print_step(title: str, batch: Batch, step: Step) -> None:
    kernels = [
        {
            "layer": one.layer,
            "phase": batch.phase,
            "times": one.times,
            "case_id": record.case_id,
            "Kernel Type": record.kernel_type,
            **record.cells,
            **record.extra,
        }
        for one, record in zip(step.kernels, _records(step), strict=True)
    ]
    messages = [{"phase": batch.phase, **asdict(one)} for one in step.collectives]
    print_json({"step": title, "kernels": kernels, "collectives": messages})
