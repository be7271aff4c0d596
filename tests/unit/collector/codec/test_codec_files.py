"""Temporary folders are removed, also those of killed processes; files are read within bounds."""

import gzip
import os
import signal
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from collector.codec import files
from collector.codec.canonical import json_value
from collector.codec.errors import BadInput
from collector.codec.files import check_case, check_writable
from collector.codec.scratch import (
    fresh_folder,
    move_files,
    replace_folder,
    restore_folder,
    scratch_folder,
)
from collector.codec.table import table_rows
from collector.comm.comm_table import read_comm_table
from collector.comm.kernels import npu_spans
from collector.database.tree import read_kernel_file
from collector.profiles.archives import unpacked
from collector.profiles.kernel_details import read_profile
from collector.singlehost.fia_backfill import backfill
from collector.singlehost.parse import parse_profile
from collector.singlehost.version_files import VersionFiles
from jobs.campaign.campaign_file import load_campaign
from jobs.objects.site import load_site
from tests.fixtures.profiles.variants import ProfileRow, profile_bytes


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder of temporary folders in a test."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def killed_within(block):
    """Run a context manager's block in a process that is killed there."""
    process = os.fork()
    if not process:
        with block:
            os.kill(os.getpid(), signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL


@pytest.mark.fast
def test_scratch_folder_of_a_live_process_stays(temporary):
    with scratch_folder("cpu0") as first:
        (first / "session").mkdir()
        with scratch_folder("cpu0") as second:
            assert first != second and (first / "session").is_dir()
        assert first.is_dir() and not second.exists()
    assert list(temporary.iterdir()) == []


def test_scratch_folder_of_a_killed_process_is_removed_by_any_later_one(temporary):
    killed_within(scratch_folder("cpu0"))
    (left,) = temporary.iterdir()
    with scratch_folder("cpu1"):
        assert not left.exists()


def test_archive_of_a_killed_parse_is_removed_by_the_next(temporary, tmp_path):
    archive = tmp_path / "kernel_details.csv.gz"
    archive.write_bytes(gzip.compress(profile_bytes("K5", [ProfileRow()])))
    killed_within(unpacked([archive]))
    (left,) = temporary.iterdir()
    assert list(left.rglob("kernel_details.csv"))
    assert read_profile([archive]).report.rows == 1
    assert list(temporary.iterdir()) == []


@pytest.mark.fast
def test_pipes_and_devices_given_as_files_are_refused_immediately(tmp_path):
    pipe, device, endless = (tmp_path / name for name in ("pipe.yaml", "null.yaml", "zero.yaml"))
    os.mkfifo(pipe)
    device.symlink_to("/dev/null")
    endless.symlink_to("/dev/zero")
    table = tmp_path / "FusedInferAttentionScore.csv"
    table.write_bytes(b"Input Shapes,Input Data Types\n")
    readers = (
        load_campaign,
        lambda path: load_site(str(path)),
        lambda path: read_profile([path]),
        read_kernel_file,
        read_comm_table,
        lambda path: npu_spans(path, "hcom_allReduce_"),
        lambda path: backfill(table, path),
    )
    for path in (pipe, device, endless):
        for number, read in enumerate(readers):
            with pytest.raises(BadInput) as refused:
                read(path)
            assert refused.value.path == path, (path, number)


@pytest.mark.fast
def test_pointer_of_git_lfs_is_named_by_every_reader():
    data = b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 7\n"
    for read in (
        lambda: json_value(data, what="a model", key="model.json"),
        lambda: list(table_rows(data, ["a"], path="model.json")),
    ):
        with pytest.raises(BadInput) as refused:
            read()
        assert refused.value.path == "model.json" and "git lfs pull" in str(refused.value)


@pytest.mark.fast
def test_case_of_names_matters_only_where_the_file_system_ignores_it(tmp_path, monkeypatch):
    assert files.ignores_case(tmp_path / "absent" / "folder") is False  # of this machine
    check_case(tmp_path, ["Add.csv", "add.csv"])
    monkeypatch.setattr(files, "ignores_case", lambda folder: True)
    check_case(tmp_path, ["Add.csv", "Mul.csv", "Add.csv"])
    with pytest.raises(BadInput) as refused:
        check_case(tmp_path, ["Add.csv", "Mul.csv", "add.csv"])
    assert refused.value.path == tmp_path
    assert list(tmp_path.iterdir()) == []


@pytest.mark.fast
def test_tree_on_a_file_system_that_ignores_case_is_not_written_over(tmp_path, monkeypatch):
    tree, profile = tmp_path / "tree", tmp_path / "kernel_details.csv"
    profile.write_bytes(profile_bytes("K5", [ProfileRow("Add"), ProfileRow("ADD")]))
    parse_profile([profile], tree)
    assert {path.name for path in tree.iterdir()} == {"Add.csv", "ADD.csv"}
    monkeypatch.setattr(files, "ignores_case", lambda folder: True)
    with pytest.raises(BadInput):
        parse_profile([profile], tmp_path / "other")
    assert not (tmp_path / "other").exists()
    held = VersionFiles.read(tree)
    held.append("aDD", dict(held.cells(held.rows()[0].place)))
    with pytest.raises(BadInput):
        held.write()
    assert {path.name for path in tree.iterdir()} == {"Add.csv", "ADD.csv"}


# Folders that are written as a whole.


@contextmanager
def moved_aside(target):
    """The moment between the two renames of `replace_folder`."""
    with fresh_folder(target.parent, "pull") as fresh:
        target.rename(fresh.with_name("old"))
        yield


def test_folder_that_a_killed_run_moved_aside_is_moved_back(tmp_path):
    target = tmp_path / "tree"
    target.mkdir()
    (target / "op_mapping.yaml").write_text("a user's")
    killed_within(moved_aside(target))
    assert not target.exists()
    restore_folder(target, "pull")
    assert (target / "op_mapping.yaml").read_text() == "a user's"
    with fresh_folder(tmp_path, "pull") as fresh:
        (fresh / "Add.csv").touch()
        replace_folder(fresh, target)
    assert [path.name for path in target.iterdir()] == ["Add.csv"]
    assert [*tmp_path.iterdir()] == [target]


@pytest.mark.fast
def test_files_are_moved_to_a_new_folder_with_the_rights_of_folders(tmp_path):
    (tmp_path / "usual").mkdir()
    for name in ("first", "second"):
        with fresh_folder(tmp_path / "a/b", "report") as fresh:
            (fresh / "of").mkdir()
            (fresh / "of" / name).touch()
            move_files(fresh, tmp_path / "a/b")
    assert sorted(path.name for path in (tmp_path / "a/b/of").iterdir()) == ["first", "second"]
    assert (tmp_path / "a/b").stat().st_mode == (tmp_path / "usual").stat().st_mode
    assert [path.name for path in (tmp_path / "a/b").iterdir()] == ["of"]


@pytest.mark.fast
def test_folder_that_does_not_exist_yet_is_checked_where_it_will_be_made(tmp_path):
    check_writable(tmp_path / "a/b")
    assert not [*tmp_path.iterdir()]
    with pytest.raises(BadInput):
        check_writable(Path("/proc/x"))
