"""The columns of a kernel's CSV: order, numbers, and old names."""

import csv
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.database.layout import (
    AVERAGE_DURATION,
    DATABASE_COLUMNS,
    PARSER_COLUMNS,
    PROFILING_AVERAGE,
    csv_bytes,
    database_columns,
    inserted,
    number_text,
    ordered,
    present_names,
    profile_cells,
)
from collector.model.record import ProfileStatistics
from collector.model.vocabulary import BASE_CELLS

pytestmark = pytest.mark.fast


def test_columns_have_the_62_positions_of_the_contract():
    assert len(DATABASE_COLUMNS) == 62
    assert DATABASE_COLUMNS[:8] == BASE_CELLS
    assert DATABASE_COLUMNS[8] == "Average Duration(us)"
    assert DATABASE_COLUMNS[9:12] == (
        "Profiling Average Duration(us)",
        "Profiling Median Duration(us)",
        "Profiling Std Duration(us)",
    )
    assert DATABASE_COLUMNS[12:14] == (
        "MicroBench aicore_time(us)",
        "Profiling Average aicore_time(us)",
    )
    assert DATABASE_COLUMNS[60:] == (
        "MicroBench cube_utilization(%)",
        "Profiling Average cube_utilization(%)",
    )


def test_a_parsers_file_has_36_columns_and_no_microbenchmark():
    assert len(PARSER_COLUMNS) == 36
    assert not [name for name in PARSER_COLUMNS if name.startswith("MicroBench")]
    assert AVERAGE_DURATION not in PARSER_COLUMNS


def test_additional_columns_follow_in_one_order():
    extra = [
        "Note",
        "EP Size",
        "Runtime topk",
        "Runtime sparse_mode",
        "Runtime avg_seq_len",
        "Profiling Average vec_ratio",
        "MicroBench vec_ratio",
    ]
    assert database_columns(extra)[62:] == (
        "MicroBench vec_ratio",
        "Profiling Average vec_ratio",
        "Runtime avg_seq_len",
        "Runtime sparse_mode",
        "Runtime topk",
        "EP Size",
        "Note",
    )


@given(st.permutations(database_columns(["EP Size", "Runtime a", "x", "Profiling Average y"])))
@settings(max_examples=50)
def test_column_order_is_independent_of_the_input_order(names):
    assert ordered(names) == database_columns(["EP Size", "Runtime a", "x", "Profiling Average y"])


def test_a_parsers_file_gets_microbenchmark_columns_where_msmodeling_puts_them():
    assert inserted(PARSER_COLUMNS, DATABASE_COLUMNS) == DATABASE_COLUMNS


def test_existing_header_keeps_its_order():
    existing = ("Note", "Profiling Average Duration(us)", *BASE_CELLS)
    columns = inserted(existing, [AVERAGE_DURATION, "EP Size", "Note"])
    assert [name for name in columns if name in existing] == list(existing)
    assert columns.index(AVERAGE_DURATION) == columns.index("Output Formats") + 1
    assert columns[-1] == "EP Size"


def test_numbers_have_six_decimals():
    assert number_text(1.5) == "1.500000"
    assert number_text(124333600.0) == "124333600.000000"


def test_a_profiles_statistics_become_cells():
    cells = profile_cells(ProfileStatistics(2, 1.5, 1.25, 0.5, (("vec_ratio", 0.25),)))
    assert cells == {
        "Profiling Average Duration(us)": "1.500000",
        "Profiling Median Duration(us)": "1.250000",
        "Profiling Std Duration(us)": "0.500000",
        "Profiling Average vec_ratio": "0.250000",
    }


def test_old_microbenchmark_column_is_renamed_and_its_siblings_dropped():
    names = present_names(
        [*BASE_CELLS, "MicroBench Duration(us)", "MicroBench Task Duration(us)", PROFILING_AVERAGE]
    )
    assert names["MicroBench Duration(us)"] == AVERAGE_DURATION
    assert "MicroBench Task Duration(us)" not in names
    assert names[PROFILING_AVERAGE] == PROFILING_AVERAGE


def test_average_of_the_first_parser_is_a_profiling_average():
    names = present_names(
        [
            *BASE_CELLS,
            "Average Duration(us)",
            "Median Duration(us)",
            "Std Duration(us)",
            "Average aicore_time(us)",
            "avg_seq_len",
        ]
    )
    assert names["Average Duration(us)"] == PROFILING_AVERAGE
    assert names["Median Duration(us)"] == "Profiling Median Duration(us)"
    assert names["Average aicore_time(us)"] == "Profiling Average aicore_time(us)"
    assert names["avg_seq_len"] == "Runtime avg_seq_len"


def test_average_next_to_microbenchmark_counters_keeps_its_name():
    names = present_names(
        ["Average Duration(us)", "Median Duration(us)", "MicroBench aic_mac_ratio"]
    )
    assert names["Average Duration(us)"] == AVERAGE_DURATION


# Possible cells of a table: test_codec_tables tests the others.
_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)


@pytest.mark.thorough
@given(st.lists(st.dictionaries(st.sampled_from(["a", "b", "c"]), _TEXT), max_size=5))
@settings(max_examples=100)
def test_unusual_cells_are_read_back_unchanged(rows):
    data = csv_bytes(("a", "b", "c"), rows)
    read = list(csv.DictReader(io.StringIO(data.decode(), newline="")))
    assert read == [{name: row.get(name, "") for name in ("a", "b", "c")} for row in rows]


def test_lines_end_like_those_of_the_csv_module_without_a_bom():
    assert csv_bytes(("a", "b"), [{"a": '"16"'}]) == b'a,b\r\n"""16""",\r\n'
