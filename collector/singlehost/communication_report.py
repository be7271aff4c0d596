"""`reports/communication.csv` of a tree: how long each collective of a profile took, by
communicator."""

from collections.abc import Sequence
from pathlib import Path

from collector.database.columns import number_text
from collector.database.tree import Cells
from collector.errors import BadInput
from collector.profiles.communication import Communication
from collector.singlehost.pooling import UNCOUNTED, Moments, together
from collector.table import table_rows

_KEY = ("Type", "Group", "Accelerator Core")
_COUNT, _TOTAL, _MEAN, _MEDIAN, _STD, _MIN, _MAX = (
    *("Count", "Total Duration(us)", "Average Duration(us)", "Median Duration(us)"),
    *("Std Duration(us)", "Min Duration(us)", "Max Duration(us)"),
)
COMMUNICATION_COLUMNS = (*_KEY, _COUNT, _TOTAL, _MEAN, _MEDIAN, _STD, _MIN, _MAX)


def report_rows(communication: Sequence[Communication]) -> list[Cells]:
    """The rows of a profile's collectives."""
    return [_row(entry) for entry in communication]


def pooled_with_report(rows: Sequence[Cells], path: Path, is_counted: bool) -> list[Cells]:
    """The rows of a report, those of the same collective pooled with these, and then the others.
    Raises BadInput for a report that is none, and where it is not known of which runs it is."""
    if not path.exists():
        return list(rows)
    if not is_counted:
        raise BadInput(UNCOUNTED, path=path)
    try:
        read = list(table_rows(path.read_bytes(), COMMUNICATION_COLUMNS, path=str(path)))
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", path=path) from error
    held: dict[tuple[str, ...], Cells] = {}
    for line, cells in read:
        known = dict(zip(COMMUNICATION_COLUMNS, cells, strict=True))
        _check(known, path, line)
        held[_key(known)] = known
    for row in rows:
        old = held.get(_key(row))
        held[_key(row)] = _pooled(old, row) if old else row
    return list(held.values())


def _row(entry: Communication) -> Cells:
    numbers = (entry.total_us, entry.mean_us, entry.median_us)
    spread = (entry.std_us, entry.min_us, entry.max_us)
    texts = (entry.kernel_type, entry.group, entry.core, str(entry.count))
    cells = (*texts, *map(number_text, (*numbers, *spread)))
    return dict(zip(COMMUNICATION_COLUMNS, cells, strict=True))


def _key(row: Cells) -> tuple[str, ...]:
    return tuple(row[name] for name in _KEY)


def _pooled(old: Cells, new: Cells) -> Cells:
    """A median of both is not known of theirs."""
    both = together(_moments(old), _moments(new))
    return {
        **new,
        _COUNT: str(both.count),
        _TOTAL: number_text(float(old[_TOTAL]) + float(new[_TOTAL])),
        _MEAN: number_text(both.mean),
        _MEDIAN: "",
        _STD: number_text(both.std),
        _MIN: min(old[_MIN], new[_MIN], key=float),
        _MAX: max(old[_MAX], new[_MAX], key=float),
    }


def _moments(row: Cells) -> Moments:
    return Moments(int(row[_COUNT]), float(row[_MEAN]), float(row[_STD]))


def _check(row: Cells, path: Path, line: int) -> None:
    try:
        numbers = [float(row[name]) for name in (_TOTAL, _MEAN, _STD, _MIN, _MAX)]
        is_right = int(row[_COUNT]) > 0 and all(0 <= number < 1e18 for number in numbers)
    except ValueError:
        is_right = False
    if not is_right:
        raise BadInput("expected the numbers of a collective", path=path, line=line)
