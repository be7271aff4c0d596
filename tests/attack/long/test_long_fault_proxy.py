"""The proxy of the tests: which requests it forwards, and which its rules apply to."""

import http.client

import pytest

from tests.contract import test_servers_fault_proxy as smoke
from tests.contract.test_servers_fault_proxy import query
from tests.servers.faults import Answer, Rule, Truncate

pytestmark = pytest.mark.server

upstream, proxy, client = smoke.upstream, smoke.proxy, smoke.client


def test_requests_pass_with_their_bodies_and_headers(client, upstream):
    for method in ("PUT", "PATCH", "DELETE"):
        assert query(client, method, "/a?b=%20", b"body", **{"X-Test": "yes"}) == (
            200,
            method.encode() + b" body",
        )
    assert query(client, "HEAD") == (200, b"")
    assert upstream.got[0] == ("PUT", "/a?b=%20", b"body", "yes")


def test_a_chunked_body_passes(client, upstream):
    assert query(client, "PUT", "/x", iter([b"one ", b"two"])) == (200, b"PUT one two")


def test_a_watch_arrives_event_by_event(client, upstream):
    client.request("GET", "/watch")
    answer = client.getresponse()
    assert answer.readline() == b"first\n"
    assert not upstream.go_on.is_set()
    upstream.go_on.set()
    assert answer.read() == b"second\n"


def test_rule_may_answer_in_place_of_the_server(client, proxy, upstream):
    proxy.add(Rule(Answer(503, b"busy"), method="GET|PUT", path="^/x"))
    assert query(client, "GET") == (503, b"busy")
    assert query(client, "PUT", "/x", b"body") == (503, b"busy")
    assert query(client, "PATCH", "/x", b"b") == (200, b"PATCH b")
    assert query(client, "GET", "/y") == (200, b"GET ")
    assert [method for method, *_ in upstream.got] == ["PATCH", "GET"]


def test_rule_may_require_a_header(client, proxy, upstream):
    proxy.add(Rule(Answer(501), method="PUT", header="If-None-Match"))
    assert query(client, "PUT", "/x", b"1", **{"if-none-match": "*"})[0] == 501
    assert query(client, "PUT", "/x", b"1") == (200, b"PUT 1")
    assert len(upstream.got) == 1


def test_truncated_response_ends_early(client, proxy):
    proxy.add(Rule(Truncate(5)))
    with pytest.raises(http.client.IncompleteRead) as raised:
        query(client, "PUT", "/x", b"0123456789")
    assert raised.value.partial == b"PUT 0"


@pytest.mark.parametrize(
    ("rule", "statuses"),
    [
        (Rule(Answer(500), times=2), [500, 500, 200, 200, 200, 200]),
        (Rule(Answer(500), every=3), [200, 200, 500, 200, 200, 500]),
        (Rule(Answer(500), every=2, times=2), [200, 500, 200, 500, 200, 200]),
    ],
)
def test_rule_applies_to_the_first_or_every_nth_request(client, proxy, rule, statuses):
    proxy.add(rule)
    assert [query(client, "GET")[0] for _ in statuses] == statuses
    assert [request.fault for request in proxy.requests] == [
        rule.fault if status == 500 else None for status in statuses
    ]


def test_stopped_server_is_unreachable_through_the_proxy(client, proxy, upstream):
    assert query(client, "GET")[0] == 200
    upstream.shutdown()
    upstream.server_close()
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        query(client, "GET")
