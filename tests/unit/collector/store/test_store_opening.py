"""From an address to a store, and invalid addresses."""

import subprocess
import sys
from pathlib import Path

import pytest
from botocore.loaders import JSONFileLoader

import collector
from collector.codec.errors import BadInput, StoreRefused
from collector.store import open_store
from collector.store.file import FileStore
from collector.store.in_memory import MemoryStore
from collector.store.opening import address_of
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast


@pytest.fixture
def keys_set(monkeypatch):
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush-hush")


def test_memory_store_is_opened():
    store = open_store("memory:")
    assert isinstance(store, MemoryStore)
    assert store.url == "memory:"


@pytest.mark.parametrize("form", ["{path}", "file://{path}", "file:{path}", "{path}/"])
def test_folder_store_is_opened(tmp_path, form):
    store = open_store(form.format(path=tmp_path / "new"))
    assert isinstance(store, FileStore)
    assert store.url == f"file://{tmp_path}/new"
    assert not (tmp_path / "new").exists()
    store.put("a/b", b"1")
    assert (tmp_path / "new" / "a" / "b").read_bytes() == b"1"


def test_relative_folder_is_opened_by_its_absolute_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = open_store("opmeter-data")
    monkeypatch.chdir("/")
    store.put("k", b"1")
    assert (tmp_path / "opmeter-data" / "k").read_bytes() == b"1"
    assert open_store("./with:colon").url == "file:///with%3Acolon"


@pytest.mark.parametrize("name", ["with space", "per%20cent", "ü", "what?#", "a+b"])
def test_folder_of_any_name_is_reopened_by_its_url(tmp_path, name):
    store = open_store(str(tmp_path / name))
    store.put("k", b"1")
    assert (tmp_path / name / "k").exists()
    assert open_store(store.url).get("k") == b"1"


def test_tilde_is_expanded_to_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_store("~/data").url == f"file://{tmp_path}/data"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("s3://bucket/a%20b", "s3://bucket/a%20b"),
        ("S3://bucket/p?region=cn-north-4", "s3://bucket/p?region=cn-north-4"),
        (
            "s3://bucket/p?endpoint=http://10.0.0.1:9000",
            "s3://bucket/p?endpoint=http%3A%2F%2F10.0.0.1%3A9000",
        ),
    ],
)
def test_s3_store_is_opened(url, shown, keys_set):
    store = open_store(url)
    assert store.url == shown
    assert open_store(shown).url == shown
    assert "hush" not in store.url


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("", ("empty",)),
        ("gs://bucket/x", ("./name",)),
        ("memory:x", ("./name",)),
        ("C:data", ("./name",)),
        ("file://relative/path", ("file:///folder", "absolute")),
        ("file:relative", ("file:///folder", "absolute")),
        ("file:///a?b=c", ("file:///folder", "absolute")),
        ("s3:", ("bucket", "s3://bucket/prefix")),
        ("s3:///prefix", ("bucket", "s3://bucket/prefix")),
        ("s3://bucket:9000/x", ("bucket", "s3://bucket/prefix")),
        ("s3://b/x", ("bucket", 1, 3)),
        ("s3://bucket/x#y", ("bucket", "s3://bucket/prefix")),
        ("s3://bucket/a//b", ("'bucket'", "prefix", "'a//b'")),
        ("s3://bucket/../b", ("'bucket'", "prefix", "'../b'")),
        ("s3://bucket/a/%2e%2e/b", ("'bucket'", "prefix", "'a/../b'")),
        ("s3://bucket/p?endpont=http://x", ("s3://", "endpoint", "region")),
        ("s3://bucket/p?endpoint=", ("endpoint", "region")),
        ("s3://bucket/p?region=a&region=b", ("endpoint", "region")),
        ("s3://bucket/p?endpoint=10.0.0.1:9000", ("endpoint:", "http://host:port")),
        ("s3://bucket/p?endpoint=ftp://host", ("endpoint:", "http://host:port")),
        ("s3://[bucket/p", ("s3://bucket/prefix",)),
    ],
)
def test_invalid_store_address_is_refused(url, named):
    with pytest.raises(BadInput, match=naming("store:", *named)):
        open_store(url)


@pytest.mark.parametrize(
    "url",
    [
        "s3://key:hush-hush@bucket/prefix",
        "s3://bucket/prefix?endpoint=http://key:hush-hush@host:9000",
        "s3://bucket/prefix?secret_key=hush-hush",
        "s3://bucket/prefix?aws_secret_access_key=hush-hush&endpoint=http://host",
        "gs://key:hush-hush@bucket",
        "s3:key:hush-hush@bucket",
        "s3:/key:hush-hush@bucket",
        "s3:\\\\key:hush-hush@bucket",
        "key:hush-hush@bucket/prefix",
        "//key:hush-hush@bucket",
        "s3://key%3Ahush-hush%40bucket",
        "s3://key:hush-hush/bucket",
        "s3://bucket/prefix?hush-hush",
        "s3://bucket/prefix#hush-hush",
        "s3://bucket/p?endpoint=http://host/?token=hush-hush",
        "s3://bucket/p?endpoint=http://host/hush-hush",
        "s3://[hush-hush@bucket",
        "http://hush-hush/bucket",
    ],
)
def test_credentials_in_an_address_are_refused_and_not_repeated(url):
    with pytest.raises(BadInput) as raised:
        open_store(url)
    assert "hush" not in str(raised.value)


def test_credentials_in_the_endpoint_of_the_environment_are_refused_and_not_repeated(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://key:hush-hush@127.0.0.1:1")
    with pytest.raises(StoreRefused) as raised:
        open_store("s3://bucket/prefix").get("key")
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize("name", ["runs@home", "./a:b@c", "/data/a:b@c"])
def test_folder_may_have_any_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert open_store(name).url.startswith("file://")


def test_file_is_refused_as_a_store_folder(tmp_path):
    (tmp_path / "file.csv").write_text("a")
    for path in (tmp_path / "file.csv", tmp_path / "file.csv" / "below"):
        with pytest.raises(BadInput, match=naming(repr(str(tmp_path / "file.csv")))):
            open_store(str(path))


def test_the_description_of_s3_is_parsed_once_for_all_stores(monkeypatch):
    open_store("s3://bkt")
    parsed = []
    read = JSONFileLoader.load_file
    monkeypatch.setattr(
        JSONFileLoader, "load_file", lambda self, path: parsed.append(path) or read(self, path)
    )
    open_store("s3://other/p?endpoint=http://h:1")
    assert parsed == []


def test_opening_a_folder_does_not_import_boto3():
    script = (
        "import sys; from collector.store import open_store; open_store('/tmp/x');"
        "import collector.store.probe; sys.exit('boto3' in sys.modules)"
    )
    root = Path(collector.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("s3://bkt", "s3://bkt/db/x%23y"),
        ("s3://bkt/p", "s3://bkt/p/db/x%23y"),
        (
            "s3://bkt/p?endpoint=http%3A%2F%2Fh%3A1",
            "s3://bkt/p/db/x%23y?endpoint=http%3A%2F%2Fh%3A1",
        ),
        ("s3://bkt?region=eu", "s3://bkt/db/x%23y?region=eu"),
    ],
)
def test_address_of_a_key_in_a_bucket_opens_a_store_there(keys_set, url, address):
    assert address_of(url, "db/x#y") == address
    assert open_store(address).url == address


def test_address_of_a_key_in_a_folder_is_a_path(tmp_path):
    store = open_store(str(tmp_path / "a folder"))
    store.put("db/x#y", b"1")
    assert Path(address_of(store.url, "db/x#y")).read_bytes() == b"1"
    assert address_of(store.url, "db") == f"{tmp_path}/a folder/db"
