"""`opmeter db export`: a version directory in the formats of other programs."""

from __future__ import annotations

import filecmp
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collector.codec.errors import BadInput, file_errors
from collector.codec.files import refuse_links
from collector.codec.scratch import fresh_folder, move_files
from collector.codec.text import counted
from jobs.cli import options
from jobs.cli.query import opened_version
from jobs.cli.terminal import say

if TYPE_CHECKING:
    import pyarrow as pa

    from opmeter.adapters.aiconfigurator import Experts

_FORMATS = ("aiconfigurator",)


def export_command(
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="folder to write the system to")],
    form: Annotated[
        str, typer.Option("--format", help=f"format of the tables: {', '.join(_FORMATS)}")
    ] = _FORMATS[0],
    model: Annotated[
        str | None,
        typer.Option(
            help="model whose experts are exported: a name of `opmeter model list` or a "
            "config.json  [default: no table of experts]"
        ),
    ] = None,
    root: options.DatabaseRootOption = "opmeter-data",
    version: options.CommitOption = None,
    directory: options.DirectoryOption = None,
) -> None:
    """Write the tables of a simulator from a version: products, attention, experts, collectives.

    The folder is one of AIConfigurator's --systems-paths: a system with its tables. Other files
    that exist are not replaced. What the tables cannot express is counted, with the reason, and so
    are rows with warnings, which have a column of their own.

    \b
    Examples:
      opmeter db export --format aiconfigurator -o systems
      opmeter db export -o systems --model qwen3-235b-a22b
    """
    from opmeter.adapters.aiconfigurator import exported

    if form not in _FORMATS:
        raise BadInput(f"--format: expected {', '.join(_FORMATS)}, got {form!r}")
    opened = opened_version(root, version, directory)
    found = exported(opened, _experts_of(model))
    files = {found.paths[name]: table for name, table in found.tables.items()}
    refuse_links(out)
    if files:
        _write(out, files, found.texts)
    else:
        say("nothing written: no case of these operators has a duration", err=True)
    for name, table in files.items():
        say(f"{out / name}: {counted(table.num_rows, 'row')}")
    for line in _warning_lines(files.values()):
        say(line)
    for reason, count in found.left_out.items():
        say(f"left out    {counted(count, 'case')}: {reason}")


def _write(out: Path, tables: Mapping[str, pa.Table], texts: Mapping[str, bytes]) -> None:
    """Write the files of a system, all or none. Raises BadInput if there is another file at the
    place of one."""
    import pyarrow.parquet as pq

    with file_errors(out, "written"), fresh_folder(out, "export") as fresh:
        for name, table in tables.items():
            (fresh / name).parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table, fresh / name, compression="zstd")
        for name, text in texts.items():
            (fresh / name).write_bytes(text)
        for name in (*texts, *tables):
            _check_is_free(out / name, fresh / name)
        move_files(fresh, out)


def _check_is_free(place: Path, fresh: Path) -> None:
    """Raise BadInput if there is a file at the place of a fresh one, unless they are equal: a
    killed export may have left it."""
    if place.exists() and not (place.is_file() and filecmp.cmp(place, fresh, shallow=False)):
        raise BadInput("expected no such file: choose another folder", path=place)


def _warning_lines(tables: Iterable[pa.Table]) -> Iterator[str]:
    """Yield how many of the written rows have warnings, which the simulator does not show."""
    cells = [cell for table in tables for cell in table["warnings"].to_pylist()]
    if warned := [cell for cell in cells if cell]:
        names = Counter(name for cell in warned for name in cell.split(";"))
        by_name = ", ".join(f"{count:,} by {name}" for name, count in names.most_common())
        yield f"warnings    {len(warned):,} of {counted(len(cells), 'row')}: {by_name}"


def _experts_of(model: str | None) -> Experts | None:
    from collector.workloads.models import find_decoder
    from opmeter.adapters.aiconfigurator import Experts

    if model is None:
        return None
    decoder = find_decoder(model)
    if not decoder.experts:
        raise BadInput(f"--model: expected a model with experts, got {decoder.name}")
    return Experts(decoder.choices, decoder.experts, decoder.expert_intermediate)
