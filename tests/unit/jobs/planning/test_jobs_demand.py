"""Demand as sources of campaigns: manifests and density standards, and the order of their work."""

import json
from pathlib import Path

import pytest

from collector.codec.errors import BadInput
from collector.model.demand import DEMAND, record_of_cells, urgency_of
from collector.model.record import CaseRecord
from collector.store.in_memory import MemoryStore
from jobs.campaign.campaign_file import campaign_from_text
from jobs.planning.demand import read_standard, required_by
from jobs.planning.sources import load_sources

pytestmark = pytest.mark.fast

AXIS = "{range: [1, 64], segments: [{to: 64, max_ratio: 4}], required_values: [7]}"
STANDARD = f"schema_version: 1\naxes: {{rows: {AXIS}}}\nkernels:\n  Add: {{t: rows}}\n"


def add(rows: int, dtype: str = "FLOAT") -> CaseRecord:
    cells = {"Input Shapes": f"{rows},8;{rows},8", "Input Data Types": f"{dtype};{dtype}"}
    cells |= {"Input Formats": "ND;ND", "Output Shapes": f"{rows},8"}
    cells |= {"Output Data Types": dtype, "Output Formats": "ND", "OP State": "dynamic"}
    return record_of_cells("Add", cells)


def rows_of(record: CaseRecord) -> int:
    return int(record.cells["Input Shapes"].strip('"').partition(",")[0])


def test_manifests_and_standards_are_sources_of_a_campaign(tmp_path: Path):
    (tmp_path / "d.yaml").write_text(STANDARD)
    lines = [
        {"workload_id": w, "critical": c, "query": {"kernel_type": "Add", **add(rows).cells}}
        for w, c, rows in (("a", False, 4), ("a", True, 16), ("b", True, 16))
    ]
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, lines)))
    text = "campaign: c\nbackend: cpu\nsources: [{density: d.yaml}, {manifest: m.jsonl}]\n"
    campaign = campaign_from_text(text, path="c.yaml", base=tmp_path)
    density, manifest = load_sources(campaign, MemoryStore())
    assert [(rows_of(one), one.extra[DEMAND]) for one in manifest.records] == [
        (16, "critical"),
        (4, "frequent"),
    ]
    assert manifest.planned.name == "manifest (1 critical; 2 workloads)"
    urgencies = {rows_of(one): str(urgency_of(one)) for one in density.records}
    assert urgencies.keys() == {1, 7, 64} and urgencies[7] == "critical"
    alone = text.replace(", {manifest: m.jsonl}", "")
    with pytest.raises(BadInput, match=r"^c\.yaml:3: "):
        campaign_from_text(alone, path="c.yaml", base=tmp_path)


def test_standard_requires_sizes_for_each_dtype_and_counts_refused_rows(tmp_path: Path):
    file = tmp_path / "d.yaml"
    file.write_text(STANDARD)
    cases = [one.case for one in (add(2), add(32), add(4, "DT_BF16"), add(2, "QUARTZ"))]
    found = required_by(read_standard(file), cases, "cpu", path=file)
    by_dtype: dict[str, list[int]] = {}
    for one in found.demands:
        dtype = one.record.cells["Output Data Types"]
        by_dtype.setdefault(dtype, []).append(rows_of(one.record))
    assert {dtype: sorted(rows) for dtype, rows in by_dtype.items()} == {
        "FLOAT": [1, 7, 16, 64],
        "DT_BF16": [1, 7, 16, 64],
    }
    assert sum(found.refused.values()) == 4 and len(found.refused) == 1


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (1, STANDARD.replace("schema_version: 1", "schema_version: 2")),
        (2, STANDARD.replace("[1, 64]", "[64, 1]")),
        (2, STANDARD.replace("max_ratio: 4", "max_ratio: 1")),
        (2, STANDARD.replace("max_ratio: 4", "max_gap: 0")),
        (2, STANDARD.replace("max_ratio: 4", "max_gap: 1, max_ratio: 2")),
        (2, STANDARD.replace("{to: 64, max_ratio: 4}", "{to: 1000000000, max_gap: 1}")),
        (2, STANDARD.replace("[7]", "[65]")),
        (2, STANDARD.replace("segments", "steps")),
        (4, STANDARD.replace("Add", "NoSuchKernel")),
        (4, STANDARD.replace("t: rows", "z: rows")),
        (4, STANDARD.replace("t: rows", "t: columns")),
    ],
)
def test_an_invalid_standard_is_refused_with_its_line(tmp_path: Path, line: int, text: str):
    file = tmp_path / "d.yaml"
    file.write_text(text)
    with pytest.raises(BadInput) as refused:
        read_standard(file)
    assert (refused.value.path, refused.value.line) == (str(file), line)
