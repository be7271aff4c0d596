"""A query finds what is measured, interpolates between it, and says why it has nothing."""

import math
import re
import subprocess
import sys
import threading
from itertools import product as product_of

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import opmeter
from collector.model.case import shape_text
from collector.model.demand import record_of_cells
from collector.model.vocabulary import INPUT_CELLS, OUTPUT_CELLS
from opmeter.answers import Channel, Reason
from opmeter.cases import arguments_of
from tests.unit.opmeter.made import Row, product, recorded, version_of

pytestmark = pytest.mark.fast

KEYS = "Runtime actual_seq_lengths_kv_values"
PRODUCTS = [
    product(m, n, k, 2.0 + m * n * k / 1e6)
    for m in (1, 16, 64, 256)
    for n in (512, 1024, 2048)
    for k in (512, 1024, 2048)
]


def random_rows(chance: np.random.Generator, count: int) -> list[Row]:
    """Distinct cases of some kernels, dtypes, ranks and settings, with sizes that often repeat."""
    rows: dict[str, Row] = {}
    while len(rows) < count:
        kernel = str(chance.choice(["Add", "Mul", "MatMulV2"]))
        shape = tuple(chance.integers(1, 40, chance.integers(1, 4)).tolist())
        inputs = [shape, *([shape] if kernel == "Add" else [None] if kernel == "Mul" else [(7, 9)])]
        dtype = str(chance.choice(["DT_BF16", "FLOAT16", "FLOAT"]))
        state = str(chance.choice(["dynamic", "static"], p=[0.9, 0.1]))
        row = Row(kernel, inputs, [shape], float(chance.uniform(1, 100)), dtype, state)
        rows.setdefault(row.record.case_id, row)
    return list(rows.values())


def test_query_results_equal_a_search_of_all_rows() -> None:
    chance = np.random.default_rng(5)
    rows = random_rows(chance, 10_000)
    version = version_of(rows)
    by_key: dict[object, list[Row]] = {}
    for row in rows:
        by_key.setdefault((row.kernel, tuple(row.inputs), row.dtype), []).append(row)
    requested = [rows[at] for at in chance.integers(0, len(rows), 5000)] + random_rows(chance, 5000)
    missed = several = 0
    answers = []
    for row in requested:
        matching = by_key.get((row.kernel, tuple(row.inputs), row.dtype), [])
        answer = version.query(row.kernel, row.inputs, row.dtype)
        answers.append(answer)
        if not matching:
            missed += 1
            assert answer.channel not in (Channel.MEASURED, Channel.POOLED)
            continue
        assert answer.channel is Channel.MEASURED and answer.support == 1
        assert answer.value_us in {one.mean_us for one in matching}
        assert bool(answer.warnings) == (len(matching) > 1)
        several += len(matching) > 1
        own = version.query(row.kernel, row.inputs, row.dtype, op_state=row.state)
        if same := [one for one in matching if one.state == row.state]:
            assert own.value_us == same[0].mean_us and not own.warnings
    assert missed > 1000 and several > 50  # both were tried
    frame = pd.DataFrame(
        {
            "kernel_type": [row.kernel for row in requested],
            "Input Shapes": [f'"{";".join(map(shape_text, row.inputs))}"' for row in requested],
            "Input Data Types": [row.dtype for row in requested],
        }
    )
    for table in (frame, pl.from_pandas(frame), pa.Table.from_pandas(frame), frame.to_dict("list")):
        found = version.query_many(table)
        for name, at in (("value_us", 0), ("low_us", 1), ("high_us", 2), ("support", 4)):
            np.testing.assert_array_equal(found[name], [answer[at] for answer in answers])
        assert found["channel"].tolist() == [answer.channel.value for answer in answers]
        assert found["warnings"].tolist() == [";".join(answer.warnings) for answer in answers]
        assert found["reason"].tolist() == [str(answer.reason or "") for answer in answers]


def several_in(answer: opmeter.Answer) -> tuple[int, float, float] | None:
    """How many cases match, the least and the greatest of their durations, as a warning says."""
    for text in answer.warnings:
        if found := re.search(r"several cases match: (\d+), of (\S+) to (\S+) us", text):
            return int(found[1]), float(found[2]), float(found[3])
    return None


def tangled_rows(chance: np.random.Generator, count: int) -> list[Row]:
    """Distinct cases of few sizes that differ in dtypes, outputs, formats, states and lengths."""
    rows: dict[str, Row] = {}
    while len(rows) < count:
        size = int(chance.integers(1, 4))
        lengths = str(chance.choice(["", "3,4", "5,2"]))
        outputs = [(size, int(chance.integers(1, 3)))] * int(chance.integers(1, 3))
        row = Row(
            *("Top", [(size, 8), (8,)], outputs, float(chance.integers(1, 9))),
            str(chance.choice(["DT_BF16;DT_BF16", "DT_BF16;FLOAT", "FLOAT;FLOAT"])),
            str(chance.choice(["dynamic", "static"])),
            str(chance.choice(["ND;ND", "NCHW;ND"])),
            {KEYS: lengths} if lengths else {},
        )
        rows.setdefault(row.record.case_id, row)
    return list(rows.values())


def test_ambiguous_answers_equal_a_search_of_all_rows() -> None:
    chance = np.random.default_rng(3)
    rows = tangled_rows(chance, 300)
    version = version_of(rows)
    of_rows = [(row, cells_of(row)) for row in rows]
    table: list[dict[str, str]] = []
    expected: list[tuple[int, float, float] | None] = []
    for at in chance.integers(0, len(rows), 300).tolist():
        own = of_rows[at][1]
        cells = {n: text if n in FIXED or chance.random() < 0.5 else "" for n, text in own.items()}
        dtype = own[INPUT_CELLS[1]].partition(";")[0] if chance.random() < 0.3 else ""
        open_dtype = {**cells, INPUT_CELLS[1]: ""} if dtype else cells
        matching = [row for row, known in of_rows if has(known, open_dtype)]
        if dtype:  # of all inputs, else of the first one
            cells[INPUT_CELLS[1]] = dtype
            first = [row for row in matching if row.dtype.startswith(dtype)]
            matching = [row for row in first if row.dtype == f"{dtype};{dtype}"] or first
        means = [row.mean_us for row in matching]
        several = (len(means), min(means), max(means)) if len(set(means)) > 1 else None
        answer = version.query("Top", **arguments_of(cells))
        assert answer.channel is Channel.MEASURED and answer.value_us in means, cells
        assert several_in(answer) == several, cells
        only = version.query("Top", **arguments_of(cells), unambiguous=True)
        assert only.reason is (Reason.AMBIGUOUS if several else None)
        table.append(cells)
        expected.append(several)
    assert 50 < expected.count(None) < 250
    frame = pd.DataFrame(table).assign(kernel_type="Top")
    found, alone = (
        version.query_many(frame),
        [version.query("Top", **arguments_of(c)) for c in table],
    )
    assert found["warnings"].tolist() == [";".join(answer.warnings) for answer in alone]
    assert found["value_us"].tolist() == [answer.value_us for answer in alone]
    only = version.query_many(frame, unambiguous=True)
    assert (only["reason"] == "ambiguous").tolist() == [one is not None for one in expected]


FIXED = (INPUT_CELLS[0], KEYS)


def cells_of(row: Row) -> dict[str, str]:
    return {KEYS: "", **row.record.cells, **row.extra}


def has(own: dict[str, str], cells: dict[str, str]) -> bool:
    """Whether a row has all texts of a query; one dtype or format of outputs is that of all."""
    for name, text in cells.items():
        is_of_all = name in OUTPUT_CELLS[1:] and {text} == {*own[name].split(";")}
        if (text or name in FIXED) and text != own[name] and not is_of_all:
            return False
    return True


def test_outputs_take_part_in_matching() -> None:
    rows = [Row("Top", [(m, 64)], [(m, k)] * 2, m + 10.0 * k) for m in (8, 32) for k in (4, 16)]
    version = version_of([*rows, Row("Top", [(8, 64)], [(8, 4)], 7.0)])
    for outputs in ([(8, 16)] * 2, {"Output Shapes": "8,16;8,16", "Output Data Types": "bf16"}):
        assert version.query("Top", [(8, 64)], "bf16", outputs=outputs)[0] == 168.0
    assert version.query("Top", [(8, 64)], "bf16", outputs=[(8, 4)])[0] == 7.0
    for outputs, reason in (
        ([(8, 40)] * 2, Reason.OUTSIDE),
        ([(8, 4)] * 3, Reason.NO_LAYOUT),
        ({"Output Data Types": "FLOAT"}, Reason.NO_LAYOUT),
    ):
        assert version.query("Top", [(8, 64)], "bf16", outputs=outputs).reason is reason
    # Between cases, the number of greatest entries is an axis, or has its own curve.
    fifth = version.query("Top", [(8, 64)], "bf16", outputs=[(8, 5)] * 2)
    assert fifth.channel is Channel.INTERPOLATED and 48 < fifth.value_us < 168
    between = version.query("Top", [(16, 64)], "bf16", outputs=[(16, 16)] * 2)
    assert between.channel is Channel.INTERPOLATED and 168 < between.value_us < 192
    assert several_in(version.query("Top", [(16, 64)], "bf16")) is not None
    assert version.query("Top", [(16, 64)], "bf16", outputs=[(17, 16)] * 2).reason is Reason.OUTSIDE
    for wrong in ({"Output Shape": "8,4"}, {"Output Shapes": "x"}, [8, 4], [(-8, 4)]):
        with pytest.raises(opmeter.OpmeterError):
            version.query("Top", [(8, 64)], "bf16", outputs=wrong)  # type: ignore[arg-type]


def test_duration_between_measured_cases_is_interpolated() -> None:
    version = version_of(PRODUCTS)
    for m, n, k in ((32, 1024, 1024), (64, 700, 1024), (128, 600, 1500)):
        answer = version.query("MatMulV2", [(m, k), (k, n)], "bf16")
        assert answer.channel is Channel.INTERPOLATED and answer.reason is None
        assert answer.value_us == pytest.approx(2.0 + m * n * k / 1e6, rel=0.25)
        assert answer.low_us < answer.value_us < answer.high_us
        assert answer.support >= 2
    exact = version.query("MatMulV2", np.array([(64, 1024), (1024, 1024)]), "bf16")  # any integers
    assert exact.channel == "measured"


def test_interval_of_few_cases_is_their_range_with_a_warning() -> None:
    version = version_of([product(m, 64, 64, float(m)) for m in (8, 32)])
    answer = version.query("MatMulV2", [(16, 64), (64, 64)], "bf16")
    assert answer.value_us == pytest.approx(16.0)
    assert (answer.low_us, answer.high_us) == pytest.approx((8 * 0.95, 32 * 1.05))
    assert "calibrate" in answer.warnings[0] and answer.support == 2


def test_miss_has_a_reason() -> None:
    version = version_of([*PRODUCTS, attention("100,200", 5.0), attention("300,400", 9.0)])
    shapes = [(64, 1024), (1024, 1024)]
    for reason, arguments in (
        (Reason.NO_KERNEL, ("Nothing", shapes, "bf16")),
        (Reason.NO_DTYPE, ("MatMulV2", shapes, "float16")),
        (Reason.NO_LAYOUT, ("MatMulV2", [(4, 64, 1024), (1024, 1024)], "bf16")),
        (Reason.OUTSIDE, ("MatMulV2", [(512, 1024), (1024, 1024)], "bf16")),
        (Reason.OUTSIDE, ("MatMulV2", [(64, 1024), (2048, 1024)], "bf16")),
        (Reason.NO_LENGTH, ("Attend", [(2, 4, 8)], "bf16")),
    ):
        answer = version.query(*arguments)
        assert (answer.reason, answer.channel) == (reason, Channel.MISS), arguments
        assert math.isnan(answer.value_us) and answer.support == 0
    other = version.query("MatMulV2", shapes, "bf16", formats="ND;FRACTAL_NZ")
    assert other.reason is Reason.NO_LAYOUT


def test_miss_says_what_has_durations() -> None:
    version = version_of(
        [
            *PRODUCTS,
            product(8, 512, 512, 9.0, dtype="FLOAT16"),
            *(product(m, 64, 64, 9.0, formats="ND;FRACTAL_NZ") for m in (1, 2)),
            *(Row("MatMulV3", [(m, 8), (8, 8)], [(m, 8)], 1.0) for m in (1, 2)),
            attention("100,200", 5.0),
            attention("300,400", 9.0),
        ]
    )
    shapes = [(64, 1024), (1024, 1024)]
    for arguments, more, hints in (
        (("MatMuls", shapes), {}, ["MatMulV2 (39 cases), MatMulV3 (2 cases)"]),
        (("MatMulV2", shapes, "fp32"), {}, ["DT_BF16;DT_BF16 (38 cases)", "FLOAT16;FLOAT16 (1"]),
        (("MatMulV2", [(1, 64, 1024), (1024, 1024)], "bf16"), {}, ["2;2 (38 cases)"]),
        (("MatMulV2", shapes, "bf16"), {"outputs": [(1, 64, 64)]}, ["outputs", "2 (38 cases)"]),
        (("MatMulV2", shapes, "bf16"), {"formats": "NZ;ND"}, ["ND;FRACTAL_NZ, ND;ND"]),
        (
            ("MatMulV2", [(512, 1024), (1024, 1024)], "bf16"),
            {},
            ["1..256,64..2048;64..2048,64..2048 (38", "256,1024;1024,1024, 270.435 us"],
        ),
        (("Attend", [(2, 4, 8)], "bf16"), {}, [KEYS]),
        (("Attend", [(2, 4, 8)], "bf16"), {"lengths": [900, 900]}, ["150 to 350", "[300.0,400.0]"]),
    ):
        found = version.explain(*arguments, **more)
        said = " ".join(found.hints)
        assert found.rows == () and found.answer.reason, found
        assert all(hint in said for hint in hints), said
    assert version.explain("MatMulV2", shapes, "bf16").hints == ()


def test_shapes_that_no_case_can_have_are_impossible() -> None:
    halved = [Row("SwiGlu", [(m, 64)], [(m, 32)], 5.0) for m in (1, 16)]
    joined = [Row("ConcatD", [(m, 8), (m, 8)], [(m, 16)], 5.0) for m in (1, 16)]
    version = version_of([*PRODUCTS, *halved, *joined])
    for kernel, inputs, outputs, is_impossible in (
        ("MatMulV2", [(64, 128), (256, 512)], None, True),
        ("MatMulV2", [(64, 128), (512, 128)], None, False),  # the second one may be transposed
        ("MatMulV2", [(64, 128), (128, 512)], [(64, 513)], True),
        ("MatMulV2", [(64, 128), (128, 512)], [(64, 512)], False),
        ("MatMulV2", [(64, 128)], None, False),  # not known: no case has one input
        ("SwiGlu", [(4, 7)], None, True),
        ("SwiGlu", [(2**40, 2**40)], None, True),
        ("SwiGlu", [(4, 8)], None, False),
        ("ConcatD", [(64, 2), (3, 5)], None, False),  # only outputs would show it
    ):
        found = version.explain(kernel, inputs, "bf16", outputs=outputs)
        assert found.answer.reason and bool(found.impossible) is is_impossible, found


@pytest.mark.parametrize(
    ("names", "spelling"),
    [
        ("fp32 f32 float32 torch.float32 FLOAT", "FLOAT"),
        ("fp16 f16 half FP16", "FLOAT16"),
        ("bf16 bfloat16 BF16", "DT_BF16"),
        ("i8 int8 torch.int8", "INT8"),
        ("u64 uint64", "UINT64"),
    ],
)
def test_usual_names_of_dtypes_are_read(names: str, spelling: str) -> None:
    version = version_of([Row("Abs", [(4,)], [(4,)], 5.0, dtype=spelling)])
    for name in names.split():
        assert version.query("Abs", [(4,)], name).value_us == 5.0, name


def attention(keys: str, mean_us: float) -> Row:
    return Row("Attend", [(2, 4, 8)], [(2, 4, 8)], mean_us, extra={KEYS: keys})


def test_attention_is_found_by_its_lengths_and_interpolated_between_them() -> None:
    rows = [attention(f"{keys},{keys}", keys / 10) for keys in (100, 200, 400)]
    version = version_of([*rows, attention("100,300", 25.0)])
    assert version.query("Attend", [(2, 4, 8)], "bf16", lengths=[200, 200]).value_us == 20.0
    assert version.query("Attend", [(2, 4, 8)], "bf16", lengths=[100, 300]).value_us == 25.0
    # Between equal lengths, and not between (100, 300), which has the sum of (200, 200).
    between = version.query("Attend", [(2, 4, 8)], "bf16", lengths=[300, 300])
    assert between.channel is Channel.INTERPOLATED
    assert between.value_us == pytest.approx(30.0)
    for lengths in ([500, 500], [50, 50]):
        miss = version.query("Attend", [(2, 4, 8)], "bf16", lengths=lengths)
        assert miss.reason is Reason.NO_LENGTH
    for wrong in ({"keys": [1]}, ["x"], [math.nan], [math.inf], 5):
        with pytest.raises(opmeter.OpmeterError, match="lengths"):
            version.query("Attend", [(2, 4, 8)], "bf16", lengths=wrong)  # type: ignore[arg-type]


def test_sizes_beyond_the_measured_ones_are_extrapolated_only_on_request() -> None:
    version = version_of([product(m, 64, 64, float(m)) for m in (8, 16, 32)])
    shapes = [(64, 64), (64, 64)]
    assert version.query("MatMulV2", shapes, "bf16").reason is Reason.OUTSIDE
    answer = version.query("MatMulV2", shapes, "bf16", extrapolate=True)
    assert answer.channel is Channel.EXTRAPOLATED
    assert answer.value_us == pytest.approx(64.0) and answer.support == 1
    assert answer.low_us < 32 < 128 < answer.high_us < 200  # as the work, and another tile
    farther = version.query("MatMulV2", [(128, 64), (64, 64)], "bf16", extrapolate=True)
    assert farther.value_us == pytest.approx(128.0) and farther.high_us > 2 * answer.value_us
    below = version.query("MatMulV2", [(2, 64), (64, 64)], "bf16", extrapolate=True)
    assert below.value_us == pytest.approx(2.0) and below.low_us < 2.0 < 8.0 < below.high_us
    version = version_of([product(m, 64, 64, float(m)) for m in (1, 2, 4, 8, 16, 32)])
    for m in (0, 129):  # no work, and too far
        far = version.query("MatMulV2", [(m, 64), (64, 64)], "bf16", extrapolate=True)
        assert far.reason is Reason.OUTSIDE


@pytest.mark.parametrize("steps", [(425.0, 300.0), (300.0, 425.0), (1.0, 1e9)])
def test_extrapolated_duration_is_bound_by_the_work(steps: tuple[float, float]) -> None:
    near = [product(m, 64, 64, us) for m, us in zip((1000, 1001), steps, strict=True)]
    version = version_of(near)
    for m in (4000, 2000, 1002, 999, 251):
        answer = version.query("MatMulV2", [(m, 64), (64, 64)], "bf16", extrapolate=True)
        us = steps[1] if m > 1001 else steps[0]
        growth = m / 1001 if m > 1001 else m / 1000
        assert min(1, growth) * us * 0.99 <= answer.value_us <= max(1, growth) * us * 1.01
        assert answer.low_us < answer.value_us < answer.high_us


def test_extrapolated_duration_is_at_least_the_lower_bound() -> None:
    """2 * m * n * k operations at 353 Tflop/s, the cube units of a die, with a margin."""
    version = version_of([product(m, 8192, 8192, 2.0) for m in (1024, 2048)])
    shapes = [(8192, 8192), (8192, 8192)]
    answer = version.query("MatMulV2", shapes, "bf16", extrapolate=True)
    assert 1000 < answer.value_us < 4000 and answer.high_us > answer.value_us


def test_kernel_whose_work_is_not_known_is_not_extrapolated() -> None:
    version = version_of([Row("Nobody", [(m, 8)], [(m, 8)], float(m)) for m in (1, 2, 4)])
    assert version.query("Nobody", [(8, 8)], "bf16", extrapolate=True).reason is Reason.OUTSIDE


def test_duration_of_another_version_is_marked_as_reused() -> None:
    version = version_of([PRODUCTS[0]], differs=("cann 8.5 instead of 8.6",))
    answer = version.query("MatMulV2", [(1, 512), (512, 512)], "bf16")
    assert answer.channel is Channel.REUSED and answer.warnings == version.differs
    table = {
        "kernel_type": ["MatMulV2"] * 2,
        "Input Shapes": ["1,512;512,512", "1,512;512,9"],
        "Input Data Types": ["DT_BF16;DT_BF16"] * 2,
    }
    found = version.query_many(table)
    assert found["channel"].tolist() == ["reused", "miss"]
    assert found["warnings"].tolist() == [*version.differs, ""]
    assert found["reason"].tolist() == ["", "outside"]
    with pytest.raises(opmeter.OpmeterError, match="row 1"):
        version.query_many({**table, "Input Shapes": ["1,512;512,512", "1,x"]})


def test_invalid_sizes_are_refused() -> None:
    version = version_of(PRODUCTS)
    right = (1024, 1024)
    for inputs in ([(64.0, 1024), right], [("64", 1024), right], "64,1024", [64, 1024]):
        with pytest.raises(opmeter.OpmeterError, match="inputs"):
            version.query("MatMulV2", inputs, "bf16")  # type: ignore[arg-type]
    with pytest.raises(opmeter.OpmeterError, match="inputs"):
        version.query("MatMulV2", [(-64, 1024), right], "bf16", extrapolate=True)
    for wrong in (
        {"dtype": None},
        {"dtype": 5},
        {"dtype": ["bf16", None]},
        {"formats": 5},
        {"op_state": 5},
        {"settings": 5},
        {"settings": {"Runtime mode": 5}},
        {"outputs": 5},
        {"outputs": {"Output Shapes": 5}},
        {"lengths": [10**400]},
        {"lengths": {5: [1]}},
        {"kernel": None},
    ):
        with pytest.raises(opmeter.OpmeterError, match=next(iter(wrong))):
            version.query(**{"kernel": "MatMulV2", "inputs": [(64, 1024), right], **wrong})
    table = {"kernel_type": ["MatMulV2"], "Input Shapes": ["64,1024;1024,1024"]}
    assert version.query_many({**table, 5: ["x"]})["channel"].tolist() == ["measured"]
    for name in ("Input Shapes", "Output Shapes", "OP State", "weight"):
        with pytest.raises(opmeter.OpmeterError, match="rows"):
            version.query_many({**table, name: ["1", "1"]})
    arrays = [np.array([64, 1024]), np.array(right)]
    assert version.query("MatMulV2", arrays, "bf16").channel is Channel.MEASURED


def test_tables_of_queries_read_cells_as_single_queries_do() -> None:
    version = version_of([*PRODUCTS, product(3, 512, 512, 9.0, state="static")])
    shapes = ["64,1024;1024,1024", "N/A", None, "(64, 1024);(1024, 1024)", "3,512;512,512;NULL"]
    state = ["dynamic", None, float("nan"), "", "static"]
    table = {"kernel_type": ["MatMulV2"] * 5, "Input Shapes": shapes, "OP State": state}
    frame = pd.DataFrame({**table, "Input Data Types": [None, "bf16", "bf16", "bf16", "bf16"]})
    found = version.query_many(frame)
    assert found["channel"].tolist() == ["measured", "miss", "miss", "measured", "miss"]
    weighed = version.query_many({**table, "weight": [1, None, 2.5, float("nan"), 1]})
    assert weighed["channel"].tolist() == found["channel"].tolist()
    assert version.query_many(frame[:0]).empty
    for name, cells in (
        ("Input Shapes", ["64,1024;1024,1024", "6 4,1024;1024,1024"]),
        ("Input Shapes", ["64,1024;1024,1024", "6(4,1024;1024,1024"]),
        ("Input Shapes", ["64,1024;1024,1024", "9223372036854775808,1024;1024,1024"]),
        ("Input Shapes", ["64,1024;1024,1024", 64]),
        ("kernel_type", ["MatMulV2", 2]),
        ("weight", [1, "many"]),
    ):
        made = {"kernel_type": ["MatMulV2"] * 2, "Input Shapes": shapes[:2], name: cells}
        with pytest.raises(opmeter.OpmeterError, match=f"{name}: row 1"):
            version.query_many(made)


def test_misspelt_columns_of_a_table_are_refused() -> None:
    version = version_of(PRODUCTS)
    table = {"Kernel Type": ["MatMulV2"], "Input Shapes": ["64,1024;1024,1024"]}
    assert version.query_many({**table, "note": ["x"], "times": [3]})["reason"].tolist() == [""]
    for name in ("Input Data Type", "dtype", "OP state", "op_type", "kernel_type"):
        with pytest.raises(opmeter.OpmeterError, match=name):
            version.query_many({**table, name: ["x"]})


def test_case_without_inputs_is_found_by_empty_cells() -> None:
    cells = {"Input Shapes": "", "Output Shapes": "16", "Output Data Types": "BOOL"}
    version = version_of([recorded(record_of_cells("BroadcastTo", cells), 4.0), *PRODUCTS])
    assert version.query("BroadcastTo", []).value_us == 4.0
    table = {"kernel_type": ["BroadcastTo"] * 3, "Input Shapes": ["", None, "N/A"]}
    found = version.query_many({**table, "Input Data Types": ["", None, "N/A"]})
    assert found["channel"].tolist() == ["measured", "measured", "miss"]


def test_whole_numbers_of_settings_are_spelled_as_in_a_tree() -> None:
    rows = [Row("Group", [(m, 8)], [(m, 8)], 5.0 + m, extra={"EP Size": "4"}) for m in (1, 2)]
    table = {"kernel_type": ["Group"] * 2, "Input Shapes": ["1,8", "2,8"], "EP Size": [4, None]}
    found = version_of(rows).query_many(pd.DataFrame(table))  # the sizes are 4.0 and NaN
    assert found["value_us"].tolist() == [6.0, 7.0]


def test_settings_that_a_query_leaves_open_are_a_warning() -> None:
    nz = [product(m, 512, 512, 50.0 + m, formats="ND;FRACTAL_NZ") for m in (1, 16, 256)]
    version = version_of([*PRODUCTS, *nz])
    shapes = [(32, 512), (512, 512)]
    answer = version.query("MatMulV2", shapes, "bf16")
    alone = version.query("MatMulV2", shapes, "bf16", formats="ND;ND")
    assert answer[:5] == alone[:5] and answer.channel is Channel.INTERPOLATED
    own = version.query("MatMulV2", shapes, "bf16", formats="ND;FRACTAL_NZ").value_us
    printed = (pytest.approx(one, rel=1e-5) for one in (alone.value_us, own))
    assert several_in(answer) == (2, *printed)
    assert answer.warnings[1:] == alone.warnings
    beyond = [(1, 900), (900, 512)]  # only one setting has it
    assert "settings" in version.query("MatMulV2", beyond, "bf16").warnings[0]


def test_case_between_others_is_not_extrapolated_from_other_settings() -> None:
    nz = [product(m, 64, 64, 500.0, formats="ND;FRACTAL_NZ") for m in (64, 512)]
    version = version_of([product(m, 64, 64, float(m)) for m in (8, 16, 32)] + nz)
    answer = version.query("MatMulV2", [(128, 64), (64, 64)], "bf16", extrapolate=True)
    assert answer.channel is Channel.INTERPOLATED and answer.value_us == pytest.approx(500.0)


def test_kernel_without_lengths_has_no_duration_for_lengths() -> None:
    answer = version_of(PRODUCTS).query("MatMulV2", [(64, 512), (512, 512)], "bf16", lengths=[9, 9])
    assert answer.reason is Reason.NO_LENGTH


def test_sessions_and_warnings_are_those_of_the_row() -> None:
    rows = [product(1, 2, 3, 5.0, sessions=3, warnings="drift;spread"), product(1, 2, 4, 6.0)]
    answer = version_of(rows).query("MatMulV2", [(1, 3), (3, 2)], "torch.bfloat16")
    assert answer[3:6] == (Channel.POOLED, 3, ("drift", "spread"))
    assert answer[:3] == pytest.approx((5.0, 4.75, 5.25))


def test_explain_returns_the_cases_of_a_result() -> None:
    version = version_of(PRODUCTS)
    # Between curves, between two points of a curve, and beyond its end.
    for m, n, k in ((128, 600, 1500), (128, 1024, 1024), (1024, 1024, 1024)):
        requested = [(m, k), (k, n)]
        found = version.explain("MatMulV2", requested, "bf16", extrapolate=True)
        assert found.answer == version.query("MatMulV2", requested, "bf16", extrapolate=True)
        assert sum(row.weight for row in found.rows) == pytest.approx(1.0)
        if found.answer.channel is Channel.EXTRAPOLATED:
            assert found.rows[0].inputs[0] == (256, 1024)  # the nearest case
            continue
        assert found.widest in found.rows and len(found.rows) == found.answer.support
    (exact,) = version.explain("MatMulV2", [(16, 512), (512, 512)], "bf16").rows
    assert exact.inputs == ((16, 512), (512, 512)) and exact.weight == 1.0
    assert version.explain("Nothing", [], "bf16").rows == ()


def test_table_of_several_settings_is_a_frame() -> None:
    rows = [
        product(1, 64, 64, 1.0 + at, formats=form, state=state)
        for at, (form, state) in enumerate(
            product_of(("ND;ND", "ND;FRACTAL_NZ"), ("dynamic", "static"))
        )
    ]
    frame = version_of([*rows, product(1, 64, 64, 9.0, dtype="FLOAT16")]).frame("MatMulV2")
    found = frame.set_index("mean_us")[["input_formats", "op_state", "output_dtypes"]]
    assert found.loc[1.0].tolist() == ["ND;ND", "dynamic", "DT_BF16"]
    assert found.loc[4.0].tolist() == ["ND;FRACTAL_NZ", "static", "DT_BF16"]
    assert found.loc[9.0].tolist() == ["ND;ND", "dynamic", "FLOAT16"]


def test_rows_of_a_frame_are_queries() -> None:
    scaled = Row("Scale", [(4, 8), None], [(4, 8)], 3.0, dtype="FLOAT;INT64")
    version = version_of([scaled, Row("Scale", [(4, 8), None], [(4, 8)], 4.0, dtype="FLOAT;INT8")])
    for _, row in version.frame("Scale").iterrows():  # the cells are arrays
        found = version.query("Scale", row["inputs"], row["input_dtypes"])
        assert found.value_us == row["mean_us"] and not found.warnings


def test_tables_of_a_kernel_are_typed_and_filtered() -> None:
    repeated = product(1, 512, 4096, 3.0, sessions=2)
    added = [Row("Add", [(m, 8)] * 2, [(m, 8)], 1.0) for m in (4, 8)]
    products = [*PRODUCTS, repeated, product(2, 2, 2, 1.0, warnings="drift")]
    assert len(version_of(products).frame("MatMulV2", k=(1, 9000))) == len(products)
    version = version_of([*products, *added])
    table = version.arrow("MatMulV2")
    assert table.num_rows == version.rows - len(added) == len(PRODUCTS) + 2
    assert all(one.metadata[b"description"] for one in table.schema)
    row = version.frame("MatMulV2", m=1, n=512, k=4096).iloc[0]
    assert [list(map(int, shape)) for shape in row["inputs"]] == [[1, 4096], [4096, 512]]
    assert (row["mean_us"], row["sessions"], row["channel"]) == (3.0, 2, "pooled")
    assert len(version.frame("MatMulV2", m=(1, 16), k=[512, 2048])) == 2 * 3 * 2
    assert len(version.frame("MatMulV2", m=np.int64(1))) == len(version.frame("MatMulV2", m=1))
    assert len(version.frame("MatMulV2", min_quality="repeated")) == 1
    assert len(version.polars("MatMulV2", min_quality="unwarned")) == len(products) - 1
    for call in (
        lambda: version.frame("Nothing"),
        lambda: version.frame("MatMulV2", tokens=1),
        lambda: version.frame("Add", m=4),
        lambda: version.frame("MatMulV2", m="1"),
        lambda: version.frame("MatMulV2", m=1.5),  # type: ignore[arg-type]
        lambda: version.frame("MatMulV2", min_quality="best"),  # type: ignore[arg-type]
    ):
        with pytest.raises(opmeter.OpmeterError):
            call()


def test_threads_share_a_version() -> None:
    alone, version = version_of(PRODUCTS), version_of(PRODUCTS)
    expected = {m: alone.query("MatMulV2", *requested(m)) for m in range(1, 257, 5)}
    wrong: list[int] = []

    def request() -> None:
        for m, one in expected.items():
            if version.query("MatMulV2", *requested(m)) != one:
                wrong.append(m)

    threads = [threading.Thread(target=request) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert wrong == []


def requested(m: int) -> tuple[list[tuple[int, int]], str]:
    return [(m, 900), (900, 1000)], "bf16"


def test_package_imports_no_heavy_libraries() -> None:
    heavy = "torch", "pandas", "pyarrow", "scipy", "boto3", "polars"
    code = f"import sys, opmeter; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_absent_tensors_at_the_end_of_a_query_have_no_meaning() -> None:
    alone, scalar = Row("Abs", [(64,)], [(64,)], 10.0), Row("Abs", [(64,), ()], [(64,)], 50.0)
    version, inputs = version_of([alone, scalar]), [(64,), None]
    for dtypes, formats in ((["bf16", "DT_UNDEFINED"], ""), ("bf16;N/A", "ND;NULL")):
        assert version.query("Abs", inputs, dtypes, formats=formats).value_us == 10.0
    assert version.query("Abs", inputs, "bf16;bf16").value_us == 50.0
