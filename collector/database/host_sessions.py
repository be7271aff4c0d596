"""Sessions of a host: what its calls take in decodes of a model, as rows of the database.

A case is a call of the host by its name, such as `host.aclnnMatmul`. Its duration is the processor
time of the host from the call before to this one, so that the code of the engine that leads to a
call is part of it. What CANN and its driver compute in a call is not: the recording runtime has
neither. Further cases are

    host.pass         all calls of a pass
    host.launch       the same, over the launches and messages that the host issues
    host.main_thread  what the main thread computes from the begin of a pass to that of the next
    host.between      what all threads compute from the last call of a pass to the next pass

One repeat is the mean of a name in one pass.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from collector.codec.canonical import short_hash
from collector.host.machine import Cpu
from collector.model.measurement import Measurement, Outcome, Provenance
from collector.model.record import CaseRecord
from collector.model.stack import HOST, Stack
from collector.model.vocabulary import BASE_CELLS, RUNTIME_PREFIX
from collector.quality.disturbances import Watch, disturbance_warnings, undisturbed
from collector.quality.gates import no_single_duration, timing_warnings
from collector.quality.statistics import find_trend, summarise, two_modes

PASS, LAUNCH, MAIN_THREAD, BETWEEN = WHOLE = ("pass", "launch", "main_thread", "between")
_PREFIX = "host."
_NO_CELLS = dict.fromkeys(BASE_CELLS, "")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.+-]")


@dataclass(frozen=True, slots=True)
class HostDecode:
    """Of which decodes the host is measured.

    mode        eager, graph, or fallback: a decode for which no graph was captured
    task_queue  TASK_QUEUE_ENABLE of torch_npu"""

    model: str
    layout: str
    mode: str
    task_queue: int = 0

    def record(self, name: str) -> CaseRecord:
        """Return the case of a call by its name, or of one of WHOLE."""
        columns = {
            "model": self.model,
            "layout": self.layout,
            "mode": self.mode,
            "task_queue": str(self.task_queue),
        }
        extra = {RUNTIME_PREFIX + name: text for name, text in columns.items()}
        return CaseRecord(_PREFIX + _NOT_IN_NAMES.sub("_", name)[:190], _NO_CELLS, extra)


def host_stack(cpu: Cpu, *, vllm: str, torch: str, torch_npu: str, cann: str) -> Stack:
    """Return the stack of a host with the software of a serving release. Its CANN is the one that
    the release requires, and computes nothing."""
    details = {"flags": " ".join(cpu.flags), "threads": str(cpu.threads)}
    return Stack(
        device=cpu.device.replace("CPU_", "HOST_", 1),
        torch=torch,
        cann=cann,
        torch_npu=torch_npu,
        vllm=vllm,
        details=tuple(sorted(details.items())),
    )


@dataclass(frozen=True)
class HostSession:
    """What one start of the engine measured: complete results of the database.

    load   the decode: its requests and their tokens
    us     by name: of each pass, the mean of its calls
    watch  what disturbed the passes: each is a lap"""

    stack: Stack
    decode: HostDecode
    load: str
    us: Mapping[str, Sequence[float]]
    watch: Watch
    started_at: str
    ended_at: str

    @property
    def backend(self) -> str:
        return HOST

    @cached_property
    def campaign(self) -> str:
        content = [self.stack.stack_id, self.started_at, sorted(self.us.items())]
        return f"host-{short_hash(content, 16)}"

    @property
    def disturbed(self) -> str:
        """Return how many passes were undisturbed."""
        return f"{self.watch.clean} of {self.watch.launches} passes undisturbed"

    @cached_property
    def records(self) -> Sequence[CaseRecord]:
        return [self.decode.record(name) for name in self.us]

    def measurement(self, at: int, provenance: Provenance) -> Measurement:
        """Return the certificate of a name."""
        durations = list(self.us.values())[at]
        kept = undisturbed(durations, self.watch)
        found = summarise(kept)
        modes, drift = two_modes(kept), find_trend(kept)
        disturbance = self.watch.disturbance
        refused = no_single_duration(found.timing, len(found.accepted_us))
        record = self.records[at]
        return Measurement(
            case_id=record.case_id,
            kernel_type=record.case.kernel_type,
            outcome=Outcome.GATED if refused else Outcome.OK,
            reason=refused,
            provenance=provenance,
            n_expected=len(durations),
            n_observed=len(durations),
            n_accepted=len(found.accepted_us),
            timing=found.timing,
            warnings=(
                *disturbance_warnings(disturbance),
                *timing_warnings(found.timing, len(found.accepted_us)),
                *([str(modes)] if modes else []),
                *([drift] if drift else []),
            ),
            started_at=self.started_at,
            ended_at=self.ended_at,
            disturbance=disturbance,
            timed_by=HOST,
            assumes=self.load,
        )
