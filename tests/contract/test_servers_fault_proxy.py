"""The proxy of the tests loses the replies that a rule names; its other tests are in
tests/attack/long."""

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.servers.faults import Close, FaultProxy, LoseReply, Rule

pytestmark = pytest.mark.server


class Upstream(ThreadingHTTPServer):
    """Records its requests; `/watch` is sent in chunks, the second only on request."""

    def __init__(self):
        self.got, self.go_on = [], threading.Event()
        super().__init__(("127.0.0.1", 0), Echo)


class Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format, *args):
        pass

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.got.append((self.command, self.path, body, self.headers["X-Test"]))
        if self.path == "/watch":
            return self.watch()
        reply = b"" if self.command == "HEAD" else self.command.encode() + b" " + body
        self.send_response(200)
        self.send_header("Content-Length", str(len(reply) or 7))
        self.end_headers()
        self.wfile.write(reply)

    def watch(self):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"6\r\nfirst\n\r\n")
        self.server.go_on.wait(10)
        self.wfile.write(b"7\r\nsecond\n\r\n0\r\n\r\n")

    do_GET = do_PUT = do_PATCH = do_DELETE = do_HEAD = answer


@pytest.fixture
def upstream():
    server = Upstream()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.go_on.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def proxy(upstream):
    with FaultProxy(f"http://127.0.0.1:{upstream.server_port}") as proxy:
        yield proxy


@pytest.fixture
def client(proxy):
    connection = http.client.HTTPConnection(proxy.url.removeprefix("http://"), timeout=10)
    yield connection
    connection.close()


def query(client, method, path="/x", body=None, **headers):
    client.request(method, path, body, headers)
    answer = client.getresponse()
    return answer.status, answer.read()


def test_lost_reply_reached_the_server_and_a_closed_request_did_not(client, proxy, upstream):
    proxy.add(Rule(LoseReply(), path="/lost"))
    proxy.add(Rule(Close(), path="/closed"))
    for path in ("/lost", "/closed"):
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            query(client, "GET", path)
        client.close()
    assert [path for _, path, *_ in upstream.got] == ["/lost"]
