"""The kernel types that a user chose, by the names that the first design's tools took."""

from collections.abc import Collection, Iterable
from difflib import get_close_matches

from collector.errors import BadInput
from collector.singlehost.version_files import TreeRow, VersionFiles

_LISTED = 40
_SUFFIXES = (".py", ".csv", "_run")  # `Add_run.py` was the script of a kernel


def chosen(texts: Iterable[str]) -> tuple[str, ...]:
    """Kernel types from texts that may hold several, parted by commas or blanks; each once."""
    names = (name for text in texts for name in text.replace(",", " ").split())
    return tuple(dict.fromkeys(map(_plain, names)))


def only_known(kernels: Iterable[str], there_is: Collection[str], lacking: str) -> None:
    """Raise BadInput for a kernel type that is not there, with what there is."""
    known = sorted(there_is)
    for name in kernels:
        if name in there_is:
            continue
        close = get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
        raise BadInput(
            f"{lacking} kernel type {name!r}{hint}; available: "
            f"{', '.join(known[:_LISTED]) or 'none'}{more}"
        )


def chosen_rows(files: VersionFiles, kernels: Collection[str]) -> list[TreeRow]:
    """The rows of the chosen kernel types; all, where none was chosen."""
    return [row for row in files.rows() if not kernels or row.case.kernel_type in kernels]


def _plain(name: str) -> str:
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return name
