"""What a profile tells of collectives, as cases."""

import json

import pytest

from collector.collective import Collective
from collector.comm.bench_plan import BenchPlan, Mode
from collector.comm.profiled import profiled, share
from collector.errors import BadInput
from collector.profiles.transfers import Transfer, find_transfers, read_transfers
from collector.topology import Grid

GRID = Grid((48, 8, 2))


def told(ms, sent_mb, rdma_mb=0):
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
    """The files of a run with three groups: of two ranks, of four, and of ranks nobody tells."""
    times = {
        "step7": {
            "p2p": {"hcom_batchSendRecv__1_0_1@22": told(5.0, 8.0)},
            "collective": {
                "hcom_reduceScatter__1_1_1@22": told(2.0, 0.5, 0.5),
                "hcom_allReduce__9_2_1@44": told(1.0, 3.0),
                "hcom_allReduce__9_3_1@44": told(1.5, 3.0),
                "hcom_allReduce__8_3_1@0": told(0.25, 0),
                "hcom_broadcast__9_4_1@44": told(0.25, 1.0),
                "hcom_newThing__9_5_1@44": told(0.5, 1.0),
                "Total Op Info": told(9.0, 9.0),
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


def test_a_run_is_found_and_its_sum_is_no_collective(run, tmp_path):
    assert find_transfers(tmp_path) == (run,)
    assert find_transfers(run / "communication.json") == (run,)
    transfers = read_transfers(run)
    assert len(transfers) == 7
    assert transfers[1] == Transfer("hcom_reduceScatter_", "22", 2, 1_000_000, 2000.0)
    assert {one.group: one.group_size for one in transfers} == {"22": 2, "44": 4, "0": None}


def test_what_was_sent_tells_the_message(run):
    found = profiled(read_transfers(run), GRID, "bfloat16")
    cases = {one.collective: (one.count, one.total_us) for one in found if one.collective}
    assert cases == {
        Collective("send_recv", 8_000_000, "bfloat16", 2, 2): (1, 5000.0),
        Collective("reduce_scatter", 1_000_000, "bfloat16", 2, 2): (1, 2000.0),
        Collective("all_reduce", 2_000_000, "bfloat16", 4, 1): (2, 2500.0),
    }
    assert {one.reason for one in found if not one.collective} == {
        "no operation of this bench",
        "what a rank sends of a broadcast does not tell its size",
        "the profile does not tell what was sent",
    }
    assert [one.total_us for one in found] == sorted((o.total_us for o in found), reverse=True)
    assert share(found) == pytest.approx(9.5 / 10.5)


def test_a_profiles_cases_are_a_plan(run):
    cases = tuple(
        one.collective
        for one in profiled(read_transfers(run), GRID, "bfloat16")
        if one.collective is not None
    )
    plan = BenchPlan("cpu", GRID, 4, Mode.EVENT, 1, 0.1, (5, 9), cases)
    assert {len(plan.groups(case)[0]) for case in cases} == {2, 4}


def test_nothing_is_no_share():
    assert share(()) == 0.0


def only(member):
    return {"step": {"collective": {"hcom_a__1@2": member}}}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([], "object"),
        ({"step": 3}, "an object 'step' is wanted"),
        (only({}), "Communication Time Info"),
        (only(told("x", 1)), "a number 'Elapse"),
        (only(told(-1, 1)), "cannot be"),
        (only(told(1, 1e300)), "cannot be"),
    ],
)
def test_a_file_of_another_kind_is_named(tmp_path, content, words):
    (tmp_path / "communication.json").write_text(json.dumps(content))
    with pytest.raises(BadInput, match=r"communication\.json.*" + words):
        read_transfers(tmp_path)


HEADER = "Name,Type,Accelerator Core,Start Time(us),Duration(us),Input Shapes,Input Data Types,"
REST = "Input Formats,Output Shapes,Output Data Types,Output Formats\n"
ADD = 'aclnnAdd_1,Add,AI_VECTOR_CORE,1.0,2.0,"""8;8""",FLOAT;FLOAT,ND;ND,"""8""",FLOAT,ND\n'
SENT = "hcom_allReduce__1_1_1,hcom_allReduce_,COMMUNICATION,5.0,9.0,N/A,N/A,N/A,N/A,N/A,N/A\n"


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (None, r"$"),
        (ADD, r", and none of its kernels is communication$"),
        (ADD + SENT, r"; 1 kernel of communication without what was sent"),
    ],
)
def test_a_folder_without_collectives_says_what_it_holds(tmp_path, rows, words):
    if rows is not None:
        (tmp_path / "kernel_details.csv").write_text(HEADER + REST + rows)
    with pytest.raises(
        BadInput, match=r"no communication\.json in this folder or below it" + words
    ):
        find_transfers(tmp_path)


def test_real_profiles_that_hold_no_collectives_say_so(real_profiles):
    refused = []
    for folder in sorted(real_profiles.iterdir()):
        try:
            find_transfers(folder)
        except BadInput as error:
            refused.append(str(error))
    assert len(refused) == 3
    assert all("and none of its kernels is communication" in words for words in refused)


def test_real_profiles_become_cases(real_profiles):
    by_run = {
        folder.parent.name: profiled(read_transfers(folder), Grid((8,)), "bfloat16")
        for folder in find_transfers(real_profiles)
    }
    assert len(by_run) == 2
    for found in by_run.values():
        assert 0.2 < share(found) <= 1.0
    sizes = {
        one.collective.message_bytes for found in by_run.values() for one in found if one.collective
    }
    assert 64 << 20 in sizes  # a gradient bucket of exactly so much
