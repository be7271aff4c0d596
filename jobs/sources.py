"""The sources of a campaign as tables of cases, with what was seen in reading them."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from collector.canonical import sha256_hex
from collector.plan import PlannedSource
from collector.profiles.bundled import write_bundled_profile
from collector.profiles.kernel_details import read_profile
from collector.record import CaseRecord, write_table
from collector.singlehost.tree_source import read_tree
from jobs.campaign import BundledSource, Campaign, ProfileSource, Source, TreeSource


@dataclass(frozen=True, slots=True)
class LoadedSource:
    """One source, read: its table is what is stored and hashed."""

    planned: PlannedSource
    table: bytes
    records: tuple[CaseRecord, ...]


def load_sources(campaign: Campaign) -> tuple[LoadedSource, ...]:
    """Every source of a campaign, read where it lies. Raises BadInput for one that cannot be."""
    return tuple(_load(source) for source in campaign.sources)


def _load(source: Source) -> LoadedSource:
    match source:
        case TreeSource(path):
            return _loaded("tree", read_tree(path), same_stack=False)
        case ProfileSource(path, same_stack):
            return _loaded("profile", read_profile([path]).records, same_stack=same_stack)
        case BundledSource(name):
            with _written(name) as path:
                records = read_profile([path]).records
            return _loaded(f"bundled:{name}", records, same_stack=False)


@contextmanager
def _written(name: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="opmeter-sample-") as folder:
        yield write_bundled_profile(name, Path(folder))


def _loaded(name: str, records: tuple[CaseRecord, ...], *, same_stack: bool) -> LoadedSource:
    table = write_table(records)
    planned = PlannedSource(name, sha256_hex(table), len(records), same_stack)
    return LoadedSource(planned, table, records)
