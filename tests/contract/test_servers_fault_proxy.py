"""The proxy of the tests: what it passes on, and which requests its rules meet."""

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.servers.faults import Answer, Close, FaultProxy, LoseReply, Rule, Truncate

pytestmark = pytest.mark.server


class Upstream(ThreadingHTTPServer):
    """Tells what it got; `/watch` answers in chunks, the second only when it is told to."""

    def __init__(self):
        self.got, self.go_on = [], threading.Event()
        super().__init__(("127.0.0.1", 0), Echo)


class Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format, *args):
        pass

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.got.append((self.command, self.path, body, self.headers["X-Told"]))
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


def ask(client, method, path="/x", body=None, **headers):
    client.request(method, path, body, headers)
    answer = client.getresponse()
    return answer.status, answer.read()


def test_requests_pass_with_their_bodies_and_headers(client, upstream):
    for method in ("PUT", "PATCH", "DELETE"):
        assert ask(client, method, "/a?b=%20", b"body", **{"X-Told": "yes"}) == (
            200,
            method.encode() + b" body",
        )
    assert ask(client, "HEAD") == (200, b"")
    assert upstream.got[0] == ("PUT", "/a?b=%20", b"body", "yes")


def test_a_chunked_body_passes(client, upstream):
    assert ask(client, "PUT", "/x", iter([b"one ", b"two"])) == (200, b"PUT one two")


def test_a_watch_arrives_event_by_event(client, upstream):
    client.request("GET", "/watch")
    answer = client.getresponse()
    assert answer.readline() == b"first\n"
    assert not upstream.go_on.is_set()
    upstream.go_on.set()
    assert answer.read() == b"second\n"


def test_an_answer_in_the_server_s_place(client, proxy, upstream):
    proxy.add(Rule(Answer(503, b"busy"), method="GET|PUT", path="^/x"))
    assert ask(client, "GET") == (503, b"busy")
    assert ask(client, "PUT", "/x", b"body") == (503, b"busy")
    assert ask(client, "PATCH", "/x", b"b") == (200, b"PATCH b")
    assert ask(client, "GET", "/y") == (200, b"GET ")
    assert [method for method, *_ in upstream.got] == ["PATCH", "GET"]


def test_a_rule_may_want_a_header(client, proxy, upstream):
    proxy.add(Rule(Answer(501), method="PUT", header="If-None-Match"))
    assert ask(client, "PUT", "/x", b"1", **{"if-none-match": "*"})[0] == 501
    assert ask(client, "PUT", "/x", b"1") == (200, b"PUT 1")
    assert len(upstream.got) == 1


def test_a_lost_reply_reached_the_server_and_a_closed_request_did_not(client, proxy, upstream):
    proxy.add(Rule(LoseReply(), path="/lost"))
    proxy.add(Rule(Close(), path="/closed"))
    for path in ("/lost", "/closed"):
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            ask(client, "GET", path)
        client.close()
    assert [path for _, path, *_ in upstream.got] == ["/lost"]


def test_a_truncated_answer_ends_early(client, proxy):
    proxy.add(Rule(Truncate(5)))
    with pytest.raises(http.client.IncompleteRead) as raised:
        ask(client, "PUT", "/x", b"0123456789")
    assert raised.value.partial == b"PUT 0"


@pytest.mark.parametrize(
    ("rule", "statuses"),
    [
        (Rule(Answer(500), times=2), [500, 500, 200, 200, 200, 200]),
        (Rule(Answer(500), every=3), [200, 200, 500, 200, 200, 500]),
        (Rule(Answer(500), every=2, times=2), [200, 500, 200, 500, 200, 200]),
    ],
)
def test_a_rule_meets_the_first_or_every_so_many(client, proxy, rule, statuses):
    proxy.add(rule)
    assert [ask(client, "GET")[0] for _ in statuses] == statuses
    assert [request.fault for request in proxy.requests] == [
        rule.fault if status == 500 else None for status in statuses
    ]


def test_a_server_that_is_gone_looks_gone(client, proxy, upstream):
    assert ask(client, "GET")[0] == 200
    upstream.shutdown()
    upstream.server_close()
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        ask(client, "GET")
