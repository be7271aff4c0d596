"""From a campaign's target to a whole stack: every field filled, or refused by name."""

from collections.abc import Callable
from dataclasses import fields, replace

from collector.codec.errors import BadInput, HostFault
from collector.host.stack import local_stack
from collector.model.stack import Stack, is_cann_release, is_version_of
from jobs.campaign.campaign_file import Campaign, Target

# All that a stack of NPUs says.
_WANTED = ("device", "vllm", "torch", "cann", "driver", "firmware", "torch_npu")


def resolve_stack(campaign: Campaign) -> Stack:
    """The stack of the campaign's results.

    `here` is this machine. A named target of NPUs must say everything that they have, CANN by its
    release, except where it names this very device: then this machine fills what was left open. Of
    another device there is more than a target can say (flags, threads, allocator), so that it must
    be this machine's.
    """
    target = campaign.target
    if target is None:
        return local_stack(campaign.backend)
    if campaign.backend != "npu":
        return _filled(campaign, _agreed(campaign, local_stack(campaign.backend)), target)
    missing = _left_open(target)
    if missing:
        here = _here(target)
        if here is not None and target.device in (None, here.device):
            return _filled(campaign, here, target)
        raise BadInput(
            f"campaign {campaign.name}: target does not set {', '.join(missing)}, and this machine "
            "has no such device; set them (`opmeter stack` on one prints all), or use target: here"
        )
    return _filled(campaign, _of(target), target)


def _left_open(target: Target) -> list[str]:
    """What a machine must fill in; `8.5` leaves open which release of that line it is."""
    missing = [name for name in _WANTED if getattr(target, name) is None]
    if target.cann is not None and not is_cann_release(target.cann):
        missing.append(f"cann ({target.cann} matches every release {target.cann}.x)")
    return missing


def _of(target: Target) -> Stack:
    return Stack(device=target.device or "", torch=target.torch or "")


def _here(target: Target) -> Stack | None:
    """This machine's stack; None where there is no NPU to ask."""
    try:
        return local_stack("npu", target.device)
    except (BadInput, HostFault):
        return None


def _agreed(campaign: Campaign, found: Stack) -> Stack:
    """The stack that was found, where it is of the device that the campaign names."""
    named = campaign.target.device if campaign.target else None
    if campaign.backend != "npu" and named not in (None, found.device):
        raise BadInput(
            f"campaign {campaign.name}: target.device: expected {named}, but this machine has "
            f"{found.device}; name that device, omit the device, or use target: here"
        )
    return found


def resolve_stack_of(campaign: Campaign, find: Callable[[], Stack | None]) -> Stack | None:
    """The stack of a campaign that is measured elsewhere. `find` asks the machines there, but for
    NPUs of which the target says all; None while they have not answered."""
    target = campaign.target
    if campaign.backend == "npu" and target is not None and not _left_open(target):
        return _filled(campaign, _of(target), target)
    found = find()
    if found is None or target is None:
        return found
    return _filled(campaign, _agreed(campaign, found), target)


def _filled(campaign: Campaign, base: Stack, target: Target) -> Stack:
    """The base with everything that the target says; of a line of CANN's, the release that the
    base has."""
    said = {field.name: getattr(target, field.name) for field in fields(target)}
    line = target.cann
    if line is not None and base.cann and not is_cann_release(line):
        if not is_version_of(line, base.cann):
            raise BadInput(
                f"campaign {campaign.name}: target.cann: expected {line}, but this machine "
                f"has {base.cann}; name that release, or use an image with {line}"
            )
        said["cann"] = None
    return replace(base, **{name: value for name, value in said.items() if value is not None})
