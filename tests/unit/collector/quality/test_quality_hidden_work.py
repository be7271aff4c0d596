"""Curves that show their work, and curves of a host that hides it."""

from dataclasses import replace

import numpy as np
import pytest

from collector.model.measurement import Outcome
from collector.quality.gates import LEAST_FLAT_SHARE as LEAST_SHARE
from collector.quality.gates import (
    LEAST_LONG_SHARE,
    WorkCurve,
    find_hidden_work,
    gate_of_outcome,
    may_hide_work,
)

_FLOPS_PER_US = 400e6
_BYTES_PER_US = 2e6


def _products(count: int = 3000) -> WorkCurve:
    """Return matrix products as on a device: a launch of 5 us, then the work at some of its best
    rates."""
    draw = np.random.default_rng(3)
    m, n, k = (2.0 ** draw.uniform(0, high, count) for high in (14, 15, 15))
    operations, traffic = 2 * m * n * k, 2 * (m * k + n * k + m * n)
    work_us = np.maximum(operations / _FLOPS_PER_US, traffic / _BYTES_PER_US)
    return WorkCurve(operations, traffic, 5 + work_us / draw.uniform(0.5, 0.9, count))


def _timed(curve: WorkCurve, duration_us) -> WorkCurve:
    return WorkCurve(curve.operations, curve.traffic, duration_us)


def test_duration_that_grows_with_the_work_hides_nothing():
    found = find_hidden_work(_products())
    assert found is not None
    assert found.shown_share > 1 and found.fault == ""


@pytest.mark.parametrize("host_us", [40, 60, 150])
def test_host_that_launches_slower_than_the_device_works_is_detected(host_us):
    curve = _products()
    noise = np.random.default_rng(1).normal(1, 0.05, len(curve.duration_us))
    found = find_hidden_work(_timed(curve, np.maximum(curve.duration_us, host_us * noise)))
    assert found is not None
    assert found.shown_share < LEAST_SHARE / 2
    assert gate_of_outcome(Outcome.IMPLAUSIBLE, found.fault) == "host time"
    assert found.base_us == pytest.approx(host_us, 0.1)


def test_partly_hidden_work_is_detected_if_cores_are_faster():
    """A host delays the first 25 us, and each launch takes 30 us longer."""
    curve = _products()
    partly = _timed(curve, np.maximum(curve.duration_us, 25) + 30)
    found = find_hidden_work(partly)
    assert found is not None and found.fault
    assert LEAST_SHARE < found.shown_share < found.least_share == LEAST_LONG_SHARE
    # An AI CPU may take that long by itself.
    own = find_hidden_work(replace(partly, is_of_cores=False))
    assert own is not None and own.fault == ""
    # The best rates are not known if no duration is far above those of nearly no work, and
    # cores may take as long as half of these durations.
    short = partly.duration_us < 200
    part = WorkCurve(
        *(field[short] for field in (curve.operations, curve.traffic)), partly.duration_us[short]
    )
    for other in (part, _timed(curve, partly.duration_us / 2.5)):
        found = find_hidden_work(other)
        assert found is not None and found.least_share == LEAST_SHARE


@pytest.mark.parametrize("constant_us", [60, 150])
def test_constant_overhead_of_any_length_hides_nothing(constant_us):
    curve = _products()
    found = find_hidden_work(_timed(curve, curve.duration_us + constant_us))
    assert found is not None
    assert found.fault == ""


def test_parallel_cores_are_not_mistaken_for_a_host_limit():
    """One core in a hundred takes 60 us for its tile, and so do all of them for theirs."""
    cores = np.repeat(np.arange(1.0, 101), 30)
    waves = np.tile(np.arange(1.0, 31), 100)
    tiles = np.where(waves == 1, cores, cores + 100 * (waves - 1))
    found = find_hidden_work(WorkCurve(tiles, tiles, 60 * np.ceil(tiles / 100)))
    assert found is None or found.fault == ""


def test_slow_path_of_the_smallest_cases_is_not_mistaken_for_a_host_limit():
    """Unaligned cases take 60 us, and most of the smallest ones are unaligned."""
    curve = _products()
    is_small = curve.operations < 1e8
    slow_us = np.where(is_small, np.maximum(curve.duration_us, 60), curve.duration_us)
    found = find_hidden_work(_timed(curve, slow_us))
    assert found is None or found.fault == ""


def test_result_is_independent_of_the_unit_of_work():
    curve = _products()
    slow = np.maximum(curve.duration_us, 60)
    found = find_hidden_work(_timed(curve, slow))
    assert found is not None
    other = find_hidden_work(WorkCurve(curve.operations * 1e-12, curve.traffic * 8, slow))
    assert other is not None and other.shown_share == pytest.approx(found.shown_share)


def test_an_operator_without_arithmetic_is_judged_by_its_bytes():
    traffic = 2.0 ** np.random.default_rng(5).uniform(4, 36, 3000)
    work_us = traffic / _BYTES_PER_US
    moved = WorkCurve(np.zeros_like(traffic), traffic, 3 + work_us)
    assert (found := find_hidden_work(moved)) is not None and found.fault == ""
    hosted = find_hidden_work(_timed(moved, np.maximum(moved.duration_us, 60)))
    assert hosted is not None and hosted.fault


@pytest.mark.parametrize("count", [0, 1, 30])
def test_few_cases_give_no_verdict(count):
    curve = _products(count)
    assert find_hidden_work(_timed(curve, np.full(count, 60.0))) is None


def test_small_launches_alone_give_no_fault():
    """The duration of their work is unknown: it may be negligible."""
    curve = _products()
    small = curve.operations < 1e6
    flat = WorkCurve(curve.operations[small], curve.traffic[small], np.full(small.sum(), 3.0))
    found = find_hidden_work(flat)
    assert found is None or found.fault == ""


def test_fast_launches_clear_a_curve_without_its_work():
    curve = _products()
    assert not may_hide_work(curve.duration_us - 3)
    assert may_hide_work(np.maximum(curve.duration_us, 60))
    assert not may_hide_work(np.full(39, 60.0))
