"""What a campaign spends on knowing how good its numbers are."""

from dataclasses import asdict, dataclass

from jobs.campaign.document import Entry

REPEAT_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class QualitySettings:
    """`repeat_share` of the cases are measured a second time, in another session. What is known
    least is measured again for `budget_device_h` hours of device time, where that is asked for."""

    repeat_share: float = REPEAT_SHARE
    budget_device_h: float | None = None

    def as_json(self) -> dict[str, object]:
        """The settings by name; without a budget as they were before there was one."""
        value = asdict(self)
        if self.budget_device_h is None:
            del value["budget_device_h"]
        return value


def read_quality(entry: Entry) -> QualitySettings:
    """The settings of a campaign file's `quality`. BadInput, with the line, for anything else."""
    found = entry.fields(("repeat_share", "budget_device_h"))
    return QualitySettings(
        found["repeat_share"].share() if "repeat_share" in found else REPEAT_SHARE,
        found["budget_device_h"].positive() if "budget_device_h" in found else None,
    )
