"""From a campaign's target to a whole stack: every field filled, or refused by name."""

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
    if campaign.backend != "npu":
        here = local_stack(campaign.backend)
        if target.device in (None, here.device):
            return _filled(target, here)
    missing = [name for name in _WANTED[campaign.backend] if getattr(target, name) is None]
    if missing:
        raise BadInput(
            f"campaign {campaign.name}: target leaves {', '.join(missing)} open, and nothing here "
            "can fill them; name them in the campaign"
        )
    return _filled(target, Stack(device=target.device or "", torch=target.torch or ""))


def _filled(target: Target, base: Stack) -> Stack:
    return Stack(
        device=target.device or base.device,
        torch=base.torch if target.torch is None else target.torch,
        driver=base.driver if target.driver is None else target.driver,
        firmware=base.firmware if target.firmware is None else target.firmware,
        cann=base.cann if target.cann is None else target.cann,
        torch_npu=base.torch_npu if target.torch_npu is None else target.torch_npu,
        vllm=base.vllm if target.vllm is None else target.vllm,
        details=base.details,
    )
