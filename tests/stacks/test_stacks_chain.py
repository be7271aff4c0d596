"""The whole chain in the environment of each release's image, on the recording runtime: from
`opmeter doctor` to reports, with pods as their Jobs describe them.

Each test installs the product on the serving stack as the Dockerfile does, and runs commands of
that installation alone. The steps follow each other on one store; a failure names its step.
"""

import json
import subprocess
from collections import Counter
from collections.abc import Sequence
from shlex import split as words
from shutil import copy

import pytest

from collector.engine.calls import read_calls
from collector.engine.environments import RELEASES, find_release
from collector.model.record import CaseRecord
from collector.ops.registry import all_ops
from tests.docs.blocks import FIRST_HOUR, blocks_of, run
from tests.fixtures.op_rows import rows_alone
from tests.lacking import installed_release
from tests.stacks.chain import LIMIT_S, Host, make_host, write_tree
from tests.stacks.product_environment import ROOT, install_product

pytestmark = [pytest.mark.torch, pytest.mark.npu, pytest.mark.slow]

_CAMPAIGN = """\
campaign: {name}
sources: [{sources}]
{more}target: here
backend: npu
devices: {devices}
measure: {{repeats: 3}}
quality: {{repeat_share: 0}}
limits: {{case_s: 60, memory_gb: 4}}
"""
_COLLECTIVES = "collectives: {operations: [all_reduce], bytes: [1024], groups: [2], grid: [2, 1]}"
_KERNELS = 60
_LEAST_KERNELS, _QUERIED = 50, "SwiGlu"
_OF_PRODUCT = ("collector", "jobs", "opmeter", "pyarrow", "scipy")
_PROCESSES = (
    *("opmeter", "collector.worker", "collector.replay.session", "collector.comm.rank_process"),
    "collector.comm.agent",
)


def test_the_chain_runs_in_the_environment_of_an_image(release, tmp_path, real_starts):
    host = make_host(install_product(release), release, tmp_path)
    check_machine(host, release)
    run_campaign(host)
    run_pods(host)
    read_results(host)
    capture_program(host)
    measure_ranks(host)
    check_imports(host, *_PROCESSES)


def test_first_hour_runs_as_written_in_the_environment_of_an_image(tmp_path, real_starts):
    name = installed_release(next(iter(RELEASES)))
    host = make_host(install_product(name), name, tmp_path)
    served = ("npu", "hardware")  # of the latter, what needs neither a container nor an hour
    page = [block for block in blocks_of(FIRST_HOUR) if block.needs in served]
    blocks = [block for block in page if block.needs == "npu" or block.text == "opmeter doctor\n"]
    assert blocks[0].needs == "hardware", "expected the check of the host before all others"
    run(blocks, host.folder, host.variables, LIMIT_S)
    check_imports(host, "opmeter", "collector.worker", "collector.replay.session")


def rows_of_chain() -> list[CaseRecord]:
    """Return one row of many kernel types of CANN. Those of vLLM-Ascend need an import of vLLM,
    which costs more than all the rest; the ranks of experts import it."""
    own = [op for op in all_ops() if op.library != "vllm-ascend" and not op.npu.served]
    rows = [row for op in own for row in rows_alone(op.kernel)[:1] if "EP Size" not in row.extra]
    return rows[:: len(rows) // _KERNELS]


def check_machine(host: Host, release: str) -> None:
    assert "FAIL" not in host.run("doctor", "doctor")
    stack = json.loads(host.run("stack", "stack").splitlines()[-1])
    assert stack["vllm"] == find_release(release).vllm_ascend
    host.run("selftest", "selftest", "npu", *words("--only environment --only profiler"))


def run_campaign(host: Host) -> None:
    """Measure many kernel types, as a user of the host does."""
    write_tree(host.folder / "tree", rows := rows_of_chain())
    text = _CAMPAIGN.format(name="many", sources="{tree: tree}", more="", devices=1)
    (host.folder / "many.yaml").write_text(text)
    planned = host.run("plan", "plan", "many.yaml", "--dry-run")
    assert f"{len(rows)} in 1 shard" in planned, planned
    assert "proved" in host.run("run", "run", "many.yaml")


def run_pods(host: Host) -> None:
    """Measure a shard in one pod, and one collective over two, by the Jobs of a controller."""
    sources = "{bundled: quickstart}, {" + _COLLECTIVES + "}"
    more = "operators: [Sub, hcom_allReduce_]\nupdate: all\n"
    text = _CAMPAIGN.format(name="pods", sources=sources, more=more, devices=2)
    (host.folder / "pods.yaml").write_text(text)
    stack = host.run("stack of the probe", "stack").splitlines()[-1]
    root = f"file://{host.folder / 'opmeter-data'}"
    single, gang, merge = host.first_waves("pods.yaml", root, stack)
    pods = [("worker", single, 0), ("gang", gang, 0), ("gang", gang, 1)]
    finish_pods([host.start_pod(*pods[0])], "worker")
    finish_pods([host.start_pod(*pod) for pod in pods[1:]], "gang")
    (container,) = merge["spec"]["template"]["spec"]["containers"]
    host.run("merge", *container["command"][1:])


def finish_pods(pods: Sequence[subprocess.Popen[str]], name: str) -> None:
    for number, pod in enumerate(pods):
        try:
            printed, _ = pod.communicate(timeout=LIMIT_S)
        finally:
            pod.kill()
        assert pod.returncode == 0, f"pod {number} of the {name}: {pod.returncode}\n{printed}"


def read_results(host: Host) -> None:
    """Read the database as consumers do."""
    assert "no problems" in host.run("db verify", "db", "verify")
    refused = host.run("db quality", "db", "quality")
    assert "by outputs" in refused, refused  # collectives of the runtime move no data
    host.run("pull", "db", "pull", "result")
    tables = list((host.folder / "result").glob("*/vllm_ascend/*/*.csv"))
    assert len(tables) >= _LEAST_KERNELS, sorted(table.stem for table in tables)
    covered = json.loads(host.run("coverage", "coverage", "many.yaml", "--json"))["cases"]
    exact = [case for case in covered if case["status"] == "exact"]
    assert len(exact) >= _LEAST_KERNELS, Counter(case["status"] for case in covered)
    row = next(row for row in rows_of_chain() if row.kernel_type == _QUERIED)
    shape, dtype = row.cells["Input Shapes"].strip('"'), row.cells["Input Data Types"]
    query = ("query", _QUERIED, "--shape", shape, "--dtype", dtype)
    assert "measured" in host.run("query", *query)
    host.run("report", "report", "db", "--output", "pages")
    assert list((host.folder / "pages").glob("*.html"))


def capture_program(host: Host) -> None:
    """Capture a program of the base's Python, and judge the capture."""
    copy(ROOT / "tests" / "npu" / "trained.py", host.folder)  # its folder is searched first
    captured = ("capture", "run", "--no-trial", "--steps", "2", "--", "python", "trained.py")
    host.run("capture run", *captured)
    judged = json.loads(host.run("capture check", "capture", "check", "prof", "--json"))
    assert [(one["rank"], one["share"], one["faults"]) for one in judged] == [(0, 1.0, [])]


def measure_ranks(host: Host) -> None:
    """Time a collective and the experts' kernel over two ranks. Data do not move on the runtime, so
    the outputs are wrong, and no duration is a row: the exit code is 1."""
    common = words("--do-run --rounds 1 --budget-s 0")
    collective = words("--num-devices 2 --ops all_reduce --bytes-grid 1024 --bench-mode kernel")
    printed = host.run("comm", "comm", *collective, *common, "--output-dir", "out", code=1)
    assert "rank 0, 1" in printed, printed
    shape = words("--ep-size 2 --tokens 8 --experts 4 --top-k 2 --hidden 64 --intermediate 32")
    printed = host.run("comm dfc", "comm", "dfc", *shape, *common, code=1)
    assert "rank 0, 1" in printed, printed
    calls = Counter(call.name for call in read_calls(host.log))
    assert calls["HcclAllReduce"] and calls["aclnnDispatchFFNCombine"], calls


def check_imports(host: Host, *processes: str) -> None:
    """Check the origin of what every process of the product imported."""
    product, seen = host.product, host.imported()
    base = tuple(map(str, product.base.folders))
    for one in seen:
        assert not [part for part in one.path if part.startswith(str(ROOT))], one
        for name, file in one.files.items():
            places = (str(product.site),) if name in _OF_PRODUCT else (str(product.site), *base)
            assert file.startswith(places), f"{one.words}: {name} is {file}"
    for module in processes:
        assert any(one.runs(module) for one in seen), f"no process of {module} ended"
    assert [
        one for one in seen if one.runs("collector.replay.session") and "torch_npu" in one.files
    ]
