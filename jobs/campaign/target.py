"""From a campaign's target to a complete stack: every field is filled, or refused by name."""

from collections.abc import Callable
from dataclasses import replace

from collector.codec.errors import BadInput, HostFault
from collector.host.stack import local_stack
from collector.model.stack import Stack, is_cann_release, is_version_of
from jobs.campaign.campaign_file import TARGET_KEYS, Campaign, Target


def resolve_stack(campaign: Campaign) -> Stack:
    """Return the stack of the campaign's results.

    `here` is this machine. A named target of NPUs must set every field, with the full release of
    CANN, unless it names this machine's device: then this machine fills the open fields. Stacks of
    other backends have more fields than a target can set (flags, threads, allocator), so the target
    must be this machine."""
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
    """Return the fields that a machine must fill; `8.5` leaves the exact release open."""
    missing = [name for name in TARGET_KEYS if getattr(target, name) is None]
    if target.cann is not None and not is_cann_release(target.cann):
        missing.append(f"cann ({target.cann} matches every release {target.cann}.x)")
    return missing


def _of(target: Target) -> Stack:
    return Stack(device=target.device or "", torch=target.torch or "")


def _here(target: Target) -> Stack | None:
    try:
        return local_stack("npu", target.device)
    except (BadInput, HostFault):
        return None


def _agreed(campaign: Campaign, found: Stack) -> Stack:
    named = campaign.target.device if campaign.target else None
    if campaign.backend != "npu" and named not in (None, found.device):
        raise BadInput(
            f"campaign {campaign.name}: target.device: expected {named}, but this machine has "
            f"{found.device}; name that device, omit the device, or use target: here"
        )
    return found


def resolve_stack_of(campaign: Campaign, find: Callable[[], Stack | None]) -> Stack | None:
    """Return the stack of a campaign that is measured on other machines.

    `find` reads the stack of those machines, and is not called for NPUs with a complete target.
    Return None while it has no result."""
    target = campaign.target
    if campaign.backend == "npu" and target is not None and not _left_open(target):
        return _filled(campaign, _of(target), target)
    found = find()
    if found is None or target is None:
        return found
    return _filled(campaign, _agreed(campaign, found), target)


def _filled(campaign: Campaign, base: Stack, target: Target) -> Stack:
    """Return the base with all fields that the target sets.

    If the target sets only a line of CANN releases, the release of the base is kept."""
    reported = {name: getattr(target, name) for name in TARGET_KEYS}
    line = target.cann
    if line is not None and base.cann and not is_cann_release(line):
        if not is_version_of(line, base.cann):
            raise BadInput(
                f"campaign {campaign.name}: target.cann: expected {line}, but this machine "
                f"has {base.cann}; name that release, or use an image with {line}"
            )
        reported["cann"] = None
    return replace(base, **{name: value for name, value in reported.items() if value is not None})
