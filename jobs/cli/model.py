"""`opmeter model`: the models that are known by name, and the step of one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from collector.codec.errors import BadInput

if TYPE_CHECKING:
    from collector.shapes.serving import Batch
    from collector.shapes.step import Step

_SHOWN = (0, 1, 2, 3, 6, 7)  # what a terminal has room for
_COLUMNS = (
    *("layer", "kernel", "times", "input shapes", "input dtypes", "input formats"),
    *("output shapes", "known by"),
)
_KEYS_OF_DECODE = 4096


def list_verb() -> None:
    """List the models that come along, and their releases of serving stacks."""
    from collector.shapes.kernel_set import bundled_releases
    from collector.shapes.models import bundled_names

    for name in bundled_names():
        typer.echo(name)
    typer.echo(f"kernels of {', '.join(bundled_releases())}", err=True)


def show_verb(
    model: Annotated[str, typer.Argument(help="a name of `opmeter model list`, or a config.json")],
    *,
    layout: Annotated[
        str, typer.Option(help="tp=8,dp=2,ep=16,sequence_split,quantisation=w8a8,experts=apart")
    ] = "",
    phase: Annotated[str, typer.Option(help="decode or prefill")] = "decode",
    tokens: Annotated[int, typer.Option(help="new tokens of the pass", min=1)] = 16,
    requests: Annotated[
        int | None,
        typer.Option(help="of how many requests  [one a token, or one in prefill]", min=1),
    ] = None,
    keys: Annotated[
        int | None,
        typer.Option(help="tokens that each has in all  [4096, or its own in prefill]", min=1),
    ] = None,
    padding: Annotated[
        int, typer.Option(help="of them empty: what fills a graph's size", min=0)
    ] = 0,
    answers: Annotated[
        int, typer.Option(help="beside prompts: requests that go on with an answer", min=0)
    ] = 0,
    predicted: Annotated[
        int, typer.Option(help="tokens that are predicted after each (MTP)", min=0)
    ] = 0,
    skew: Annotated[
        int, typer.Option(help="percent by which answers have more and fewer keys", min=0, max=99)
    ] = 0,
    imbalance: Annotated[
        int, typer.Option(help="percent by which experts have more and fewer rows", min=0, max=99)
    ] = 0,
    decodes_alone: Annotated[
        bool, typer.Option("--decodes-alone", help="on a host that only decodes")
    ] = False,
    draft: Annotated[
        bool, typer.Option("--draft", help="of the layer that predicts, instead of the model")
    ] = False,
    release: Annotated[
        str | None, typer.Option(help="the serving stack  [vllm-ascend-0.18]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="with every cell, as JSON")] = False,
) -> None:
    """Show what one forward pass of a model launches on one rank."""
    from dataclasses import replace

    from collector.shapes.kernel_set import USUAL_RELEASE, find_kernel_set
    from collector.shapes.layout import layout_of
    from collector.shapes.models import find_decoder
    from collector.shapes.step import derive_step

    decoder, said = find_decoder(model), layout_of(layout)
    batch = replace(
        _batch(phase, tokens, requests, keys),
        padding=padding,
        followed=answers,
        followed_keys=_KEYS_OF_DECODE if answers else 0,
        predicted=predicted,
        is_draft=draft,
        skew=skew,
        imbalance=imbalance,
        decodes_alone=decodes_alone,
    )
    kernels = find_kernel_set(release or USUAL_RELEASE)
    step = derive_step(decoder, said, batch, kernels)
    title = f"{decoder.name}, {said}: {batch}, as {kernels.release} launches it"
    if as_json:
        _print_json(title, batch, step)
    else:
        _print_table(title, step)


VERBS: dict[str, Callable[..., int | None]] = {"show": show_verb, "list": list_verb}


def _batch(phase: str, tokens: int, requests: int | None, keys: int | None) -> Batch:
    from collector.shapes.serving import Batch, Phase

    if phase not in tuple(Phase):
        raise BadInput(f"--phase: expected {' or '.join(Phase)}, got {phase!r}")
    is_decode = phase == Phase.DECODE
    count = requests or (tokens if is_decode else 1)
    if tokens % count:
        raise BadInput(f"--tokens {tokens} are not as many for each of {count} requests")
    queries = tokens // count
    return Batch(Phase(phase), count, queries, keys or (_KEYS_OF_DECODE if is_decode else queries))


def _print_table(title: str, step: Step) -> None:
    from rich.console import Console
    from rich.table import Table

    rows = _rows(step)
    if not sys.stdout.isatty():
        typer.echo("\t".join(_COLUMNS))
        for row in rows:
            typer.echo("\t".join(row))
        return
    table = Table(title=title)
    for at in _SHOWN:
        table.add_column(_COLUMNS[at], overflow="fold", no_wrap=_COLUMNS[at] == "kernel")
    for row in rows:
        table.add_row(*(row[at] for at in _SHOWN))
    Console(markup=False).print(table)


def _rows(step: Step) -> list[tuple[str, ...]]:
    from collector.model.vocabulary import INPUT_CELLS, OUTPUT_SHAPES
    from collector.ranks.collective import OPERATIONS

    kernels = [
        (
            *(one.layer, one.record.kernel_type, str(one.times)),
            *(one.record.cells[name].strip('"') for name in (*INPUT_CELLS, OUTPUT_SHAPES)),
            one.source,
        )
        for one in step.kernels
    ]
    collectives = [
        (
            *(one.layer, OPERATIONS[one.operation].kernel_type, str(one.times)),
            *(f"{one.message_bytes} bytes over {one.group_size} ranks", "DT_BF16", "", ""),
            one.source,
        )
        for one in step.collectives
    ]
    return [*kernels, *collectives]


def _print_json(title: str, batch: Batch, step: Step) -> None:
    import json
    from dataclasses import asdict

    from jobs.planning.sources import completed_records

    records = completed_records(one.record for one in step.kernels)
    kernels = [
        {
            "layer": one.layer,
            "phase": batch.phase,
            "times": one.times,
            "source": one.source,
            "case_id": record.case_id,
            "Kernel Type": record.kernel_type,
            **record.cells,
            **record.extra,
        }
        for one, record in zip(step.kernels, records, strict=True)
    ]
    messages = [{"phase": batch.phase, **asdict(one)} for one in step.collectives]
    typer.echo(json.dumps({"step": title, "kernels": kernels, "collectives": messages}, indent=1))
