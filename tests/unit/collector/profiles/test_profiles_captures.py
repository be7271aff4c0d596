"""Captures without kernels are reported with a hint; they never count as read."""

import zipfile

import pytest

from collector.codec.errors import BadInput
from collector.profiles.kernel_details import read_profile
from collector.profiles.transfers import find_transfers
from tests.fixtures.profiles.variants import ProfileRow, profile_bytes

pytestmark = pytest.mark.fast

TABLE = profile_bytes("K5", [ProfileRow()])
# The files of a capture by its processing state (torch_npu 2.7, msprof of CANN 8.3).
RAW = {
    "host_1_20260801_ascend_pt": ("FRAMEWORK/torch.op_mark", "PROF_000001_2026_A/host/start_info"),
    "host_2_20260801_ascend_pt": ("profiler_info_0.json",),
    "PROF_000002_2026_B": ("device_0/data/aicore.data.0.slice_0", "host/start_info"),
}
WITHOUT_KERNELS = {"host_3_20260801_ascend_pt": ("ASCEND_PROFILER_OUTPUT/trace_view.json",)}
ANALYSED = {
    "host_4_20260801_ascend_pt": (
        *("FRAMEWORK/torch.op_mark", "PROF_000003_2026_C/device_0/data/x.slice_0"),
        "ASCEND_PROFILER_OUTPUT/kernel_details.csv",
    ),
    "PROF_000004_2026_D": (
        *("device_0/data/x.slice_0", "mindstudio_profiler_output/op_summary_1.csv"),
    ),
    "PROF_000005_2026_E": ("device_0/summary/op_summary_0_1.csv", "host/start_info"),
}


def files(*groups):
    for group in groups:
        for folder, members in group.items():
            for member in members:
                yield f"{folder}/{member}", TABLE if member.endswith(".csv") else b"x"


def written(folder, *groups):
    for name, data in files(*groups):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def zipped(path, *groups):
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files(*groups):
            archive.writestr(name, data)
    return path


def left_out(path):
    return {one.folder: one.is_raw for one in read_profile([path]).report.unanalysed}


def test_each_capture_without_kernels_is_reported(tmp_path):
    expected = dict.fromkeys(RAW, True) | dict.fromkeys(WITHOUT_KERNELS, False)
    groups = (RAW, WITHOUT_KERNELS, ANALYSED)
    for root in (written(tmp_path / "p", *groups), zipped(tmp_path / "p.zip", *groups)):
        assert left_out(root) == {root / name: raw for name, raw in expected.items()}
    assert left_out(written(tmp_path / "good", ANALYSED)) == {}


def test_captures_next_to_an_archive_are_reported(tmp_path):
    zipped(written(tmp_path, RAW) / "rank4.zip", ANALYSED)
    assert left_out(tmp_path) == {tmp_path / name: True for name in RAW}


def test_captures_without_any_kernels_are_an_error(tmp_path):
    for root in (written(tmp_path / "p", RAW), zipped(tmp_path / "p.zip", RAW)):
        with pytest.raises(BadInput) as refused:
            read_profile([root])
        assert refused.value.path == root
        assert all(name in str(refused.value) for name in RAW)


def test_captures_without_collectives_are_reported(tmp_path, caplog):
    written(tmp_path, RAW)
    with pytest.raises(BadInput) as refused:
        find_transfers(tmp_path)
    assert all(name in str(refused.value) for name in RAW)
    folder = tmp_path / "host_4_20260801_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    written(tmp_path, ANALYSED)
    (folder / "communication.json").write_bytes(b"{}")
    (tmp_path / "linked").symlink_to(folder.parent)
    assert find_transfers(tmp_path) == (folder,)
    assert all(name in caplog.text for name in RAW)
    assert not any(name in caplog.text for name in ANALYSED)
