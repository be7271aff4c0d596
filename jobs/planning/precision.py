"""Which answered cases a plan measures once more under `update: precision`: those whose intervals
one more session narrows most for the time that it takes. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, fsum, sqrt

from collector.errors import BadInput
from collector.plan import devices_for
from jobs.campaign.campaign_file import Campaign
from jobs.planning.candidates import HeadAnswer, PricedCase
from jobs.planning.forecast import SessionCost
from jobs.planning.shard_cutting import GANG_COST, shards_a_device


def worth_their_time(
    priced: Sequence[PricedCase],
    answered: Mapping[str, HeadAnswer],
    campaign: Campaign,
    cost: SessionCost,
) -> list[PricedCase]:
    """Of the priced cases those that the campaign's budget of device time pays for, the most
    narrowed for their time first; `cost` is that of a session beside its cases. BadInput where the
    budget pays for no session."""
    budget_s = (campaign.quality.budget_device_h or 0.0) * 3600
    if budget_s <= cost.start_s:
        raise BadInput(
            f"quality.budget_device_h: {budget_s:.0f} s is too short for one case: a session takes "
            f"{cost.start_s:.0f} s to start"
        )
    chosen: list[PricedCase] = []
    of_ranks: dict[int, _Work] = {}
    for item in sorted(priced, key=lambda item: _rank(item, answered, campaign.backend)):
        more = of_ranks | {item.ranks: of_ranks.get(item.ranks, _Work()).with_one(item.cost_s)}
        whole_s = fsum(_whole_s(ranks, work, campaign, cost) for ranks, work in more.items())
        if _narrowed(item, answered) > 0 and whole_s <= budget_s:
            of_ranks = more
            chosen.append(item)
    return chosen


@dataclass(frozen=True, slots=True)
class _Work:
    """So many cases, and the seconds that they take."""

    cases: int = 0
    work_s: float = 0.0

    def with_one(self, cost_s: float) -> "_Work":
        return _Work(self.cases + 1, self.work_s + cost_s)


def _whole_s(ranks: int, work: _Work, campaign: Campaign, cost: SessionCost) -> float:
    """The device time of cases of so many ranks, with what their sessions take beside them: every
    device begins at least one, where there are cases for all of them."""
    settings, devices = campaign.shards, campaign.devices
    count = ceil(work.work_s / settings.target_s)
    if ranks == 1:
        count = devices * shards_a_device(work.work_s, devices, settings, cost.start_s)
    shards = min(work.cases, count)
    session = cost if ranks == 1 else GANG_COST
    whole_s = work.work_s + shards * session.of_sessions(work.work_s / shards, settings.session_s)
    return whole_s * devices_for(ranks, campaign.backend)


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
