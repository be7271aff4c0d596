"""Profiles as users send and store them: compressed, in archives, behind symlinks."""

import bz2
import gzip
import io
import lzma
import os
import shutil
import stat
import tarfile
import zipfile

import pytest

from collector.codec.errors import BadInput
from collector.profiles import archives
from collector.profiles.kernel_details import read_profile
from tests.fixtures.profiles.database import write_database
from tests.fixtures.profiles.variants import LAYOUTS, ProfileRow, profile_bytes
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast

LAYOUT = next(name for name, (file, *_) in LAYOUTS.items() if file.startswith("kernel_details"))
ROWS = [
    ProfileRow("Add", "4,8;4,8", "FLOAT;FLOAT", "ND;ND", "4,8", "FLOAT", "ND", duration=f"{us}.0")
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


def reported(path):
    profile = read_profile([path])
    return [(r.kernel_type, r.cells, r.profile) for r in profile.records]


def test_compressed_and_zipped_tables_equal_the_plain_one(plain, tmp_path):
    compressed = tmp_path / "kernel_details.csv.gz"
    compressed.write_bytes(gzip.compress(TABLE))
    archive = zipped(tmp_path / "capture.zip", (INSIDE, TABLE), ("trace_view.json", b"{"))
    assert reported(compressed) == reported(archive) == reported(plain)
    assert reported(plain)[0][2].mean_us == 4.0


def tarred(path, *members):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    pack = {".gz": gzip.compress, ".tgz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
    path.write_bytes(pack.get(path.suffix, bytes)(data.getvalue()))
    return path


def test_tar_archives_equal_the_plain_table(plain, tmp_path):
    raw = ("rank0_ascend_pt/PROF_1/device_0/data/aicore.slice_0", bytes(1_500_000))
    for name in ("c.tar", "c.tar.gz", "c.tgz", "c.tar.bz2", "c.tar.xz"):
        before = [raw] if name in ("c.tar", "c.tgz") else []
        archive = tarred(tmp_path / name, *before, (INSIDE, TABLE), ("notes.txt", b"x"))
        assert reported(archive) == reported(plain), name
        data = archive.read_bytes()
        for cut in (0, 100, len(data) // 2, len(data) - 11_000 if name == "c.tar" else 200):
            archive.write_bytes(data[:cut])
            with pytest.raises(BadInput) as refused:
                read_profile([archive])
            assert refused.value.path == archive, (name, cut)


def test_zip_archive_with_backslashes_is_read(plain, tmp_path):
    archive = zipped(tmp_path / "capture.zip", (INSIDE.replace("/", "\\"), TABLE))
    assert reported(archive) == reported(plain)
    assert read_profile([archive]).report.files == (archive / INSIDE,)
    for name in ("..\\kernel_details.csv", "\\kernel_details.csv"):
        archive = zipped(tmp_path / "bad.zip", (name, TABLE))
        with pytest.raises(BadInput) as refused:
            read_profile([archive])
        assert refused.value.path == archive, name


def test_archives_within_archives_are_read(plain, tmp_path):
    inner = zipped(tmp_path / "inner.zip", (INSIDE, TABLE)).read_bytes()
    database = write_database(tmp_path / "d" / "msprof_1.db", ROWS).read_bytes()
    other = TABLE.replace(b",5.0,", b",7.0,")
    archive = tarred(
        tmp_path / "all.tar.gz",
        ("rank0.zip", inner),
        ("rank1/kernel_details.csv.gz", gzip.compress(other)),
        ("rank2/msprof_1.db", database),
        ("logs.zip", zipped(tmp_path / "logs.zip", ("a.txt", b"")).read_bytes()),
        ("__MACOSX/._rank0.zip", b"attributes"),
        ("analysis.db", b"of another tool"),
    )
    files = set(read_profile([archive]).report.files)
    assert {
        archive / "rank0.zip" / INSIDE,
        archive / "rank1/kernel_details.csv.gz/kernel_details.csv",
    } <= files
    bad = zipped(tmp_path / "bad.zip", ("rank0.zip", inner), ("rank1.zip", inner[:60]))
    with pytest.raises(BadInput) as refused:
        read_profile([bad])
    assert refused.value.path == bad / "rank1.zip"
    report = read_profile([bad], skip_bad_rows=True).report
    assert report.unusable == (str(refused.value),)
    assert report.files == (bad / "rank0.zip" / INSIDE,)


def test_archive_within_too_many_is_refused(tmp_path):
    data = zipped(tmp_path / "0.zip", (INSIDE, TABLE)).read_bytes()
    for _ in range(4):
        data = zipped(tmp_path / "1.zip", ("0.zip", data)).read_bytes()
    with pytest.raises(BadInput):
        read_profile([tmp_path / "1.zip"])


def test_unsupported_archive_is_refused_or_skipped(plain, tmp_path):
    for name in ("rank1.7z", "rank1.rar", "rank1.tar.zst"):
        path = plain / name
        path.write_bytes(b"x")
        with pytest.raises(BadInput) as refused:
            read_profile([plain])
        assert refused.value.path == path
        assert read_profile([plain], skip_bad_rows=True).report.unusable == (str(refused.value),)
        path.unlink()


def test_header_of_a_tar_member_is_bounded(tmp_path):
    archive = tmp_path / "capture.tar.gz"
    with tarfile.open(archive, "w:gz", format=tarfile.PAX_FORMAT) as members:
        member = tarfile.TarInfo("kernel_details.csv")
        member.pax_headers = {"comment": "x" * 3_000_000}
        members.addfile(member)
    with pytest.raises(BadInput) as refused:
        read_profile([archive])
    assert refused.value.path == archive


def test_archive_much_larger_than_its_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "_ALWAYS_BYTES", 100_000)
    bomb = TABLE + b"\n" * 1_000_000
    packed = tmp_path / "kernel_details.csv.gz"
    packed.write_bytes(gzip.compress(bomb))
    assert len(bomb) > 200 * packed.stat().st_size
    for archive in (
        packed,
        zipped(tmp_path / "capture.zip", (INSIDE, bomb)),
        tarred(tmp_path / "capture.tar.gz", (INSIDE, bomb)),
        tarred(tmp_path / "skipped.tar.gz", ("other", bomb), (INSIDE, TABLE)),
        zipped(tmp_path / "outer.zip", ("inner.csv.zip", packed.read_bytes())),
        zipped(tmp_path / "deep.zip", ("kernel_details.csv.gz", packed.read_bytes())),
    ):
        with pytest.raises(BadInput) as refused:
            read_profile([archive])
        assert str(refused.value.path).startswith(str(archive))


def test_file_of_another_kind_is_refused(tmp_path):
    for name in ("communication.json", "config.json", "campaign.yaml", "trace_view.json"):
        path = tmp_path / name
        path.write_bytes(b"{}")
        with pytest.raises(BadInput) as refused:
            read_profile([path])
        assert (refused.value.path, refused.value.line) == (path, None)


def test_archives_with_tables_in_a_folder_are_read_and_others_ignored(plain, tmp_path):
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


def test_software_versions_are_read_from_an_archive(tmp_path):
    info = ("rank0_ascend_pt/profiler_info_0.json", b'{"torch_npu_version": "2.9.0"}')
    archive = zipped(tmp_path / "capture.zip", (INSIDE, TABLE), info)
    software = read_profile([archive]).report.software
    assert [one.torch_npu for one in software] == ["2.9.0"]
    assert software[0].folder == archive / "rank0_ascend_pt"


def test_bad_row_is_reported_with_its_archive_and_line(tmp_path):
    bad = TABLE.replace(b",5.0,", b",long,")
    archive = zipped(tmp_path / "capture.zip", (INSIDE, bad))
    with pytest.raises(BadInput) as error:
        read_profile([archive])
    assert str(error.value).startswith(f"{archive}/{INSIDE}:3: ")
    skipped = read_profile([archive], skip_bad_rows=True).report.skipped
    assert [(row.path, row.line) for row in skipped] == [(archive / INSIDE, 3)]


@pytest.mark.parametrize("name", ["../kernel_details.csv", "/kernel_details.csv"])
def test_member_with_a_path_outside_of_the_archive_is_refused(tmp_path, name):
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


def test_decompression_bomb_is_refused_at_its_limit(tmp_path, monkeypatch):
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


def test_several_members_share_one_size_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MOST_BYTES", len(TABLE) + 10)
    members = [(f"{n}/kernel_details.csv", TABLE) for n in range(2)]
    archive = zipped(tmp_path / "capture.zip", *members)
    with pytest.raises(BadInput, match=naming(f"{archive}:", "GiB")):
        read_profile([archive])


@pytest.mark.parametrize("name", ["capture.zip", "kernel_details.csv.gz"])
@pytest.mark.parametrize("cut", [0, 10, 60])
def test_truncated_archive_is_refused_by_name(tmp_path, name, cut):
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


def test_duplicate_archive_member_is_refused(tmp_path):
    with pytest.warns(UserWarning, match="Duplicate name"):
        archive = zipped(tmp_path / "capture.zip", (INSIDE, TABLE), (INSIDE, TABLE))
    with pytest.raises(BadInput, match=naming(f"{archive}:")):
        read_profile([archive])


def test_ranks_behind_symlinks_are_read_once(plain, tmp_path):
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
def test_folder_of_another_tool_is_refused_with_its_contents(tmp_path, name, named):
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(BadInput, match=naming("1 file", named)):
        read_profile([tmp_path])


def test_numeric_kernel_type_is_a_bad_row(tmp_path):
    path = tmp_path / "kernel_details.csv"
    bad = ProfileRow("0", "4,8;4,8", "FLOAT;FLOAT", "ND;ND", "4,8", "FLOAT", "ND")
    path.write_bytes(profile_bytes(LAYOUT, [*ROWS, bad]))
    with pytest.raises(BadInput, match=naming("kernel_details.csv:4:", "Type")):
        read_profile([path])
    profile = read_profile([path], skip_bad_rows=True)
    assert [r.kernel_type for r in profile.records] == ["Add"]
    assert os.path.basename(profile.report.skipped[0].path) == "kernel_details.csv"
