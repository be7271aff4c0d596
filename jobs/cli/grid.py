"""`opmeter grid`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collector.counting import counted
from collector.errors import BadInput
from collector.units import GIB
from jobs.cli.terminal import say
from jobs.cli.tree_options import (
    DeviceOption,
    VersionOption,
    VllmOption,
    version_folder,
)

if TYPE_CHECKING:
    from collector.shapes.grid import Chosen
    from collector.singlehost.grow import Grown

_ROWS = 1000  # for each kernel type, where nobody says a number


def grid_verb(
    *,
    target_models: Annotated[
        str | None,
        typer.Option(help="models, by commas: `opmeter model list`, or a config.json  [any size]"),
    ] = None,
    database_path: Annotated[
        Path | None,
        typer.Option("--database-path", "--data-dir", help="the version directory of a tree"),
    ] = None,
    device: DeviceOption = None,
    vllm_version: VllmOption = "",
    torch_version: VersionOption = "",
    cann_version: VersionOption = "",
    rows: Annotated[
        int | None,
        typer.Option(
            help="at most for each kernel type; 0 for all  [1000; of --standard all]", min=0
        ),
    ] = None,
    standard: Annotated[
        str | None,
        typer.Option(help="density-v1: what it wants between rows that are there, and no sample"),
    ] = None,
    seed: Annotated[int, typer.Option(help="of the choice among all cases")] = 0,
    max_hbm_gb: Annotated[
        float, typer.Option(help="GiB that a case may take; 0 for any", min=0)
    ] = 32.0,
    reserve_gb: Annotated[
        float,
        typer.Option(help="GiB of that for workspaces and the runtime", min=0),
    ] = 1.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="say what would be added, and write nothing")
    ] = False,
) -> int:
    """Add rows without durations to a tree: shapes on the grid of each of its kernels."""
    from collector.shapes.density import find_standard
    from collector.shapes.kernel_set import USUAL_RELEASE
    from collector.shapes.models import find_decoder
    from collector.singlehost.grow import GridOptions, grow_tree

    folder = version_folder(database_path, device, (vllm_version, torch_version, cann_version))
    names = [name.strip() for name in (target_models or "").split(",") if name.strip()]
    if target_models is not None and not names:
        raise BadInput("--target-models: expected at least one model")
    if standard is not None:
        find_standard(standard)
        if names:
            raise BadInput("--standard goes by rows that are there: it takes no --target-models")
    options = GridOptions(
        rows=(_ROWS if rows is None and standard is None else rows) or None,
        seed=seed,
        largest_gib=_room(max_hbm_gb, reserve_gb),
        decoders=tuple(map(find_decoder, names)),
        release=USUAL_RELEASE,
        standard=standard or "",
    )
    added, is_any = 0, False
    for one in grow_tree(folder, options, write=not dry_run):
        say(_line(one))
        added += len(one.chosen.records) if one.chosen else 0
        is_any = is_any or (one.chosen is not None and _is_anything(one.chosen))
    verb = "would be added" if dry_run else "added"
    say(f"{counted(added, 'row')} {verb} to {folder}")
    return 0 if is_any else 1


def _room(most_gib: float, reserve_gib: float) -> float | None:
    """What is left for tensors; None where nobody limits them."""
    if not most_gib:
        return None
    if reserve_gib >= most_gib:
        raise BadInput(
            f"--max-hbm-gb {most_gib:g} leaves no room beside --reserve-gb {reserve_gib:g}"
        )
    return most_gib - reserve_gib


def _is_anything(chosen: Chosen) -> bool:
    """Whether the tree has a case of those that were asked for; else nobody was helped."""
    return bool(chosen.records or chosen.known)


def _line(one: Grown) -> str:
    if one.chosen is None:
        return f"{one.kernel_type:<32} left as it is: {one.reason}"
    chosen = one.chosen
    left_out = (
        (chosen.known, "are there"),
        (chosen.repeated, "come twice"),
        (chosen.too_large, "are too large"),
        (chosen.refused, f"are no cases, the first: {chosen.why}"),
    )
    told = "".join(f"; {number:,} {what}" for number, what in left_out if number)
    largest = f", {chosen.largest_bytes / GIB:.2g} GiB at most" if chosen.records else ""
    return (
        f"{one.kernel_type:<32} {len(chosen.records):,} added{largest}: "
        f"{chosen.looked_at:,} of {chosen.points:,} points looked at{told}"
    )
