"""Taking rows without any duration out of a tree: only where a user asks for it by name."""

from collections.abc import Collection

from collector.database.tree import Cells
from collector.singlehost.version_files import TreeRow, VersionFiles


def prune(files: VersionFiles, kernels: Collection[str] = ()) -> tuple[tuple[str, Cells], ...]:
    """Remove the rows whose durations are all empty, and give them back with their kernel type."""
    empty = [row for row in files.rows() if _is_chosen(row, kernels) and not row.has_duration]
    files.remove(row.place for row in empty)
    return tuple((row.place.kernel_type, row.cells) for row in empty)


def _is_chosen(row: TreeRow, kernels: Collection[str]) -> bool:
    return not kernels or row.case.kernel_type in kernels
