"""The part of the device time of real profiles that can be measured, on an NPU and on a cpu, and
the rest with its rules: `python -m tests.truth.shares [FOLDER]`.

FOLDER has profiles, a file or a run each; without it OPMETER_TEST_PROFILES names it. Shares are of
the compute time of rows with recorded inputs, unless stated otherwise.
"""

import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from math import fsum
from pathlib import Path

from collector.codec.errors import BadInput
from collector.ops.refusals import refusal
from collector.ops.registry import find_operator
from collector.profiles.discovery import find_profiles
from collector.profiles.kernel_details import Profile, read_profile

NAMED = 0.005  # of the compute time: larger refused cases are named
_BACKENDS = ("npu", "cpu")


@dataclass(frozen=True, slots=True)
class Refused:
    """The cases of one kernel type that one rule excludes from measuring on an NPU."""

    kernel_type: str
    rule: str
    time_us: float


@dataclass(frozen=True, slots=True)
class Measurable:
    """One profile: rows and microseconds of compute and of communication, and the part of compute
    that can be measured on each backend."""

    name: str
    rows: int
    compute_us: float
    unknown_us: float  # of inputs that the profiler did not record
    communication_us: float
    measurable_rows: dict[str, int]
    measurable_us: dict[str, float]
    refused: tuple[Refused, ...]

    def lines(self) -> Iterator[str]:
        """Print the row of the table, followed by the refused cases that take long."""
        whole = self.compute_us + self.communication_us
        reported = "  ".join(
            f"{backend} {_percent(self.measurable_us[backend], self.compute_us)} of time, "
            f"{_percent(self.measurable_rows[backend], self.rows)} of rows"
            for backend in _BACKENDS
        )
        yield (
            f"{self.name}: {self.rows:,} compute rows, {self.compute_us / 1e3:,.1f} ms, "
            f"{_percent(self.communication_us, whole)} of all in communication, "
            f"{_percent(self.unknown_us, self.compute_us)} of unknown inputs"
        )
        yield f"    {reported}"
        for one in self.refused:
            if one.time_us >= NAMED * self.compute_us:
                share = _percent(one.time_us, self.compute_us)
                yield f"    {share:>7}  {one.kernel_type}: {one.rule}"


def measurable(name: str, profile: Profile) -> Measurable:
    """Return how a profile's device time divides."""
    timed = [(r, r.profile) for r in profile.records if r.profile is not None]
    rows, time = Counter[str](), defaultdict[str, list[float]](list)
    refused = defaultdict[tuple[str, str], list[float]](list)
    for record, took in timed:
        for backend in _BACKENDS:
            no = refusal(record.case, find_operator, backend)
            if no is None:
                rows[backend] += took.count
                time[backend].append(took.total_us)
            elif backend == "npu":
                refused[record.kernel_type, no.why].append(took.total_us)
    listed = [Refused(kernel, rule, fsum(times)) for (kernel, rule), times in refused.items()]
    return Measurable(
        name=name,
        rows=sum(took.count for _, took in timed),
        compute_us=fsum(took.total_us for _, took in timed),
        unknown_us=fsum(took.total_us for r, took in timed if r.case.inputs is None),
        communication_us=fsum(entry.total_us for entry in profile.communication),
        measurable_rows={backend: rows[backend] for backend in _BACKENDS},
        measurable_us={backend: fsum(time[backend]) for backend in _BACKENDS},
        refused=tuple(sorted(listed, key=lambda one: -one.time_us)),
    )


def profiles_in(folder: Path) -> Iterator[Measurable]:
    """Yield each file of a folder separately; print why if one is not a profile at level 1."""
    for file in find_profiles([folder]):
        try:
            yield measurable(str(file.relative_to(folder)), read_profile([file]))
        except BadInput as error:
            sys.stdout.write(f"{file.relative_to(folder)}: not read: {error}\n")


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def main(arguments: list[str]) -> int:
    named = arguments[0] if arguments else os.environ.get("OPMETER_TEST_PROFILES", "")
    if not named:
        sys.stdout.write("no profiles at hand: name a folder, or set OPMETER_TEST_PROFILES\n")
        return 0
    for found in profiles_in(Path(named)):
        sys.stdout.write("\n".join(found.lines()) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
