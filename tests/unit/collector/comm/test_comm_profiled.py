"""The collectives of a profile, as cases."""

import json

import pytest

from collector.codec.errors import BadInput
from collector.comm.bench_plan import BenchPlan, Mode
from collector.comm.profiled import profiled_collectives, share_in_cases
from collector.comm.validation import in_network
from collector.profiles.transfers import Transfer, find_transfers, group_number, read_transfers
from collector.ranks.collective import Collective
from collector.ranks.topology import Grid
from jobs.cli.comm import profile_lines
from tests.unit.collector.naming import names, naming

GRID = Grid((48, 8, 2))


def reported(ms, sent_mb, rdma_mb=0):
    """A member of communication.json, as far as it is read."""
    links = {"HCCS": sent_mb, "SDMA": sent_mb, "RDMA": rdma_mb}
    return {
        "Communication Time Info": {"Elapse Time(ms)": ms},
        "Communication Bandwidth Info": {
            name: {"Transit Size(MB)": size} for name, size in links.items()
        },
    }


@pytest.fixture
def run(tmp_path):
    """Write the files of a run with three groups: of two ranks, of four, and of unreported
    ranks."""
    times = {
        "step7": {
            "p2p": {"hcom_batchSendRecv__1_0_1@22": reported(5.0, 8.0)},
            "collective": {
                "hcom_reduceScatter__1_1_1@22": reported(2.0, 0.5, 0.5),
                "hcom_allReduce__9_2_1@44": reported(1.0, 3.0),
                "hcom_allReduce__9_3_1@44": reported(1.5, 3.0),
                "hcom_allReduce__8_3_1@0": reported(0.25, 0),
                "hcom_broadcast__9_4_1@44": reported(0.25, 1.0),
                "hcom_newThing__9_5_1@44": reported(0.5, 1.0),
                "Total Op Info": reported(9.0, 9.0),
            },
        }
    }
    matrix = {
        "step7": {
            "p2p": {"batchsendrecv-top1@22": {"0-0": {}, "0-1": {}}},
            "collective": {
                "allreduce-top1@44": {"0-0": {}, "0-1": {}, "0-2": {}},
                "allreduce-total@44": {"0-3": {}},
                "allreduce-top1@0": {"0-0": {}},
            },
        }
    }
    folder = tmp_path / "rank0_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    folder.mkdir(parents=True)
    (folder / "communication.json").write_text(json.dumps(times))
    (folder / "communication_matrix.json").write_text(json.dumps(matrix))
    return folder


def test_run_is_found_without_its_total_row(run, tmp_path):
    assert find_transfers(tmp_path) == (run,)
    assert find_transfers(run / "communication.json") == (run,)
    transfers = read_transfers(run)
    assert len(transfers) == 7
    assert transfers[1] == Transfer(
        "hcom_reduceScatter_", "22", 2, 1_000_000, 2000.0, name=transfers[1].name
    )
    assert transfers[1].name.startswith("hcom_reduceScatter__")
    assert {one.group: one.group_size for one in transfers} == {"22": 2, "44": 4, "0": None}


def test_folder_that_is_read_is_not_reported_as_left_out(run, tmp_path, caplog):
    """A run of level 0 has collectives, and no kernels with shapes."""
    (run / "trace_view.json").write_text("[]")
    other = tmp_path / "rank1_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    other.mkdir(parents=True)
    (other / "trace_view.json").write_text("[]")
    assert find_transfers(tmp_path) == (run,)
    assert "rank1_ascend_pt" in caplog.text and "rank0_ascend_pt" not in caplog.text


def test_collective_in_two_steps_counts_once(run):
    at = {"Start Timestamp(us)": 17.5}
    name, times = "hcom_allReduce__9_2_1@44", reported(1.0, 3.0)
    times["Communication Time Info"] |= at
    later = reported(1.0, 3.0)
    later["Communication Time Info"] |= {"Start Timestamp(us)": 18.5}
    steps = {f"step{n}": {"collective": {name: one}} for n, one in enumerate((times, times, later))}
    (run / "communication.json").write_text(json.dumps(steps))
    assert len(read_transfers(run)) == 2


def test_message_is_derived_from_the_sent_bytes(run):
    found = profiled_collectives(read_transfers(run), GRID, "bfloat16")
    cases = {one.collective: (one.count, one.total_us) for one in found if one.collective}
    assert cases == {
        Collective("send_recv", 8_000_000, "bfloat16", 2, 2): (1, 5000.0),
        Collective("reduce_scatter", 1_000_000, "bfloat16", 2, 2): (1, 2000.0),
        Collective("all_reduce", 2_000_000, "bfloat16", 4, 1): (2, 2500.0),
    }
    reasons = {one.kernel_type: one.reason for one in found if not one.collective}
    assert sorted(reasons) == ["hcom_allReduce_", "hcom_broadcast_", "hcom_newThing_"]
    assert all(reasons.values()) and len(set(reasons.values())) == 3
    assert [one.total_us for one in found] == sorted((o.total_us for o in found), reverse=True)
    assert share_in_cases(found) == pytest.approx(9.5 / 10.5)


def of_two(run, ranks, name="group_name_19"):
    """Return the case and reason of an all_reduce of a named group whose links join two ranks."""
    group = group_number(name)
    times = {"step": {"collective": {f"hcom_allReduce__1_1_1@{group}": reported(1.0, 3.0)}}}
    matrix = {"step": {"collective": {f"allreduce-top1@{group}": {"0-1": {}}}}}
    (run / "communication.json").write_text(json.dumps(times))
    (run / "communication_matrix.json").write_text(json.dumps(matrix))
    groups = {"group_name_19": {"group_name": "pp", "global_ranks": ranks}}
    (run.parent / "profiler_metadata.json").write_text(json.dumps({"parallel_group_info": groups}))
    (found,) = profiled_collectives(read_transfers(run), GRID, "bfloat16")
    return found


def test_a_groups_number_is_made_of_its_name():
    assert group_number("group_name_0") == str(1364917516 << 32 | 257924876)  # of a real profile


def test_the_tier_is_that_of_the_ranks_a_profile_names(run):
    near, far = of_two(run, [1, 0]).collective, of_two(run, [0, 16]).collective
    assert (near.tier, near.group_size) == (2, 2)
    assert (far.tier, far.group_size) == (0, 2)
    assert of_two(run, [2, 0]).collective.tier == 1
    assert not of_two(run, [0, 2]).tier_assumed


@pytest.mark.parametrize(("ranks", "name"), [([0, 2], "group_name_7"), ([0], "group_name_19")])
def test_tier_of_unreported_ranks_is_assumed_to_be_the_nearest(run, ranks, name):
    found = of_two(run, ranks, name)
    assert found.collective.tier == 2
    assert found.tier_assumed
    assert names(next(profile_lines([found])), "tier", "assumed")
    assert names(str(in_network([found])[0]), "tier 2", "assumed")


@pytest.mark.parametrize(
    ("size", "grid", "tier"), [(17, GRID, 0), (2, Grid((1, 2)), 1), (4, Grid((8,)), 0)]
)
def test_only_possible_tier_is_not_marked_as_assumed(size, grid, tier):
    (found,) = profiled_collectives(
        [Transfer("hcom_allReduce_", "g", size, 1 << 20, 5.0)], grid, "bfloat16"
    )
    assert found.collective.tier == tier
    assert not found.tier_assumed


def test_ranks_without_a_group_in_the_grid_are_not_a_case(run):
    beyond = of_two(run, [0, 768])
    assert beyond.collective is None
    assert names(beyond.reason, 768, "48 8 2")
    uneven = Transfer("hcom_allReduce_", "g", 4, 1 << 20, 5.0, (0, 1, 8, 9))
    (found,) = profiled_collectives([uneven], Grid((2, 8)), "bfloat16")
    assert found.collective is None
    assert names(found.reason, "4 ranks", "tier 0", "2 8")


@pytest.mark.parametrize("ranks", [None, "0", ["0"], [True], [-1], [0, 0], [1 << 40]])
def test_invalid_ranks_are_refused(run, ranks):
    with pytest.raises(BadInput, match=naming("profiler_metadata.json:", "global_ranks")):
        of_two(run, ranks)


def requested(elements, dtype="FP32", kernel="hcom_allReduce_", size=4, sent=7 << 20):
    """Return the row of a collective with the arguments of its HCCL call."""
    one = Transfer(kernel, "g", size, sent, 5.0, (), elements, dtype)
    (found,) = profiled_collectives([one], GRID, "bfloat16")
    return found


@pytest.mark.parametrize(
    ("kernel", "message_bytes"),
    [
        ("hcom_allReduce_", 4 * 1_000_000),
        ("hcom_allGather_", 4 * 1_000_000),
        ("hcom_reduceScatter_", 4 * 1_000_000),
        ("hcom_broadcast_", 4 * 1_000_000),
        ("hcom_alltoall_", 4 * 4 * 1_000_000),  # HCCL counts what goes to one of four ranks
        ("hcom_alltoallv_", 4 * 1_000_000),
    ],
)
def test_case_has_the_arguments_of_the_hccl_call(kernel, message_bytes):
    found = requested(1_000_000, kernel=kernel)
    assert (found.collective.message_bytes, found.collective.dtype) == (message_bytes, "float32")
    assert not found.is_derived
    assert (
        requested(1_000_000, kernel=kernel, sent=0).collective == found.collective
    )  # an AIV kernel
    assert not any("about" in line for line in profile_lines([found]))


@pytest.mark.parametrize(
    ("dtype", "ours"), [("BFP16", "bfloat16"), ("FP16", "float16"), ("INT8", "int8")]
)
def test_dtypes_are_those_of_hccl(dtype, ours):
    assert requested(1000, dtype).collective.dtype == ours


def test_size_that_the_call_does_not_report_is_derived():
    sent = requested(10, kernel="hcom_batchSendRecv_")  # one of its parts is counted
    assert (sent.collective.message_bytes, sent.collective.dtype) == (7 << 20, "float32")
    assert sent.is_derived
    assert "about" in next(profile_lines([sent]))
    uneven = requested(1_000_001, kernel="hcom_alltoallv_")  # not a multiple of four elements
    assert uneven.collective.message_bytes == 4 * 1_000_000
    assert uneven.is_derived
    lost = requested(10, kernel="hcom_batchSendRecv_", sent=0)
    assert lost.collective is None and lost.reason


def test_dtype_that_cannot_be_measured_is_not_a_case():
    found = requested(1000, "INT64")
    assert found.collective is None
    assert names(found.reason, "INT64", "bfloat16", "float16", "float32", "int8")


def test_size_reported_by_one_row_is_not_derived():
    reported = Transfer("hcom_allReduce_", "g", 4, 7 << 20, 5.0, (), 1 << 20, "BFP16")
    derived = Transfer("hcom_allReduce_", "g", 4, 3 << 20, 6.0)
    (found,) = profiled_collectives([derived, reported], GRID, "bfloat16")
    assert (found.count, found.is_derived) == (2, False)


def test_trace_of_a_run_supplies_the_arguments_of_its_collectives(run):
    args = {"count": 500_001, "data_type": "FP32", "rank_size": 8}
    events = [
        {"name": "hcom_allReduce__9_2_1", "args": args},
        {"name": "hcom_allReduce__8_3_1", "args": args},
    ]
    (run / "trace_view.json").write_text(json.dumps(events))
    found = {one.name: one for one in read_transfers(run) if one.elements}
    called = ((), 500_001, "FP32")
    first, second = (event["name"] for event in events)
    assert found == {
        first: Transfer("hcom_allReduce_", "44", 4, 3_000_000, 1000.0, *called, first),
        second: Transfer("hcom_allReduce_", "0", 8, 0, 250.0, *called, second),
    }


def test_cases_of_a_profile_become_a_plan(run):
    cases = tuple(
        one.collective
        for one in profiled_collectives(read_transfers(run), GRID, "bfloat16")
        if one.collective is not None
    )
    plan = BenchPlan("cpu", GRID, 4, Mode.EVENT, 1, 0.1, (5, 9), cases)
    assert {len(plan.groups(case)[0]) for case in cases} == {2, 4}


def test_share_of_no_cases_is_zero():
    assert share_in_cases(()) == 0.0


def only(member):
    return {"step": {"collective": {"hcom_a__1@2": member}}}


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ([], ()),
        ({"step": 3}, ("torch_npu.profiler", "'step'")),
        ({"hcom_a__1@2": reported(1, 1)}, ("torch_npu.profiler", "'Elapse Time(ms)'")),  # no steps
        ({"step": {"collective": {"allReduce": {}}}}, ("torch_npu.profiler", "'allReduce'")),
        (only({}), ("'Communication Time Info'",)),
        (only(reported("x", 1)), ("'Elapse Time(ms)'",)),
        (only(reported(-1, 1)), ("'Elapse Time(ms)'", -1)),
        (only(reported(1, 1e300)), ("'Transit Size(MB)'", 1e300)),
    ],
)
def test_file_of_another_kind_is_refused_by_name(tmp_path, content, named):
    (tmp_path / "communication.json").write_text(json.dumps(content))
    with pytest.raises(BadInput, match=naming("communication.json:", *named)):
        read_transfers(tmp_path)


HEADER = "Name,Type,Accelerator Core,Start Time(us),Duration(us),Input Shapes,Input Data Types,"
REST = "Input Formats,Output Shapes,Output Data Types,Output Formats\n"
ADD = 'aclnnAdd_1,Add,AI_VECTOR_CORE,1.0,2.0,"""8;8""",FLOAT;FLOAT,ND;ND,"""8""",FLOAT,ND\n'
SENT = "hcom_allReduce__1_1_1,hcom_allReduce_,COMMUNICATION,5.0,9.0,N/A,N/A,N/A,N/A,N/A,N/A\n"


@pytest.mark.parametrize("rows", [None, ADD, ADD + SENT], ids=["none", "add", "sent"])
def test_folder_without_collectives_is_refused_with_its_contents(tmp_path, rows):
    if rows is not None:
        (tmp_path / "kernel_details.csv").write_text(HEADER + REST + rows)
    with pytest.raises(BadInput, match=naming("communication.json")) as error:
        find_transfers(tmp_path)
    assert ("kernel" in str(error.value)) == (rows is not None)
    assert names(str(error.value), "1 kernel", "Level1") == (rows == ADD + SENT)


def test_real_profiles_without_collectives_are_refused(real_profiles):
    refused = []
    for folder in sorted(real_profiles.iterdir()):
        try:
            find_transfers(folder)
        except BadInput as error:
            refused.append(str(error))
    assert len(refused) == 3
    assert all("kernel" in message and "Level1" not in message for message in refused)


def test_real_profiles_become_cases(real_profiles):
    by_run = {
        folder.parent.name: profiled_collectives(read_transfers(folder), Grid((8,)), "bfloat16")
        for folder in find_transfers(real_profiles)
    }
    assert len(by_run) == 2
    for found in by_run.values():
        assert 0.2 < share_in_cases(found) <= 1.0
    sizes = {
        (one.collective.message_bytes, one.collective.dtype)
        for one in by_run["resnet_2025_rank0_ascend_pt"]
        if one.collective and not one.is_derived
    }
    assert sizes == {
        (4 * elements, "float32") for elements in (2469696, 4097000, 16781312, 37752832)
    }
    derived = [one for found in by_run.values() for one in found if one.is_derived]
    assert {one.collective.dtype for one in derived} == {"bfloat16"}  # as requested


def test_sent_bytes_of_a_real_profile_match_the_reported_elements(real_profiles):
    (resnet,) = real_profiles.glob("resnet*/ASCEND_PROFILER_OUTPUT")
    for one in read_transfers(resnet):
        exact_bytes = 4 * one.elements
        assert 0.998 < one.sent_bytes / (1.75 * exact_bytes) <= 1


def test_groups_of_a_real_profile_have_the_ranks_it_records(real_profiles):
    (train,) = (one for one in find_transfers(real_profiles) if one.parent.name.startswith("train"))
    transfers = read_transfers(train)
    assert {one.ranks for one in transfers} == {(0, 1), (0, 2), (0, 1, 2, 3)}
    cases = [
        one
        for one in profiled_collectives(transfers, GRID, "bfloat16")
        if one.collective is not None
    ]
    assert {one.collective.tier for one in cases if one.collective.group_size == 2} == {1, 2}
    assert not any(one.tier_assumed for one in cases)
