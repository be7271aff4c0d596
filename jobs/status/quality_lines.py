"""What `opmeter db quality` and the end of a run print of how good numbers are. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from collector.counting import counted
from collector.database.version_quality import WIDTHS, VersionQuality
from collector.measurement import Proof
from collector.quality.canary_history import DeviceFactor
from collector.quality.repeatability import Apart


def version_quality_lines(quality: VersionQuality) -> Iterator[str]:
    """All that is known of a version directory, a line a fact."""
    yield f"version     {quality.version_path}"
    if not quality.durations:
        yield "durations   none, except those of collectives"
        yield from _gate_lines(quality)
        return
    yield (
        f"durations   {quality.durations:,}; {quality.of_several_sessions:,} of several sessions, "
        f"{quality.warned:,} with a warning"
    )
    yield from _gate_lines(quality)
    yield from identity_lines(quality)
    yield from brief_lines(quality)
    if quality.devices is not None:
        yield f"devices     {_apart(quality.devices)}"
    yield from _canary_lines(quality.canaries)
    told = ", ".join(f"{count:,} {origin}" for origin, count in sorted(quality.origins.items()))
    yield f"variance    source: {told}"


def identity_lines(quality: VersionQuality) -> Iterator[str]:
    """What is proved to have run, in a line, where a profiler tells that."""
    if quality.proofs:
        unverified = quality.proofs.get(Proof.UNVERIFIED, 0)
        yield (
            f"identity    {quality.proofs.get(Proof.PROVED, 0):,} proved by the recorded shapes, "
            f"dtypes and formats; {unverified:,} unverified, by type and count alone"
        )


def brief_lines(quality: VersionQuality) -> Iterator[str]:
    """A line each: how far sessions differ, whether intervals cover them, how wide they are."""
    if quality.sessions is not None:
        yield f"sessions    {_apart(quality.sessions)}"
    if quality.reliability:
        told = ", ".join(
            f"the {one.stated:.0%} interval covered {one.held:.0%}" for one in quality.reliability
        )
        what = "blind second session" if quality.is_blind else "second session"
        pairs = counted(quality.reliability[0].pairs, what)
        known = "" if quality.is_blind else ", none known to be blind"
        how = "other cases of its" if quality.reliability[0].knows_sessions else "other"
        yield f"intervals   {told}, of {pairs}{known}, each compared with {how} sessions"
    else:
        yield "intervals   from the prior of the device type: no case has a second session"
    beyond = ", ".join(
        f"{share:.0%} beyond {width:.0%}"
        for width, share in zip(WIDTHS, quality.wider, strict=True)
    )
    median = _percent(quality.median_reach)
    yield f"widths      median half-width {median}; {beyond}"


def _gate_lines(quality: VersionQuality) -> Iterator[str]:
    """The cases and durations that gates hold back or doubt, the most frequent first."""
    if quality.refused:
        yield f"refused     {_by_gate(quality.refused, 'case')}"
    if quality.doubted:
        yield f"warned of   {_by_gate(quality.doubted, 'duration')}"


def _by_gate(found: Mapping[str, int], what: str) -> str:
    first, *others = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    told = [f"{counted(first[1], what)} by {first[0]}"]
    return ", ".join(told + [f"{count:,} by {gate}" for gate, count in others])


def _canary_lines(devices: Sequence[DeviceFactor]) -> Iterator[str]:
    """How fast each device was by its canaries: all that were odd, and the ends of the others."""
    if not devices:
        return
    sessions = sum(device.sessions for device in devices)
    flagged = sum(device.flagged for device in devices)
    yield (
        f"canaries    {counted(sessions, 'session')} on {counted(len(devices), 'device')}, "
        f"{flagged:,} unlike the others"
    )
    odd = [device for device in devices if device.flagged or device.drift]
    for device in odd or dict.fromkeys((devices[0], devices[-1])):
        flags = f", {device.flagged:,} unlike the others" if device.flagged else ""
        yield (
            f"            {device.device}: {device.factor} times as long as usual in "
            f"{counted(device.sessions, 'session')}{flags}"
        )
        if device.drift:
            earlier, later = device.drift
            yield f"            {device.device}: from {earlier:.3f} to {later:.3f} over them"


def _apart(found: Apart) -> str:
    return (
        f"{counted(found.pairs, 'pair')}: 50 % differ by {_percent(found.median)} or less, 90 % "
        f"by {_percent(found.p90)}, 99 % by {_percent(found.p99)}"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
