"""Which ranks each group of a run has: `profiler_metadata.json`, which Ascend's profiler writes
beside its folder of output where a program has named its groups.

Its `parallel_group_info` goes by the groups' names, `group_name_19`; `communication.json` calls a
group by a number made of that name. Of a training run (CANN 8.3) all five numbers were found so.
"""

from collections.abc import Mapping
from pathlib import Path

from collector.decoding import json_object
from collector.errors import BadInput
from collector.profiles.small_file import read_small_file

METADATA = "profiler_metadata.json"
_MOST_BYTES = 1 << 26  # thousands of groups of thousands of ranks
_MOST_RANKS = 1 << 20
_HIGH, _LOW = 29, 131
_MASK = (1 << 32) - 1


def read_group_ranks(folder: Path) -> dict[str, tuple[int, ...]]:
    """The ranks of each group, ascending, by the group's number in `communication.json`. `folder`
    is that file's own. Nothing where the run does not tell; BadInput for a file of another kind."""
    path = folder.parent / METADATA
    if not path.exists():
        return {}
    try:
        data = read_small_file(path, _MOST_BYTES)
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror or error}", path=path) from error
    told = json_object(data, what="the metadata of a profiled run", key=str(path))
    groups = told.get("parallel_group_info", {})
    if not isinstance(groups, dict):
        raise BadInput("'parallel_group_info': expected an object", path=path)
    return {group_number(name): _ranks(name, group, path) for name, group in groups.items()}


def group_number(name: str) -> str:
    """What `communication.json` calls a group of a name: two rolling hashes of 32 bits, one above
    the other."""
    return str(_hash(name, _HIGH) << 32 | _hash(name, _LOW))


def _hash(name: str, multiplier: int) -> int:
    found = 0
    for byte in name.encode("utf-8", "surrogatepass"):
        found = (found * multiplier + byte) & _MASK
    return found


def _ranks(name: str, group: object, path: Path) -> tuple[int, ...]:
    found = group.get("global_ranks") if isinstance(group, Mapping) else None
    if not isinstance(found, list) or not all(map(_is_rank, found)):
        raise BadInput(f"{name!r}: 'global_ranks': expected a list of ranks", path=path)
    if len(set(found)) != len(found):
        raise BadInput(f"{name!r}: duplicate rank in 'global_ranks'", path=path)
    return tuple(sorted(found))


def _is_rank(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_RANKS
