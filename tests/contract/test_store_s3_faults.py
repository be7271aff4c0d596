"""Faults of networks and servers, and their effect on an S3 store."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import boto3
import pytest

from collector.codec.errors import (
    AlreadyExists,
    NoStore,
    NotFound,
    StoreError,
    StoreRefused,
    StoreUnavailable,
)
from collector.store import open_store
from collector.store.base import create_once
from collector.store.probe import probe_store
from collector.store.s3 import S3Store
from collector.store.waiting import SingleWriterStore
from tests.servers.faults import Answer, Close, Delay, LoseReply, Rule, Truncate
from tests.servers.versitygw import free_port

pytestmark = [pytest.mark.server, pytest.mark.slow]

CALLS = {
    "get": lambda store: store.get("k"),
    "put": lambda store: store.put("k", b"1"),
    "create": lambda store: store.create("k", b"1"),
    "list": lambda store: list(store.list("")),
    "copy": lambda store: store.copy("k", "l"),
    "delete": lambda store: store.delete("k"),
}


def answer(status, code):
    body = f"<Error><Code>{code}</Code><Message>said the proxy</Message></Error>"
    return Answer(status, body.encode())


@pytest.fixture(scope="module")
def shared_store(shared_proxy, real_server):
    with pytest.MonkeyPatch.context() as environment:
        real_server.enter(environment)
        return real_server.store(endpoint=shared_proxy.url, attempts=2, read_timeout_s=2.0)


@pytest.fixture
def store(s3, proxy, shared_store):
    """An empty store behind the proxy, which gives up after two attempts."""
    yield shared_store
    proxy.clear()
    for info in list(shared_store.list("")):
        shared_store.delete(info.key)


def seen(proxy, method):
    return [request for request in proxy.requests if request.method == method]


def test_without_rules_the_proxy_changes_nothing(store, proxy):
    store.create("a/é +", b"\x00" * 100_000)
    assert store.get("a/é +") == b"\x00" * 100_000
    assert [info.key for info in store.list("")] == ["a/é +"]
    store.delete("a/é +")
    with pytest.raises(NotFound):
        store.get("a/é +")
    assert all(request.fault is None for request in proxy.requests)


# Lost replies and conflicts


def test_create_with_a_lost_reply_is_refused_as_existing(store, proxy):
    proxy.add(Rule(LoseReply(), method="PUT", times=1))
    with pytest.raises(AlreadyExists):
        store.create("commits/1", b"nonce 1")
    assert store.get("commits/1") == b"nonce 1"
    assert len(seen(proxy, "PUT")) == 2


def test_create_once_recognises_its_own_object_after_a_lost_reply(store, proxy):
    proxy.add(Rule(LoseReply(), method="PUT", times=1))
    create_once(store, "commits/1", b"nonce 1")
    with pytest.raises(AlreadyExists):
        create_once(store, "commits/1", b"nonce 2")


def test_put_with_a_lost_reply_is_repeated(store, proxy):
    proxy.add(Rule(LoseReply(), method="PUT", times=1))
    store.put("k", b"data")
    assert store.get("k") == b"data"


def test_status_412_means_already_exists(store, proxy):
    proxy.add(Rule(answer(412, "PreconditionFailed"), method="PUT"))
    with pytest.raises(AlreadyExists, match="said the proxy"):
        store.create("k", b"1")
    assert len(seen(proxy, "PUT")) == 1


def test_status_409_is_retried(store, proxy):
    proxy.add(Rule(answer(409, "ConditionalRequestConflict"), method="PUT", times=1))
    store.create("k", b"1")
    assert store.get("k") == b"1"


def test_permanent_status_409_means_already_exists_for_create_only(store, proxy):
    proxy.add(Rule(answer(409, "ConcurrentModification"), method="PUT"))
    with pytest.raises(AlreadyExists, match="said the proxy"):
        store.create("k", b"1")
    with pytest.raises(StoreUnavailable):
        store.put("k", b"1")


# Refusals and credentials


@pytest.mark.parametrize("call", ["get", "create", "list"])
def test_status_403_is_a_refusal_after_one_retry(store, proxy, call):
    proxy.add(Rule(answer(403, "AccessDenied")))
    with pytest.raises(StoreRefused, match="AccessDenied"):
        CALLS[call](store)
    assert len(proxy.requests) == 2


@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidToken"])
def test_expired_token_with_status_400_is_a_refusal(store, proxy, code):
    proxy.add(Rule(answer(400, code), method="GET", times=1))
    with pytest.raises(NotFound):  # the second try reaches the server
        store.get("k")


@pytest.mark.parametrize("call", ["get", "create", "list"])
def test_unknown_access_key_of_versitygw_is_a_refusal(store, proxy, call):
    proxy.add(Rule(answer(404, "XAdminUserNotFound")))
    with pytest.raises(StoreRefused, match="XAdminUserNotFound"):
        CALLS[call](store)
    assert len(proxy.requests) == 2


def test_other_errors_with_status_400_are_neither_refusals_nor_retried(store, proxy):
    proxy.add(Rule(answer(400, "KeyTooLongError")))
    with pytest.raises(StoreError, match="KeyTooLong") as raised:
        store.put("k", b"1")
    assert type(raised.value) is StoreError
    assert len(proxy.requests) == 1


def write_credentials(path, access_key, secret_key):
    path.write_text(
        f"[default]\naws_access_key_id = {access_key}\naws_secret_access_key = {secret_key}\n"
    )


@pytest.fixture
def mounted(s3, tmp_path, monkeypatch):
    """Credentials in a mounted file, and none in the environment."""
    path = tmp_path / "credentials"
    good = s3.environment["AWS_ACCESS_KEY_ID"], s3.environment["AWS_SECRET_ACCESS_KEY"]
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    return path, good


def test_rotated_credentials_are_picked_up(s3, mounted):
    path, good = mounted
    write_credentials(path, good[0], "rotated-away")
    store = s3.store()
    with pytest.raises(StoreRefused):
        store.put("k", b"1")
    write_credentials(path, *good)
    store.put("k", b"2")
    assert store.get("k") == b"2"


def test_threads_refused_together_read_the_credentials_once(s3, mounted):
    path, good = mounted
    write_credentials(path, good[0], "rotated-away")
    store = s3.store()
    write_credentials(path, *good)
    start = threading.Barrier(8)

    def write(number):
        start.wait()
        store.put(f"t/{number}", b"1")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert len(list(store.list("t/"))) == 8


def test_missing_credentials_are_refused_with_a_hint(s3, mounted):
    with pytest.raises(StoreRefused, match="AWS_"):
        s3.store().get("k")


def test_secret_is_in_no_message_and_no_address(s3, mounted, caplog):
    path, good = mounted
    write_credentials(path, good[0], "hush-hush")
    store = s3.store()
    with caplog.at_level("DEBUG", logger="collector"), pytest.raises(StoreRefused) as raised:
        store.get("k")
    assert "hush-hush" not in f"{raised.value}{store.url}{caplog.text}{store!r}"
    assert "credentials" in caplog.text


def test_missing_bucket_is_refused_with_the_command_that_makes_it(s3):
    store = S3Store("no-such-bucket-here", "p", endpoint=s3.endpoint)
    for call in ("get", "create", "list"):
        with pytest.raises(
            NoStore, match=f"aws s3 mb s3://no-such-bucket-here --endpoint-url {s3.endpoint}"
        ):
            CALLS[call](store)


# Slow and failing servers


@pytest.mark.parametrize("fault", [answer(503, "SlowDown"), answer(500, "InternalError"), Close()])
def test_temporary_errors_are_retried(s3, proxy, fault):
    store = s3.store(endpoint=proxy.url, attempts=3)
    proxy.add(Rule(fault, method="PUT", times=2))
    store.put("k", b"1")
    assert store.get("k") == b"1"
    assert len(seen(proxy, "PUT")) == 3


@pytest.mark.parametrize(
    ("fault", "call"),
    [(Close(), call) for call in CALLS]
    + [(answer(503, "SlowDown"), call) for call in ("get", "put")],
)
def test_permanent_errors_make_the_store_unavailable(store, proxy, fault, call):
    proxy.add(Rule(fault))
    begun = time.monotonic()
    with pytest.raises(StoreUnavailable, match="s3://"):
        CALLS[call](store)
    assert time.monotonic() - begun < 15
    assert len(proxy.requests) == 2


def test_failure_of_every_third_request_is_compensated_by_retries(store, proxy):
    proxy.add(Rule(answer(503, "SlowDown"), every=3))
    for number in range(3):
        store.put(f"k{number}", b"%d" % number)
    assert [store.get(f"k{number}") for number in range(3)] == [b"0", b"1", b"2"]


def test_absent_server_is_unavailable(s3):
    port = free_port()
    store = s3.store(endpoint=f"http://127.0.0.1:{port}", attempts=2)
    with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{port}"):
        store.get("k")


def test_slow_response_is_waited_for(store, proxy):
    proxy.add(Rule(Delay(0.5), times=2))
    store.put("k", b"1")
    assert store.get("k") == b"1"


def test_too_slow_response_makes_the_store_unavailable(s3, proxy):
    store = s3.store(endpoint=proxy.url, attempts=2, read_timeout_s=0.3)
    proxy.add(Rule(Delay(1.0)))
    with pytest.raises(StoreUnavailable, match="(?i)timeout"):
        store.get("k")


@pytest.mark.parametrize("length_bytes", [0, 70_000])
def test_truncated_response_is_requested_again(store, proxy, length_bytes):
    data = bytes(range(250)) * 400
    store.put("k", data)
    proxy.add(Rule(Truncate(length_bytes), method="GET", times=1))
    assert store.get("k") == data
    assert len(seen(proxy, "GET")) == 2


def test_truncated_response_is_never_returned(store, proxy):
    store.put("k", b"x" * 100_000)
    proxy.add(Rule(Truncate(50_000), method="GET"))
    with pytest.raises(StoreUnavailable):
        store.get("k")
    assert len(seen(proxy, "GET")) == 2


def test_truncated_listing_is_never_returned(store, proxy):
    for number in range(5):
        store.put(f"k{number}", b"1")
    proxy.add(Rule(Truncate(700), method="GET"))
    with pytest.raises(StoreUnavailable):
        list(store.list(""))
    proxy.clear()
    assert len(list(store.list(""))) == 5


# Properties of the server


def test_server_without_conditional_writes_fails_the_probe(store, proxy):
    proxy.add(Rule(answer(501, "NotImplemented"), method="PUT", header="If-None-Match"))
    with pytest.raises(StoreError) as raised:
        store.create("k", b"1")
    assert type(raised.value) is StoreError
    result = probe_store(store, writers=2, least=1, most=1)
    assert not result.create_only
    assert "501" in result.message
    looking = SingleWriterStore(store)
    create_once(looking, "k", b"1")
    create_once(looking, "k", b"1")
    with pytest.raises(AlreadyExists):
        looking.create("k", b"2")
    assert store.get("k") == b"1"


def test_probe_tolerates_lost_replies(store, proxy):
    proxy.add(Rule(LoseReply(), method="PUT", times=1))
    assert probe_store(store, writers=4, least=2, most=2).create_only
    assert proxy.requests[0].fault == LoseReply()


def test_probe_reports_a_refused_request(store, proxy):
    proxy.add(Rule(answer(403, "AccessDenied")))
    with pytest.raises(StoreRefused):
        probe_store(store, writers=2, least=1, most=1)


LOGIN = b"<html><head><title>Log in</title></head><body>Welcome</body></html>"


@pytest.mark.parametrize("call", CALLS)
def test_malformed_response_is_an_error(store, proxy, call):
    store.put("k", b"1")
    for body in (LOGIN, b"not found, but with 200", b""):
        proxy.add(Rule(Answer(200, body)))
        with pytest.raises(StoreError) as refusal:
            CALLS[call](store)
        assert not isinstance(refusal.value, NotFound | AlreadyExists)
        proxy.clear()


def listing(*parts, truncated="false"):
    fields = f"<Name>b</Name><IsTruncated>{truncated}</IsTruncated>" + "".join(parts)
    return f"<?xml version='1.0'?><ListBucketResult>{fields}</ListBucketResult>".encode()


def test_malformed_listing_is_an_error(store, proxy):
    again = "<NextContinuationToken>x</NextContinuationToken>"
    entry = "<Contents><Key>{}</Key><Size>{}</Size></Contents>"
    for body in (
        listing(again, truncated="true"),  # the same token forever
        listing(truncated="true"),
        listing(entry.format("elsewhere", 1)),
        listing("<Contents><Size>1</Size></Contents>"),
        listing(entry.format("{prefix}k", "many")),
        listing("<Contents><Key>{prefix}k</Key></Contents>"),
    ):
        text = body.replace(b"{prefix}", store._prefix.encode())
        proxy.add(Rule(Answer(200, text)))
        with pytest.raises(StoreError):
            list(store.list(""))
        proxy.clear()


def test_folder_marker_of_a_browser_is_not_an_object(s3):
    store = s3.store()
    store.put("db/commits/1", b"1")
    prefix = store.url.split("?")[0].removeprefix(f"s3://{s3.bucket}/")
    client = boto3.client("s3", endpoint_url=s3.endpoint, region_name="us-east-1")
    client.put_object(Bucket=s3.bucket, Key=f"{prefix}/db/commits/")
    client.close()
    assert [info.key for info in store.list("db/")] == ["db/commits/1"]


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_endpoint_may_be_set_by_the_environment(s3, monkeypatch, variable):
    monkeypatch.setenv(variable, s3.endpoint)
    store = open_store(f"s3://{s3.bucket}/by-environment")
    store.put("k", b"1")
    assert store.get("k") == b"1"
    assert store.url == f"s3://{s3.bucket}/by-environment"
    store.delete("k")


def test_address_reopens_the_same_store(s3):
    store = s3.store(region="us-east-1")
    store.put("k", b"1")
    again = open_store(store.url)
    assert again.get("k") == b"1"
    assert again.url == store.url


def test_prefixes_of_one_bucket_are_separate_stores(s3):
    left, right = s3.store(), s3.store()
    left.put("k", b"left")
    assert list(right.list("")) == []
    with pytest.raises(NotFound):
        right.get("k")


def test_killed_and_restarted_server_has_kept_everything(gateway):
    store = S3Store("own", endpoint=gateway.endpoint, attempts=2)
    store.create("commits/1", b"1")
    gateway.kill()
    with pytest.raises(StoreUnavailable):
        store.get("commits/1")
    gateway.restart()
    assert store.get("commits/1") == b"1"
    with pytest.raises(AlreadyExists):
        store.create("commits/1", b"2")
