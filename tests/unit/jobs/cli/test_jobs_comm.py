"""`opmeter comm` as a user types it; its ranks are real ones, over gloo."""

import csv
import importlib.util
import json
import re

import pytest

from collector.collective import Collective
from collector.comm.bench_plan import LeftOut
from jobs.cli.comm_lines import left_out_lines
from tests.unit.jobs.cli.test_jobs_command import opmeter


def comm(*words, cwd=None):
    return opmeter("comm", *words, cwd=cwd)


def test_without_do_run_the_plan_is_said():
    words = "--backend cpu --num-devices 2 16 --ops all_reduce --bytes-grid quick 3"
    done = comm(*words.split())
    assert done.returncode == 0, done.stderr
    assert "all_reduce over 2 ranks of tier 2: 8 groups at once, ranks 0, 1; 5 sizes" in done.stdout
    assert "all_reduce over 16 ranks of tier 1: 1 group, ranks 0, 1, 2, 3 ...;" in done.stdout
    assert "not measured: all_reduce of 3 bytes" in done.stdout
    assert "15 cases, 3 rounds of 0.2 s: about 9 s of 16 ranks, 144 s of device time" in done.stdout
    assert "nothing is measured without --do-run" in done.stdout


def test_the_plan_says_how_each_size_is_timed():
    words = "--backend npu --num-devices 2 --ops all_gather all_reduce --nproc-per-node 2"
    done = comm(*words.split())
    assert done.returncode == 0, done.stderr
    assert "13 sizes, 128 to 524288 bytes, mode kernel" in done.stdout
    assert "10 sizes, 1048576 to 536870912 bytes, mode alternating" in done.stdout
    assert "23 sizes, 128 to 536870912 bytes, mode alternating" in done.stdout
    # 46 cases of 0.2 s, and 13 windows of 10 s, in 3 rounds
    assert "about 418 s of 2 ranks, 835 s of device time" in done.stdout


def test_cases_left_out_for_one_reason_are_one_line():
    every = [
        LeftOut(Collective(name, size, "bfloat16", 24, 0), "uneven")
        for name in ("all_to_all", "all_to_allv")
        for size in (256, 128, 512)
    ]
    other = LeftOut(Collective("broadcast", 3, "int8", 2, 2), "too small")
    assert list(left_out_lines("not measured", [every[0], other, *every[1:]])) == [
        "not measured: all_to_all, all_to_allv of 128, 256, 512 bytes of bfloat16 over 24 ranks of "
        "tier 0 (6 cases): uneven",
        "not measured: broadcast of 3 bytes of int8 over 2 ranks of tier 2: too small",
    ]
    many = [
        LeftOut(Collective("all_reduce", 1 << at, "int8", 4, 1, together=True), "lost")
        for at in range(20)
    ]
    assert list(left_out_lines("wrong", many)) == [
        "wrong: all_reduce of 20 sizes from 1 to 524288 bytes of int8 over 4 ranks of tier 1, all "
        "groups at once (20 cases): lost"
    ]
    each = [LeftOut(other.collective, str(at)) for at in range(25)]
    *_, last = left_out_lines("not measured", each)
    assert last == "not measured: 5 more cases"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "--ops all_reduce broadcast --output-csv x.csv",
            "--output-csv is a file of one operation",
        ),
        ("--bench-mode kernel", "gloo moves data on the host's threads and runs no kernel"),
        ("--bench-mode pipeline", "auto, event, alternating, kernel are wanted"),
        ("--backend tpu", "--backend 'tpu'"),
        ("--dtype float64", "dtype 'float64'"),
        ("--num-devices 1000", "768 ranks"),
        ("--ops all_reduce --bytes-grid 3", "no case is left"),
    ],
)
def test_a_mistake_is_one_line(words, said):
    done = comm("--backend", "cpu", *words.split())
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_collectives_of_real_steps_are_a_plan_with_its_device_time(real_profiles):
    done = comm("--backend", "npu", "--profiling-path", str(real_profiles), "--nproc-per-node", "8")
    assert done.returncode == 0, done.stderr
    total = re.search(r"ms of communication, ([0-9.]+)% of it in (\d+) cases", done.stdout)
    cost = re.search(r"(\d+) cases, .* of 8 ranks, (\d+) s of device time", done.stdout)
    assert total and float(total[1]) > 20.0, done.stdout
    assert cost and int(cost[1]) == int(total[2]) > 0 and int(cost[2]) > 0


def test_a_row_of_another_mode_is_refused_before_anything_is_measured(tmp_path):
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
        assert "is of mode alternating, this run's would be of event: ask for its mode" in line


@pytest.mark.slow
def test_collectives_are_measured_written_and_validated(tmp_path):
    words = "--do-run --backend cpu --num-devices 2 --ops all_gather reduce_scatter --rounds 2"
    more = "--bytes-grid 1024 4096 65536 --budget-s 0.01 --bench-mode alternating --output-dir out"
    done = comm(*words.split(), *more.split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "all_gather over 2 ranks of tier 2: " in done.stdout
    assert "between rounds a case's median moves by less than" in done.stdout
    assert "hcom_reduceScatter_.csv: 3 rows added, 0 changed" in done.stdout
    with (tmp_path / "out" / "hcom_allGather_.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["message_bytes"] for row in rows] == ["1024", "4096", "65536"]
    assert {row["mode"] for row in rows} == {"alternating"}
    assert all(float(row["Duration(us)"]) > 0 for row in rows)
    link = comm("validate", "out", "--link-gbps", "0.000001", cwd=tmp_path)
    assert link.returncode == 1
    assert "GB/s on a bus of 1e-06" in link.stdout
    nothing = comm("validate", ".", cwd=tmp_path)
    assert nothing.returncode == 2
    assert "hcom_*.csv with durations are wanted" in nothing.stderr


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("torch_npu") is not None, reason="this machine has a torch_npu"
)
def test_a_machine_without_npus_says_what_is_lacking(tmp_path):
    words = "--do-run --num-devices 2 --ops all_reduce --bytes-grid 1024 --output-dir out"
    done = comm(*words.split(), cwd=tmp_path)
    assert done.returncode == 1
    assert "HostFault: --backend npu needs torch_npu and CANN: No module" in done.stderr
    assert not (tmp_path / "out").exists()


def test_rows_are_held_against_hccl_test(tmp_path):
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
    assert "FAIL 6.00 x hccl_test: all_reduce of 8192 bytes over 8 ranks" in done.stdout
    lacking = comm("validate", ".", "--hccl-test", "printed.txt", cwd=tmp_path)
    assert lacking.returncode == 2
    assert "--hccl-test needs its --op and --num-devices" in lacking.stderr


def told(ms, sent_mb):
    links = {name: {"Transit Size(MB)": size} for name, size in (("SDMA", sent_mb), ("RDMA", 0))}
    times = {"Elapse Time(ms)": ms}
    return {"Communication Time Info": times, "Communication Bandwidth Info": links}


def test_rows_are_held_against_a_profile_and_told_what_it_adds(tmp_path):
    sent = {8192: 0.068, 12288: 0.05, 65536: 9.0}
    step = {
        "collective": {
            f"hcom_allReduce__1_{at}_1@22": told(ms, size / 1e6)
            for at, (size, ms) in enumerate(sent.items())
        }
    }
    links = {"collective": {"allreduce-top1@22": {"0-1": {}}}}
    (tmp_path / "communication.json").write_text(json.dumps({"step1": step}))
    (tmp_path / "communication_matrix.json").write_text(json.dumps({"step1": links}))
    header = "message_bytes,num_devices,dtype,topology_tier,Duration(us)"
    table = tmp_path / "hcom_allReduce_.csv"
    table.write_text(f"{header}\n8192,2,DT_BF16,2,60\n16384,2,DT_BF16,2,80\n")
    done = comm(*["validate", ".", "--profiling-path", ".", "--write-offsets"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    message = "all_reduce of 8192 bytes over 2 ranks, tier 2 assumed, 1 time in the profile: 68 us"
    assert f"PASS 0.88 x {message}; " in done.stdout
    assert any("alone 70 us (on the line between 8192 and 16384 bytes)" in line for line in lines)
    assert any(line.startswith("not compared: all_reduce of 65536 bytes") for line in lines)
    assert "8192,2,DT_BF16,2,60,8.00" in table.read_text().splitlines()
    table.write_text(f"{header}\n8192,2,DT_BF16,1,60\n")
    elsewhere = comm(*["validate", ".", "--profiling-path", "."], cwd=tmp_path)
    assert "alone 60 us (rows of DT_BF16, tier 1)" in elsewhere.stdout
    words = ["validate", ".", "--grid-shape", "128", "8", "--profiling-path", "."]
    assert "alone 60 us\n" in comm(*words, cwd=tmp_path).stdout
    assert "--grid-shape needs" in comm(*words[:5], cwd=tmp_path).stderr
    table.write_text(f"{header}\n8192,2,DT_BF16,2,9\n")
    failed = comm(*["validate", ".", "--profiling-path", "."], cwd=tmp_path)
    assert failed.returncode == 1
    assert "FAIL 0.13 x all_reduce of 8192 bytes" in failed.stdout
    lacking = comm("validate", ".", "--write-offsets", cwd=tmp_path)
    assert lacking.returncode == 2
    assert "--write-offsets needs the --profiling-path" in lacking.stderr
