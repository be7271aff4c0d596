"""A run exported as a database gives the same as its text. No real database was available: these
are written in the schema that Huawei publishes."""

import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.capture.verdict import verdicts
from collector.codec.errors import BadInput
from collector.profiles import archives, databases
from collector.profiles.kernel_details import read_profile
from tests.fixtures.profiles.database import write_database
from tests.fixtures.profiles.variants import ProfileRow, collective, write_profile
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast

START = 1764246877083
ROWS = [
    replace(ProfileRow(), start=f"{START}{n:03d}.{n:03d}", duration=f"{n + 1}.{n:03d}")
    for n in range(5)
]
ROWS += [
    ProfileRow(
        "MatMulV3", '"8,16;16,4"', "DT_BF16;DT_BF16", "ND;FRACTAL_NZ", start=f"{START}900.001"
    ),
    ProfileRow(shapes='""', dtypes="FLOAT", formats="ND", start=f"{START}901.001"),
    collective(f"{START}950.000", "700.125"),
]


def reported(path):
    profile = read_profile([path])
    records = [(r.kernel_type, r.case, r.profile.count, r.profile.mean_us) for r in profile.records]
    sent = [(c.total_us, c.count) for c in profile.communication]
    return sorted(records, key=str), sent


def test_database_has_the_cases_and_means_of_the_text_export(tmp_path):
    text = reported(write_profile(tmp_path / "text", "K5", ROWS))
    assert len(text[0]) == 3 and text[1] == [(700.125, 1)]
    for name in (
        "msprof_20261123.db",
        "ascend_pytorch_profiler_0.db",
        "ascend_pytorch_profiler.db",
        "ascend_pytorch.db",
        "ascend_mindspore_profiler_3.db",
    ):
        folder = tmp_path / name.removesuffix(".db")
        assert reported(write_database(folder / name, ROWS)) == text, name
        (folder / "analysis.db").write_bytes(b"of communication")
        assert reported(folder) == text, name
        (verdict,) = verdicts(folder)
        assert (verdict.rows, verdict.faults) == (len(ROWS) - 1, ()), name


def test_text_and_database_of_one_run_count_once_and_are_reported(tmp_path):
    table = write_profile(tmp_path / "ASCEND_PROFILER_OUTPUT", "K5", ROWS)
    database = write_database(table.with_name("ascend_pytorch_profiler_0.db"), ROWS)
    profile = read_profile([tmp_path])
    assert sum(r.profile.count for r in profile.records) == len(ROWS) - 1
    again = profile.report.repeated[0]
    assert (again.path.parent, again.of) == (database, table)


def test_database_without_the_needed_tables_is_refused_with_their_names(tmp_path):
    path = tmp_path / "msprof_1.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE TASK (startNs)")
        db.commit()
    with pytest.raises(BadInput, match=naming(f"{path}:", "COMPUTE_TASK_INFO, STRING_IDS")):
        read_profile([path])


def test_database_without_op_states_is_read(tmp_path):
    path = write_database(tmp_path / "msprof_1.db", ROWS[:5], without=("opState",))
    (record,) = read_profile([path]).records
    assert record.cells["OP State"] == ""
    path = write_database(tmp_path / "msprof_2.db", ROWS[:5], without=("inputShapes",))
    with pytest.raises(BadInput, match=naming(f"{path}:", "COMPUTE_TASK_INFO", "inputShapes")):
        read_profile([path])


def test_view_in_place_of_a_table_is_refused(tmp_path):
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


def test_database_of_another_tool_in_a_folder_is_ignored(tmp_path):
    write_profile(tmp_path, "K5", ROWS)
    (tmp_path / "analysis.db").write_bytes(b"whatever")
    assert len(read_profile([tmp_path]).report.files) == 1
    with pytest.raises(BadInput, match=naming(f"{tmp_path / 'analysis.db'}:")):
        read_profile([tmp_path / "analysis.db"])


def changed(path, *statements):
    with closing(sqlite3.connect(path)) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()
    return path


def test_database_with_computed_columns_is_refused(tmp_path):
    heavy = "GENERATED ALWAYS AS (hex(zeroblob(500000000)))"
    for number, statements in enumerate(
        [
            ("ALTER TABLE TASK DROP COLUMN streamId", f"ALTER TABLE TASK ADD streamId {heavy}"),
            (f"ALTER TABLE COMPUTE_TASK_INFO ADD extra {heavy}",),
            ("CREATE TRIGGER t AFTER INSERT ON STRING_IDS BEGIN DELETE FROM TASK; END",),
            ("DROP TABLE TASK", "CREATE VIRTUAL TABLE TASK USING fts5(startNs)"),
            ("DROP TABLE COMMUNICATION_OP", "CREATE VIEW COMMUNICATION_OP AS SELECT 1 AS opName"),
        ]
    ):
        path = write_database(tmp_path / f"msprof_{number}.db", ROWS)
        with pytest.raises(BadInput) as refused:
            read_profile([changed(path, *statements)])
        assert refused.value.path == path, statements


def test_database_with_additional_views_is_read(tmp_path):
    path = write_database(tmp_path / "msprof_1.db", ROWS)
    changed(path, "CREATE VIEW slow AS SELECT * FROM TASK", "CREATE INDEX i ON TASK(startNs)")
    assert read_profile([path]).report.rows == len(ROWS)


def test_database_with_ids_that_multiply_launches_is_refused(tmp_path):
    same = "SELECT * FROM {0} WHERE rowid = 1"
    texts = "UPDATE {0} SET globalTaskId = '0' || globalTaskId || '.0x' WHERE rowid = 1"
    for number, statement in enumerate(
        [
            f"INSERT INTO TASK {same.format('TASK')}",
            f"INSERT INTO COMPUTE_TASK_INFO {same.format('COMPUTE_TASK_INFO')}",
            texts.format("COMPUTE_TASK_INFO"),
        ]
    ):
        path = write_database(tmp_path / f"msprof_{number}.db", ROWS)
        with pytest.raises(BadInput) as refused:
            read_profile([changed(path, statement)])
        assert refused.value.path == path, statement
    # Tasks without a kernel may have any values.
    path = write_database(tmp_path / "msprof_9.db", ROWS)
    changed(path, *["INSERT INTO TASK (globalTaskId) VALUES (4294967295)"] * 2)
    assert read_profile([path]).report.rows == len(ROWS)


def test_database_that_takes_too_much_work_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(databases, "_LEAST_STEPS", 0)
    monkeypatch.setattr(databases, "_STEPS_PER_BYTE", 0)
    monkeypatch.setattr(databases, "_STEPS_OF_A_CALL", 10)
    path = write_database(tmp_path / "msprof_1.db", ROWS)
    with pytest.raises(BadInput) as refused:
        read_profile([path])
    assert refused.value.path == path


def test_database_with_a_too_large_table_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MOST_BYTES", 300)
    path = write_database(tmp_path / "msprof_1.db", ROWS)
    with pytest.raises(BadInput) as refused:
        read_profile([path])
    assert refused.value.path == path


def test_incomplete_database_is_refused_or_skipped(tmp_path):
    table = write_profile(tmp_path / "rank", "K5", ROWS)
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 7\n"
    whole = write_database(tmp_path / "msprof_0.db", ROWS).read_bytes()
    (tmp_path / "msprof_0.db").unlink()
    path = table.with_name("ascend_pytorch_profiler_0.db")
    for data in (pointer, b"", b"no database", whole[:3000]):
        path.write_bytes(data)
        with pytest.raises(BadInput) as refused:
            read_profile([tmp_path])
        assert refused.value.path == path, data
        report = read_profile([tmp_path], skip_bad_rows=True).report
        assert report.unusable == (str(refused.value),) and report.files == (table,), data
        assert read_profile([path], skip_bad_rows=True).records == (), data
    path.write_bytes(whole)
    path.with_name(f"{path.name}-wal").write_bytes(b"changes")
    with pytest.raises(BadInput) as refused:
        read_profile([path])
    assert refused.value.path == path


@pytest.mark.thorough
@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["Add", "Mul", "MatMulV3"]),
            st.integers(1, 10**6),
            st.integers(1, 64),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_both_exports_of_any_launches_are_equal(tmp_path_factory, launches):
    rows = [
        ProfileRow(
            kernel,
            shapes=f'"{rows},4;{rows},4"',
            start=f"{START}{place:03d}.000",
            duration=f"{ns // 1000}.{ns % 1000:03d}",
        )
        for place, (kernel, ns, rows) in enumerate(launches)
    ]
    folder = tmp_path_factory.mktemp("any")
    text = reported(write_profile(folder / "text", "K5", rows))
    assert reported(write_database(folder / "msprof_1.db", rows)) == text
