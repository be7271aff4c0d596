"""`opmeter comm` as a user calls it; the ranks are real ones, over gloo."""

import csv
import json
import re
from dataclasses import replace

import pytest

from collector.comm.bench_plan import LeftOut
from collector.ranks.collective import Collective
from jobs.cli.comm import left_out_lines
from tests.unit.jobs.cli.in_process import opmeter_here
from tests.unit.jobs.cli.test_jobs_command import opmeter
from tests.unit.jobs.printed import missing, numbers


def comm(*words, cwd=None):
    run = opmeter if "--do-run" in words else opmeter_here
    return run("comm", *words, cwd=cwd)


def test_plan_is_printed_without_do_run():
    words = "--backend cpu --num-devices 2 16 --ops all_reduce --bytes-grid quick 3"
    done = comm(*words.split())
    assert done.returncode == 0, done.stderr
    *plan, whole, last = done.stdout.splitlines()
    assert sum(bool(re.search(r"all_reduce\b.*\b3 bytes", line)) for line in plan) == 3
    sizes = ["5", "1024", "268435456"]  # how many, and from which to which
    # Ranks of a group, its tier, concurrent groups, the first ranks, and the sizes.
    assert [numbers(line) for line in plan if line.startswith("all_reduce ")] == [
        ["2", "2", "1", "0", "1", *sizes],
        ["2", "2", "8", "0", "1", *sizes],
        ["16", "1", "1", "0", "1", "2", "3", *sizes],
    ]
    # Cases, rounds, seconds per round, seconds of this many ranks, and seconds of devices.
    assert numbers(whole) == ["15", "3", "0.2", "9", "16", "144"]
    assert "--do-run" in last


def test_plan_has_the_timing_mode_of_each_size():
    words = "--backend npu --num-devices 2 --ops all_gather all_reduce --nproc-per-node 2"
    done = comm(*words.split())
    assert done.returncode == 0, done.stderr
    *plan, whole, _ = done.stdout.splitlines()
    assert [(line.split()[0], numbers(line)[-3:], line.split()[-1]) for line in plan] == [
        ("all_gather", ["13", "128", "524288"], "kernel"),
        ("all_gather", ["10", "1048576", "536870912"], "alternating"),
        ("all_reduce", ["23", "128", "536870912"], "alternating"),
    ]
    # 46 cases of 0.2 s, and 13 windows of 10 s, in 3 rounds
    assert numbers(whole) == ["46", "3", "0.2", "418", "2", "835"]


def test_cases_excluded_for_one_reason_are_one_line():
    every = [
        LeftOut(Collective(name, size, "bfloat16", 24, 0), "uneven")
        for name in ("all_to_all", "all_to_all_single")
        for size in (256, 128, 512)
    ]
    other = LeftOut(Collective("broadcast", 3, "int8", 2, 2), "too small")
    one, another = left_out_lines("not measured", [every[0], other, *every[1:]])
    assert (
        missing(one, ["not measured", "all_to_all, all_to_all_single", "bfloat16", "uneven"]) == []
    )
    assert numbers(one) == ["128", "256", "512", "24", "0", "6"]  # bytes, ranks, tier, cases
    assert missing(another, ["not measured", "broadcast", "int8", "too small"]) == []
    assert numbers(another) == ["3", "2", "2"]
    many = [
        LeftOut(Collective("all_reduce", 1 << at, "int8", 4, 1, together=True), "lost")
        for at in range(20)
    ]
    (line,) = left_out_lines("wrong", many)
    assert missing(line, ["wrong", "all_reduce", "int8", "lost"]) == []
    assert numbers(line) == ["20", "1", "524288", "4", "1", "20"]
    alone = [replace(one, collective=replace(one.collective, together=False)) for one in many]
    assert list(left_out_lines("wrong", alone)) != [line]
    each = [LeftOut(other.collective, str(at)) for at in range(25)]
    *_, last = left_out_lines("not measured", each)
    assert last.startswith("not measured") and numbers(last) == ["5"]


@pytest.mark.parametrize(
    ("words", "data"),
    [
        ("--ops all_reduce broadcast --output-csv x.csv", ["--output-csv", "--ops"]),
        ("--bench-mode kernel", ["kernel", "gloo", "event", "alternating"]),
        ("--bench-mode pipeline", ["--bench-mode", "'pipeline'", "auto, event"]),
        ("--backend tpu", ["--backend", "'tpu'", "npu, cuda, cpu"]),
        ("--dtype float64", ["'float64'", "bfloat16"]),
        ("--num-devices 1000", ["1000", "768"]),
        ("--ops all_reduce --bytes-grid 3", ["case"]),
    ],
)
def test_invalid_option_is_refused_in_one_line(words, data):
    done = comm("--backend", "cpu", *words.split())
    assert done.returncode == 2
    assert missing(done.stderr, data) == []
    assert len(done.stderr.splitlines()) == 1


def test_the_collectives_of_real_steps_are_a_plan_with_its_device_time(real_profiles):
    done = comm("--backend", "npu", "--profile", str(real_profiles), "--nproc-per-node", "8")
    assert done.returncode == 0, done.stderr
    total = re.search(r"\bms\b.* ([0-9.]+) %.* (\d+) cases", done.stdout)
    cost = re.search(r"^(\d+) cases, .* 8 ranks, (\d+) s ", done.stdout, flags=re.MULTILINE)
    assert total and float(total[1]) > 20.0, done.stdout
    assert cost and int(cost[1]) == int(total[2]) > 0 and int(cost[2]) > 0


def test_row_of_another_mode_is_refused_before_measuring(tmp_path):
    table = tmp_path / "hcom_allReduce_.csv"
    table.write_text(
        "message_bytes,num_devices,dtype,topology_tier,Duration(us),mode,backend,environment\n"
        "4096,2,DT_BF16,2,60,alternating,gloo,\n"
    )
    words = "--backend cpu --num-devices 2 --ops all_reduce --bytes-grid 4096 --do-run"
    for where in ("--output-dir", "."), ("--output-csv", "hcom_allReduce_.csv"):
        done = comm(*words.split(), *where, cwd=tmp_path)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert missing(line, ["hcom_allReduce_.csv", "alternating", "event"]) == []


@pytest.mark.slow
def test_collectives_are_measured_written_and_validated(tmp_path):
    words = "--do-run --backend cpu --num-devices 2 --ops all_gather reduce_scatter --rounds 2"
    more = "--bytes-grid 1024 4096 65536 --budget-s 0.01 --bench-mode alternating --output-dir out"
    done = comm(*words.split(), *more.split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert any(re.match("all_gather .* us .* GB/s", line) for line in lines)
    (scattered,) = [line for line in lines if "hcom_reduceScatter_.csv" in line]
    assert numbers(scattered) == ["3", "0"]  # rows added, and changed
    with (tmp_path / "out" / "hcom_allGather_.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["message_bytes"] for row in rows] == ["1024", "4096", "65536"]
    assert {row["mode"] for row in rows} == {"alternating"}
    assert all(float(row["Duration(us)"]) > 0 for row in rows)
    link = comm("validate", "out", "--link-gbps", "0.000001", cwd=tmp_path)
    assert link.returncode == 1
    assert re.search(r"1e-06 GB/s", link.stdout)
    nothing = comm("validate", ".", cwd=tmp_path)
    assert nothing.returncode == 2
    assert "hcom_*.csv" in nothing.stderr


def test_no_ranks_are_started_without_devices(tmp_path):
    out = tmp_path / "out"
    for words in (
        f"--do-run --num-devices 2 --ops all_reduce --bytes-grid 1024 --output-dir {out}",
        "--do-run --backend cuda --num-devices 2 --ops all_reduce --bytes-grid 1024",
        "dfc --do-run --ep-size 2 --tokens 8",
        "probe-dfc --ep-size 2",
    ):
        done = opmeter_here("comm", *words.split(), PATH=str(tmp_path))
        assert done.returncode == 2, words
        (line,) = done.stderr.splitlines()
        assert re.search("npu-smi|nvidia-smi", line), words
    assert not out.exists()


def test_rows_are_compared_with_hccl_test(tmp_path):
    (tmp_path / "hcom_allReduce_.csv").write_text(
        "message_bytes,num_devices,dtype,topology_tier,Duration(us)\n8192,8,DT_BF16,1,60\n"
    )
    (tmp_path / "printed.txt").write_text(
        "data_size(Bytes): | aveg_time(us): | alg_bandwidth(GB/s): | check_result:\n"
        "8192 | 10.00 | 0.8 | success\n"
    )
    words = "validate . --hccl-test printed.txt --op all_reduce --num-devices 8"
    done = comm(*words.split(), cwd=tmp_path)
    assert done.returncode == 1
    (failed,) = [line for line in done.stdout.splitlines() if line.startswith("FAIL ")]
    assert missing(failed, ["hccl_test", "all_reduce"]) == []
    assert numbers(failed) == ["6.00", "8192", "8", "1", "60"]  # ratio, bytes, ranks, tier, us
    (tmp_path / "printed.txt").write_text("8192 | 60.00 | 0.1 | failed\n")
    done = comm(*words.split(), cwd=tmp_path)
    assert done.returncode == 1 and missing(done.stdout, ["hccl_test", "8192"]) == []
    lacking = comm("validate", ".", "--hccl-test", "printed.txt", cwd=tmp_path)
    assert lacking.returncode == 2
    assert missing(lacking.stderr, ["--hccl-test", "--op", "--num-devices"]) == []


def reported(ms, sent_mb):
    links = {name: {"Transit Size(MB)": size} for name, size in (("SDMA", sent_mb), ("RDMA", 0))}
    times = {"Elapse Time(ms)": ms}
    return {"Communication Time Info": times, "Communication Bandwidth Info": links}


def results(printed):
    """Return PASS or FAIL, and the numbers, of each line that has one."""
    lines = [line for line in printed.splitlines() if line.startswith(("PASS ", "FAIL "))]
    return [(line.split()[0], numbers(line)) for line in lines]


def test_rows_are_compared_with_a_profile_and_get_its_offsets(tmp_path):
    sent = {8192: 0.068, 12288: 0.05, 65536: 9.0}
    step = {
        "collective": {
            f"hcom_allReduce__1_{at}_1@22": reported(ms, size / 1e6)
            for at, (size, ms) in enumerate(sent.items())
        }
    }
    links = {"collective": {"allreduce-top1@22": {"0-1": {}}}}
    (tmp_path / "communication.json").write_text(json.dumps({"step1": step}))
    (tmp_path / "communication_matrix.json").write_text(json.dumps({"step1": links}))
    header = "message_bytes,num_devices,dtype,topology_tier,Duration(us)"
    table = tmp_path / "hcom_allReduce_.csv"
    table.write_text(f"{header}\n8192,2,DT_BF16,2,60\n16384,2,DT_BF16,2,80\n")
    done = comm(*["validate", ".", "--profile", ".", "--write-offsets"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    # Ratio, bytes, ranks, tier, times in the profile, us there and us alone; and the nearest sizes.
    assert results(done.stdout) == [
        ("PASS", ["0.88", "8192", "2", "2", "1", "68", "60"]),
        ("PASS", ["1.40", "12288", "2", "2", "1", "50", "70", "8192", "16384"]),
    ]
    assert re.search(r"all_reduce\b.*\b65536 bytes", done.stdout)  # which is not compared
    assert "8192,2,DT_BF16,2,60,8.00" in table.read_text().splitlines()
    table.write_text(f"{header}\n8192,2,DT_BF16,1,60\n")
    elsewhere = comm(*["validate", ".", "--profile", "."], cwd=tmp_path)
    # A tier other than that of the rows is assumed, and the output names it.
    assert results(elsewhere.stdout) == [("PASS", ["0.88", "8192", "2", "2", "1", "68", "60", "1"])]
    words = ["validate", ".", "--grid-shape", "128", "8", "--profile", "."]
    assert results(comm(*words, cwd=tmp_path).stdout) == [
        ("PASS", ["0.88", "8192", "2", "1", "1", "68", "60"])
    ]
    refused = comm(*words[:5], cwd=tmp_path).stderr
    assert missing(refused, ["--grid-shape", "--profile"]) == []
    table.write_text(f"{header}\n8192,2,DT_BF16,2,9\n")
    failed = comm(*["validate", ".", "--profile", "."], cwd=tmp_path)
    assert failed.returncode == 1
    assert results(failed.stdout) == [("FAIL", ["0.13", "8192", "2", "2", "1", "68", "9"])]
    lacking = comm("validate", ".", "--write-offsets", cwd=tmp_path)
    assert lacking.returncode == 2
    assert missing(lacking.stderr, ["--write-offsets", "--profile"]) == []
