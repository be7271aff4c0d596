"""What a campaign spends on knowing how good its numbers are."""

from dataclasses import dataclass

from jobs.campaign.document import Entry

REPEAT_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class QualitySettings:
    """`repeat_share` of the cases are measured a second time, in another session."""

    repeat_share: float = REPEAT_SHARE


def read_quality(entry: Entry) -> QualitySettings:
    """The settings of a campaign file's `quality`. BadInput, with the line, for anything else."""
    found = entry.fields(("repeat_share",))
    if "repeat_share" not in found:
        return QualitySettings()
    return QualitySettings(found["repeat_share"].share())
