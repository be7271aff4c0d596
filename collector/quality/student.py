"""Student's t: how many standard errors an interval reaches to each side of a mean."""

from functools import cache


@cache
def student_factor(degrees: float, share: float = 0.95) -> float:
    """The factor of a two-sided interval that holds this share, for so many degrees of freedom."""
    from scipy.special import stdtrit  # slow to import: for who needs a number, not for `--help`

    return float(stdtrit(degrees, (1 + share) / 2))
