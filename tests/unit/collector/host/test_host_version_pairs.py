"""Versions are judged by the rows of the table that apply to them."""

import pytest

from collector.host.version_pairs import known_pairs, npu_versions, release

pytestmark = pytest.mark.fast

# Versions, options of a capture, and whether the first row that applies works; None without a row.
JUDGED = (
    ({"cann": "9.1.0", "driver": "25.2.2"}, ["analyse"], False),
    ({"cann": "9.1.0", "driver": "25.2.2"}, [], None),  # collected only
    ({"cann": "9.1.0", "driver": "26.1.1"}, ["analyse"], True),
    ({"cann": "9.1.0", "driver": "26.0.rc2"}, ["analyse"], None),
    ({"cann": "9.0.1", "torch_npu": "2.10.0.post2", "driver": "25.2.2"}, ["analyse"], True),
    ({"torch_npu": "2.10.0.post4"}, ["stack"], False),
    ({"torch_npu": "2.10.0.post4"}, ["shapes"], None),
    ({"torch_npu": "2.10.0.post6"}, ["stack"], True),
    ({"torch": "2.13.0", "torch_npu": "2.13.0", "cann": "8.5.0"}, ["level0"], False),
    ({"cann": "7.0.0"}, ["db"], False),
    ({"cann": "8.0.RC1"}, ["db"], None),
    ({"torch": "2.9.0+cpu", "torch_npu": "2.8.0"}, [], False),
    ({"torch": "2.9.0+cpu", "torch_npu": "2.9.0.post1"}, [], None),
    ({}, ["analyse"], None),
)


def test_versions_are_judged_by_the_rows_that_apply() -> None:
    for versions, options, works in JUDGED:
        found = known_pairs(versions, options)
        assert (found[0].works if found else None) is works, (versions, options, found)
        assert all(one.works or (one.effect and one.remedy) for one in found)


def test_the_version_of_the_driver_is_read_from_its_file(tmp_path) -> None:
    file = tmp_path / "version.info"
    assert "driver" not in npu_versions(file)
    file.write_text("Version=25.2.2\nascendhal_version=7.35.23\npackage_version=25.2.2\n")
    assert npu_versions(file)["driver"] == "25.2.2"


def test_a_version_is_its_leading_numbers() -> None:
    assert release("2.10.0.post4") == (2, 10, 0, 4)
    assert release("24.1.rc2") == (24, 1)
    assert release("unknown") == ()
