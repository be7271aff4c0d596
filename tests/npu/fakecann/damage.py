"""The effect of faults on the records of a window before msprof exports them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from collector.engine.cells import cells_of
from tests.npu.fakecann.between import Part, is_struck, parts_of
from tests.npu.fakecann.faults import Fault, Orders
from tests.npu.fakecann.summary import Task

_TASK_IDS = 65536  # as many as sixteen bits distinguish


def damaged(tasks: Sequence[Task], orders: Orders) -> list[Task]:
    """Return the remaining records in their changed spelling. The same faults and window give the
    same damage."""
    window = orders.next_window()
    chance = Random(f"{orders.seed}|{window}")
    left = list(tasks)
    for _ in orders.striking("wrap"):
        left = left[:_TASK_IDS]
    for fault in orders.striking("between"):
        left = [part for task in left for part in _between(task, fault)]
    for fault in orders.striking("lose_head"):
        left = left[fault.count :]
    for fault in orders.striking("lose"):
        hit = _choose(left, fault, chance)
        left = [task for i, task in enumerate(left) if i not in hit]
    left = _changed(left, orders.striking("rename"), chance, _renamed)
    left = _changed(left, orders.striking("hide_shapes"), chance, _hidden)
    left = _changed(left, orders.striking("hide_counters"), chance, _uncounted)
    left = _changed(left, orders.striking("plain"), chance, _plain)
    for fault in orders.striking("scale"):
        left = [_scaled(task, fault.share) if _concerns(fault, task) else task for task in left]
    for fault in orders.striking("drift") if window % 2 else ():
        left = [_scaled(task, 1 + fault.share) if _concerns(fault, task) else task for task in left]
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
    """Return the positions of the tasks that a fault affects."""
    concerned = [i for i, task in enumerate(tasks) if _concerns(fault, task)]
    if fault.nth:
        concerned = concerned[fault.nth - 1 : fault.nth]
    return {i for i in concerned if chance.random() < fault.share}


def _concerns(fault: Fault, task: Task) -> bool:
    return fault.call in task.call.text and fault.kernel in ("", task.kernel)


def _between(task: Task, fault: Fault) -> Sequence[Task]:
    """Return the kernels of one launch, one after the other. Their durations do not depend on their
    starts, so that no later launch has to move."""
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


def _uncounted(task: Task, fault: Fault) -> Task:
    return replace(task, shows_counters=False)


def _plain(task: Task, fault: Fault) -> Task:
    cells = task.shown or cells_of(task.call)
    return replace(
        task, shown={name: cell.replace("FRACTAL_NZ", "ND") for name, cell in cells.items()}
    )


def _scaled(task: Task, times: float) -> Task:
    return replace(task, duration_ns=round(task.duration_ns * times))


def _strayed(task: Task, share: float, chance: Random) -> Task:
    stray = 1 + share * (2 * chance.random() - 1)
    return replace(task, duration_ns=round(task.duration_ns * stray))
