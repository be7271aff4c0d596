"""The private operator library of a session whose kernels are built for their shapes."""

import os
import platform
from pathlib import Path

import pytest

from collector.codec.errors import HostFault
from collector.host import operator_library
from collector.host.operator_library import (
    OPP,
    PRIVATE,
    has_static_kernels,
    make_private_library,
    remove_private_library,
    static_kernel_bytes,
    static_kernel_problem,
)
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast

TILING = Path("built-in/op_impl/ai_core/tbe/op_tiling/lib/linux", platform.machine())


@pytest.fixture
def cann(tmp_path: Path) -> dict[str, str]:
    """CANN's folders as its installer lays them out, with a kernel that another process built."""
    home = tmp_path / "Ascend" / "8.5.0"
    for folder in (TILING, "vendors/own", "static_kernel/ai_core/static_kernel_1_1"):
        (home / "opp" / folder).mkdir(parents=True)
    (home / "opp" / "static_kernel/ai_core/static_kernel_1_1/uninstall.sh").write_text("")
    (home / "opp" / TILING / "libopmaster_rt2.0.so").write_bytes(b"tiling")
    (home / "opp" / TILING.parent / "notes.txt").write_text("notes")
    (home / "opp" / "version.info").write_text("Version=8.5.0\n")
    (home / "bin").mkdir()
    (home / "bin" / "op_compiler").write_text("#!/bin/sh\n")
    (home / "bin" / "op_compiler").chmod(0o755)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "session").mkdir()
    return {
        "ASCEND_HOME_PATH": str(home),
        OPP: str(home / "opp"),
        "PATH": str(home / "bin"),
        "TMPDIR": str(tmp_path / "tmp"),
    }


def made(cann: dict[str, str], tmp_path: Path) -> Path:
    found = make_private_library(tmp_path / "session", cann)
    assert list(found) == [OPP]
    return Path(found[OPP])


def test_library_links_everything_but_static_kernels_and_tiling(cann, tmp_path):
    own, theirs = made(cann, tmp_path), Path(cann[OPP])
    assert (own / "version.info").read_text() == "Version=8.5.0\n"
    assert {path.name for path in own.iterdir()} == {path.name for path in theirs.iterdir()}
    assert not any((own / "static_kernel").iterdir())
    # as the tree that was used on a device: the folders of the tiling libraries are no links
    chain = (TILING, *TILING.parents[:-1])
    assert not any((own / part).is_symlink() for part in (*chain, "static_kernel"))
    assert (own / TILING / "libopmaster_rt2.0.so").read_bytes() == b"tiling"
    copied = [path for path in own.rglob("*") if path.is_file() and not path.is_symlink()]
    assert [path.name for path in copied] == ["libopmaster_rt2.0.so"]
    assert static_kernel_bytes(cann) == len(b"tiling")
    assert (own.parent / "bin" / "op_compiler").exists()  # found from the library's parent


def test_a_package_is_installed_and_removed_without_a_trace_in_cann(cann, tmp_path):
    own, theirs = made(cann, tmp_path), Path(cann[OPP])
    before = sorted(theirs.rglob("*"))
    assert not has_static_kernels({**cann, OPP: str(own)})
    package = own / "static_kernel" / "ai_core" / "static_kernel_2_2"
    package.mkdir(parents=True)
    (package / "uninstall.sh").write_text("")
    assert has_static_kernels({**cann, OPP: str(own)})
    remove_private_library(tmp_path / "session")
    assert not (tmp_path / "session" / PRIVATE).exists()
    assert sorted(theirs.rglob("*")) == before


def test_what_a_session_requires_is_named(cann, tmp_path, monkeypatch):
    assert static_kernel_problem(cann) == ""
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "tmp")
    for change, words in (
        ({"ASCEND_HOME_PATH": ""}, "set_env.sh"),
        ({OPP: str(tmp_path)}, f"{tmp_path}: expected a folder with built-in"),
        ({"PATH": str(tmp_path)}, "op_compiler: expected on PATH"),
        ({"TMPDIR": str(tmp_path / "absent")}, "expected a folder that exists"),
        ({"TMPDIR": str(link)}, f"{link} is one"),
    ):
        assert words in static_kernel_problem({**cann, **change})
    monkeypatch.setattr(operator_library, "_MOST_COPIED", 5)
    assert "which each session copies" in static_kernel_problem(cann)
    (Path(cann["ASCEND_HOME_PATH"]) / "opp_latest").mkdir()
    assert "opp_latest: expected none" in static_kernel_problem(cann)


def test_build_folder_requires_permissions(cann, tmp_path, monkeypatch):
    allowed, folder = os.access, tmp_path / "tmp"  # root has all of them
    monkeypatch.setattr("os.access", lambda path, *mode: path != folder and allowed(path, *mode))
    assert f"{folder}, in which kernels are built" in static_kernel_problem(cann)


def test_library_that_cannot_be_copied_leaves_nothing(cann, tmp_path, monkeypatch):
    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    with pytest.raises(HostFault, match=naming("No space left on device", cann[OPP])):
        make_private_library(tmp_path / "session", cann)
    assert not (tmp_path / "session" / PRIVATE).exists()
