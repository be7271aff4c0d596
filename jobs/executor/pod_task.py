"""What a worker pod was told to do: the names that its Job wrote into its environment."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from collector.errors import BadInput

# A broken node fails a shard in seconds. With so long between two it spoils a few of them until it
# is quarantined, and not the whole queue.
_HOLD_S = 120.0


@dataclass(frozen=True, slots=True)
class PodTask:
    """What one pod is to do."""

    root: str  # the store's address
    campaign: str
    wave: str  # its hash
    plan_hash: str
    index: int
    devices: int  # how many this pod has: each gets a worker
    single_writer: bool
    gives_up: bool  # a shard that keeps killing its workers is committed by this pod
    pod: str  # the first characters of its uid
    address: str  # where other pods of a gang reach this one; empty where it is of none
    scratch: Path
    hold_s: float  # how long a broken node is kept from the queue
    deadline_s: float | None  # after so long, by its own clock, the pod ends; None for never


def task_of(environment: Mapping[str, str]) -> PodTask:
    """The task in a pod's environment. Raises BadInput, naming the variable, where it has none."""

    def said(name: str) -> str:
        text = environment.get(name, "")
        if not text:
            raise BadInput(f"{name} is not set: `opmeter work` runs in a pod that a wave started")
        return text

    def number(name: str, text: str) -> int:
        if not text.isdigit():
            raise BadInput(f"{name}: expected a whole number, got {text!r}")
        return int(text)

    def counted(name: str) -> int:
        return max(1, number(name, environment.get(name) or "1"))

    return PodTask(
        root=said("OPMETER_ROOT"),
        campaign=said("OPMETER_CAMPAIGN"),
        wave=said("OPMETER_WAVE"),
        plan_hash=said("OPMETER_PLAN_HASH"),
        index=number("JOB_COMPLETION_INDEX", said("JOB_COMPLETION_INDEX")),
        devices=counted("OPMETER_DEVICES"),
        single_writer=bool(environment.get("OPMETER_SINGLE_WRITER")),
        gives_up=bool(environment.get("OPMETER_GIVES_UP")),
        pod=(environment.get("POD_UID") or "local")[:8],
        address=environment.get("POD_IP", ""),
        scratch=Path(environment.get("TMPDIR") or "/tmp"),
        hold_s=float(
            number("OPMETER_HOLD_S", environment.get("OPMETER_HOLD_S") or f"{_HOLD_S:.0f}")
        ),
        deadline_s=float(number("OPMETER_DEADLINE_S", environment.get("OPMETER_DEADLINE_S") or "0"))
        or None,
    )
