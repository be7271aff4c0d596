"""What a round is asked for. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from collector.plan import Forecast
from collector.stack import Stack
from jobs.campaign.campaign_file import Campaign
from jobs.planning.candidates import HeadAnswer, SourceRecords


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """All that decides a plan. `answered` is the head's answers on this stack, by case id: the
    last durations, and under `missing-only` what is left out; under `precision` how well they are
    known, too. `again` leaves out nothing but under `precision`, `retry_failed` takes up what has
    no good answer, whatever the campaign's update says; `owed` are the only cases that it is about,
    where what was measured of them is damaged, or doubted, each with the place that shall not
    measure it again (empty where any may): as many as `again_s` of device time pays for. `before`
    is what the campaign's last round foresaw, where there was one of these inputs."""

    campaign: Campaign
    number: int
    head_commit: int
    round: str
    stack: Stack
    sources: tuple[SourceRecords, ...]
    answered: Mapping[str, HeadAnswer]
    op_mapping: str | None
    retry_failed: bool
    again: bool = False
    owed: Mapping[str, str] | None = None
    again_s: float = inf
    before: Forecast | None = None

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is for what doubtful sessions measured."""
        return any((self.owed or {}).values())
