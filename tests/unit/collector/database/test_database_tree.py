"""A kernel's CSV in a tree: read with its irregularities, joined by identity, written
completely."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.codec.errors import BadInput
from collector.database.layout import (
    PARSER_COLUMNS,
    csv_bytes,
    is_version_name,
    kernel_file_name,
    present_names,
    version_dir,
    version_dir_name,
)
from collector.database.tree import KernelFile, read_kernel_file, upsert
from collector.model.vocabulary import BASE_CELLS
from collector.store.atomic import write_through, write_whole
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast

PROFILED = "Profiling Average Duration(us)"
MEASURED = "Average Duration(us)"


def cells(shapes='"4,2;4,2"', **more):
    texts = ("dynamic", "AI_CORE", shapes, "FLOAT;FLOAT", "ND;ND", '"4,2"', "FLOAT", "ND")
    return dict(zip(BASE_CELLS, texts, strict=True)) | more


def file_of(rows, columns=(*BASE_CELLS, MEASURED, PROFILED)):
    return KernelFile("Add", tuple(columns), tuple(rows))


def written(tmp_path, data, name="Add.csv"):
    path = tmp_path / name
    path.write_bytes(data)
    return path


def test_kernel_file_is_read_as_written(tmp_path):
    file = file_of([cells(**{MEASURED: "1.500000", PROFILED: ""})])
    assert read_kernel_file(written(tmp_path, file.as_bytes())) == file


def test_byte_order_mark_is_read_and_not_written(tmp_path):
    file = file_of([cells(**{MEASURED: "1.5", PROFILED: ""})])
    path = written(tmp_path, b"\xef\xbb\xbf" + file.as_bytes())
    assert read_kernel_file(path).as_bytes() == file.as_bytes()


_ODD = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=10)


@pytest.mark.thorough
@given(st.lists(_ODD, min_size=1, max_size=4))
@settings(max_examples=60)
def test_unusual_cells_are_read_as_written(tmp_path_factory, texts):
    file = file_of([cells(Note=text) for text in texts], (*BASE_CELLS, "Note"))
    path = written(tmp_path_factory.mktemp("tree"), file.as_bytes())
    assert read_kernel_file(path) == file


def test_row_of_the_same_case_gets_the_new_numbers():
    old = cells("4,2;4,2", **{MEASURED: "7.000000", PROFILED: "1.000000", "EP Size": ""})
    old |= {"Note": "by hand"}
    joined = upsert(file_of([old]), [cells(**{PROFILED: "2.000000"})])
    assert (joined.added, joined.updated, joined.unchanged) == (0, 1, 0)
    assert joined.file.rows == (old | {PROFILED: "2.000000"},)


def test_row_of_another_case_is_appended():
    generated = cells('"8,2;8,2"', **{MEASURED: "0", PROFILED: "0"})
    joined = upsert(file_of([generated]), [cells(**{PROFILED: "2.000000"})])
    assert (joined.added, joined.updated, joined.unchanged) == (1, 0, 0)
    assert joined.file.rows[0] == generated
    assert joined.file.rows[1]["Input Shapes"] == '"4,2;4,2"'


def test_second_upsert_changes_nothing():
    rows = [cells(**{PROFILED: "2.000000"}), cells('"16"', **{PROFILED: "3.000000"})]
    once = upsert(KernelFile("Add", PARSER_COLUMNS, ()), rows)
    again = upsert(once.file, rows)
    assert again.file == once.file
    assert (again.added, again.updated, again.unchanged) == (0, 0, 2)


def test_empty_cell_replaces_nothing():
    old = cells(**{"Profiling Average aic_mac_ratio": "0.5"})
    joined = upsert(file_of([old]), [cells(**{"Profiling Average aic_mac_ratio": ""})])
    assert joined.file.rows == (old,)


def test_duplicate_rows_are_kept_and_the_first_is_updated():
    old = [cells(**{PROFILED: "1.0"}), cells("4,2;4,2", **{PROFILED: "1.0"})]
    joined = upsert(file_of(old), [cells(**{PROFILED: "2.0"})])
    assert [row[PROFILED] for row in joined.file.rows] == ["2.0", "1.0"]
    assert joined.duplicates == ("Add 4,2;4,2 FLOAT;FLOAT",)


def test_new_columns_are_inserted_in_the_usual_order():
    new = cells(**{"MicroBench vec_ratio": "1", "Profiling Average vec_ratio": "1"})
    joined = upsert(file_of([], (*BASE_CELLS, PROFILED, "EP Size")), [new])
    assert joined.file.columns[8:] == (
        PROFILED,
        "MicroBench vec_ratio",
        "Profiling Average vec_ratio",
        "EP Size",
    )


def test_row_of_a_file_without_op_state_is_updated_by_the_first_match():
    columns = [name for name in BASE_CELLS if name != "OP State"]
    old = {name: text for name, text in cells().items() if name in columns}
    static = cells(**{PROFILED: "3.0"}) | {"OP State": "static"}
    joined = upsert(file_of([old], columns), [cells(**{PROFILED: "2.0"}), static])
    assert (joined.added, joined.updated) == (1, 1)
    assert [row["OP State"] for row in joined.file.rows] == ["dynamic", "static"]
    assert joined.file.columns[0] == "OP State"


def test_old_column_names_are_read_as_the_current_ones(tmp_path):
    row = cells(**{"MicroBench Duration(us)": "5.0", "MicroBench Task Duration(us)": "6.0"})
    path = written(tmp_path, csv_bytes(tuple(row), [row]))
    (read,) = read_kernel_file(path).rows
    assert read == cells(**{MEASURED: "5.0"})


def test_nonempty_one_of_an_old_and_a_new_column_is_read(tmp_path):
    columns = (*BASE_CELLS, MEASURED, "MicroBench Duration(us)")
    assert set(present_names(columns).values()) == {*BASE_CELLS, MEASURED}
    rows = [cells(**{MEASURED: ""}), cells('"16"', **{MEASURED: "4.0"})]
    rows = [row | {"MicroBench Duration(us)": "5.0"} for row in rows]
    file = read_kernel_file(written(tmp_path, csv_bytes(columns, rows)))
    assert file.columns == (*BASE_CELLS, MEASURED)
    assert [row[MEASURED] for row in file.rows] == ["5.0", "4.0"]


GOOD = csv_bytes(BASE_CELLS, [cells(), cells('"16"')])


@pytest.mark.parametrize(
    "data, named, line",
    [
        (GOOD + b"dynamic,AI_CORE\r\n", (8, 2), 4),
        (GOOD + b"1,2,3,4,5,6,7,8,9\r\n", (8, 9), 4),
        (
            GOOD + csv_bytes(BASE_CELLS, [cells("FLOAT")]).split(b"\r\n", 1)[1],
            ("Input Shapes",),
            4,
        ),
        (GOOD.replace(b"Output Formats", b"OP State"), ("'OP State'",), 1),
        (b"message_bytes,num_devices\r\n1,2\r\n", ("'Input Shapes'",), 1),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", ("git lfs pull",), None),
        (b"", ("empty",), None),
        (GOOD.replace(b"dynamic", b"dyn\xe9mic", 1), ("UTF-8",), 2),
    ],
)
def test_malformed_kernel_file_is_refused_with_its_line(tmp_path, data, named, line):
    path = written(tmp_path, data)
    with pytest.raises(BadInput, match=naming(*named)) as error:
        read_kernel_file(path)
    assert (error.value.path, error.value.line) == (path, line)


def test_header_alone_is_a_file_without_rows(tmp_path):
    assert read_kernel_file(written(tmp_path, csv_bytes(BASE_CELLS, []))).rows == ()


def test_write_makes_folders_and_leaves_no_other_files(tmp_path):
    path = tmp_path / "device" / "reports" / "communication.csv"
    write_whole(path, b"old")
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert [entry.name for entry in path.parent.iterdir()] == ["communication.csv"]


def test_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "Add.csv"
    path.mkdir()  # a folder cannot be replaced by a file
    with pytest.raises(OSError):
        write_whole(path, b"new")
    assert os.listdir(tmp_path) == ["Add.csv"]


def test_version_is_named_by_its_components():
    assert version_dir_name("0.18.0", "2.9.0+cpu", "cann8.5") == "vllm0.18.0_torch2.9.0_cann8.5"
    assert version_dir_name("", "2.13.0", "") == "vllm0_torch2.13.0_cann0"


def test_complete_version_name_is_used_unchanged():
    assert version_dir_name("vllm0.18.0_torch2.9.0_cann8.5", "", "") == (
        "vllm0.18.0_torch2.9.0_cann8.5"
    )


@pytest.mark.parametrize(
    "text", ["vllm_torch_cann", "vllm1_torch2", "x", "vllm1/_torch2_cann3", ""]
)
def test_other_names_are_not_versions(text):
    assert not is_version_name(text)


def test_version_directory_is_below_its_device(tmp_path):
    path = version_dir(tmp_path, "ATLAS_800_A3_752T_128G_DIE", "0.18.0", "2.9.0", "8.5")
    assert path.relative_to(tmp_path).as_posix() == (
        "ATLAS_800_A3_752T_128G_DIE/vllm_ascend/vllm0.18.0_torch2.9.0_cann8.5"
    )


@pytest.mark.parametrize("device", ["..", "a/b", "", ".hidden", "../x"])
def test_device_name_with_a_path_is_refused(tmp_path, device):
    with pytest.raises(BadInput, match="device"):
        version_dir(tmp_path, device, "0.18.0", "2.9.0", "8.5")


@pytest.mark.parametrize("kernel_type", ["../x", "a/b", "", ".x", "a b"])
def test_kernel_type_that_is_not_a_file_name_is_refused(kernel_type):
    with pytest.raises(BadInput, match="kernel type"):
        kernel_file_name(kernel_type)


def test_row_of_unknown_op_state_matches_the_only_known_one():
    known, unknown = (cells(**{"OP State": state, MEASURED: ""}) for state in ("dynamic", "N/A"))
    for old, new in ((known, unknown), (unknown, known)):
        result = upsert(file_of([old]), [{**new, PROFILED: "2.5"}])
        (row,) = result.file.rows
        assert (row["OP State"], row[PROFILED], result.added) == ("dynamic", "2.5", 0)
    static = cells(**{"OP State": "static"})
    assert upsert(file_of([known, static]), [unknown]).added == 1  # either may be meant
    other = cells(**{"Input Formats": "FORMAT_ND;FORMAT_ND"})
    assert upsert(file_of([known]), [other]).added == 0


def test_file_behind_a_symlink_is_written_and_the_link_is_kept(tmp_path):
    real, link = tmp_path / "real" / "Add.csv", tmp_path / "Add.csv"
    link.symlink_to(real)
    real.parent.mkdir()
    real.write_bytes(b"old")
    write_through(link, b"new")
    assert link.is_symlink() and real.read_bytes() == b"new"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "nowhere").symlink_to(tmp_path / "real" / "made")
    for path in (tmp_path / "pipe", tmp_path / "real", tmp_path / "nowhere"):
        with pytest.raises(OSError):
            write_through(path, b"new")
    assert [path.name for path in real.parent.iterdir()] == ["Add.csv"]
