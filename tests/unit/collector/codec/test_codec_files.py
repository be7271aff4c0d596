"""Temporary folders are removed, also those of killed processes; files are read within bounds."""

import gzip
import os
import signal
import tempfile

import pytest

from collector.codec.files import scratch_folder
from collector.profiles.archives import unpacked
from collector.profiles.kernel_details import read_profile
from tests.fixtures.profiles.variants import Told, profile_bytes


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
    archive.write_bytes(gzip.compress(profile_bytes("K5", [Told()])))
    killed_within(unpacked([archive]))
    (left,) = temporary.iterdir()
    assert list(left.rglob("kernel_details.csv"))
    assert read_profile([archive]).report.rows == 1
    assert list(temporary.iterdir()) == []
