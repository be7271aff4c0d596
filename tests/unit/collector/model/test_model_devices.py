"""A device is a folder next to a snapshot's own files: its name is never one of theirs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.codec.errors import BadInput
from collector.model import keys
from collector.model.stack import BACKENDS, Stack, backend_of
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast

REAL = [
    *("ATLAS_800_A3_752T_128G_DIE", "CUDA_NVIDIA_A100-SXM4-80GB", "CPU_Xeon_Platinum_2.5GHz_8t"),
    "EVENTS_cuda_NVIDIA_A100-SXM4-80GB",
]


@pytest.mark.parametrize("name", REAL)
def test_device_names_are_accepted(name):
    assert Stack(name, "2.9.0").version_path.startswith(f"{name}/vllm_ascend/")


def test_backend_follows_from_the_device_name():
    assert tuple(map(backend_of, REAL)) == BACKENDS
    assert backend_of("CPUX") == "npu"  # a board's name is chosen by its maker


@pytest.mark.parametrize(
    "name",
    [
        *("manifest.json", "MANIFEST.JSON", "cases.parquet", "profiles.parquet", "Add.csv"),
        *("op_mapping.yaml", "a..b", "a..", "a.", ".", "..", ".hidden", "a/b", "a\\b", "a\n", ""),
    ],
)
def test_device_names_that_are_files_or_paths_are_refused(name):
    with pytest.raises(BadInput, match=naming("device", repr(name))):
        Stack(name, "2.9.0")


@pytest.mark.thorough
@given(st.from_regex(r"[A-Za-z0-9_.-]{1,20}(\.json|\.parquet)?", fullmatch=True))
def test_version_path_is_never_below_a_file_of_its_snapshot(name):
    try:
        path = keys.snapshot("1-a") + Stack(name, "2.9.0").version_path
    except BadInput:
        return
    own = (keys.snapshot_manifest("1-a"), *(keys.snapshot("1-a") + t for t in OWN))
    assert not any(path.startswith(f"{key}/") for key in own)


OWN = ("cases.parquet", "profiles.parquet", "intervals.parquet")
