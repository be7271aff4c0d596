"""Files left by killed writers in a folder, and their removal without a clock."""

import errno
import fcntl
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from collector import environment
from collector.codec.canonical import sha256_hex
from collector.codec.errors import AlreadyExists, NotFound, StoreUnavailable
from collector.environment import Environment
from collector.store import atomic
from collector.store.file import FileStore
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast

LEFT = ".tmp-" + "0a" * 16


def refuses(source: object, target: object) -> None:
    """link(2) on a mount without hard links."""
    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), str(target))


class Unhurried(Environment):
    """Waits take no time."""

    def __init__(self) -> None:
        self.slept_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds


def held(path: Path) -> int:
    """Open a file like a live writer."""
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_listing_removes_files_left_by_killed_writers(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put("a/b/k", b"1")
    for folder in ("a", "a/b"):
        (tmp_path / folder / LEFT).write_bytes(b"half")
    assert [info.key for info in store.list("a/")] == ["a/b/k"]
    assert names(tmp_path / "a") == ["b"] and names(tmp_path / "a" / "b") == ["k"]


def test_file_of_a_live_writer_is_kept(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put("k", b"1")
    descriptor = held(tmp_path / LEFT)
    try:
        assert [info.key for info in store.list("")] == ["k"]
        assert names(tmp_path) == [LEFT, "k"]
    finally:
        os.close(descriptor)
    assert [info.key for info in store.list("")] == ["k"]
    assert names(tmp_path) == ["k"]


def test_only_temporary_files_of_a_store_are_removed(tmp_path: Path) -> None:
    FileStore(tmp_path).put("k", b"1")
    others = [".tmp", ".tmp-notes", ".tmp-0123", f"{LEFT}.csv", f".tmp-claim-{'0' * 32}"]
    for name in others:
        (tmp_path / name).write_bytes(b"mine")
    (tmp_path / "elsewhere").write_bytes(b"mine")
    link = ".tmp-" + "0b" * 16
    (tmp_path / link).symlink_to(tmp_path / "elsewhere")
    list(FileStore(tmp_path).list(""))
    assert names(tmp_path) == sorted([*others, link, "elsewhere", "k"])
    assert (tmp_path / "elsewhere").read_bytes() == b"mine"


@pytest.mark.parametrize("verb", ["put", "create"])
def test_writer_whose_file_was_removed_writes_it_again(
    tmp_path: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a mount with locks per machine."""
    taken = []

    def sync_and_lose(descriptor: int) -> None:
        if not taken:
            taken.extend(tmp_path.glob(".tmp-*"))
            taken[0].unlink()

    monkeypatch.setattr(os, "fsync", sync_and_lose)
    getattr(FileStore(tmp_path), verb)("k", b"whole")
    assert len(taken) == 1 and (tmp_path / "k").read_bytes() == b"whole"
    assert names(tmp_path) == ["k"]


def claim_of(path: Path) -> Path:
    return path.with_name(f".tmp-claim-{sha256_hex(path.name.encode())[:32]}")


@pytest.mark.parametrize("at", ["before", "after"])
def test_writer_killed_without_hard_links_leaves_no_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Killed before or after it renames, with its claim on the disk; the next writer continues."""

    class Killed(BaseException):
        pass

    rename = os.replace

    def killed(source: Path, target: Path) -> None:
        if at == "after":
            rename(source, target)
        raise Killed

    store = FileStore(tmp_path, link=refuses)
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", killed)
        patched.setattr(Path, "unlink", lambda path, missing_ok=False: None)
        with pytest.raises(Killed):
            store.create("c/plan.json", b"first")
    assert claim_of(tmp_path / "c/plan.json").exists()
    if at == "before":
        assert list(store.list("")) == []
        with pytest.raises(NotFound):
            store.get("c/plan.json")
        with environment.use_environment(Unhurried()):
            store.create("c/plan.json", b"second")
        assert store.get("c/plan.json") == b"second"
    else:
        with environment.use_environment(Unhurried()), pytest.raises(AlreadyExists):
            store.create("c/plan.json", b"second")
        assert store.get("c/plan.json") == b"first"
    assert [info.key for info in store.list("")] == ["c/plan.json"]


def test_claim_of_a_live_writer_is_respected(tmp_path: Path) -> None:
    descriptor, waited = held(claim_of(tmp_path / "k")), Unhurried()
    try:
        with (
            environment.use_environment(waited),
            pytest.raises(StoreUnavailable, match=r"\.tmp-claim-"),
        ):
            FileStore(tmp_path, link=refuses).create("k", b"1")
    finally:
        os.close(descriptor)
    assert waited.slept_s > 1
    assert names(tmp_path) == [claim_of(tmp_path / "k").name]


def test_new_claim_is_valid_without_locks_and_an_old_one_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refused)
    store = FileStore(tmp_path, link=refuses)
    store.create("k", b"1")
    with pytest.raises(AlreadyExists):
        store.create("k", b"2")
    claim_of(tmp_path / "other").touch()
    with (
        environment.use_environment(Unhurried()),
        pytest.raises(StoreUnavailable, match=naming(f"{claim_of(tmp_path / 'other')}:")),
    ):
        store.create("other", b"1")


def test_one_of_many_writers_without_links_wins_over_a_stale_claim(tmp_path: Path) -> None:
    store, start = FileStore(tmp_path, link=refuses), threading.Barrier(8)
    claim_of(tmp_path / "k").touch()

    def write(number: int) -> bool:
        start.wait()
        try:
            with environment.use_environment(Unhurried()):
                store.create("k", b"writer %d" % number)
        except (AlreadyExists, StoreUnavailable):
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(write, range(8)))
    assert won.count(True) == 1
    assert store.get("k") == b"writer %d" % won.index(True)
    assert names(tmp_path) == ["k"]


def test_copy_is_a_hard_link_unaffected_by_later_writes(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put("a/k", b"first")
    store.copy("a/k", "b/k")
    store.copy("a/k", "b/k")  # again: two names of one file
    assert (tmp_path / "a/k").stat().st_ino == (tmp_path / "b/k").stat().st_ino
    assert names(tmp_path / "b") == ["k"]
    store.put("a/k", b"second")
    assert store.get("b/k") == b"first"
    store.delete("b/k")
    assert store.get("a/k") == b"second"


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV])
def test_copy_without_hard_links_duplicates_the_file(tmp_path: Path, number: int) -> None:
    def refused(source: object, target: object) -> None:
        raise OSError(number, os.strerror(number), str(target))

    store = FileStore(tmp_path, link=refused)
    store.put("a/k", b"first")
    store.copy("a/k", "b/k")
    assert store.get("b/k") == b"first"
    assert names(tmp_path / "b") == ["k"]


def test_hard_link_left_by_a_killed_copy_is_removed(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put("k", b"1")
    os.link(tmp_path / "k", tmp_path / LEFT)
    list(store.list(""))
    assert names(tmp_path) == ["k"] and store.get("k") == b"1"


def test_folder_with_an_unreadable_temporary_file_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FileStore(tmp_path).put("k", b"1")
    (tmp_path / LEFT).write_bytes(b"half")
    opened: Callable[..., int] = os.open

    def refused(path: object, flags: int, *rest: int) -> int:
        if Path(str(path)).name == LEFT:
            raise PermissionError(errno.EACCES, "no", str(path))
        return opened(path, flags, *rest)

    monkeypatch.setattr(os, "open", refused)
    assert [info.key for info in FileStore(tmp_path).list("")] == ["k"]
    atomic.remove_abandoned(tmp_path / LEFT)
    assert names(tmp_path) == [LEFT, "k"]
