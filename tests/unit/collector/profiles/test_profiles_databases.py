"""A run that was exported as a database gives what its text gives. No real database was at hand:
these are written to the schema that Huawei publishes."""

import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.codec.errors import BadInput
from collector.profiles.kernel_details import read_profile
from tests.fixtures.profiles.database import write_database
from tests.fixtures.profiles.variants import Told, collective, write_profile
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast

START = 1764246877083
ROWS = [
    replace(Told(), start=f"{START}{n:03d}.{n:03d}", duration=f"{n + 1}.{n:03d}") for n in range(5)
]
ROWS += [
    Told("MatMulV3", '"8,16;16,4"', "DT_BF16;DT_BF16", "ND;FRACTAL_NZ", start=f"{START}900.001"),
    Told(shapes='""', dtypes="FLOAT", formats="ND", start=f"{START}901.001"),
    collective(f"{START}950.000", "700.125"),
]


def told(path):
    profile = read_profile([path])
    records = [(r.kernel_type, r.case, r.profile.count, r.profile.mean_us) for r in profile.records]
    sent = [(c.total_us, c.count) for c in profile.communication]
    return sorted(records, key=str), sent


@pytest.mark.parametrize("name", ["msprof_20261123.db", "ascend_pytorch_profiler_0.db"])
def test_a_database_gives_the_cases_and_means_of_its_run_s_text(tmp_path, name):
    text = told(write_profile(tmp_path / "text", "K5", ROWS))
    assert told(write_database(tmp_path / "db" / name, ROWS)) == text
    assert told(tmp_path / "db") == text
    assert len(text[0]) == 3 and text[1] == [(700.125, 1)]


def test_text_and_database_of_one_run_count_once_and_the_report_says_which(tmp_path):
    table = write_profile(tmp_path / "ASCEND_PROFILER_OUTPUT", "K5", ROWS)
    database = write_database(table.with_name("ascend_pytorch_profiler_0.db"), ROWS)
    profile = read_profile([tmp_path])
    assert sum(r.profile.count for r in profile.records) == len(ROWS) - 1
    again = profile.report.repeated[0]
    assert (again.path.parent, again.of) == (database, table)


def test_a_database_in_a_zip_s_place_is_named_with_what_it_lacks(tmp_path):
    path = tmp_path / "msprof_1.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE TASK (startNs)")
        db.commit()
    with pytest.raises(BadInput, match=naming(f"{path}:", "COMPUTE_TASK_INFO, STRING_IDS")):
        read_profile([path])


def test_a_release_without_the_state_of_operators_is_read(tmp_path):
    path = write_database(tmp_path / "msprof_1.db", ROWS[:5], without=("opState",))
    (record,) = read_profile([path]).records
    assert record.cells["OP State"] == ""
    path = write_database(tmp_path / "msprof_2.db", ROWS[:5], without=("inputShapes",))
    with pytest.raises(BadInput, match=naming(f"{path}:", "COMPUTE_TASK_INFO", "inputShapes")):
        read_profile([path])


def test_a_view_in_the_place_of_a_table_is_not_looked_at(tmp_path):
    path = write_database(tmp_path / "msprof_1.db", ROWS)
    with closing(sqlite3.connect(path)) as db:
        db.execute("DROP TABLE TASK")
        db.execute(
            "CREATE VIEW TASK AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) "
            "SELECT x AS startNs FROM n"
        )
        db.commit()
    with pytest.raises(BadInput, match=naming(f"{path}:", "TASK")):
        read_profile([path])


def test_a_launch_that_ends_before_it_starts_is_a_bad_row_of_the_database(tmp_path):
    path = write_database(tmp_path / "msprof_1.db", [*ROWS[:2], replace(ROWS[2], duration="-3.0")])
    with pytest.raises(BadInput, match=naming(f"{path}/op_summary.csv:4:", "Duration(us)")):
        read_profile([path])


def test_a_database_of_another_tool_in_a_folder_is_left_alone(tmp_path):
    write_profile(tmp_path, "K5", ROWS)
    (tmp_path / "analysis.db").write_bytes(b"whatever")
    assert len(read_profile([tmp_path]).report.files) == 1
    with pytest.raises(BadInput, match=naming(f"{tmp_path / 'analysis.db'}:")):
        read_profile([tmp_path / "analysis.db"])


@pytest.mark.thorough
@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["Add", "Mul", "MatMulV3"]),
            st.integers(0, 10**9),
            st.integers(1, 64),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_any_launches_are_the_same_from_both_exports(tmp_path_factory, launches):
    rows = [
        Told(
            kernel,
            shapes=f'"{rows},4;{rows},4"',
            start=f"{START}{place:03d}.000",
            duration=f"{ns // 1000}.{ns % 1000:03d}",
        )
        for place, (kernel, ns, rows) in enumerate(launches)
    ]
    folder = tmp_path_factory.mktemp("any")
    text = told(write_profile(folder / "text", "K5", rows))
    assert told(write_database(folder / "msprof_1.db", rows)) == text
