"""A database of many kernel types and sizes as devices would measure them, made as rows.

Products, attention with lengths, and others, in sessions of several devices and days. Durations
follow the declared work at a share of the peaks, with a launch, noise of sessions and devices,
second sessions, warnings, failures, and some texts that no page may run."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from collector.codec.canonical import canonical_json, short_hash
from collector.codec.errors import BadInput
from collector.database.commits import Commit
from collector.database.curves import work_of
from collector.database.plans import MergedPlan
from collector.database.state import CASE_SCHEMA, MEASUREMENT_SCHEMA, TEXT, State
from collector.database.versions import Ranked, VersionProperties
from collector.model.case import case_from_cells
from collector.model.stack import Stack
from collector.model.vocabulary import BASE_CELLS
from collector.ops.floor import described_peaks
from collector.store.base import Store
from tests.bench.synthetic_database import write_states

Floats = npt.NDArray[np.float64]

STACK = Stack(
    device="ATLAS_800_A3_752T_128G_DIE",
    torch="2.9.0",
    driver="25.5.0",
    firmware="7.8.0",
    cann="8.5.0",
    torch_npu="2.9.0",
    vllm="0.18.0",
)
HOSTILE = '<img src=x onerror=alert(1)></script>"&'
HOSTILE_KERNEL = f"Evil{HOSTILE}"
_HEADS, _SIZE = 32, 128
_LEAST_US, _COMPUTE, _MEMORY = 2.6, 0.68, 0.57
_SESSION_CASES = 400
_ROWWISE = (
    *("Add", "Mul", "Sub", "SwiGlu", "RmsNorm", "AddRmsNorm", "Cast", "Sigmoid", "Exp", "Muls"),
    *("ReduceSum", "SoftmaxV2", "Gelu", "Relu", "Neg", "Abs", "Sqrt", "Rsqrt", "Square", "Tanh"),
)


@dataclass(frozen=True)
class _Row:
    kernel: str
    core: str
    inputs: str
    dtypes: str
    outputs: str
    extra: str = ""


def write_varied_database(store: Store, cases: int, stack: Stack = STACK, seed: int = 1) -> Commit:
    """Write one commit with about this many cases."""
    return write_states(store, [varied_state(cases, stack, seed)])


def write_two_stacks(store: Store, cases: int, changes: Mapping[str, float]) -> Commit:
    """Write the version directories of two stacks, with index: in the later one the durations of
    some kernel types have changed by a factor, from the width of 4,096 on."""
    later = replace(STACK, cann="8.6.0")
    states = [
        varied_state(cases, is_hostile=False),
        varied_state(cases, later, 2, is_hostile=False, changes=changes),
    ]
    return write_states(store, states, with_view=True)


def varied_state(
    cases: int,
    stack: Stack = STACK,
    seed: int = 1,
    *,
    is_hostile: bool = True,
    changes: Mapping[str, float] | None = None,
) -> State:
    """Return the state of such a database. Without hostile kernel types it has a tree."""
    rows = [row for row in _rows(cases) if is_hostile or row.kernel != HOSTILE_KERNEL]
    random = np.random.default_rng(seed)
    plan = MergedPlan("made", 1, "f" * 20)
    table = _cases(rows, stack, plan)
    path = stack.version_path
    version = VersionProperties(
        Ranked((0, 1, plan.plan_hash), canonical_json(stack.as_json()).decode()), None
    )
    return State.of_rows(
        measurements=_measurements(table, stack, plan, random, _factors(rows, changes or {})),
        cases=[table],
        versions={path: version},
        plans=[plan],
    )


def _rows(cases: int) -> Iterator[_Row]:
    """Yield the cases: 45 % products, 15 % attention, 40 % others."""
    yield from _products(cases * 30 // 100, "MatMulV2", "DT_BF16;DT_BF16")
    yield from _products(cases * 15 // 100, "QuantBatchMatmulV3", "INT8;INT8;FLOAT")
    yield from _attention(cases * 15 // 100)
    others = cases - cases * 60 // 100
    for name in _ROWWISE:
        yield from _rowwise(others // len(_ROWWISE), name)
    yield from (_Row(HOSTILE_KERNEL, "AI_CORE", f"{n},8", "DT_BF16", f"{n},8") for n in (1, 2, 3))
    yield from (
        _Row("MemSet", "AI_VECTOR_CORE", f"{n},64", HOSTILE, f"{n},64") for n in range(1, 20)
    )


def _products(count: int, kernel: str, dtypes: str) -> Iterator[_Row]:
    widths = _ladder(max(2, round((count / 40) ** 0.5)), 512, 16384, 128)
    tokens = _ladder(max(3, count // len(widths) ** 2), 1, 16384, 1)
    for n, k, m in product(widths, widths, tokens):
        third = f";{n}" if dtypes.count(";") == 2 else ""
        yield _Row(kernel, "AI_CORE", f"{m},{k};{k},{n}{third}", dtypes, f"{m},{n}")


def _attention(count: int) -> Iterator[_Row]:
    batches = _ladder(max(3, round((count / 3) ** 0.5)), 1, 64, 1)
    lengths = _ladder(max(3, count // len(batches)), 128, 131072, 16)
    dtypes = ["DT_BF16"] * 3 + ["DT_UNDEFINED", "INT8", "INT64", "INT64"]
    dtypes += ["DT_UNDEFINED"] * 7 + ["INT32"]
    for batch, length in product(batches, lengths):
        pages = -(-length // 128)
        shapes = [f"{batch},{_HEADS},{_SIZE}", *[f"{batch * pages},128,{_SIZE * 8}"] * 2]
        shapes += ["", "2048,2048", f"{batch}", f"{batch}", *[""] * 7, f"{batch},{pages}"]
        extra = {
            "Runtime actual_seq_lengths_kv_values": ",".join([str(length)] * batch),
            "Runtime actual_seq_lengths_values": ",".join(map(str, range(1, batch + 1))),
            "Runtime input_layout": "TND",
            "Runtime num_heads": str(_HEADS),
            "Runtime num_key_value_heads": "8",
            "Runtime sparse_mode": "3",
        }
        yield _Row(
            "FusedInferAttentionScore",
            "MIX_AIC",
            ";".join(shapes),
            ";".join(dtypes),
            f"{batch},{_HEADS},{_SIZE}",
            json.dumps(extra),
        )


def _rowwise(count: int, kernel: str) -> Iterator[_Row]:
    widths = _ladder(max(2, round((count / 8) ** 0.5)), 128, 18432, 64)
    tokens = _ladder(max(2, count // len(widths)), 1, 32768, 1)
    for width, m in product(widths, tokens):
        inputs = f"{m},{width};{m},{width}" if kernel in ("Add", "Mul", "Sub") else f"{m},{width}"
        dtypes = ";".join(["DT_BF16"] * (inputs.count(";") + 1))
        yield _Row(kernel, "AI_VECTOR_CORE", inputs, dtypes, f"{m},{width}")


def _ladder(count: int, least: int, most: int, step: int) -> list[int]:
    """Return sizes in nearly equal ratios, each a multiple of the step."""
    found = np.unique(np.round(np.geomspace(least, most, count) / step).astype(int))
    return [int(size) * step for size in found if size]


def _cases(rows: Sequence[_Row], stack: Stack, plan: MergedPlan) -> pa.Table:
    def formats(text: str) -> str:
        return ";".join("NULL" if part == "DT_UNDEFINED" else "ND" for part in text.split(";"))

    cells = [
        (
            "dynamic",
            r.core,
            f'"{r.inputs}"',
            r.dtypes,
            formats(r.dtypes),
            r.outputs,
            "DT_BF16",
            "ND",
        )
        for r in rows
    ]
    columns: dict[str, object] = {
        "version_path": [stack.version_path] * len(rows),
        "case": [_case_id(row, own) for row, own in zip(rows, cells, strict=True)],
        "head_commit": [0] * len(rows),
        "plan": [1] * len(rows),
        "plan_hash": [plan.plan_hash] * len(rows),
        "kernel_type": [row.kernel for row in rows],
        **dict(zip(BASE_CELLS, map(list, zip(*cells, strict=True)), strict=True)),
        "extra": [row.extra for row in rows],
    }
    return pa.table(columns, schema=CASE_SCHEMA)


def _case_id(row: _Row, cells: Sequence[str]) -> str:
    more = json.loads(row.extra) if row.extra else {}
    try:
        return case_from_cells(
            row.kernel, {**more, **dict(zip(BASE_CELLS, cells, strict=True))}
        ).case_id
    except BadInput:
        return short_hash([row.kernel, *cells])


def _durations_us(table: pa.Table, stack: Stack, random: np.random.Generator) -> Floats:
    """Return what each case takes on this stack: the larger of its work at a share of the peaks, in
    steps of tiles, and a launch."""
    peaks = described_peaks(stack.device)
    assert peaks is not None
    work = work_of(table, stack, is_checked=False)
    operations, traffic = np.nan_to_num(work.operations), np.nan_to_num(work.traffic)
    computed_s = operations / (_COMPUTE * peaks.tflops["bfloat16"] * 1e12)
    moved_s = traffic / (_MEMORY * peaks.bytes_per_s)
    own = 1 + 0.1 * random.random(table.num_rows)
    found: Floats = _LEAST_US + 1e6 * np.hypot(computed_s, moved_s) * own
    return found


def _factors(rows: Sequence[_Row], changes: Mapping[str, float]) -> Floats:
    def width(row: _Row) -> int:
        return int(row.inputs.split(";")[0].rpartition(",")[2])

    return np.array([changes.get(r.kernel, 1.0) if width(r) >= 4096 else 1.0 for r in rows])


def _measurements(
    table: pa.Table,
    stack: Stack,
    plan: MergedPlan,
    random: np.random.Generator,
    factors: Floats,
) -> list[pa.Table]:
    """Return the measurements: one of each case, and a second one of every seventh."""
    true_us = _durations_us(table, stack, np.random.default_rng(0)) * factors
    order = random.permutation(table.num_rows)
    again = random.permutation(order[::7])
    return [
        _of_sessions(table, part, true_us, stack, plan, random, first)
        for part, first in ((order, 0), (again, 1 + len(order) // _SESSION_CASES))
    ]


def _of_sessions(
    table: pa.Table,
    places: npt.NDArray[np.int64],
    true_us: Floats,
    stack: Stack,
    plan: MergedPlan,
    random: np.random.Generator,
    first: int,
) -> pa.Table:
    count = len(places)
    session = first + np.arange(count) // _SESSION_CASES
    sessions = int(session.max()) + 1
    device = np.arange(sessions) * 5 % 16
    speed = np.exp(0.004 * random.standard_normal(16))[device]
    speed *= np.exp(0.006 * random.standard_normal(sessions))
    speed[device == 3] *= 1.0 + 0.02 * np.arange((device == 3).sum()) / 4  # a device with drift
    noise = np.exp(0.004 * random.standard_normal(count))
    mean_us = true_us[places] * speed[session] * noise
    is_slow = random.random(count) < 0.002
    mean_us[is_slow] *= 1.8
    spread = 0.006 + 0.004 * random.random(count)
    is_wide = random.random(count) < 0.03
    spread[is_wide] = 0.3
    failed = random.random(count) < 0.01
    return _table(
        table.take(pa.array(places)), session, device, speed, mean_us, spread, failed, stack, plan
    )


def _table(
    cases: pa.Table,
    session: npt.NDArray[np.int64],
    device: npt.NDArray[np.int64],
    speed: Floats,
    mean_us: Floats,
    spread: Floats,
    failed: npt.NDArray[np.bool_],
    stack: Stack,
    plan: MergedPlan,
) -> pa.Table:
    count = len(session)

    def text(values: Floats) -> pa.Array:
        found = [repr(float(v)) for v in values]
        return pa.array(["" if bad else one for one, bad in zip(found, failed, strict=True)], TEXT)

    def of_session(value: Callable[[int], str]) -> pa.Array:
        known = [value(at) for at in range(int(session.max()) + 1)]
        return pa.array([known[at] for at in session.tolist()], TEXT)

    def canaries(at: int) -> str:
        readings = [
            ["Add 4096,1024;4096,1024 FLOAT;FLOAT", place, at_s, 40.0 * float(speed[at]), 0.004, 8]
            for place, at_s in (("start", 1.0), ("middle", 60.0), ("end", 120.0))
        ]
        return canonical_json(readings).decode()

    warnings = np.where(spread > 0.2, '["spread 30% is above 20%"]', "")
    columns: dict[str, object] = {
        **{name: pa.repeat(pa.scalar("", TEXT), count) for name in MEASUREMENT_SCHEMA.names},
        "final": pa.repeat(pa.scalar(True), count),
        **{name: cases[name] for name in ("version_path", "case", "kernel_type")},
        "measurement": pa.array(
            [
                short_hash([c, s], 24)
                for c, s in zip(cases["case"].to_pylist(), session.tolist(), strict=True)
            ],
            TEXT,
        ),
        "outcome": pa.array(np.where(failed, "failed", "ok").tolist(), TEXT),
        "reason": pa.array(np.where(failed, f"ERR99999 {HOSTILE}", "").tolist(), TEXT),
        "shard": of_session(lambda at: short_hash(["shard", at])),
        "attempt": of_session(lambda at: f"{short_hash(['attempt', at], 8)}-1"),
        "node": of_session(lambda at: f"worker-{device[at] // 8}"),
        "device_serial": of_session(lambda at: f"SN{device[at]:04d}"),
        "started_at": of_session(
            lambda at: f"2026-11-{1 + at // 16 % 28:02d}T{at % 24:02d}:00:00.000000+00:00"
        ),
        "raw_key": of_session(lambda at: f"campaigns/made/attempts/{at}/raw/{at}.zst"),
        "canaries": of_session(canaries),
        "mean_us": text(mean_us),
        "ci_low_us": text(mean_us * (1 - spread / 6)),
        "ci_high_us": text(mean_us * (1 + spread / 6)),
        "median_us": text(mean_us * 0.999),
        "min_us": text(mean_us * (1 - 2 * np.minimum(spread, 0.3))),
        "p10_us": text(mean_us * (1 - 1.2 * np.minimum(spread, 0.3))),
        "p90_us": text(mean_us * (1 + 1.3 * spread)),
        "spread": text(spread),
        "warnings": pa.array(np.where(failed, "", warnings).tolist(), TEXT),
    }
    words = {
        "campaign": plan.campaign,
        "plan": "1",
        "plan_hash": plan.plan_hash,
        "head_commit": "0",
        "session": "0",
        "rank": "0",
        "runtime": "fake",
        "collector_version": "0.1.0",
        "stack_id": stack.stack_id,
        "image_digest": "sha256:" + "0" * 64,
        "cache": "warm",
        "n_expected": "40",
        "n_observed": "40",
        "n_accepted": "38",
        "core": "AI_CORE",
        "identity": "proved",
        "library": "cann",
        "opened_clock_mhz": "1800.0",
        "closed_clock_mhz": "1800.0",
        "opened_temperature_c": "51.0",
    }
    columns |= {name: pa.repeat(pa.scalar(word, TEXT), count) for name, word in words.items()}
    return pa.table(columns, schema=MEASUREMENT_SCHEMA)
