"""What `opmeter db quality` and the end of a run print of how good numbers are. Pure."""

from collections.abc import Iterator

from collector.counting import counted
from collector.database.version_quality import WIDTHS, VersionQuality
from collector.quality.repeatability import Apart


def quality_lines(quality: VersionQuality) -> Iterator[str]:
    """All that is known of a version directory, a line a fact."""
    yield f"version     {quality.version_path}"
    if not quality.durations:
        yield "durations   none, but for what collectives took"
        return
    yield (
        f"durations   {quality.durations:,}; {quality.of_several_sessions:,} of several sessions, "
        f"{quality.warned:,} with a warning, {quality.implausible:,} refused as implausible"
    )
    yield from brief_lines(quality)
    if quality.devices is not None:
        yield f"devices     {_apart(quality.devices)}"
    told = ", ".join(f"{count:,} {origin}" for origin, count in sorted(quality.origins.items()))
    yield f"variance    known from: {told}"


def brief_lines(quality: VersionQuality) -> Iterator[str]:
    """How far sessions lie apart, whether intervals hold them, and how wide they are."""
    if quality.sessions is not None:
        yield f"sessions    {_apart(quality.sessions)}"
    if quality.reliability:
        told = ", ".join(f"{one.held:.0%} of {one.stated:.0%}" for one in quality.reliability)
        pairs = counted(quality.reliability[0].pairs, "second session")
        yield f"intervals   hold {told} stated, of {pairs}, each judged by the others"
    else:
        yield "intervals   by the prior of the kind of device: no case has a second session"
    beyond = ", ".join(
        f"{share:.0%} beyond {width:.0%}"
        for width, share in zip(WIDTHS, quality.wider, strict=True)
    )
    median = _percent(quality.median_reach)
    yield f"widths      half reach {median} or less to each side; {beyond}"


def _apart(found: Apart) -> str:
    return (
        f"{counted(found.pairs, 'pair')}: half differ by {_percent(found.median)} or less, nine in "
        f"ten by {_percent(found.p90)}, 99 in 100 by {_percent(found.p99)}"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
