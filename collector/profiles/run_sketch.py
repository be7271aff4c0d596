"""A run known again in another process: some of its launches stand for all of them.

The least marks of a run's launches are a sample of them that is the same whenever it is taken. Two
samples are compared as far as both reach, by the rule of `repeats`: files are of one run where at
least half of the smaller one's launches are in the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from collector.canonical import sha256_hex
from collector.profiles.repeats import Marks

MOST = 4096


@dataclass(frozen=True, slots=True)
class RunSketch:
    """A file that was read, and the sample of its launches in ascending order."""

    path: Path
    marks: tuple[int, ...]


def sketch_of(path: Path, launches: Marks) -> RunSketch:
    """The sample of a file's launches (of `known_launches`). A file that tells of none when it
    began is known by its bytes."""
    marks = tuple(launches[:MOST].tolist())
    return RunSketch(path, marks or (int(sha256_hex(path.read_bytes())[:16], 16),))


def are_of_one_run(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two samples are of one run."""
    ends = [max(sample) for sample in (one, other) if len(sample) >= MOST]
    reach = min(ends, default=max(max(one), max(other)))
    first, second = ({mark for mark in sample if mark <= reach} for sample in (one, other))
    smaller = min(len(first), len(second))
    return smaller > 0 and 2 * len(first & second) >= smaller
