"""Launches that run before each launch of a case: built once, on tensors of their own, and fed with
each other's results where those fit.

A row has shapes and dtypes, but does not show which earlier launch wrote a tensor. An argument
takes the nearest result of its shape and dtype, and each result is used once; a result with as many
elements in another shape also fits, since models reshape between kernels. Weights are hardly ever
mistaken for results: no activation has their shape. Integers that may be indices are never fed, nor
are results with non-finite values.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from collector.codec.canonical import short_hash
from collector.codec.errors import CaseRejected
from collector.codec.text import MIB
from collector.model.case import Case
from collector.model.record import CaseRecord
from collector.model.stack import Runtime
from collector.model.vocabulary import is_plain_format
from collector.ops.context import Context, Neighbour, context_of
from collector.ops.refusals import DECLARATION_ERRORS
from collector.ops.spec import Call, OpSpec
from collector.replay.calls import NoOperator
from collector.replay.devices import Device, emulated_by
from collector.replay.recording import Marks, check_no_mark
from collector.replay.tensors import CaseTensors

_HASH_DIGITS = 12
_FED = (torch.int8,)  # in addition to floating-point numbers: quantised values


@dataclass(frozen=True, slots=True)
class Feed:
    """An argument that is an earlier launch's result: its position, the launch, the index of the
    result, and the required shape, None for the result's own."""

    argument: int
    launch: int
    result: int
    shape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class ChainLaunch:
    """One launch of a chain; the last one is the case's, and is not run here."""

    case: Case
    run: Callable[..., Any]
    call: Call


class Chain:
    """The launches before a case. `arguments` runs them and returns the arguments of the case."""

    def __init__(
        self,
        launches: Sequence[ChainLaunch],
        own: ChainLaunch,
        feeds: Sequence[tuple[Feed, ...]],
        begin: Callable[[], None],
        next_launch: Callable[[], None],
    ):
        """`feeds` are those of each launch and, last, of the case. `begin` is called before the
        launches, `next_launch` before each one."""
        self._launches = launches
        self._own = own.call.args
        self._feeds = feeds
        self._begin = begin
        self._next_launch = next_launch
        # For each launch that feeds another the last one that it feeds.
        self._last_use = {feed.launch: at for at, of in enumerate(feeds) for feed in of}

    def arguments(self) -> tuple[Any, ...]:
        """Run the launches, and return the case's own arguments, fed with their results. A
        result is held until its last use, as in a model."""
        held: dict[int, Any] = {}
        self._begin()
        for at, launch in enumerate(self._launches):
            args = _fed(launch.call.args, self._feeds[at], held)
            held = {one: output for one, output in held.items() if self._last_use[one] > at}
            self._next_launch()
            output = launch.run(*args, **launch.call.kwargs)
            if at in self._last_use:
                held[at] = output
            del args, output
        return _fed(self._own, self._feeds[-1], held)


def results_of(launch: ChainLaunch, is_real: bool) -> list[Any]:
    """Return the results of a launch, run once on its own arguments; None for a result that may
    not feed another launch."""

    def may_feed(result: Any) -> bool:
        is_fed = result.is_floating_point() or result.dtype in _FED
        if not is_fed or not result.is_contiguous():
            return False
        return not is_real or bool(torch.isfinite(result).all())

    results = _tensors(launch.run(*launch.call.args, **launch.call.kwargs))
    return [one if may_feed(one) else None for one in results]


def feeds_of(
    launches: Sequence[ChainLaunch], results: Sequence[Sequence[Any]], own: ChainLaunch
) -> tuple[tuple[Feed, ...], ...]:
    """Return the feeds of each launch, from the results of the launches before it."""
    return tuple(_feeds(one, results[:at]) for at, one in enumerate((*launches, own)))


def context_text(context: Context) -> str:
    """Return what ran before each repeat, as a certificate records it."""
    ids = [one.record.case_id for one in context.neighbours]
    size = f"{context.size_bytes / MIB:.1f} MiB"
    text = f"{len(ids)} launches, {size}: {short_hash(ids, _HASH_DIGITS)}"
    without = ", ".join(dict.fromkeys(context.left_out))
    return f"{text}; without {without}" if without else text


def _feeds(launch: ChainLaunch, given: Sequence[Sequence[Any]]) -> tuple[Feed, ...]:
    # A tensor's shape does not show an NPU's memory layout, and only weights have one.
    slots = [slot for slot in launch.case.inputs or () if slot.shape is not None]
    is_laid_out = not all(is_plain_format(slot.format) for slot in slots)
    fed: list[Feed] = []
    for position, argument in enumerate(launch.call.args[: 1 if is_laid_out else None]):
        if torch.is_tensor(argument) and argument.is_contiguous():
            taken = {(feed.launch, feed.result) for feed in fed}
            found = _nearest(argument, position, given, taken)
            fed += [found] if found is not None else []
    return tuple(fed)


def _nearest(
    argument: Any, position: int, given: Sequence[Sequence[Any]], taken: set[tuple[int, int]]
) -> Feed | None:
    for launch in reversed(range(len(given))):
        for number, result in enumerate(given[launch]):
            if result is None or (launch, number) in taken or result.dtype != argument.dtype:
                continue
            if result.shape == argument.shape:
                return Feed(position, launch, number, None)
            # A vector with as many elements is a weight of a norm, or a scale.
            if result.numel() == argument.numel() and min(result.dim(), argument.dim()) > 1:
                return Feed(position, launch, number, tuple(argument.shape))
    return None


def _fed(args: tuple[Any, ...], feeds: Sequence[Feed], held: Mapping[int, Any]) -> tuple[Any, ...]:
    if not feeds:
        return args
    whole = list(args)
    for feed in feeds:
        result = _tensors(held[feed.launch])[feed.result]
        whole[feed.argument] = result if feed.shape is None else result.view(feed.shape)
    return tuple(whole)


def _tensors(output: Any) -> list[Any]:
    outputs = output if isinstance(output, tuple | list) else (output,)
    return [one for one in outputs if torch.is_tensor(one)]


# Selection of the launches before each launch of a case on a device: chosen, built, and tried once.
#
# A launch that this host cannot make is left out, and the certificate records its kernel type. A
# case before which nothing can run is refused: alone it would be measured warm.

logger = logging.getLogger(__name__)

# Exceptions of a launch that is then left out.
_NOT_LAUNCHED = (CaseRejected, NoOperator, RuntimeError, *DECLARATION_ERRORS)


@dataclass(frozen=True, slots=True)
class Before:
    """The launches before a case as a session's journal records them: as text, as records, and
    as the kernel types that each may have; empty for a case that runs alone."""

    text: str = ""
    records: tuple[CaseRecord, ...] = ()
    types: tuple[frozenset[str], ...] = ()


class Neighbours:
    """Makes the launches before the cases of a session."""

    def __init__(self, device: Device, marks: Marks, find: Callable[[str], OpSpec | None]):
        self._device = device
        self._marks = marks
        self._find = find

    def chosen(self, before: Sequence[CaseRecord]) -> Context:
        """Return the launches before a case that run here. Raises CaseRejected if there are
        none."""
        device = self._device
        return _checked_context(context_of(before, self._find, device.backend, device.cache_bytes))

    def chain(self, context: Context, own: ChainLaunch, seed: int) -> tuple[Chain, Before]:
        """Return the launches of a context on tensors of their own, ready to run, and their
        journal entry. Raises CaseRejected if none can be launched."""
        launches: list[ChainLaunch] = []
        results = []
        is_real = self._device.runtime is Runtime.REAL
        for number, one in enumerate(context.neighbours):
            try:
                # Different seeds: two launches of one case have different weights.
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
        ran = _checked_context(context).neighbours
        feeds = feeds_of(launches, results, own)
        chain = Chain(launches, own, feeds, self._marks.begin_context, self._marks.next_launch)
        types = tuple(one.op.family | {one.record.case.kernel_type} for one in ran)
        return chain, Before(context_text(context), tuple(one.record for one in ran), types)

    def _launch(self, one: Neighbour, seed: int) -> ChainLaunch:
        case, device = one.record.case, self._device
        check_no_mark(case)
        launcher = device.calls.of(one.op, case)
        emulated = emulated_by(device, one.op)
        call = launcher.build(case, CaseTensors(device.name, seed, emulated, device.cast))
        return ChainLaunch(case, launcher.run, call)


def _checked_context(context: Context) -> Context:
    """Return the context. Raises CaseRejected if nothing runs before a case."""
    if not context.neighbours:
        left_out = ", ".join(dict.fromkeys(context.left_out))
        what = f"nothing but {left_out}, which cannot be launched here" if left_out else "nothing"
        raise CaseRejected(
            f"{what} precedes it in its source, and cache: context requires a predecessor"
        )
    return context
