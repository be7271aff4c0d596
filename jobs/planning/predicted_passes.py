"""The passes of a model, with the duration of each launch: from a version of the database, or where
that has none, an estimate at the rates of the device."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from collector.codec.errors import BadInput, CaseRejected
from collector.model.case import Case
from collector.model.demand import record_of_cells
from collector.model.record import CaseRecord
from collector.model.stack import Stack
from collector.model.vocabulary import INPUT_CELLS, INPUT_SHAPES
from collector.ops.floor import lower_bound_us
from collector.ops.own import find_operator
from collector.ops.spec import OpSpec
from collector.ranks.collective import DTYPES, OPERATIONS, is_collective
from collector.ranks.gangs import is_of_gangs
from collector.report.model_pages import PredictedLaunch
from collector.workloads.call_order import CallKind
from collector.workloads.deployments import model_step
from collector.workloads.models import read_decoder
from collector.workloads.recorded_step import RecordedPass, Recording
from collector.workloads.serving import Batch
from jobs.campaign.source_kinds import ModelSource, StepCollectives
from jobs.planning.forecast import Peaks, peaks_of, with_measured_rates
from jobs.planning.generated_sources import message_record
from jobs.planning.sources import completed_records
from jobs.planning.workload import roofline_us
from opmeter.answers import Reason
from opmeter.cases import arguments_of, cells_of_rows
from opmeter.version import Version

_LONGEST = 20  # cases of a block whose rates count
_DTYPE = "bfloat16"  # of the messages of a model's step


@dataclass(frozen=True, slots=True)
class ModelLaunch:
    """Launches of a case in a layer of a pass. A message has no record if it cannot be measured."""

    layer: str
    kernel_type: str
    times: int
    size: str
    record: CaseRecord | None
    is_message: bool = False


@dataclass(frozen=True, slots=True)
class LaunchedPass:
    """A forward pass: its phase, what it processes, and its launches in order."""

    phase: str
    title: str
    launches: tuple[ModelLaunch, ...]


def passes_of_model(
    source: ModelSource, batches: Iterable[Batch], backend: str
) -> Iterator[LaunchedPass]:
    """Yield the passes of a model. Raises BadInput for a layout or a load that is not recorded."""
    decoder = read_decoder(source.model) if isinstance(source.model, Path) else source.model
    for batch in batches:
        step = model_step(decoder, source.layout, batch, source.release)
        records = completed_records(one.record for one in step.kernels)
        kernels = [
            ModelLaunch(one.layer, record.kernel_type, one.times, _shapes(record), record)
            for one, record in zip(step.kernels, records, strict=True)
        ]
        messages = [
            _message(
                (one.layer, one.operation, one.times, one.message_bytes, one.group_size),
                *(_DTYPE, source.collectives, backend),
            )
            for one in step.collectives
        ]
        yield LaunchedPass(batch.phase, str(batch), (*kernels, *messages))


def passes_of_recording(
    recording: Recording, collectives: StepCollectives | None, backend: str
) -> Iterator[LaunchedPass]:
    """Yield the passes of a recording, in the whole model."""
    for one in recording.passes:
        places = one.places()
        tables = launches_of(recording, one, collectives, backend)
        launches = tuple(
            replace(launch, layer=layer, times=times)
            for kind, table in zip((CallKind.LAUNCH, CallKind.MESSAGE), tables, strict=True)
            for at, launch in enumerate(table)
            for layer, times in places[kind, at].items()
        )
        yield LaunchedPass(one.phase, str(one), launches)


def launches_of(
    recording: Recording, one: RecordedPass, collectives: StepCollectives | None, backend: str
) -> tuple[tuple[ModelLaunch, ...], tuple[ModelLaunch, ...]]:
    """Return the tables of a recorded pass: of its launches and of its messages."""
    records = completed_records(map(recording.record_of, one.launches))
    numbers = (times for _, times in one.launched())
    kernels = tuple(
        ModelLaunch("", record.kernel_type, times, _shapes(record), record)
        for record, times in zip(records, numbers, strict=True)
    )
    messages = tuple(
        _message(
            ("", message.operation, times, message.message_bytes, message.group_size),
            *(message.dtype, collectives, backend),
        )
        for message, times in one.sent()
    )
    return kernels, messages


def raised_peaks(stack: Stack, version: Version) -> Peaks:
    """Return the peaks of a stack's device, raised to what the version measured on it."""
    return with_measured_rates(peaks_of(stack), _fastest(version))


def _fastest(version: Version) -> Iterator[tuple[Case, OpSpec, float]]:
    """Yield the longest cases of each block, which reach the rates of the device, and the shortest,
    with their durations. Those with warnings are left out."""
    mean_us = version.index.arrays["mean_us"]
    for kernel in version.kernels:
        op = find_operator(kernel)
        if op is None or is_collective(kernel):
            continue
        for block in version.blocks(kernel):
            order = np.argsort(mean_us[block.begin : block.end]) + block.begin
            places = np.unique([order[0], *order[-_LONGEST:]])
            cells = cells_of_rows(version.index, block, places.tolist())
            for row, own in zip(places.tolist(), cells, strict=True):
                case = record_of_cells(kernel, own).case
                answer = version.measured(row)
                if not (answer.warnings or is_of_gangs(case)) and _is_accepted(op, case):
                    yield case, op, answer.value_us


def _is_accepted(op: OpSpec, case: Case) -> bool:
    try:
        op.check(case, "npu")  # the NPU has every layout that other backends have
    except CaseRejected:
        return False
    return True


def predicted_launch(
    one: ModelLaunch, version: Version | None, stack: Stack, peaks: Peaks
) -> PredictedLaunch:
    """Return a launch with its duration; no version has any. `peaks` are those of the stack, as
    `raised_peaks` returns them for a version."""
    plain = (one.layer, one.kernel_type, one.times, one.size)
    if one.record is None:
        return PredictedLaunch(*plain, dtypes="", reason="a message: give --grid")
    cells = {**one.record.cells, **one.record.extra}
    dtypes = cells.get(INPUT_CELLS[1], "").rstrip(";")
    case = one.record.case
    launch = PredictedLaunch(*plain, dtypes=dtypes)
    # A message depends on more than the rates of the device.
    if not (is_collective(case.kernel_type) or is_of_gangs(case)):
        launch = replace(
            launch, estimate_us=roofline_us(case, peaks), least_us=lower_bound_us(case, stack)
        )
    if version is None:
        return replace(launch, reason=Reason.NO_KERNEL)
    try:
        arguments = arguments_of(cells | {INPUT_SHAPES: cells.get(INPUT_SHAPES, "").strip('"')})
        answer = version.query(case.kernel_type, **arguments)
    except (BadInput, CaseRejected) as error:
        return replace(launch, reason=str(error))
    if answer.reason is not None:
        return replace(launch, reason=answer.reason)
    return replace(
        launch,
        value_us=answer.value_us,
        low_us=answer.low_us,
        high_us=answer.high_us,
        channel=answer.channel,
        warnings=answer.warnings,
        estimate_us=0.0,
    )


def _message(
    sent: tuple[str, str, int, int, int],
    dtype: str,
    collectives: StepCollectives | None,
    backend: str,
) -> ModelLaunch:
    """Return the launch of a message: its layer, operation, number, bytes and group."""
    layer, operation, times, message_bytes, group_size = sent
    record = None
    if collectives is not None and operation in OPERATIONS and dtype in DTYPES:
        sizes = (message_bytes, dtype, group_size)
        record = message_record(operation, *sizes, collectives, backend)
    kernel_type = OPERATIONS[operation].kernel_type if operation in OPERATIONS else operation
    size = f"{message_bytes:,} B, {group_size} ranks"
    return ModelLaunch(layer, kernel_type, times, size, record, is_message=True)


def _shapes(record: CaseRecord) -> str:
    return record.cells.get(INPUT_SHAPES, "").strip('"').rstrip(";")
