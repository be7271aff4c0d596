"""Which profiles are in a tree into which they are pooled, so that none counts twice.

`reports/parsed_profiles.json` names each file that was parsed into the tree, with a sample of its
launches by which it is known again: as another export, or under another name. A file is written
down before its rows are, and again when all are there: where a parse was cut off in between, nobody
can tell which of its rows the tree has.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from collector.canonical import readable_json
from collector.database.layout import PARSED_PROFILES
from collector.decoding import decode_object
from collector.errors import BadInput
from collector.profiles.run_sketch import RunSketch, are_of_one_run

_LONGEST_MARK = 16


@dataclass(frozen=True, slots=True)
class Parsed:
    """A file of which the tree has rows, and marks of some of its launches, in hex."""

    profile: str
    is_whole: bool
    launches: tuple[str, ...]

    def is_of(self, run: RunSketch) -> bool:
        return are_of_one_run([int(mark, 16) for mark in self.launches], run.marks)


@dataclass(frozen=True, slots=True)
class ParsedProfiles:
    """The files of a tree, in the order in which they came."""

    profiles: tuple[Parsed, ...] = ()

    def check_new(self, runs: Sequence[RunSketch], path: Path) -> None:
        """Raises BadInput where one of these is in the tree, or where its content is unknown."""
        for parsed in self.profiles:
            if not parsed.is_whole:
                raise BadInput(
                    f"the parse of {parsed.profile} was interrupted, and it is unknown which of "
                    "its rows the tree has; parse all profiles with --pool into another tree",
                    path=path,
                )
            for run in runs:
                if parsed.is_of(run):
                    raise BadInput(
                        f"from the same run as {parsed.profile}, which the tree has: its launches "
                        f"would count twice ({path})",
                        path=run.path,
                    )

    def with_runs(self, runs: Sequence[RunSketch], *, is_whole: bool) -> "ParsedProfiles":
        """The same with these, each once."""
        others = [p for p in self.profiles if not any(map(p.is_of, runs))]
        added = [
            Parsed(str(run.path), is_whole, tuple(f"{mark:x}" for mark in run.marks))
            for run in runs
        ]
        return ParsedProfiles((*others, *added))

    def as_bytes(self) -> bytes:
        return readable_json(asdict(self))


def read_parsed(version: Path) -> ParsedProfiles | None:
    """What a version folder tells of its profiles; None where nothing was pooled into it. Raises
    BadInput for a file that is no such list."""
    path = version / PARSED_PROFILES
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", path=path) from error
    found = decode_object(ParsedProfiles, data, what="a list of parsed profiles", key=str(path))
    for parsed in found.profiles:
        if not parsed.launches or not all(map(_is_mark, parsed.launches)):
            raise BadInput(f"{parsed.profile}: expected hexadecimal marks of launches", path=path)
    return found


def _is_mark(text: str) -> bool:
    return 0 < len(text) <= _LONGEST_MARK and set(text) <= set("0123456789abcdef")
