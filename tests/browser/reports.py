"""Reports of made databases, for tests in a browser and for screenshots."""

from pathlib import Path

import pyarrow as pa

import opmeter
from collector.database.commits import find_head
from collector.database.manifest import read_manifest
from collector.database.snapshot import load_state
from collector.report.compare_pages import COLUMNS, ComparedSide, StepWeights, write_comparison
from collector.report.database_pages import DatabaseSource, WorkloadCoverage, write_database
from collector.report.pages import Folder
from collector.store.opening import address_of, open_store
from tests.bench.varied_database import (
    HOSTILE,
    STACK,
    write_two_stacks,
    write_varied_database,
)

COVERAGE = WorkloadCoverage(
    "qwen3-32b tp=4 <b>decode</b>",
    {
        name: {"cases": time, "launches": time, "time": time}
        for name, time in (("exact", 0.71), ("between", 0.2), ("outside", 0.04), ("missing", 0.05))
    },
    [
        {
            "kernel": name,
            "cases": cases,
            "share": share,
            "statuses": {"exact": 0.8, "missing": 0.2},
            "half_width": 0.05,
        }
        for name, cases, share in (("MatMulV2", 60, 0.62), ("FusedInferAttentionScore", 12, 0.3))
    ],
    "opmeter coverage --model qwen3-32b --missing to-measure",
)


def write_made_report(folder: Path, cases: int, language: str = "en") -> Path:
    """Write the report of a made database of this many cases, and return its folder."""
    root = folder / f"made-{cases}"
    if not root.exists():
        write_varied_database(open_store(str(root)), cases)
    return write_report(root, folder / f"report-{cases}-{language}", language)


def write_report(
    root: Path, target: Path, language: str = "en", coverage: WorkloadCoverage = COVERAGE
) -> Path:
    store = open_store(str(root))
    commit = find_head(store)
    assert commit is not None
    manifest = read_manifest(store, commit)
    source = DatabaseSource(store.url, lambda key: address_of(store.url, key))
    paths = sorted(manifest.versions)
    with Folder(target, language) as pages:
        write_database(
            *(pages, source, commit, paths),
            lambda path: load_state(store, commit, manifest, paths=[path]),
            {STACK.version_path: [coverage]},
        )
    return target


CHANGES = {"SwiGlu": 0.85, "MatMulV2": 1.06, "RmsNorm": 0.95, "FusedInferAttentionScore": 0.9}


def write_made_comparison(folder: Path, cases: int, words: str = HOSTILE) -> Path:
    """Write the comparison of two made stacks, of which some kernel types changed, weighted by the
    step of a made model that launches every case."""
    root, target = folder / f"two-{cases}", folder / f"comparison-{cases}"
    if not root.exists():
        write_two_stacks(open_store(str(root)), cases, CHANGES)
    database = opmeter.open(root)
    sides = []
    for path in database.directories:
        version = database.directory(path)
        tables = [version.arrow(kernel).select(COLUMNS) for kernel in version.kernels]
        rows = pa.concat_tables(tables, promote_options="permissive").combine_chunks()
        sides.append(ComparedSide(f"{path} · {database.number}", rows))
    launched = sides[0].rows["case"].to_pylist()[::7]
    launches = dict.fromkeys(launched, 64.0)
    step = StepWeights(f"made step of {words}", launches, dict.fromkeys(launched, 640.0))
    with Folder(target) as pages:
        write_comparison(pages, sides[0], sides[1], step)
    return target
