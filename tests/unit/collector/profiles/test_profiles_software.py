"""The software versions of a run's folder are read if possible, without waiting or failing."""

import json
import os

import pytest

from collector.codec.files import MOST_BYTES, read_small_file
from collector.profiles.discovery import software_of

pytestmark = pytest.mark.fast

GOOD = {"torch_npu_version": "2.7.1", "cann_version": "8.3.RC1"}


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "rank0_ascend_pt"
    folder.mkdir()
    return folder


def message(run):
    return [(s.torch_npu, s.cann) for s in software_of([run / "kernel_details.csv"])]


def test_the_versions_of_a_run_are_read(run):
    (run / "profiler_info_0.json").write_text(json.dumps(GOOD))
    assert message(run) == [("2.7.1", "8.3.RC1")]


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b"\xff\xfe",
        b"",
        b"[]",
        b"7",
        b'{"torch_npu_version": "1", "x": "' + b"x" * MOST_BYTES + b'"}',
    ],
    ids=["brackets", "objects", "no text", "empty", "list", "number", "large"],
)
def test_unusable_version_file_is_skipped_for_the_next(run, content):
    (run / "profiler_info.json").write_bytes(content)
    assert message(run) == []
    (run / "profiler_info_1.json").write_text(json.dumps(GOOD))
    assert message(run) == [("2.7.1", "8.3.RC1")]


def test_special_files_and_folders_are_ignored_as_version_files(run):
    os.mkfifo(run / "profiler_info_a.json")
    (run / "profiler_info_b.json").mkdir()
    (run / "profiler_info_c.json").symlink_to(run / "nothing")
    (run / "profiler_info_d.json").symlink_to("/dev/zero")
    assert message(run) == []
    for path in run.iterdir():
        with pytest.raises(OSError):
            read_small_file(path)


@pytest.mark.parametrize("version", [7, ["2.7"], {"a": 1}, "\x1b]0;x\x07", "2" * 101, None, True])
def test_invalid_version_is_ignored(run, version):
    (run / "profiler_info.json").write_text(json.dumps(GOOD | {"cann_version": version}))
    assert message(run) == [("2.7.1", "")]
