"""From a campaign's target to a whole stack: every field filled, or refused by name."""

from collections.abc import Callable
from dataclasses import fields, replace

from collector.errors import BadInput
from collector.host.stack import local_stack
from collector.stack import Stack
from jobs.campaign import Campaign, Target

_WANTED = {
    "npu": ("device", "vllm", "torch", "cann", "driver", "firmware", "torch_npu"),
    "cuda": ("device", "torch", "driver"),
    "cpu": ("device", "torch"),
}


def resolve_stack(campaign: Campaign) -> Stack:
    """The stack of the campaign's results.

    `here` is this machine. A named target must say everything its backend has, except where it
    names this very device: then this machine fills what was left open.
    """
    target = campaign.target
    if target is None:
        return local_stack(campaign.backend)
    missing = [name for name in _WANTED[campaign.backend] if getattr(target, name) is None]
    if missing or campaign.backend != "npu":
        here = _here(campaign.backend, target)
        if here is not None and target.device in (None, here.device):
            return _filled(target, here)
    if missing:
        raise BadInput(
            f"campaign {campaign.name}: target leaves {', '.join(missing)} open, and this machine "
            "is no such device; name them (`opmeter stack` on one prints all), or say target: here"
        )
    return _filled(target, Stack(device=target.device or "", torch=target.torch or ""))


def _here(backend: str, target: Target) -> Stack | None:
    """This machine's stack; None where an NPU is wanted and there is none to ask."""
    if backend != "npu":
        return local_stack(backend)
    try:
        return local_stack(backend, target.device)
    except BadInput:
        return None


def resolve_stack_of(campaign: Campaign, find: Callable[[], Stack | None]) -> Stack | None:
    """The stack of a campaign that is measured elsewhere. `find` asks the machines there, where
    the campaign leaves anything open; None while they have not answered."""
    target = campaign.target
    if target is not None and all(getattr(target, n) for n in _WANTED[campaign.backend]):
        return _filled(target, Stack(device=target.device or "", torch=target.torch or ""))
    found = find()
    return found if found is None or target is None else _filled(target, found)


def _filled(target: Target, base: Stack) -> Stack:
    """The base with everything that the target says."""
    said = {field.name: getattr(target, field.name) for field in fields(target)}
    return replace(base, **{name: value for name, value in said.items() if value is not None})
