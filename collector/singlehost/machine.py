"""The machine of a microbenchmark, and checks whether a tree may hold its durations."""

import platform
import uuid
from pathlib import Path

from collector import __version__
from collector.codec.errors import BadInput, OpmeterError
from collector.database.layout import is_version_name
from collector.host.stack import device_serial
from collector.model.measurement import Provenance
from collector.model.plan import MeasureSettings
from collector.model.stack import Runtime, Stack


def tree_device(folder: Path) -> str | None:
    """Return the device of a version folder in a complete tree.

    Return None for any other folder, which may hold durations of any device."""
    place = folder.absolute()
    in_tree = is_version_name(place.name) and place.parent.name == "vllm_ascend"
    return place.parent.parent.name if in_tree else None


def check_device(folder: Path, stack: Stack) -> str:
    """Raise BadInput if a tree is for another device than this machine has.

    Return any other difference, for a warning."""
    device = tree_device(folder)
    if device is None:
        return ""
    if device != stack.device:
        raise BadInput(
            f"expected a tree of {stack.device}, the device of this machine, got a tree of "
            f"{device}; pass another tree, or another --backend",
            path=folder,
        )
    name, here = folder.absolute().name, stack.version
    return "" if here == name else f"the tree was made for {name}, and this machine has {here}"


def check_runtime(stack: Stack) -> None:
    """Raise OpmeterError if the runtime computes nothing, so that its durations mean nothing."""
    if stack.runtime is not Runtime.REAL:
        raise OpmeterError(
            f"the runtime of this machine is {stack.runtime}: it cannot measure durations"
        )


def provenance_of(stack: Stack, backend: str) -> Provenance:
    """Return the part that all certificates of one microbenchmark share; it has no campaign."""
    return Provenance(
        campaign="microbench",
        plan=0,
        plan_hash="",
        head_commit=0,
        shard="",
        attempt=uuid.uuid4().hex,
        session=0,
        stack_id=stack.stack_id,
        node=platform.node(),
        device_serial=device_serial(backend, 0),
        rank=0,
        runtime=stack.runtime,
        image_digest=None,
        collector_version=__version__,
        raw_key=None,
    )


def describe(stack: Stack, backend: str, measure: MeasureSettings) -> list[tuple[str, str]]:
    """Return the rows of a report about the source of its durations."""
    software = {"torch": stack.torch, "torch_npu": stack.torch_npu, "CANN": stack.cann}
    software |= {"vLLM-Ascend": stack.vllm, "driver": stack.driver}
    repeats = f"as many as fit in {measure.budget_s:g} s, {measure.min_repeats} to "
    repeats += str(measure.max_repeats)
    return [
        ("Source", f"replay on this machine, backend {backend}"),
        ("Device", stack.device),
        ("Software", ", ".join(f"{name} {text}" for name, text in software.items() if text)),
        ("Repeats", str(measure.repeat_count) if measure.repeat_count else repeats),
        ("Cache", measure.cache),
    ]
