"""The free space of a folder: that of its disk, and that of its volume's limit."""

import os
import shutil

import pytest

from collector.codec.errors import BadInput
from collector.host.space import free_bytes, used_bytes, volume_of
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast

MIB = 1 << 20


@pytest.fixture
def volume(tmp_path, monkeypatch):
    """A volume with a work folder, and a file of 3 MiB next to it."""
    work = tmp_path / "volume" / "tmp" / "attempt"
    work.mkdir(parents=True)
    (tmp_path / "volume" / "cache").write_bytes(b"x" * (3 * MIB))
    mounts = {str(tmp_path / "volume"), "/"}
    monkeypatch.setattr("os.path.ismount", lambda path: str(path) in mounts)
    return work


def test_free_space_of_the_disk_is_used_without_a_limit(volume):
    assert abs(free_bytes(volume, {}) - shutil.disk_usage(volume).free) < 1 << 30


def test_all_files_of_the_volume_count_against_its_limit(volume):
    free = free_bytes(volume, {"OPMETER_VOLUME_BYTES": str(10 * MIB)})
    assert 6 * MIB < free <= 7 * MIB
    assert free_bytes(volume, {"OPMETER_VOLUME_BYTES": str(MIB)}) == 0
    assert free_bytes(volume, {"OPMETER_VOLUME_BYTES": str(1 << 60)}) < 1 << 60


def test_folder_outside_of_a_volume_is_counted_separately(volume, monkeypatch):
    monkeypatch.setattr("os.path.ismount", lambda path: str(path) == "/")
    assert volume_of(volume) == volume


def test_hard_link_counts_once_and_symlink_not_at_all(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * MIB)
    os.link(tmp_path / "a", tmp_path / "b")
    os.symlink("/dev/zero", tmp_path / "c")
    assert MIB <= used_bytes(tmp_path) < MIB + MIB // 2


def test_limit_that_is_not_a_number_is_refused(tmp_path):
    with pytest.raises(BadInput, match=naming("OPMETER_VOLUME_BYTES", "'40Gi'")):
        free_bytes(tmp_path, {"OPMETER_VOLUME_BYTES": "40Gi"})
