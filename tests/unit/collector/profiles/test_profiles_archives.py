"""Profiles as people send and keep them: compressed, in archives, behind links."""

import gzip
import io
import os
import shutil
import stat
import zipfile

import pytest

from collector.codec.errors import BadInput
from collector.profiles import archives
from collector.profiles.kernel_details import read_profile
from tests.fixtures.profiles.variants import LAYOUTS, Told, profile_bytes
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast

LAYOUT = next(name for name, (file, *_) in LAYOUTS.items() if file.startswith("kernel_details"))
ROWS = [
    Told("Add", "4,8;4,8", "FLOAT;FLOAT", "ND;ND", "4,8", "FLOAT", "ND", duration=f"{us}.0")
    for us in (3, 5)
]
TABLE = profile_bytes(LAYOUT, ROWS)
INSIDE = "rank0_ascend_pt/ASCEND_PROFILER_OUTPUT/kernel_details.csv"


def zipped(path, *members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return path


@pytest.fixture
def plain(tmp_path):
    folder = tmp_path / "plain"
    (folder / INSIDE).parent.mkdir(parents=True)
    (folder / INSIDE).write_bytes(TABLE)
    return folder


def told(path):
    profile = read_profile([path])
    return [(r.kernel_type, r.cells, r.profile) for r in profile.records]


def test_compressed_and_zipped_tables_give_what_the_plain_one_gives(plain, tmp_path):
    compressed = tmp_path / "kernel_details.csv.gz"
    compressed.write_bytes(gzip.compress(TABLE))
    archive = zipped(tmp_path / "capture.zip", (INSIDE, TABLE), ("trace_view.json", b"{"))
    assert told(compressed) == told(archive) == told(plain)
    assert told(plain)[0][2].mean_us == 4.0


def test_archives_in_a_folder_are_read_and_others_are_left_alone(plain, tmp_path):
    shutil.rmtree(plain / "rank0_ascend_pt")
    zipped(plain / "rank0.zip", (INSIDE, TABLE))
    zipped(plain / "logs.zip", ("log.txt", b"nothing"))
    profile = read_profile([plain])
    assert [r.kernel_type for r in profile.records] == ["Add"]
    assert profile.report.files == (plain / "rank0.zip" / INSIDE,)


def test_a_table_and_its_compressed_copy_count_once(plain):
    (plain / f"{INSIDE}.gz").write_bytes(gzip.compress(TABLE))
    profile = read_profile([plain])
    assert profile.records[0].profile.count == 2
    again = profile.report.repeated[0]
    assert {again.path.name, again.of.name} == {"kernel_details.csv", "kernel_details.csv.gz"} or (
        again.path.parent.name == "kernel_details.csv.gz"
    )


def test_a_run_says_its_software_from_within_an_archive(tmp_path):
    info = ("rank0_ascend_pt/profiler_info_0.json", b'{"torch_npu_version": "2.9.0"}')
    archive = zipped(tmp_path / "capture.zip", (INSIDE, TABLE), info)
    software = read_profile([archive]).report.software
    assert [one.torch_npu for one in software] == ["2.9.0"]
    assert software[0].folder == archive / "rank0_ascend_pt"


def test_a_bad_row_is_named_by_its_archive_and_line(tmp_path):
    bad = TABLE.replace(b",5.0,", b",long,")
    archive = zipped(tmp_path / "capture.zip", (INSIDE, bad))
    with pytest.raises(BadInput) as error:
        read_profile([archive])
    assert str(error.value).startswith(f"{archive}/{INSIDE}:3: ")
    skipped = read_profile([archive], skip_bad_rows=True).report.skipped
    assert [(row.path, row.line) for row in skipped] == [(archive / INSIDE, 3)]


@pytest.mark.parametrize("name", ["../kernel_details.csv", "/kernel_details.csv"])
def test_no_member_leaves_the_archive(tmp_path, name):
    archive = zipped(tmp_path / "capture.zip", (name, TABLE))
    with pytest.raises(BadInput, match=naming(f"{archive}:", name)):
        read_profile([archive])
    assert not (tmp_path / "kernel_details.csv").exists()


def test_a_link_in_an_archive_is_not_followed(tmp_path):
    link = zipfile.ZipInfo("kernel_details.csv")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    archive = zipped(tmp_path / "capture.zip", (link, b"/etc/passwd"))
    with pytest.raises(
        BadInput, match=naming(f"{archive}:", "kernel_details*.csv", "op_summary_*.csv")
    ):
        read_profile([archive])


def test_a_bomb_ends_at_its_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MOST_BYTES", 1 << 20)
    bomb = TABLE + b"\n" * (2 << 20)
    for archive in (
        zipped(tmp_path / "capture.zip", (INSIDE, bomb)),
        tmp_path / "kernel_details.csv.gz",
    ):
        if archive.suffix == ".gz":
            archive.write_bytes(gzip.compress(bomb))
        with pytest.raises(BadInput, match=naming(f"{archive}:", "GiB")):
            read_profile([archive])


def test_several_members_share_one_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MOST_BYTES", len(TABLE) + 10)
    members = [(f"{n}/kernel_details.csv", TABLE) for n in range(2)]
    archive = zipped(tmp_path / "capture.zip", *members)
    with pytest.raises(BadInput, match=naming(f"{archive}:", "GiB")):
        read_profile([archive])


@pytest.mark.parametrize("name", ["capture.zip", "kernel_details.csv.gz"])
@pytest.mark.parametrize("cut", [0, 10, 60])
def test_an_archive_that_is_cut_off_or_none_at_all_is_named(tmp_path, name, cut):
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr(INSIDE, TABLE)
    data = whole.getvalue() if name.endswith(".zip") else gzip.compress(TABLE)
    path = tmp_path / name
    path.write_bytes(data[:cut])
    with pytest.raises(BadInput) as error:
        read_profile([path])
    assert str(path) in str(error.value)
    assert "opmeter-unpacked" not in str(error.value)


def test_a_member_that_stands_twice_is_refused(tmp_path):
    with pytest.warns(UserWarning, match="Duplicate name"):
        archive = zipped(tmp_path / "capture.zip", (INSIDE, TABLE), (INSIDE, TABLE))
    with pytest.raises(BadInput, match=naming(f"{archive}:")):
        read_profile([archive])


def test_ranks_behind_links_are_read_once_each(plain, tmp_path):
    gathered = tmp_path / "gathered"
    gathered.mkdir()
    for name in ("rank0", "again"):
        (gathered / name).symlink_to(plain / "rank0_ascend_pt", target_is_directory=True)
    (gathered / "round").symlink_to(gathered, target_is_directory=True)
    profile = read_profile([gathered])
    assert profile.records[0].profile.count == 2
    assert len(profile.report.files) == 1


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("step.nsys-rep", "NVIDIA"),
        ("analysis.db", "msprof_*.db"),
        ("trace_view.json", "kernel_details.csv"),
    ],
)
def test_a_folder_of_another_tool_says_what_is_there_and_what_to_do(tmp_path, name, named):
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(BadInput, match=naming("1 file", named)):
        read_profile([tmp_path])


def test_a_kernel_type_that_is_a_number_is_a_bad_row(tmp_path):
    path = tmp_path / "kernel_details.csv"
    bad = Told("0", "4,8;4,8", "FLOAT;FLOAT", "ND;ND", "4,8", "FLOAT", "ND")
    path.write_bytes(profile_bytes(LAYOUT, [*ROWS, bad]))
    with pytest.raises(BadInput, match=naming("kernel_details.csv:4:", "Type")):
        read_profile([path])
    profile = read_profile([path], skip_bad_rows=True)
    assert [r.kernel_type for r in profile.records] == ["Add"]
    assert os.path.basename(profile.report.skipped[0].path) == "kernel_details.csv"
