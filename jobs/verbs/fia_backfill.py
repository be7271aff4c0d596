"""`opmeter fia-backfill`."""

from collections.abc import Iterator
from pathlib import Path

import typer

from collector.errors import BadInput
from collector.singlehost.fia_backfill import Backfilled, backfill
from collector.singlehost.outcome import shapes_of
from jobs.verbs.version_folder import version_folder

_LISTED = 20


def fia_backfill_verb(
    csv_path: Path | None,
    database_path: Path | None,
    device: str | None,
    versions: tuple[str, str, str],
    jsonl_path: Path,
    output_path: Path | None,
    tag: str,
) -> None:
    """Join the values, and say what met nothing on either side."""
    if csv_path is not None and (database_path is not None or device is not None):
        raise BadInput("--csv-path names the file, --database-path or --device its folder: one")
    source = csv_path or version_folder(database_path, device, versions)
    for line in _describe(backfill(source, jsonl_path, output_path, tag=tag), jsonl_path):
        typer.echo(line)


def _describe(done: Backfilled, jsonl_path: Path) -> Iterator[str]:
    yield (
        f"{done.path}: {done.filled} rows got their values and are {done.made} rows now; "
        f"{done.complete} had theirs already"
    )
    if done.known:
        yield f"{done.known} of the new rows stood there already, and stand there once"
    if done.blanked:
        yield (
            f"{done.blanked} rows lost numbers that were not of these values: a microbenchmark's, "
            "and the profile's mean where it is over several"
        )
    for case in done.rows_alone[:_LISTED]:
        yield f"no values for {shapes_of(case)}"
    if len(done.rows_alone) > _LISTED:
        yield f"no values for {len(done.rows_alone) - _LISTED} more rows"
    for line in done.values_alone[:_LISTED]:
        yield f"no row for {jsonl_path}:{line}"
    if len(done.values_alone) > _LISTED:
        yield f"no row for {len(done.values_alone) - _LISTED} more lines"
