"""Version directories made of rows: without measuring, and if a test needs no merge, without it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from collector.codec.canonical import canonical_json
from collector.database.commits import find_head
from collector.database.index import Index
from collector.database.index_build import index_bytes
from collector.database.intervals import INTERVAL_SCHEMA
from collector.database.merge import CREATE, merge_plans
from collector.database.state import CASE_SCHEMA
from collector.model.case import shape_text
from collector.model.record import CaseRecord
from collector.model.stack import Stack
from collector.model.vocabulary import BASE_CELLS
from collector.store.base import Store
from collector.store.in_memory import MemoryStore
from opmeter.cases import Shape
from opmeter.database import database_at
from opmeter.version import Version
from tests.unit.collector.database.campaign_maker import MadePlan, MadeShard, Tried, write_campaign

_REASONS = {
    "disturbed": "the session was disturbed: threads waited for a core",
    "outliers": "outliers: 8 % of the undisturbed repeats",
    "spread": "spread 30 % is above 10 %",
}

PATH = "ATLAS_800_A3_752T_128G_DIE/vllm_ascend/vllm0.18.0_torch2.9.0_cann8.5"


@dataclass(frozen=True)
class Row:
    """A measured case; the interval is 5 % to each side."""

    kernel: str
    inputs: Sequence[Shape | None]
    outputs: Sequence[Shape]
    mean_us: float
    dtype: str = "DT_BF16"
    state: str = "dynamic"
    formats: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)
    sessions: int = 1
    warnings: str = ""
    out: str = ""  # dtype of the outputs, by default that of the first input

    @property
    def record(self) -> CaseRecord:
        dtypes = self.dtype.split(";")
        count = len(self.inputs)
        cells = (
            *(self.state, ""),
            ";".join(map(shape_text, self.inputs)),
            self.dtype if len(dtypes) > 1 else ";".join(dtypes * count),
            self.formats or ";".join(["ND"] * count),
            ";".join(map(shape_text, self.outputs)),
            ";".join([self.out or dtypes[0]] * len(self.outputs)),
            ";".join(["ND"] * len(self.outputs)),
        )
        return CaseRecord(self.kernel, dict(zip(BASE_CELLS, cells, strict=True)), self.extra)


def product(m: int, n: int, k: int, mean_us: float, **more: object) -> Row:
    return Row("MatMulV2", [(m, k), (k, n)], [(m, n)], mean_us, **more)  # type: ignore[arg-type]


def tables(rows: Sequence[Row]) -> tuple[pa.Table, pa.Table]:
    """The tables of cases and of intervals, sorted by case as a snapshot has them."""
    by_case = sorted(((row.record.case_id, row) for row in rows), key=lambda pair: pair[0])
    cases, shown = [], []
    for case, row in by_case:
        record = row.record
        extra = canonical_json(dict(record.extra)).decode() if record.extra else ""
        rank = {"head_commit": 0, "plan": 1, "plan_hash": "x"}
        named = {"version_path": PATH, "case": case}
        cases.append({**named, **rank, "kernel_type": row.kernel, **record.cells, "extra": extra})
        low, high = row.mean_us * 0.95, row.mean_us * 1.05
        own = (row.mean_us, low, high, 3.0, "prior", row.sessions, low, high)
        values = (*own, None, None, row.warnings)
        shown.append(dict(zip(INTERVAL_SCHEMA.names, (PATH, case, *values), strict=True)))
    return (
        pa.Table.from_pylist(cases, schema=CASE_SCHEMA),
        pa.Table.from_pylist(shown, schema=INTERVAL_SCHEMA),
    )


@dataclass(frozen=True)
class Recorded(Row):
    """A measured case of a record."""

    own: CaseRecord = CaseRecord("", {}, {})

    @property
    def record(self) -> CaseRecord:
        return self.own


def recorded(record: CaseRecord, mean_us: float) -> Recorded:
    return Recorded(record.case.kernel_type, [], [], mean_us, own=record)


def version_of(rows: Sequence[Row], *, differs: tuple[str, ...] = ()) -> Version:
    data, count = index_bytes(*tables(rows), PATH)
    assert count == len(rows)
    return Version(PATH, Index(memoryview(data), key="index"), differs=differs)


def merged(rows: Sequence[Row], store: Store | None = None) -> Version:
    """The version directory of a database into which a campaign with these results was merged."""
    device = PATH.partition("/")[0]
    stack = Stack(device=device, torch="2.9.0", torch_npu="2.9.0", cann="8.5", vllm="0.18.0")
    tried = {
        row.record.case_id: Tried(
            row.mean_us, warnings=tuple(_REASONS[gate] for gate in _gates(row))
        )
        for row in rows
    }
    shard = MadeShard("shard", [row.record for row in rows], [tried])
    store = MemoryStore() if store is None else store
    plan = MadePlan([shard], stack=stack)
    write_campaign(store, plan)
    merge_plans(store, [plan.name], guard=CREATE, author="test")
    commit = find_head(store)
    assert commit is not None
    return database_at(store, commit).directory(PATH)


def _gates(row: Row) -> list[str]:
    return [gate for gate in row.warnings.split(";") if gate]


def products_index(
    shapes: npt.NDArray[np.int64], mean_us: Sequence[float], reach: float = 0.05
) -> bytes:
    """The index of many products, `shapes` (rows, 3) being m, n and k; the intervals extend this
    far to each side, as a share."""
    rows = len(shapes)
    words = {
        "version_path": PATH,
        "plan_hash": "x",
        "kernel_type": "MatMulV2",
        "OP State": "dynamic",
        "Input Data Types": "DT_BF16;DT_BF16",
        "Input Formats": "ND;ND",
        "Output Data Types": "DT_BF16",
        "Output Formats": "ND",
    }
    ids = [f"{at:020x}" for at in range(rows)]
    cases = {name: [words.get(name, "")] * rows for name in CASE_SCHEMA.names} | {
        "case": ids,
        "head_commit": [0] * rows,
        "plan": [1] * rows,
        "Input Shapes": [f'"{m},{k};{k},{n}"' for m, n, k in shapes.tolist()],
        "Output Shapes": [f'"{m},{n}"' for m, n, k in shapes.tolist()],
    }
    mean = np.array(mean_us)
    shown = dict.fromkeys(INTERVAL_SCHEMA.names, mean) | {
        "version_path": [PATH] * rows,
        "case": ids,
        "stack_low_us": mean * (1 - reach),
        "stack_high_us": mean * (1 + reach),
        "stack_variance": ["prior"] * rows,
        "sessions": [1] * rows,
        "warnings": [""] * rows,
    }
    tables = (pa.table(cases, schema=CASE_SCHEMA), pa.table(shown, schema=INTERVAL_SCHEMA))
    return index_bytes(*tables, PATH)[0]
