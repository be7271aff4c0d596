"""What ran before each case of a profile: its launches in the order in which the device began them.

A case is launched at many places of a run. Of these the likeliest are followed back, launch by
launch: at each step those that have there what most of them have. So the launches of one decode
layer stand before each other, whatever the first layer or a prefill had before it.

    X C  A B C  A B C    before C stand X, C, A, B, C, A, B: B at two of its three places, A and C
                         at both of those, and from there on what stood at the last

Communication, and launches whose type no profiler told, are passed over: nobody replays them here.
Other devices and other files are other runs.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from collector.profiles.grouping import FileGroups, Ids, Key
from collector.profiles.repeats import Marks, devices_of, starts_of
from collector.record import MOST_BEFORE

_END = -1  # before the first launch of a run


@dataclass(frozen=True, slots=True)
class Order:
    """The device and the start of each row of a file."""

    devices: Marks
    starts: npt.NDArray[np.float64]

    @property
    def is_told(self) -> bool:
        """Whether every row says when it began."""
        return not bool(np.isnan(self.starts).any())


def order_of(block: pa.Table) -> Order:
    """The order of the rows of a block."""
    return Order(devices_of(block), starts_of(block))


def joined_order(orders: Sequence[Order]) -> Order:
    """That of a file, from its blocks."""
    return Order(
        np.concatenate([np.empty(0, np.uint64), *(one.devices for one in orders)]),
        np.concatenate([np.empty(0), *(one.starts for one in orders)]),
    )


def launches_before(
    files: Iterable[tuple[FileGroups, Order]], label_of: Callable[[Key], Hashable | None]
) -> dict[Hashable, tuple[Hashable, ...]]:
    """For each label the labels that stand before it, the nearest last."""
    numbers: dict[Hashable, int] = {}
    runs = [run for groups, order in files for run in _runs(groups, order, label_of, numbers)]
    # Before each run nothing ran: whoever looks back further than that finds its end.
    end = np.full(MOST_BEFORE, _END, np.int32)
    stream = np.concatenate([np.empty(0, np.int32), *(part for run in runs for part in (end, run))])
    labels = list(numbers)
    by_label = np.argsort(stream, kind="stable")
    firsts = np.searchsorted(stream[by_label], np.arange(len(labels) + 1))
    return {
        label: tuple(
            labels[number]
            for number in reversed(_likeliest(stream, by_label[firsts[at] : firsts[at + 1]]))
        )
        for at, label in enumerate(labels)
    }


def _runs(
    groups: FileGroups,
    order: Order,
    label_of: Callable[[Key], Hashable | None],
    numbers: dict[Hashable, int],
) -> Iterable[Ids]:
    """What each device of a file launched, in order, as numbers of labels."""
    rows = groups.rows()
    labels = [label_of(key) for key in rows.keys]
    of_key = np.array(
        [_END if one is None else numbers.setdefault(one, len(numbers)) for one in labels], np.int32
    )
    launched = of_key[rows.ids]
    by_start = np.lexsort((order.starts, order.devices))
    # Devices in the order of their first rows: their numbers differ from process to process.
    _, firsts = np.unique(order.devices, return_index=True)
    for device in order.devices[np.sort(firsts)]:
        run = launched[by_start[order.devices[by_start] == device]]
        yield run[run != _END]


def _likeliest(stream: Ids, places: npt.NDArray[np.intp]) -> list[int]:
    """What stands before a label's places in the stream, the nearest first."""
    found: list[int] = []
    while len(found) < MOST_BEFORE:
        nearer = stream[places - len(found) - 1]
        told = nearer[nearer != _END]
        if not len(told):
            break
        # Of several that are equally frequent the last: a run settles.
        counts = np.bincount(told)
        most = int(told[counts[told] == counts.max()][-1])
        found.append(most)
        places = places[nearer == most]
    return found
