"""The waits of threads for a core, as reported by Linux."""

import os
import threading

import pytest

from collector.host.cores import CoreTime, ThreadWaits

pytestmark = pytest.mark.fast


@pytest.fixture
def tasks(tmp_path):
    """(thread, nanoseconds waited) -> a folder like /proc/self/task."""

    def write(thread, waited_ns):
        (tmp_path / thread).mkdir(exist_ok=True)
        (tmp_path / thread / "schedstat").write_text(f"123456789 {waited_ns} 77\n")
        return tmp_path

    return write


def test_wait_time_is_recorded_per_thread(tasks):
    tasks("8", 2_000)
    waits = ThreadWaits(tasks("9", 5_500))
    assert waits.begin() > 0
    assert list(waits.read()) == [2.0, 5.5]
    tasks("9", 4_005_500)
    assert list(waits.read()) == [2.0, 4005.5]


def test_threads_may_start_and_end_between_cases(tasks, tmp_path):
    waits = ThreadWaits(tasks("8", 2_000))
    waits.begin()
    (tmp_path / "8" / "schedstat").unlink()
    (tmp_path / "8").rmdir()
    tasks("9", 7_000)
    waits.begin()
    assert list(waits.read()) == [7.0]


def test_other_python_threads_are_excluded(tasks):
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        tasks(str(other.native_id), 9_000)
        waits = ThreadWaits(tasks(str(threading.get_native_id()), 1_000))
        waits.begin()
        assert list(waits.read()) == [1.0]
    finally:
        done.set()
        other.join()


def test_missing_scheduler_statistics_count_as_no_waits(tmp_path):
    waits = ThreadWaits(tmp_path / "no", tmp_path / "stat")
    waits.begin()
    assert (list(waits.read()), waits.stolen_us()) == ([], 0.0)
    (tmp_path / "9").mkdir()
    (tmp_path / "9" / "schedstat").write_text("what\n")
    waits = ThreadWaits(tmp_path)
    waits.begin()
    assert list(waits.read()) == [0.0]


def test_stolen_time_is_counted_in_ticks(tmp_path):
    stat = tmp_path / "stat"
    stat.write_text("cpu  3090661 1997479 1255478 1601804 194755 0 42401 24560 0 0\ncpu0 1\n")
    assert ThreadWaits(stat=stat).stolen_us() == 24560 * 1e6 / os.sysconf("SC_CLK_TCK")


def test_pressure_is_read_from_the_total_of_the_line_some(tmp_path):
    pressure = tmp_path / "cpu"
    waits = ThreadWaits(pressure=pressure)
    assert waits.pressure_us() is None  # an older kernel has no such file
    some, full = "avg10=90.87 avg60=74.17 avg300=76.56 total=", "full avg10=0.00 total=7\n"
    pressure.write_text(f"some {some}33811704982\n{full}")
    assert waits.pressure_us() == 33811704982.0
    for odd in ("", "some\n", f"some {some}\n{full}"):
        pressure.write_text(odd)
        assert waits.pressure_us() is None
    assert ThreadWaits(pressure=tmp_path).pressure_us() is None  # reading it fails


def test_work_is_counted_for_each_thread_of_the_team():
    one, four = ThreadWaits(), ThreadWaits(threads=4)

    def read_us():
        """Alternate two threads of the team with one, however long this process waits for a
        core."""
        return one.worked_us(), four.worked_us(), one.worked_us()

    earliest_us, team_us, early_us = read_us()
    while one.worked_us() < early_us + 8_000:
        pass
    late_us, later_team_us, latest_us = read_us()
    took_us = later_team_us - team_us
    assert (late_us - early_us) / 4 <= took_us * (1 + 1e-9)
    assert took_us <= (latest_us - earliest_us) / 4 * (1 + 1e-9)


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="no Linux /proc")
def test_statistics_of_the_own_process_are_read():
    waits = ThreadWaits()
    assert waits.begin() < 0.01
    first, then = waits.read(), waits.read()
    assert len(first) == len(then) >= 1 and all(b >= a for a, b in zip(first, then, strict=True))
    assert waits.switches() >= 0


def test_core_time_of_other_programs_is_machine_time_less_own_time(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    stat, ticks = tmp_path / "stat", os.sysconf("SC_CLK_TCK")
    values = [100, 0, 100, 10_000, 500, 0, 0, 100, 77, 0]  # idle and iowait are the 4th and 5th
    stat.write_text(f"cpu  {' '.join(str(value * ticks) for value in values)}\ncpu0 1 2\n")
    before = CoreTime.now(stat)
    assert before is not None and before.machine_s == 300.0
    later = CoreTime(before.machine_s + 26.0, before.own_s + 20.0)
    assert before.others_share(later, 10.0) == pytest.approx(6 / 40)
    assert before.others_share(CoreTime(before.machine_s, later.own_s), 10.0) == 0.0
    stat.write_text("cpu  1 2 what\n")
    assert CoreTime.now(stat) is None
    assert CoreTime.now(tmp_path / "no") is None
