"""Tables are read as written: any text of a cell, through each of our tables."""

import csv
import io
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from collector.codec.errors import BadInput
from collector.codec.table import LONGEST_ROW, as_text, csv_rows, is_text, table_bytes, table_rows
from collector.database.layout import database_columns
from collector.database.rows import rows_of_part
from collector.database.tree import KernelFile, read_kernel_file
from collector.model.case import is_formula
from collector.model.measurement import Measurement, Outcome, Provenance
from collector.model.plan import ShardCase, read_shard, write_shard
from collector.model.record import (
    TABLE_COLUMNS,
    CaseRecord,
    ProfileStatistics,
    as_neighbour,
    read_table,
    write_table,
)
from collector.model.row import ROW_COLUMNS, to_row
from collector.model.stack import Runtime
from collector.model.vocabulary import BASE_CELLS, INPUT_CELLS, OP_STATE, OUTPUT_CELLS
from collector.singlehost.reports import certificates
from collector.worker.attempt import part_bytes, read_part
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast

LONG = "x" * 200_000
LONG_SHAPE = "1," * 100_000 + "1"
AWKWARD = (
    *("\r", "\n", "\r\n", "a\rb", '"', '""', '"a', ",", ";", "\t", " a ", "", " ", "\x1c", "\x85"),
    *("\u2028", "\u2029", "\ufeff", "\ufffe", "\U0010ffff", "'", "\\", "N/A", "#", "=1+1"),
)
texts = st.one_of(
    st.sampled_from(AWKWARD),
    st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=8),
    st.text(st.sampled_from('\r\n", ab'), max_size=6),
)
any_texts = st.one_of(texts, st.text(st.characters(), max_size=8), st.just("\ud800\0"))
many = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def record(cell: str, extra: str, name: str) -> CaseRecord:
    cells = dict.fromkeys(BASE_CELLS, cell)
    statistics = ProfileStatistics(2, 1.5, 1.25, 0.5, ((name, 2.0),))
    return CaseRecord("Add", cells, {"Runtime x": extra, "Notes": cell}, statistics)


records = st.lists(st.builds(record, texts, texts, texts), max_size=4)


@pytest.mark.thorough
@given(st.lists(st.tuples(texts, texts, texts), max_size=5), st.sampled_from(["\n", "\r\n"]))
@example([("a\rb", "\r", LONG), ("", "", "")], "\n")
@many
def test_table_of_any_cells_is_read_as_written(rows, line_end):
    columns = ("a", "b\r", "c")
    data = table_bytes(columns, rows, line_end=line_end)
    read = list(table_rows(data, columns, path="t"))
    assert [tuple(row) for _, row in read] == rows
    assert all(first < later for (first, _), (later, _) in zip(read, read[1:], strict=False))


@pytest.mark.thorough
@given(st.lists(st.lists(st.text(st.characters(exclude_characters="\r\0", codec="utf-8")))))
@many
def test_table_without_carriage_returns_has_the_bytes_of_the_csv_module(rows):
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([["a"], *rows])
    assert table_bytes(["a"], rows) == out.getvalue().encode()


@pytest.mark.thorough
@given(records)
@example([record("a\rb", LONG, "\r\n")])
@many
def test_records_and_shards_are_read_as_written(rows):
    assert read_table(write_table(rows)) == rows
    cases = [ShardCase(row, 2.5) for row in rows]
    assert read_shard(write_shard(cases)) == cases


def measurement(text: str, warning: str) -> Measurement:
    provenance = Provenance(
        *(
            "c",
            1,
            "hash",
            0,
            "shard",
            "attempt",
            1,
            "stack",
            text,
            text or None,
            0,
            Runtime.REAL,
            None,
        ),
        *("0.1", None),
    )
    return Measurement("case", "Add", Outcome.FAILED, text, provenance, warnings=(warning,))


@pytest.mark.thorough
@given(st.lists(st.builds(measurement, texts, any_texts), max_size=3))
@example([measurement("a\rb", "\r"), measurement(LONG, LONG)])
@many
def test_parts_read_by_row_and_by_column(measured):
    measured = [replace(one, case_id=f"case{at}") for at, one in enumerate(measured)]
    data = part_bytes(measured)
    rows = [to_row(one) for one in measured]
    assert [to_row(one) for one in read_part(data, key="part-1.csv")] == rows
    assert rows_of_part(data, key="part-1.csv").to_pylist() == rows
    again = table_rows(certificates(measured), ROW_COLUMNS, path="c")
    assert [dict(zip(ROW_COLUMNS, cells, strict=True)) for _, cells in again] == rows


@given(any_texts)
@example("\udc80 \0")
@many
def test_message_of_any_text_damages_no_part(message):
    one = measurement("node", "")
    reported = Measurement(one.case_id, "Add", one.outcome, message, one.provenance)
    (read,) = read_part(part_bytes([reported]), key="part-1.csv")
    assert read.reason == as_text(message)
    assert read.reason == message or not is_text(message)


# A shape must be valid, or the tree is refused for that reason; other cells may be all but a
# formula of a spreadsheet.
values = texts.filter(lambda text: not is_formula(text))
shapes = st.sampled_from(["16", '"16"', '"4,4;;"', " 16 "])
tree_rows = st.fixed_dictionaries(
    {
        **dict.fromkeys((*BASE_CELLS, "Runtime x", "Notes"), values),
        INPUT_CELLS[0]: shapes,
        OUTPUT_CELLS[0]: shapes,
    }
)


@pytest.mark.thorough
@given(st.lists(tree_rows, min_size=1, max_size=4))
@example([{**dict.fromkeys(BASE_CELLS, "a\rb"), INPUT_CELLS[0]: "1", OUTPUT_CELLS[0]: LONG_SHAPE}])
@many
def test_trees_are_read_alike_by_the_reader_and_by_pandas(rows):
    columns = database_columns(rows[0])
    filled = tuple({name: row.get(name, "") for name in columns} for row in rows)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "Add.csv"
        path.write_bytes(KernelFile("Add", columns, filled).as_bytes())
        assert read_kernel_file(path).rows == filled
        frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    assert frame.to_dict("records") == list(filled)


def test_tree_of_one_column_keeps_an_empty_row(tmp_path):
    path = tmp_path / "Add.csv"
    path.write_bytes(KernelFile("Add", (INPUT_CELLS[0],), ({INPUT_CELLS[0]: ""},)).as_bytes())
    assert read_kernel_file(path).rows == ({INPUT_CELLS[0]: ""},)


def test_launches_before_a_case_are_stored_with_it_and_are_not_cases():
    first, second, alone = (record(name, "x", "n") for name in "abc")
    nearest, other = as_neighbour(first), as_neighbour(alone)
    row = replace(second, before=(other, nearest, other))
    data = write_table([first, row])
    assert read_table(data) == [first, row]
    # Each launch is written once, and referenced by its row.
    assert [line.rsplit(b",", 1)[1] for line in data.splitlines()] == [
        b"Before",
        b"",
        b"2 0 2",
        b"-",
    ]
    (case,) = read_shard(write_shard([ShardCase(row, 2.5)]))
    assert case == ShardCase(row, 2.5)
    assert b"Before" not in write_table([first, second])


@pytest.mark.parametrize("text", [b"3", b"-1", b"0 x", b"0  0", b"00", b"0 " * 64 + b"0"])
def test_reference_to_a_missing_row_before_a_case_is_refused(text):
    data = write_table(
        [replace(record("a", "x", "n"), before=(as_neighbour(record("b", "x", "n")),))]
    )
    with pytest.raises(BadInput, match=naming("t:2:", "Before", 64)):
        read_table(data.replace(b",1\n", b"," + text + b"\n"), path="t")


GOOD = write_table([record("a\rb", "x", "n"), record("c", "x", "n")])


@pytest.mark.parametrize(
    ("data", "line", "named"),
    [
        (b"", 1, ("header", *TABLE_COLUMNS)),
        (b"\xef\xbb\xbf" + GOOD, 1, ("header", *TABLE_COLUMNS)),
        (GOOD.replace(b"Kernel", b"kernel"), 1, ("header", *TABLE_COLUMNS)),
        (GOOD + b"\xff", 4, ("UTF-8",)),
        (GOOD + b"Add,\xed\xa0\x80\n", 4, ("UTF-8",)),
        (GOOD + b"\0", 4, ("UTF-8", "NUL")),
        (GOOD + b"Add\n", 12, (15, 1)),
        (GOOD + b"\n" + GOOD, 12, (15, 0)),
        (GOOD + b'"Add', 12, ("CSV",)),
        (GOOD + b'"A"dd,', 12, ("CSV",)),
        (GOOD.replace(b",2,1.5,", b",two,1.5,"), 2, ("'two'",)),
        (GOOD.replace(b",2,1.5,", b",2,nan,"), 2, ("Mean(us)",)),
        (GOOD.replace(b",2,1.5,", b",2,-1,"), 2, ("Mean(us)",)),
        (GOOD.replace(b",2,1.5,", b",,1.5,"), 2, ("''",)),
        (GOOD.replace(b",2.0]", b",1e999]"), 2, ("Counters",)),
        (GOOD.replace(b",2.0]", b",1" + b"0" * 400 + b"]"), 2, ("float",)),
        (GOOD.replace(b",2.0]", b",[]]"), 2, ("Counters",)),
        (GOOD.replace(b'[""n"",', b"[7,"), 2, ("Counters",)),
        (GOOD.replace(b'""n""', b'""\\ud800""'), 2, ("Counters", "UTF-8", "NUL")),
        (GOOD.replace(b'""x""', b"7"), 2, ("Extra", "JSON")),
        (GOOD.replace(b'""x""', b'""\\udfff""'), 2, ("Extra", "UTF-8", "NUL")),
        (GOOD.replace(b'""x""', b'""\\u0000""'), 2, ("Extra", "UTF-8", "NUL")),
        (GOOD.replace(b'""x""', b"[" * 100_000), 2, ("recursion",)),
    ],
)
def test_malformed_table_is_refused_with_path_and_line(data, line, named):
    with pytest.raises(BadInput, match=naming(*named)) as error:
        read_table(data, path="t")
    assert (error.value.path, error.value.line) == ("t", line)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", [b"nan", b"inf", b"-1", b"", b"two"])
def test_forecast_that_is_not_a_duration_is_refused(text):
    data = write_shard([ShardCase(record("a\rb", "x", "n"), 2.5)])
    with pytest.raises(BadInput, match=naming("s:2:", "Forecast(s)")):
        read_shard(data.replace(b",2.5\n", b"," + text + b"\n"), path="s")


@pytest.mark.parametrize("text", ["\0", "\ud800", "a\udfff"])
def test_unrepresentable_cell_is_refused_when_written(text):
    assert not is_text(text)
    with pytest.raises(BadInput, match=naming("row 3", "cell 2", "NUL")):
        table_bytes(["a", "b"], [["1\r\n2", "3"], ["4", text]])


@pytest.mark.thorough
def test_row_longer_than_the_limit_is_neither_written_nor_read():
    with pytest.raises(BadInput, match=naming(LONGEST_ROW)):
        table_bytes(["a"], [["x" * LONGEST_ROW]])
    with pytest.raises(BadInput, match=naming("t:2:", "CSV", LONGEST_ROW)):
        list(csv_rows(["a\n", "x" * (LONGEST_ROW + 2)], path="t"))


def test_reported_line_is_the_line_on_which_a_row_starts():
    data = table_bytes(["a", OP_STATE], [["1\n2", "\r"], ["3", "4"]])
    assert [line for line, _ in table_rows(data, ["a", OP_STATE], path="t")] == [2, 5]
