"""What share of a curve's cases a campaign measures, and how well the others shall be known."""

from dataclasses import asdict, dataclass

from jobs.campaign.document import Entry

SHARE = 0.25


@dataclass(frozen=True, slots=True)
class DensitySettings:
    """Of each curve at most the `share` is measured, and less once nearly all of the others are
    known to the `tolerance`, a share of their duration."""

    tolerance: float
    share: float = SHARE

    def as_json(self) -> dict[str, float]:
        """The settings by name."""
        return asdict(self)


def read_density(entry: Entry) -> DensitySettings:
    """The settings of a campaign file's `density`. BadInput, with the line, for anything else."""
    found = entry.fields(("tolerance", "share"), required=("tolerance",))
    share = found["share"].percentage() if "share" in found else SHARE
    return DensitySettings(found["tolerance"].percentage(), share)
