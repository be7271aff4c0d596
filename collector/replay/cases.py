"""Replay of one case: inputs are built once, then warm-ups, a pilot and the repeats that count."""

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import zip_longest
from typing import Any

import torch

from collector.codec.errors import CaseRejected
from collector.model.case import Case, Slot, shape_text
from collector.model.plan import MeasureSettings
from collector.model.record import CaseRecord
from collector.model.stack import Runtime
from collector.model.vocabulary import is_plain_format
from collector.ops.context import Context
from collector.ops.spec import Call, OpSpec
from collector.quality.disturbances import Watch
from collector.replay.calls import NoOperator
from collector.replay.context import Before, Chain, ChainLaunch, Neighbours
from collector.replay.devices import Device, emulated_by
from collector.replay.journal import BUILDING, CHECKING, IMPORTING, LAUNCHING
from collector.replay.memory_limits import check_memory, exceeds, needed_bytes, resident_bytes
from collector.replay.recording import Marks, check_no_mark
from collector.replay.repeats import Repeater
from collector.replay.tensors import CaseTensors

# Checks of an operator's outputs: a launch that computes something else measures nothing.

logger = logging.getLogger(__name__)

_SAMPLE = 1 << 16


def check_outputs(outputs: Any, case: Case, dtype: Callable[[str], Any]) -> None:
    """Raise CaseRejected if shapes or dtypes are not those that the case names.

    A slot without a shape may be a scalar or absent, and a shape in a private format differs from
    torch's: neither is compared. `dtype` returns torch's dtype for a spelling."""
    slots = case.outputs or ()
    tensors = list(_leaves(outputs))
    if len(tensors) != len(slots):
        tensors = [tensor for tensor in tensors if tensor is not None]
        slots = tuple(slot for slot in slots if slot.shape is not None)
    for position, (tensor, slot) in enumerate(zip_longest(tensors, slots)):
        if slot is None:
            return
        if slot.shape is not None and not _agrees(tensor, slot, dtype):
            got = "none" if tensor is None else f"{shape_text(tuple(tensor.shape))} {tensor.dtype}"
            raise CaseRejected(
                f"output {position}: expected {shape_text(slot.shape)} {slot.dtype}, got {got}"
            )


def find_invalid_values(
    outputs: Any, infinite: frozenset[int] = frozenset(), written: int | None = None
) -> str:
    """Return what is wrong with the values of the outputs; empty if nothing is.

    For large outputs an evenly spaced sample is checked. An output whose dtype or layout a device
    cannot check is not suspect: it was measured anyway. In the outputs at `infinite` infinities are
    correct. If only the first rows were `written`, only these are checked."""
    for position, tensor in enumerate(_leaves(outputs)):
        if tensor is None or not tensor.is_floating_point() or tensor.numel() == 0:
            continue
        rows = tensor if written is None else tensor[:written]
        try:
            sample = _sample(rows)
            if sample.itemsize == 1:  # FLOAT8 has no such checks
                sample = sample.float()
            wrong = torch.isnan(sample) if position in infinite else ~torch.isfinite(sample)
            is_wrong = bool(wrong.any())
        except RuntimeError as error:  # includes NotImplementedError
            logger.warning("output %d was not checked: %s", position, error)
            continue
        if is_wrong:
            return f"output {position} has non-finite values"
    return ""


def _sample(tensor: Any) -> Any:
    """Return evenly spaced elements, in one row."""
    flat = tensor.reshape(-1)
    return flat[:: max(1, flat.numel() // _SAMPLE)]


def find_difference(outputs: Any, expected: Any) -> str:
    """Return where outputs differ from the reference's, in one line; empty if they agree.

    The largest difference of an evenly spaced sample is compared with the largest value in it; a
    quantised output may be one step off. Outputs that cannot be compared are skipped."""
    for position, (one, other) in enumerate(zip(_leaves(outputs), _leaves(expected), strict=False)):
        if one is None or other is None or one.shape != other.shape or not one.numel():
            continue
        a, b = _sample(one).double().cpu(), _sample(other).double().cpu()
        both = torch.isfinite(a) & torch.isfinite(b)
        if not bool(both.any()):
            continue
        largest = float((a[both] - b[both]).abs().max())
        allowed = 1.0 if one.dtype is torch.int8 else 0.0  # one step of a quantised output
        if one.dtype.is_floating_point:
            allowed = 32 * float(torch.finfo(one.dtype).eps) * max(1.0, float(b[both].abs().max()))
        if largest > allowed:
            return f"output {position} is up to {largest:.3g} away from the reference"
    return ""


def _agrees(tensor: Any, slot: Slot, dtype: Callable[[str], Any]) -> bool:
    if tensor is None:
        return False
    known = slot.known_dtype
    if known is not None and not known.torch_name:
        return True  # packed numbers, which torch stores in a form of its own
    if known is not None and tensor.dtype is not dtype(slot.dtype):
        return False
    if not is_plain_format(slot.format):
        return True
    return tuple(tensor.shape) == slot.shape or tensor.numel() == slot.numel == 1


def _leaves(outputs: Any) -> Iterator[Any]:
    """Yield the tensors in order, with None where an optional output is absent."""
    if outputs is None or isinstance(outputs, torch.Tensor):
        yield outputs
    elif isinstance(outputs, Sequence):
        for output in outputs:
            yield from _leaves(output)


_COMPARED = 1 << 22  # elements of a case up to which its outputs are compared with the reference's


@dataclass(frozen=True, slots=True)
class Replayed:
    """A replay: the facts that the device's own records do not contain, by the names of the
    journal, and the cases that ran before each launch."""

    facts: dict[str, object]
    before: tuple[CaseRecord, ...]


class CaseReplay:
    """Replays cases on a device; `on_phase` is called with each phase."""

    def __init__(
        self, device: Device, marks: Marks, memory_gb: float, find: Callable[[str], OpSpec | None]
    ):
        self._device = device
        self._marks = marks
        self._memory_gb = memory_gb
        self._find = find
        self._repeater = Repeater(device.watcher())
        self._neighbours = Neighbours(device, marks, find)

    def replay(
        self,
        ordinal: int,
        case: Case,
        seed: int,
        measure: MeasureSettings,
        before: Sequence[CaseRecord] | None,
        on_phase: Callable[[str], None],
    ) -> Replayed:
        """Issue all launches of one case, each after those of `before`, if that is given.

        Raises NoOperator, CaseRejected, NotEnoughMemory, and any exception of the operator."""
        started = time.perf_counter()
        op = self._operator(case)
        emulated = emulated_by(self._device, op)
        context = None if before is None else self._neighbours.chosen(before)
        self._free_memory(self._needed_bytes(case, op, context))
        if self._device.calls.imports_for(op, case):
            on_phase(IMPORTING)
            launcher = self._device.calls.of(op, case)
            on_phase(BUILDING)
        else:
            launcher = self._device.calls.of(op, case)
        tensors = CaseTensors(self._device.name, seed, emulated, self._device.cast)
        call = launcher.build(case, tensors)
        chain, ran_before = None, Before()
        if context is not None:
            own = ChainLaunch(case, launcher.run, call)
            chain, ran_before = self._neighbours.chain(context, own, seed)
        launches = _Launches(self._device, self._marks, launcher.run, call, self._repeater, chain)
        self._device.synchronize()
        built = time.perf_counter()
        on_phase(LAUNCHING)
        self._marks.open(ordinal)
        counts, watch = launches.issue(measure)
        self._marks.close(ordinal)
        self._device.synchronize()
        on_phase(CHECKING)
        launched = time.perf_counter()
        check_outputs(launches.output, case, tensors.dtype)
        invalid, differs = "", ""
        if self._device.runtime is Runtime.REAL:
            invalid = find_invalid_values(launches.output, op.infinite, op.written(case))
            differs = self._difference(case, op, call, launches.output)
        facts = {
            **counts,
            "compute_dtype": tensors.compute_dtype,
            "doubt": invalid,
            "differs": differs,
            "family": sorted(op.family),  # the kernel types among which the runtime chose
            "library": launcher.library,
            "assumes": op.assumes,
            "is_pass": op.is_pass,
            "context": ran_before.text,
            "before": [sorted(types) for types in ran_before.types],
            "build_s": built - started,
            "look_s": time.perf_counter() - launched,
            "watch": astuple(watch),
        }
        return Replayed(facts, ran_before.records)

    def _needed_bytes(self, case: Case, op: OpSpec, context: Context | None) -> int:
        """Return the bytes of a case, and of the launches before it."""
        before = context.neighbours if context else ()
        launched = ((case, op), *((one.record.case, one.op) for one in before))
        return sum(needed_bytes(one, emulated_by(self._device, by)) for one, by in launched)

    def _operator(self, case: Case) -> OpSpec:
        # `ops.refusals` is not used: it ignores an error in a declaration, which is raised here.
        op = self._find(case.kernel_type)
        if op is None:
            raise NoOperator(f"no operator is declared for {case.kernel_type}")
        op.check(case, self._device.backend)
        check_no_mark(case)
        return op

    def _difference(self, case: Case, op: OpSpec, call: Call, output: Any) -> str:
        """Return how the outputs of an NPU, or of a user's own function, differ from the
        reference's on the same tensors, if that is cheap. It is recorded only, and refuses nothing:
        a reference may be wrong too."""
        if op.launch is not None:
            if op.reference is None:
                return ""
        elif self._device.backend != "npu" or op.npu.build or op.graph_of(case):
            return ""
        if sum(slot.numel for slot in (*(case.inputs or ()), *(case.outputs or ()))) > _COMPARED:
            return ""
        try:
            return find_difference(output, op.run_reference(torch, *call.args, **call.kwargs))
        except RuntimeError as error:  # an operator of the reference that the device lacks
            logger.info("%s: not compared with its reference: %s", case.describe(), error)
            return ""

    def _free_memory(self, needed: int) -> None:
        """Make memory available. Raises NotEnoughMemory if a case does not fit even after the
        memory of earlier cases is released."""
        free = self._device.free_bytes()
        if exceeds(needed, self._memory_gb, free, resident_bytes(os.getpid())):
            self._device.release()
            free = self._device.free_bytes()
        check_memory(needed, self._memory_gb, free)


class _Launches:
    """Launches one call repeatedly; `output` is the result of the last launch."""

    def __init__(
        self,
        device: Device,
        marks: Marks,
        run: Callable[..., Any],
        call: Call,
        repeater: Repeater,
        chain: Chain | None,
    ):
        """With a `chain`, each launch follows the launches of the chain."""
        self.output: Any = None
        self._device, self._marks, self._repeater = device, marks, repeater
        self._run, self._call, self._chain = run, call, chain

    def issue(self, measure: MeasureSettings) -> tuple[dict[str, object], Watch]:
        """Warm up, determine how many repeats fit the budget, and launch them. Return the numbers
        of launches, by the names of the journal, and the watch on the repeats.

        The clock here only determines the number of repeats; no measured duration comes from it. If
        a device compiles in the first launch, the second one is timed instead."""
        compiled, warm_up_s, first_s = 0, 0.0, self._launch(1)
        if self._device.compiles and first_s >= measure.budget_s / 2:
            compiled, warm_up_s, first_s = 1, first_s, self._launch(1)
        warm_ups, pilots = measure.before_repeats(first_s)
        warmed_s = self._launch(warm_ups - 1) if warm_ups > 1 else 0.0
        warm_up_s += first_s + warmed_s
        if pilots:
            pilot_s = self._launch(pilots)
        else:
            pilot_s = warmed_s / (warm_ups - 1) if warm_ups > 1 else first_s
        repeats = self._repeater.repeat(self._launch, pilot_s, measure)
        counts: dict[str, object] = {"warm_ups": compiled + warm_ups, "pilots": pilots}
        counts |= {"repeats": repeats.count, "warm_up_s": warm_up_s}
        return counts, repeats.watch

    def _launch(self, times: int) -> float:
        next_launch, run = self._marks.next_launch, self._run
        args, kwargs, chain = self._call.args, self._call.kwargs, self._chain
        started = time.perf_counter()
        for _ in range(times):
            self.output = None  # so that the memory of the last output is reused
            if chain is not None:
                args = self._repeater.aside.run(chain.arguments)
            next_launch()
            self.output = run(*args, **kwargs)
        self._device.synchronize()
        return time.perf_counter() - started
