"""A folder as a store: its files, and the errors of a disk."""

import errno
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.codec.errors import (
    AlreadyExists,
    DamagedObject,
    StoreError,
    StoreRefused,
    StoreUnavailable,
)
from collector.store.file import FileStore
from collector.store.in_memory import MemoryStore
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast

PARTS = st.sampled_from(["a", "b", "a-b", "a.b", "a0", "é", "算", "A", "a b", "%2F", ".x"])
KEYS = st.lists(PARTS, min_size=1, max_size=3).map("/".join)


class Fails:
    """A link(2) that returns an error number."""

    def __init__(self, number):
        self.number = number

    def __call__(self, source, target):
        raise OSError(self.number, os.strerror(self.number), str(target))


def files(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def test_objects_are_plain_files(tmp_path):
    store = FileStore(tmp_path)
    store.put("device/v1/Add.csv", b"OP State\n")
    store.create("db/commits/1.json", b"{}")
    assert (tmp_path / "device/v1/Add.csv").read_bytes() == b"OP State\n"
    assert files(tmp_path) == [
        "db",
        "db/commits",
        "db/commits/1.json",
        "device",
        "device/v1",
        "device/v1/Add.csv",
    ]


def test_a_pipe_or_a_device_under_a_key_is_damage_that_no_reader_waits_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    for key in ("pipe", "link"):
        with pytest.raises(DamagedObject) as error:
            FileStore(tmp_path).get(key)
        assert error.value.path == tmp_path / key


def test_objects_have_the_permissions_of_ordinary_files(tmp_path):
    (tmp_path / "ordinary").write_bytes(b"")
    store = FileStore(tmp_path)
    store.put("put", b"")
    store.create("create", b"")
    modes = {
        stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("ordinary", "put", "create")
    }
    assert len(modes) == 1


def test_file_left_by_a_killed_writer_is_not_an_object(tmp_path):
    store = FileStore(tmp_path)
    store.put("a/b", b"1")
    (tmp_path / "a" / ".tmp-0123").write_bytes(b"half")
    assert [info.key for info in store.list("")] == ["a/b"]
    with pytest.raises(StoreError, match=naming("'a/.tmp-0123'", "'.tmp'")):
        store.get("a/.tmp-0123")


def test_symlink_to_another_folder_is_not_listed(tmp_path):
    store = FileStore(tmp_path / "store")
    store.put("a", b"1")
    (tmp_path / "secret").write_bytes(b"s")
    (tmp_path / "store" / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "store" / "folder").symlink_to(tmp_path)
    assert [info.key for info in store.list("")] == ["a"]


def test_store_folder_is_made_by_the_first_write(tmp_path):
    store = FileStore(tmp_path / "deep" / "store")
    assert list(store.list("")) == []
    assert list(store.list("a/b")) == []
    store.delete("a")
    assert files(tmp_path) == []


def test_failed_write_leaves_no_files(tmp_path):
    store = FileStore(tmp_path, link=Fails(errno.ENOSPC))
    with pytest.raises(StoreRefused):
        store.create("k", b"1")
    FileStore(tmp_path).create("j", b"1")
    with pytest.raises(AlreadyExists):
        FileStore(tmp_path).create("j", b"2")
    assert files(tmp_path) == ["j"]


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_create_works_without_hard_links(tmp_path, number):
    store = FileStore(tmp_path, link=Fails(number))
    store.create("a/k", b"1")
    with pytest.raises(AlreadyExists):
        store.create("a/k", b"2")
    with pytest.raises(StoreError, match=naming(f"{tmp_path / 'a'}:")) as raised:
        store.create("a", b"2")
    assert type(raised.value) is StoreError  # AlreadyExists is another error
    assert store.get("a/k") == b"1"
    assert files(tmp_path) == ["a", "a/k"]


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, StoreRefused),
        (errno.EIO, StoreUnavailable),
        (errno.ESTALE, StoreUnavailable),
        (errno.EDQUOT, StoreRefused),
        (errno.ENOTCONN, StoreUnavailable),
        (errno.EROFS, StoreRefused),
        (errno.EACCES, StoreRefused),
        (errno.EINVAL, StoreError),
    ],
)
def test_disk_errors_are_mapped_to_store_errors(tmp_path, number, kind):
    with pytest.raises(StoreError, match=str(tmp_path)) as raised:
        FileStore(tmp_path, link=Fails(number)).create("k", b"1")
    assert type(raised.value) is kind
    assert isinstance(raised.value.__cause__, OSError)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere: run as another user")
def test_unwritable_folder_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StoreRefused):
            FileStore(tmp_path).put("k", b"1")
    finally:
        tmp_path.chmod(0o700)


def test_too_long_key_component_is_reported(tmp_path):
    store = FileStore(tmp_path)
    for key, call in (
        ("x" * 256, lambda key: store.put(key, b"1")),
        ("x" * 300, store.get),
    ):
        with pytest.raises(StoreError, match=naming(f"{tmp_path / key}:", "too long")):
            call(key)


def test_two_stores_of_one_folder_see_the_same_objects(tmp_path):
    FileStore(tmp_path).create("k", b"1")
    assert FileStore(str(tmp_path)).get("k") == b"1"


@pytest.mark.thorough
@settings(max_examples=60)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), KEYS, st.binary(max_size=8)),
            st.tuples(st.just("create"), KEYS, st.binary(max_size=8)),
            st.tuples(st.just("copy"), KEYS, KEYS),
            st.tuples(st.just("delete"), KEYS),
            st.tuples(st.just("get"), KEYS),
        ),
        max_size=12,
    )
)
def test_folder_store_behaves_like_the_memory_store(tmp_path_factory, calls):
    folder, memory = FileStore(tmp_path_factory.mktemp("store")), MemoryStore()

    def outcome(store, name, arguments):
        try:
            return getattr(store, name)(*arguments)
        except StoreError as error:
            return type(error)

    for name, *arguments in calls:
        assert outcome(folder, name, arguments) == outcome(memory, name, arguments)
        for prefix in ("", "a", "a/", "a/b"):
            assert list(folder.list(prefix)) == list(memory.list(prefix))


def test_folder_that_cannot_be_made_is_refused_with_its_cause(tmp_path):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "absent" / "folder")
    for root, cause in ((link, "leads nowhere"), (Path("/proc/x"), "/proc has no folders")):
        with pytest.raises(StoreRefused, match=cause):
            FileStore(root).put("a/b", b"1")
