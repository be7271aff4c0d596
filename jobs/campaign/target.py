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

    def here() -> Stack:
        if target is None or campaign.backend != "npu":
            return local_stack(campaign.backend)
        try:
            found = local_stack("npu", target.device)
        except (BadInput, HostFault):
            found = None
        if found is None or target.device not in (None, found.device):
            raise BadInput(
                f"campaign {campaign.name}: target does not set {', '.join(_left_open(target))}, "
                "and this machine has no such device; set them (`opmeter stack` on one prints "
                "all), or use target: here"
            )
        return found

    stack = resolve_stack_of(campaign, here)
    assert stack is not None
    return stack


def resolve_stack_of(campaign: Campaign, find: Callable[[], Stack | None]) -> Stack | None:
    """Return the stack of a campaign that is measured on other machines.

    `find` reads the stack of those machines, and is not called for NPUs with a complete target.
    Return None while it has no result."""
    target = campaign.target
    if campaign.backend == "npu" and target is not None and not _left_open(target):
        return _filled(campaign, Stack(target.device or "", target.torch or ""), target)
    found = find()
    if found is None or target is None:
        return found
    if campaign.backend != "npu" and target.device not in (None, found.device):
        raise BadInput(
            f"campaign {campaign.name}: target.device: expected {target.device}, but this machine "
            f"has {found.device}; name that device, omit the device, or use target: here"
        )
    return _filled(campaign, found, target)


def _left_open(target: Target) -> list[str]:
    """Return the fields that a machine must fill; `8.5` leaves the exact release open."""
    missing = [name for name in TARGET_KEYS if getattr(target, name) is None]
    if target.cann is not None and not is_cann_release(target.cann):
        missing.append(f"cann ({target.cann} matches every release {target.cann}.x)")
    return missing


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
