"""Profilers of serving instances are started together, or none remains running."""

import signal
import threading

import pytest

from collector.capture import serving
from collector.capture.serving import START, STOP, capture_instances
from collector.codec.errors import BadInput
from tests.unit.collector.capture.instances import instance, respond

pytestmark = pytest.mark.fast


def test_capture_starts_and_stops_the_profilers_of_all_instances() -> None:
    with instance() as (first, one), instance() as (second, two):
        waited: list[float] = []

        def wait(seconds: float) -> None:
            waited.append(seconds)
            assert [path for path, _ in (*one, *two)] == [START, START]

        found = capture_instances([first, second, first + "/"], 3.0, limit_s=9, wait=wait)
        assert waited == [3.0] and not any(answer.fault for answer in found)
        assert [path for path, _ in one] == [path for path, _ in two] == [START, STOP]


def test_capture_stops_started_instances_if_another_is_down_or_has_no_profiler() -> None:
    with instance() as (good, got), instance(404) as (bare, _), instance() as (down, _):
        pass
    with instance() as (good, got), instance(404) as (bare, _):
        found = capture_instances(
            [good, bare, down], 3.0, limit_s=9, wait=lambda _: pytest.fail("was recorded")
        )
        faults = {(answer.url, answer.path): answer.fault for answer in found}
        assert faults[good, START] == faults[good, STOP] == ""
        assert "--profiler-config.profiler=torch" in faults[bare, START]
        assert "no answer" in faults[down, START]
        assert [path for path, _ in got] == [START, STOP]


def test_interrupted_capture_leaves_no_profiler_running() -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    with instance() as (first, one), instance() as (second, two):
        with pytest.raises(KeyboardInterrupt):
            capture_instances([first, second], 3.0, limit_s=9, wait=interrupted)
        assert [path for path, _ in one] == [path for path, _ in two] == [START, STOP]


def test_sglang_is_requested_to_record_shapes_without_stacks() -> None:
    with instance() as (url, got):
        capture_instances([url], 0.0, limit_s=9, wait=lambda _: None, is_sglang=True)
    assert b'"record_shapes": true' in got[0][1] and b'"with_stack": false' in got[0][1]


def test_invalid_instance_address_is_refused() -> None:
    for url in ("ftp://host", "http://", "http://h:abc", "http://h:999999", "http://bad host/"):
        with pytest.raises(BadInput):
            capture_instances([url], 1.0, limit_s=1.0)
    for secret in ("http://user:SECRET@h:1", "user:SECRET@h", "http://h?key=SECRET", "h#SECRET"):
        with pytest.raises(BadInput) as refused:
            capture_instances(["http://h:1", secret], 1.0, limit_s=1.0)
        assert "SECRET" not in str(refused.value) and "address 2" in str(refused.value)
    for seconds, limit_s in ((float("nan"), 1.0), (1.0, float("inf"))):
        with pytest.raises(BadInput):
            capture_instances(["http://h:1"], seconds, limit_s=limit_s)


def paths(got):
    return [path for path, _ in got]


def captured(urls, limit_s=30.0, wait=lambda _: None, **options):
    """Capture without waiting; return the faults by address and path."""
    found = capture_instances(urls, 1.0, limit_s=limit_s, wait=wait, **options)
    return {(one.url, one.path): one.fault for one in found}


@pytest.mark.parametrize("status", [500, 504])
def test_instance_whose_start_fails_inside_is_stopped(status):
    with instance(status) as (url, got):
        faults = captured([url], wait=lambda _: pytest.fail("was recorded"))
    assert paths(got) == [START, STOP] and faults[url, START] == f"HTTP {status}"


def test_start_that_is_answered_too_late_is_stopped_again():
    is_stopped = threading.Event()

    def answer(request):
        if request.path == START:
            is_stopped.wait(30.0)
        is_stopped.set()
        respond(request, 200)

    with instance(answer=answer) as (url, got):
        faults = captured([url], limit_s=0.4, wait=lambda _: pytest.fail("was recorded"))
    assert paths(got) == [START, STOP, STOP] and faults[url, START] and not faults[url, STOP]


def test_stops_wait_for_no_start_of_another_instance():
    is_stopped = threading.Event()

    def slow(request):
        is_slow_start = request.path == START
        respond(request, 200 if not is_slow_start or is_stopped.wait(30.0) else 504)

    def good(request):
        if request.path == STOP:
            is_stopped.set()
        respond(request, 200)

    with (
        instance(answer=slow) as (late, _),
        instance(answer=good) as (url, got),
        instance(404) as (bare, _),
    ):
        faults = captured([late, url, bare])
    assert paths(got) == [START, STOP] and faults[late, START] == faults[late, STOP] == ""


@pytest.fixture
def not_ignored():
    """Signals that the caller of the tests ignores, as nohup does."""
    before = {one: signal.signal(one, signal.SIG_DFL) for one in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for one, handler in before.items():
        signal.signal(one, handler)


@pytest.mark.usefixtures("not_ignored")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_stops_all_and_ends_with_its_code(number):
    with instance() as (url, got), pytest.raises(SystemExit) as ended:
        captured([url], wait=lambda _: signal.raise_signal(number))
    assert paths(got) == [START, STOP] and ended.value.code == 128 + number


def test_signal_while_a_start_is_sent_stops_it(monkeypatch):
    class Interrupted(threading.Thread):
        def start(self):
            super().start()
            if serving.threading.Thread is Interrupted:
                monkeypatch.undo()
                signal.raise_signal(signal.SIGTERM)

    with instance() as (url, got), pytest.raises(SystemExit):
        monkeypatch.setattr(serving.threading, "Thread", Interrupted)
        captured([url])
    assert paths(got) == [START, STOP]


@pytest.mark.usefixtures("not_ignored")
def test_second_signal_does_not_wait_for_the_analysis(monkeypatch):
    monkeypatch.setattr(serving, "_LAST_S", 0.1)
    can_end = threading.Event()

    def analysing(request):
        if request.path == STOP:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGHUP)
            can_end.wait(30.0)
        respond(request, 200)

    with instance(answer=analysing) as (url, got):
        with pytest.raises(SystemExit):
            captured([url], wait=lambda _: signal.raise_signal(signal.SIGHUP))
        can_end.set()
    assert paths(got) == [START, STOP]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirect_is_not_followed(status):
    with (
        instance() as (other, seen),
        instance(answer=lambda one: respond(one, status, Location=other)) as (url, got),
    ):
        faults = captured([url])
    assert not seen and paths(got) == [START] and "redirect" in faults[url, START]


@pytest.mark.parametrize(
    ("body", "kind", "is_done"),
    [
        (b"<html>login</html>", "text/html", False),
        (b'{"error": "log in"}', "application/json", False),
        (b"Start profiling.\n", "text/plain", True),
    ],
)
def test_only_the_answer_of_a_serving_engine_is_a_success(body, kind, is_done):
    with instance(answer=lambda one: respond(one, 200, body, **{"Content-Type": kind})) as (url, _):
        faults = captured([url])
    assert (faults[url, START] == "") is is_done


def test_limit_is_of_a_whole_request():
    ends = threading.Event()

    def drip(request):
        request.send_response(200)
        request.end_headers()
        while not ends.wait(0.02):  # each byte is in time
            request.wfile.write(b" ")

    with instance(answer=drip) as (url, got):
        faults = captured([url], limit_s=0.3)
        ends.set()
    assert paths(got) == [START, STOP] and all("within 0.3 s" in one for one in faults.values())


def test_key_is_sent_and_never_shown():
    keys = []

    def answer(request):
        keys.append(request.headers["Authorization"])
        respond(request, 401)

    with instance(answer=answer) as (url, _):
        (reply,) = capture_instances(
            [url], 0.0, limit_s=9.0, environment={serving.KEY_VARIABLE: "SECRET"}
        )
    assert keys == ["Bearer SECRET"] and serving.KEY_VARIABLE in str(reply)
    assert "SECRET" not in str(reply)
    with pytest.raises(BadInput) as refused:
        captured(["h:1"], environment={serving.KEY_VARIABLE: "SEC\nRET"})
    assert "SEC" not in str(refused.value)


def test_proxies_are_used_on_request_alone(monkeypatch):
    with instance() as (proxy, got):
        monkeypatch.setenv("http_proxy", proxy)
        captured(["http://prefill.invalid:1"])
        assert not got
        captured(["http://prefill.invalid:1"], uses_proxies=True)
    assert paths(got) == [f"http://prefill.invalid:1{path}" for path in (START, STOP)]
