"""What faults do to the records of a window before msprof exports them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from tests.npu.fakecann.between import Part, is_struck, parts_of
from tests.npu.fakecann.faults import Fault, Orders
from tests.npu.fakecann.summary import Task


def damaged(tasks: Sequence[Task], orders: Orders) -> list[Task]:
    """The records that are left, as they are spelled then. The same orders and window give the
    same damage."""
    chance = Random(f"{orders.seed}|{orders.next_window()}")
    left = list(tasks)
    for fault in orders.striking("between"):
        left = [part for task in left for part in _between(task, fault)]
    for fault in orders.striking("lose_head"):
        left = left[fault.count :]
    for fault in orders.striking("lose"):
        hit = _choose(left, fault, chance)
        left = [task for i, task in enumerate(left) if i not in hit]
    left = _changed(left, orders.striking("rename"), chance, _renamed)
    left = _changed(left, orders.striking("hide_shapes"), chance, _hidden)
    for fault in orders.striking("jitter"):
        left = [_strayed(task, fault.share, chance) for task in left]
    return left


def _changed(
    tasks: list[Task],
    faults: Sequence[Fault],
    chance: Random,
    change: Callable[[Task, Fault], Task],
) -> list[Task]:
    for fault in faults:
        hit = _choose(tasks, fault, chance)
        tasks = [change(task, fault) if i in hit else task for i, task in enumerate(tasks)]
    return tasks


def _choose(tasks: Sequence[Task], fault: Fault, chance: Random) -> set[int]:
    """The positions of the tasks that a fault strikes."""
    concerned = [i for i, task in enumerate(tasks) if _concerns(fault, task)]
    if fault.nth:
        concerned = concerned[fault.nth - 1 : fault.nth]
    return {i for i in concerned if chance.random() < fault.share}


def _concerns(fault: Fault, task: Task) -> bool:
    return fault.call in task.call.text and fault.kernel in ("", task.kernel)


def _between(task: Task, fault: Fault) -> Sequence[Task]:
    """What the device did for one launch: one kernel behind the other, where it was several. How
    long they take is no matter of when they start, so that no later launch has to move."""
    if task.shown is not None or not (
        _concerns(fault, task) and is_struck(fault.to, task.call, fault.share)
    ):
        return [task]
    parts = parts_of(fault.to, task.call, task.kernel)
    return [_as(task, part, place) for place, part in enumerate(parts)] or [task]


def _as(task: Task, part: Part, place: int) -> Task:
    return replace(
        task,
        kernel=part.kernel,
        start_ns=task.start_ns + place,
        duration_ns=round(part.duration_us(task.call) * 1000),
        shown=part.cells,
    )


def _renamed(task: Task, fault: Fault) -> Task:
    return replace(task, kernel=fault.to)


def _hidden(task: Task, fault: Fault) -> Task:
    return replace(task, shows_shapes=False)


def _strayed(task: Task, share: float, chance: Random) -> Task:
    stray = 1 + share * (2 * chance.random() - 1)
    return replace(task, duration_ns=round(task.duration_ns * stray))
