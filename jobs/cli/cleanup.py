"""`opmeter db du` and `db gc`: what a store holds, and what can be deleted."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from collector.codec.errors import DamagedObject
from collector.codec.text import counted, size_text
from collector.store.opening import command_on
from jobs.cli import options
from jobs.cli.opening import open_root
from jobs.cli.terminal import print_json, say

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from collector.database.cleanup import SpaceUsed
    from collector.store.base import Info, Store


def du_command(
    *,
    root: options.DatabaseRootOption = "opmeter-data",
    by: Annotated[
        bool, typer.Option("--by-version", help="also by version directory and campaign")
    ] = False,
    as_json: options.JsonOption = False,
) -> None:
    """Report how much space the objects of a store take, by kind, and what can be freed.

    \b
    Examples:
      opmeter db du
      opmeter db du --by-version --root s3://bucket/prefix
    """
    from collector.database.cleanup import usage

    store = open_root(root)
    found, free, unknown = usage(store), list[_Free](), ""
    try:
        free = list(_free(store, root))
    except DamagedObject as error:
        unknown = f"not known what can be freed: {error.advice}"
    if as_json:
        print_json({"used": found, "free": None if unknown else [asdict(one) for one in free]})
        return
    kinds: dict[str, list[SpaceUsed]] = defaultdict(list)
    for one in found:
        kinds[one.kind].append(one)
    for kind, own in kinds.items():
        total = sum(one.size_bytes for one in own)
        say(f"{size_text(total):>10}  {counted(sum(one.objects for one in own), 'object')}  {kind}")
        if by:
            for one in own:
                if one.of:
                    say(f"{size_text(one.size_bytes):>10}    {one.of}")
    total = sum(one.size_bytes for one in found)
    say(f"{size_text(total):>10}  {store.url}")
    for some in free:
        objects = f"{counted(some.objects, 'object')} {some.what}"
        say(f"{size_text(some.size_bytes):>10}  can be freed: {objects}: {some.command}")
    if not free:
        say(unknown or f"{size_text(0):>10}  can be freed")


@dataclass(frozen=True, slots=True)
class _Free:
    """Objects that a command deletes."""

    what: str
    command: str
    objects: int
    size_bytes: int


# What `db du` proposes to keep: channels keep their versions besides.
_KEPT, _KEPT_PROMOTED = 10, 2


def _free(store: Store, root: str) -> Iterator[_Free]:
    """Yield what can be deleted without a loss of measurements, if there is any. Raises
    DamagedObject for a damaged log."""
    from collector.database.cleanup import garbage
    from collector.database.retired import retirable

    unnamed = garbage(store)
    old = retirable(store, _KEPT, _KEPT_PROMOTED)
    of_old = garbage(store, old) if old else []
    if unnamed:
        yield _freed("that no version names", _gc_command(root), unnamed)
    known = {info.key for info in unnamed}
    if more := [info for info in of_old if info.key not in known]:
        what = f"of {counted(len(old), 'old version')} alone"
        yield _freed(what, _gc_command(root, _KEPT, _KEPT_PROMOTED), more)


def _freed(what: str, command: str, found: Sequence[Info]) -> _Free:
    return _Free(what, command, len(found), sum(info.size_bytes for info in found))


def _gc_command(root: str, keep: int | None = None, keep_promoted: int = 2) -> str:
    """Return the command that deletes what no version names; with `keep`, of old versions too."""
    words = [command_on(root, "opmeter db gc")]
    words += [f"--keep {keep} --keep-promoted {keep_promoted}"] if keep is not None else []
    return " ".join((*words, "--delete"))


def gc_command(
    *,
    root: options.DatabaseRootOption = "opmeter-data",
    delete: Annotated[
        bool, typer.Option("--delete", help="delete the objects  [default: only list them]")
    ] = False,
    keep: Annotated[
        int | None,
        typer.Option(
            help="retire all versions but so many of the newest ones, and those of channels"
        ),
    ] = None,
    keep_promoted: Annotated[
        int, typer.Option(help="with --keep: versions of each channel that are kept")
    ] = 2,
    as_json: options.JsonOption = False,
) -> None:
    """List what merges that were killed or overtaken have left, or delete it.

    Only objects that no version names and no running merge can name are listed, so that it is safe
    next to merges and readers. What the merge after the newest version may still name is kept. A
    store whose log is damaged is refused: run `opmeter db verify`.

    --keep also retires old versions: they can no longer be read, and the files that only they name
    are deleted. Their measurements, which later versions have too, are not.

    \b
    Examples:
      opmeter db gc
      opmeter db gc --delete
      opmeter db gc --keep 10 --keep-promoted 2 --delete
    """
    from collector.database.cleanup import garbage

    store = open_root(root)
    retiring = () if keep is None else _retire(store, keep, keep_promoted, is_done=delete)
    found = garbage(store, retiring)
    if as_json:
        print_json({"retired": retiring, "objects": found})
    elif keep is not None:
        done = "retired" if delete else "would be retired"
        say(f"{counted(len(retiring), 'version')} {done}: {ranges_text(retiring)}")
    for info in found:
        if delete:
            store.delete(info.key)
        if not as_json:
            say(f"{size_text(info.size_bytes):>10}  {info.key}")
    if as_json:
        return
    total = size_text(sum(info.size_bytes for info in found))
    command = _gc_command(root, keep, keep_promoted)
    done = "deleted" if delete else f"can be deleted: {command}" if found else "to delete"
    say(f"{counted(len(found), 'object')}, {total} {done}")


def _retire(store: Store, keep: int, keep_promoted: int, *, is_done: bool) -> tuple[int, ...]:
    """Return the versions to retire, and record them if it is to be done."""
    from collector import environment
    from collector.database.retired import Retirement, retirable, retire, retirements
    from jobs.planning.lifecycle import current_author

    versions = retirable(store, keep, keep_promoted)
    if versions and is_done:
        record = Retirement(
            number=len(retirements(store)) + 1,
            versions=versions,
            newest=keep,
            promoted=keep_promoted,
            author=current_author(),
            time=environment.utc_now().isoformat(timespec="seconds"),
        )
        retire(store, record)
    return versions


def ranges_text(numbers: Sequence[int]) -> str:
    """Return increasing numbers as text: `1-3, 5`; `none` for no number."""
    parts: list[tuple[int, int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1] = (parts[-1][0], number)
        else:
            parts.append((number, number))
    return ", ".join(f"{a}-{b}" if b > a else str(a) for a, b in parts) or "none"
