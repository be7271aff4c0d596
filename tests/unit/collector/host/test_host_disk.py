"""What a folder can take: as much as its disk has, and as the volume that it lies on may hold."""

import os
import shutil

import pytest

from collector.codec.errors import BadInput
from collector.host.machine import free_bytes, used_bytes, volume_of
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast

MIB = 1 << 20


@pytest.fixture
def volume(tmp_path, monkeypatch):
    """A volume with a work folder, and a file of 3 MiB elsewhere in it."""
    work = tmp_path / "volume" / "tmp" / "attempt"
    work.mkdir(parents=True)
    (tmp_path / "volume" / "cache").write_bytes(b"x" * (3 * MIB))
    mounts = {str(tmp_path / "volume"), "/"}
    monkeypatch.setattr("os.path.ismount", lambda path: str(path) in mounts)
    return work


def test_without_a_limit_the_disk_counts(volume):
    assert abs(free_bytes(volume, {}) - shutil.disk_usage(volume).free) < 1 << 30


def test_all_that_lies_in_the_volume_counts_against_its_limit(volume):
    free = free_bytes(volume, {"OPMETER_VOLUME_BYTES": str(10 * MIB)})
    assert 6 * MIB < free <= 7 * MIB
    assert free_bytes(volume, {"OPMETER_VOLUME_BYTES": str(MIB)}) == 0
    assert free_bytes(volume, {"OPMETER_VOLUME_BYTES": str(1 << 60)}) < 1 << 60


def test_a_folder_of_no_volume_counts_alone(volume, monkeypatch):
    monkeypatch.setattr("os.path.ismount", lambda path: str(path) == "/")
    assert volume_of(volume) == volume


def test_a_file_of_two_names_counts_once_and_a_link_not_at_all(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * MIB)
    os.link(tmp_path / "a", tmp_path / "b")
    os.symlink("/dev/zero", tmp_path / "c")
    assert MIB <= used_bytes(tmp_path) < MIB + MIB // 2


def test_a_limit_that_is_no_number_is_named(tmp_path):
    with pytest.raises(BadInput, match=naming("OPMETER_VOLUME_BYTES", "'40Gi'")):
        free_bytes(tmp_path, {"OPMETER_VOLUME_BYTES": "40Gi"})
