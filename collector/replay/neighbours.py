"""What runs before each launch of a case on a device: chosen, built, and tried once.

A launch that this host cannot make is left out, and the certificate says of what kernel type it
was. A case before which nothing at all can be run is refused: alone it is measured warm.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from collector.errors import CaseRejected
from collector.ops.context import Context, Neighbour, context_of
from collector.ops.refusals import UNFORESEEN
from collector.ops.spec import OpSpec
from collector.record import CaseRecord
from collector.replay.calls import NoOperator
from collector.replay.context import Chain, Launch, feeds_of, results_of, told_context
from collector.replay.devices import Device, emulated_by
from collector.replay.marks import Marks, check_no_mark
from collector.replay.tensors import CaseTensors
from collector.stack import Runtime

logger = logging.getLogger(__name__)

# What a launch may raise that is then left out.
_NOT_LAUNCHED = (CaseRejected, NoOperator, RuntimeError, *UNFORESEEN)


@dataclass(frozen=True, slots=True)
class Before:
    """The launches before a case as a session's journal tells them: in words, as records, and as
    the kernel types that each may have; nothing for a case that runs by itself."""

    told: str = ""
    records: tuple[CaseRecord, ...] = ()
    types: tuple[frozenset[str], ...] = ()


class Neighbours:
    """Makes what runs before the cases of a session."""

    def __init__(self, device: Device, marks: Marks, find: Callable[[str], OpSpec | None]):
        self._device = device
        self._marks = marks
        self._find = find

    def chosen(self, before: Sequence[CaseRecord]) -> Context:
        """What of the launches before a case is run here. Raises CaseRejected where nothing is."""
        device = self._device
        return _whole(context_of(before, self._find, device.backend, device.cache_bytes))

    def chain(self, context: Context, own: Launch, seed: int) -> tuple[Chain, Before]:
        """The launches of a context on tensors of their own, ready to run, and how they are told.
        Raises CaseRejected where none of them can be launched."""
        launches: list[Launch] = []
        results = []
        is_real = self._device.runtime is Runtime.REAL
        for number, one in enumerate(context.neighbours):
            try:
                # Seeds of their own: two launches of one case have other weights.
                launch = self._launch(one, seed + number + 1)
                results.append(results_of(launch, is_real))
            except torch.OutOfMemoryError:
                raise
            except _NOT_LAUNCHED as error:
                described = one.record.case.describe()
                logger.info("skipping %s as a neighbour of another case: %s", described, error)
                context = context.without(len(launches))
            else:
                launches.append(launch)
        whole = _whole(context)
        feeds = feeds_of(launches, results, own)
        chain = Chain(launches, own, feeds, self._marks.begin_context, self._marks.next_launch)
        return chain, _told(whole)

    def _launch(self, one: Neighbour, seed: int) -> Launch:
        case, device = one.record.case, self._device
        check_no_mark(case)
        launcher = device.calls.of(one.op, case)
        emulated = emulated_by(device, one.op)
        call = launcher.build(case, CaseTensors(device.name, seed, emulated, device.cast))
        return Launch(case, launcher.run, call)


def _told(context: Context) -> Before:
    return Before(
        told_context(context),
        tuple(one.record for one in context.neighbours),
        tuple(one.op.family | {one.record.case.kernel_type} for one in context.neighbours),
    )


def _whole(context: Context) -> Context:
    """Raises CaseRejected where nothing runs before a case."""
    if not context.neighbours:
        left_out = ", ".join(dict.fromkeys(context.left_out))
        what = f"nothing but {left_out}, which cannot be launched here" if left_out else "nothing"
        raise CaseRejected(
            f"{what} precedes it in its source, and cache: context requires a predecessor"
        )
    return context
