"""Create-only writes with a header other than If-None-Match: Aliyun OSS, and by its example COS.

The server of this test behaves as OSS documents it; no such store is available. It shows which
requests are sent, and that exactly one writer wins each race of the probe."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from collector.codec.errors import AlreadyExists
from collector.store.opening import open_store
from collector.store.probe import probe_store
from collector.store.s3 import FORBIDDING, S3Store

pytestmark = pytest.mark.server


class StopHere(Exception):
    """Raised instead of sending a request."""


class ForbiddingServer(ThreadingHTTPServer):
    """Objects in memory. A write with If-None-Match is refused, as is one with `header` where the
    object exists, unless the server ignores it."""

    daemon_threads = True

    def __init__(self, header, *, ignores=False):
        self.header, self.ignores = header, ignores
        self.objects, self.lock = {}, threading.Lock()
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format, *args):
        pass

    def do_PUT(self):
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["If-None-Match"]:
            return self.reply(501, error("NotImplemented"))
        forbids = self.headers[self.server.header] == "true" and not self.server.ignores
        if forbids:
            assert self.server.header in self.headers["Authorization"]  # signed
        with self.server.lock:
            if forbids and self.path in self.server.objects:
                return self.reply(409, error("FileAlreadyExists"))
            self.server.objects[self.path] = data
        return self.reply(200, b"")

    def do_GET(self):
        data = self.server.objects.get(self.path)
        return self.reply(404, error("NoSuchKey")) if data is None else self.reply(200, data)

    def do_DELETE(self):
        self.server.objects.pop(self.path, None)
        return self.reply(204, b"")

    def reply(self, status, body):
        self.send_response(status)
        self.send_header("ETag", '"made"')
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def error(code):
    return f"<Error><Code>{code}</Code><Message>as documented</Message></Error>".encode()


@contextmanager
def serving(server):
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def credentials(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


def test_a_store_with_its_own_header_passes_the_probe():
    for kind, header in FORBIDDING.items():
        with serving(ForbiddingServer(header)) as endpoint:
            store = open_store(f"s3://bucket/prefix?endpoint={endpoint}&create_only={kind}")
            store.create("once", b"first")
            with pytest.raises(AlreadyExists):
                store.create("once", b"second")
            store.put("once", b"third")  # a plain write replaces
            assert store.get("once") == b"third"
            assert probe_store(store, writers=8).create_only
            assert open_store(store.url).url == store.url


def test_a_store_that_ignores_its_header_or_needs_another_fails_the_probe():
    with serving(ForbiddingServer(FORBIDDING["oss"], ignores=True)) as endpoint:
        store = open_store(f"s3://bucket?endpoint={endpoint}&create_only=oss")
        assert not probe_store(store, writers=4).create_only
    with serving(ForbiddingServer(FORBIDDING["oss"])) as endpoint:
        probed = probe_store(open_store(f"s3://bucket?endpoint={endpoint}"), writers=4)
        assert not probed.create_only and "501 NotImplemented" in probed.message


def test_the_header_follows_from_the_host_name():
    """The requests of a client are inspected before they are sent."""
    for host, header in (
        ("oss-cn-hangzhou.aliyuncs.com", FORBIDDING["oss"]),
        ("cos.ap-beijing.myqcloud.com", FORBIDDING["cos"]),
        ("obs.cn-north-4.myhuaweicloud.com", "If-None-Match"),
    ):
        sent = []

        def inspect(request, *, into=sent, **_):
            into.append(request)
            raise StopHere

        store = S3Store("bucket", endpoint=f"https://{host}", attempts=1)
        store._client.meta.events.register("before-send.s3", inspect)
        with pytest.raises(StopHere):
            store.create("key", b"data")
        assert header in sent[0].headers
        is_virtual = header != "If-None-Match"
        assert sent[0].url == (
            f"https://bucket.{host}/key" if is_virtual else f"https://{host}/bucket/key"
        )
