"""Selection of a profiler's raw events, on simulated events for machines without a gpu."""

from dataclasses import dataclass

import pytest

from collector.replay.kineto import SENTINEL_OPERATOR, Event, kernel_events, operator_events

pytestmark = pytest.mark.fast


@dataclass(frozen=True)
class RawEvent:
    """The part of torch's `_KinetoEvent` that is read."""

    named: str
    start: int
    duration: int
    kind: str = "cpu_op"
    on: str = "cpu"
    thread: int = 1
    correlation: int = 0
    linked: int = 0
    inputs: tuple[list[int], ...] = ()

    def name(self) -> str:
        return self.named

    def start_ns(self) -> int:
        return self.start

    def duration_ns(self) -> int:
        return self.duration

    def activity_type(self) -> str:
        return self.kind

    def device_type(self) -> str:
        return self.on

    def start_thread_id(self) -> int:
        return self.thread

    def correlation_id(self) -> int:
        return self.correlation

    def linked_correlation_id(self) -> int:
        return self.linked

    def shapes(self) -> list[list[int]]:
        return list(self.inputs)


def test_nested_operators_are_not_counted():
    raw = [
        RawEvent("aten::sum", 120, 10),
        RawEvent("aten::mean", 100, 50),
        RawEvent("aten::empty", 100, 5),
        RawEvent("aten::add", 150, 5),  # begins as the one before it ends
        RawEvent("a mark of the user's", 90, 500, kind="user_annotation"),
    ]
    assert operator_events(raw) == [Event("aten::mean", 100, 50), Event("aten::add", 150, 5)]


def test_events_of_a_torch_that_does_not_report_their_kinds_are_read():
    class Older:
        """An event of torch 2.9 and 2.10."""

        def __init__(self, event):
            self._event = event

        def __getattr__(self, name):
            if name == "activity_type":
                raise AttributeError(name)
            if name == "is_user_annotation":
                return lambda: self._event.kind.endswith("annotation")
            return getattr(self._event, name)

    raw = [
        RawEvent("aten::mean", 100, 50),
        RawEvent("aten::empty", 100, 5),
        RawEvent("a mark of the user's", 90, 500, kind="user_annotation"),
        RawEvent("gemm", 300, 40, on="cuda", kind="kernel"),
        RawEvent("the user's", 200, 140, on="cuda", kind="gpu_user_annotation"),
    ]
    older = list(map(Older, raw))
    assert operator_events(older[:3]) == operator_events(raw[:3]) == [Event("aten::mean", 100, 50)]
    assert kernel_events(older, "cuda") == kernel_events(raw, "cuda") == [Event("gemm", 300, 40)]


def test_threads_have_separate_operators():
    raw = [RawEvent("aten::mm", 100, 50), RawEvent("aten::add", 110, 5, thread=2)]
    assert [event.name for event in operator_events(raw)] == ["aten::mm", "aten::add"]


def test_kernels_are_in_order_of_execution_with_the_shapes_of_sentinels():
    gpu = {"on": "cuda", "kind": "kernel"}
    raw = [
        RawEvent(SENTINEL_OPERATOR, 10, 5, correlation=1, inputs=([3, 7, 1, 1, 4],)),
        RawEvent("aten::mm", 20, 5, correlation=2, inputs=([4, 4], [4, 4])),
        RawEvent("cudaLaunchKernel", 12, 1, kind="cuda_runtime", correlation=1, linked=1),
        RawEvent("gemm", 300, 40, linked=2, **gpu),
        RawEvent("elementwise", 200, 2, linked=1, **gpu),
        RawEvent("Memset", 290, 3, on="cuda", kind="gpu_memset", linked=2),
        RawEvent("the user's", 200, 140, on="cuda", kind="gpu_user_annotation"),
    ]
    assert kernel_events(raw, "cuda") == [
        Event("elementwise", 200, 2, (3, 7, 1, 1, 4)),
        Event("Memset", 290, 3),
        Event("gemm", 300, 40),
    ]
