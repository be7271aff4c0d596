"""`opmeter fia-backfill`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collector.counting import counted
from collector.errors import BadInput
from jobs.cli.terminal import say
from jobs.cli.tree_options import (
    DatabasePathOption,
    DeviceOption,
    VersionOption,
    VllmOption,
    version_folder,
)

if TYPE_CHECKING:
    from collector.singlehost.fia_backfill import Backfilled

_LISTED = 20


def fia_backfill_verb(
    *,
    jsonl_path: Annotated[Path, typer.Option(help="runtime values, one JSON object a line")],
    csv_path: Annotated[
        Path | None, typer.Option(help="a FusedInferAttentionScore.csv; or instead its folder:")
    ] = None,
    database_path: DatabasePathOption = None,
    device: DeviceOption = None,
    vllm_version: VllmOption = "",
    torch_version: VersionOption = "",
    cann_version: VersionOption = "",
    output_path: Annotated[
        Path | None, typer.Option(help="write this file  [the file itself]")
    ] = None,
    tag: Annotated[
        str, typer.Option(help="what `Runtime metadata_completeness` says of the rows")
    ] = "runtime_values_dumped",
) -> None:
    """Join the values of a running model into the rows of fused attention."""
    from collector.singlehost.fia_backfill import backfill

    if csv_path is not None and (database_path is not None or device is not None):
        raise BadInput("--csv-path names the file, --database-path or --device its folder: one")
    versions = (vllm_version, torch_version, cann_version)
    source = csv_path or version_folder(database_path, device, versions)
    for line in _describe(backfill(source, jsonl_path, output_path, tag=tag), jsonl_path):
        say(line)


def _describe(done: Backfilled, jsonl_path: Path) -> Iterator[str]:
    from collector.singlehost.outcome import shapes_of

    yield (
        f"{done.path}: {counted(done.filled, 'row got its values', 'rows got their values')}, now "
        f"{counted(done.made, 'row')}; {done.complete:,} had theirs already"
    )
    if done.known:
        yield f"{done.known:,} of the new rows stood there already: each is there once"
    if done.blanked:
        yield (
            f"{counted(done.blanked, 'row')} lost numbers that were not of these values: a "
            "microbenchmark's, and the profile's mean where it is over several"
        )
    for case in done.rows_alone[:_LISTED]:
        yield f"no values for {shapes_of(case)}"
    if len(done.rows_alone) > _LISTED:
        yield f"no values for {counted(len(done.rows_alone) - _LISTED, 'more row')}"
    for line in done.values_alone[:_LISTED]:
        yield f"no row for {jsonl_path}:{line}"
    if len(done.values_alone) > _LISTED:
        yield f"no row for {counted(len(done.values_alone) - _LISTED, 'more line')}"
