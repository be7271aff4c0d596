"""Which answered cases a plan measures once more under `update: precision`: those whose intervals
one more session narrows most for the time that it takes. Pure."""

from collections.abc import Mapping, Sequence
from math import sqrt

from collector.errors import BadInput
from collector.plan import devices_for
from jobs.campaign.campaign_file import Campaign
from jobs.planning.candidates import HeadAnswer, PricedCase


def worth_their_time(
    priced: Sequence[PricedCase],
    answered: Mapping[str, HeadAnswer],
    campaign: Campaign,
    start_s: float,
) -> list[PricedCase]:
    """Of the priced cases those that the campaign's budget of device time pays for, the most
    narrowed for their time first; sessions start in `start_s` each. BadInput where the budget pays
    for no session."""
    left_s = _budget_s(campaign, start_s)
    chosen = []
    for item in sorted(priced, key=lambda item: _rank(item, answered, campaign.backend)):
        device_s = _device_s(item, campaign.backend)
        if _narrowed(item, answered) > 0 and device_s <= left_s:
            left_s -= device_s
            chosen.append(item)
    return chosen


def _budget_s(campaign: Campaign, start_s: float) -> float:
    """What is left for cases once sessions have started."""
    budget_s = (campaign.quality.budget_device_h or 0.0) * 3600
    sessions = max(1, int(budget_s / (campaign.shards.session_s + start_s)))
    left_s = budget_s - sessions * start_s
    if left_s <= 0:
        raise BadInput(
            f"quality.budget_device_h: {budget_s:.0f} s pay for no case: a session takes "
            f"{start_s:.0f} s to start"
        )
    return left_s


def _rank(item: PricedCase, answered: Mapping[str, HeadAnswer], backend: str) -> tuple[float, str]:
    per_s = _narrowed(item, answered) / max(_device_s(item, backend), 1e-9)
    return (-per_s, item.candidate.record.case_id)


def _narrowed(item: PricedCase, answered: Mapping[str, HeadAnswer]) -> float:
    """By how much one more session narrows a case's interval, were sessions all that it is made
    of; 0 where nothing is known of it, or where no device will run it."""
    answer = answered.get(item.candidate.record.case_id)
    if item.refusal is not None or answer is None or answer.interval is None:
        return 0.0
    sessions, reach = answer.interval.sessions, answer.interval.reach
    return reach * (1 - sqrt(sessions / (sessions + 1)))


def _device_s(item: PricedCase, backend: str) -> float:
    return item.cost_s * devices_for(item.ranks, backend)
