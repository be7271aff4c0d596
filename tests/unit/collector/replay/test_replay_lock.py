"""A device has one holder, whose name is reported to others and whose death releases it."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from collector.codec.errors import DeviceBusy, OpmeterError
from collector.replay.lock import DeviceLock, lock_directory
from tests.unit.collector.naming import names, naming


@pytest.mark.fast
def test_busy_device_is_reported_with_its_holder(tmp_path):
    with DeviceLock("cpu0", "campaign first", tmp_path):
        with pytest.raises(DeviceBusy) as refused, DeviceLock("cpu0", "second", tmp_path):
            pass
        assert names(str(refused.value), "cpu0", os.getpid(), "campaign first")
        with DeviceLock("cpu1", "another device", tmp_path):
            pass
    with DeviceLock("cpu0", "third", tmp_path):
        pass


def test_dead_holder_releases_the_device(tmp_path):
    code = (
        "import os, sys; from pathlib import Path\n"
        "from collector.replay.lock import DeviceLock\n"
        "DeviceLock('cpu0', 'campaign dead', Path(sys.argv[1])).__enter__()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    with DeviceLock("cpu0", "next", tmp_path):
        assert "next" in (tmp_path / "cpu0.lock").read_text()


@pytest.mark.fast
def test_all_users_share_one_lock_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("OPMETER_LOCKS", raising=False)
    for variable in ("XDG_RUNTIME_DIR", "TMPDIR", "HOME"):
        monkeypatch.setenv(variable, str(tmp_path))
    assert lock_directory() == Path("/tmp/opmeter-locks")
    monkeypatch.setenv("OPMETER_LOCKS", str(tmp_path / "locks"))
    with DeviceLock("cpu0", "campaign"):
        pass
    assert stat.S_IMODE((tmp_path / "locks").stat().st_mode) == 0o1777
    assert stat.S_IMODE((tmp_path / "locks" / "cpu0.lock").stat().st_mode) == 0o666


@pytest.mark.fast
def test_unwritable_lock_folder_is_reported_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(
            OpmeterError, match=naming("cpu0", tmp_path / "file" / "locks", "OPMETER_LOCKS")
        ),
        DeviceLock("cpu0", "campaign", tmp_path / "file" / "locks"),
    ):
        pass


@pytest.mark.fast
def test_symlink_in_place_of_a_lock_is_not_followed(tmp_path):
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "cpu0.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(OpmeterError), DeviceLock("cpu0", "campaign", tmp_path):
        pass
    assert (tmp_path / "precious").read_text() == "kept"


@pytest.mark.fast
def test_pipe_or_hard_link_in_place_of_a_lock_is_refused(tmp_path):
    (tmp_path / "precious").write_text("kept")
    os.link(tmp_path / "precious", tmp_path / "cpu0.lock")
    os.mkfifo(tmp_path / "cpu1.lock")
    for device in ("cpu0", "cpu1"):
        with (
            pytest.raises(
                OpmeterError, match=naming(device, tmp_path / f"{device}.lock", "OPMETER_LOCKS")
            ),
            DeviceLock(device, "campaign", tmp_path),
        ):
            pass
    assert (tmp_path / "precious").read_text() == "kept"


@pytest.mark.fast
def test_lock_folder_that_is_a_symlink_or_world_writable_is_refused(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    (tmp_path / "free").mkdir()
    (tmp_path / "free").chmod(0o777)
    for name in ("link", "free"):
        with (
            pytest.raises(OpmeterError, match=naming("cpu0", tmp_path / name, "OPMETER_LOCKS")),
            DeviceLock("cpu0", "campaign", tmp_path / name),
        ):
            pass
    assert not list((tmp_path / "mine").iterdir()) and not list((tmp_path / "free").iterdir())


def test_lock_folder_of_another_user_is_refused_unchanged(tmp_path):
    if os.getuid() != 0:
        pytest.skip("only root may give a folder to another user: run as root")
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o755)
    os.chown(folder, 12345, 12345)
    with pytest.raises(OpmeterError), DeviceLock("cpu0", "campaign", folder):
        pass
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755 and not list(folder.iterdir())


@pytest.mark.fast
@pytest.mark.parametrize(
    ("note", "named"),
    [
        (b'{"pid": 7, "command": "\\u001b]0;x\\u0007", "purpose": "p"}', (7, "p", r"\x1b]0;x\x07")),
        (b"[" * 9000, ()),
        (b'{"pid": "\x1b", "command": 1}', ()),
        (b"\xff\x1b[2J" * 100, ()),
    ],
)
def test_control_characters_in_a_lock_note_are_escaped(tmp_path, note, named):
    with DeviceLock("cpu0", "campaign", tmp_path):
        (tmp_path / "cpu0.lock").write_bytes(note)
        with pytest.raises(DeviceBusy) as refused, DeviceLock("cpu0", "second", tmp_path):
            pass
    assert names(str(refused.value), "cpu0", *named) and str(refused.value).isprintable()
    assert (r"\x1b" in str(refused.value)) == bool(named)


@pytest.mark.fast
def test_long_command_leaves_a_readable_note(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["opmeter", "\u7b97" * 5000])
    second = DeviceLock("cpu0", "second", tmp_path)
    refused = pytest.raises(DeviceBusy, match=naming(os.getpid()))
    with DeviceLock("cpu0", "\u5b50" * 5000, tmp_path), refused, second:
        pass
