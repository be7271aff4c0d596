"""All readers of files and objects that others write, with good inputs to begin from."""

import gzip
import io
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from importlib.resources import files
from pathlib import Path

import zstandard

from collector.codec.canonical import readable_json
from collector.codec.errors import BadInput
from collector.comm.check import timed_points
from collector.comm.comm_table import read_comm_table
from collector.comm.kernels import npu_spans
from collector.comm.validation import read_hccl_test
from collector.database.channels import Promotion, promotion_from_json
from collector.database.commits import commit_from_json, find_head
from collector.database.lent import lent_pairs
from collector.database.manifest import snapshot_manifest_from_json, version_files_from_json
from collector.database.op_mapping import check_op_mapping
from collector.database.parquet import read_parquet
from collector.database.pull import MARKER, check_is_real
from collector.database.retired import Retirement, retirement_from_json
from collector.database.reuse import Reuse, ReusedKernel, reuse_from_json
from collector.database.rows import check_rows
from collector.database.snapshot import interval_rows, measurement_rows, shown_tables
from collector.database.tree import read_kernel_file
from collector.measuring.instrument import REPLAY, ReplayedPass
from collector.model import keys
from collector.model.demand import manifest_from_lines, misses_from_lines
from collector.model.manifest import Verified, entry_from_json, verified_from_json, verified_to_json
from collector.model.manifest import manifest_from_json as attempt_manifest_from_json
from collector.model.manifest import shard_commit_from_json as shard_commit_from_json
from collector.model.plan import plan_from_json, read_shard
from collector.model.record import read_table, write_table
from collector.model.stack import Stack
from collector.profiles.attention import read_operator_rows
from collector.profiles.attention_values import read_attention_values
from collector.profiles.bundled import write_bundled_profile
from collector.profiles.discovery import software_of
from collector.profiles.kernel_details import read_profile
from collector.profiles.launches import read_op_summary
from collector.profiles.logged_calls import read_calls
from collector.profiles.step_trace import read_step_times
from collector.profiles.transfers import call_parameters, read_group_ranks, read_transfers
from collector.quality.upgrades import RatioEstimate
from collector.ranks.collective import Collective, CollectiveCase, collective_case_of, is_collective
from collector.ranks.topology import Grid
from collector.replay.seal import seal, unseal
from collector.replay.supervisor import Ending, SessionReport
from collector.store.in_memory import MemoryStore
from collector.worker.attempt import read_part
from collector.workloads.models import read_config
from jobs.campaign.campaign_file import campaign_from_text
from jobs.objects.applied_campaign import applied_from
from jobs.objects.site import site_from_text
from jobs.objects.waves import (
    NodeFailure,
    NodeFailures,
    Wave,
    node_failures_from_json,
    node_failures_to_json,
    wave_from_json,
    wave_to_json,
)
from jobs.planning.demand import standard_from_text
from tests.fixtures.profiles.database import write_database
from tests.fixtures.profiles.variants import (
    LAYOUTS,
    ProfileRow,
    collective,
    profile_bytes,
    unknown_inputs,
)
from tests.unit.collector.replay.replay_cases import PROVENANCE

Read = Callable[[bytes], object]


@dataclass(frozen=True)
class Reader:
    """`read` gets the bytes of an input. Its error message must contain `where`."""

    name: str
    where: str
    samples: tuple[bytes, ...]
    read: Read


def all_readers(objects: Mapping[str, bytes], folder: Path) -> Iterator[Reader]:
    """Return all readers; `objects` is a store to take samples from, `folder` a folder to write
    in."""
    yield from _of_objects(objects, folder)
    yield from _of_files(folder)
    yield from _of_texts()


def _of_objects(objects: Mapping[str, bytes], folder: Path) -> Iterator[Reader]:
    """Return the readers of objects of a store."""
    node_failures = node_failures_to_json(
        NodeFailures(frozenset({NodeFailure("node-1", "s1"), NodeFailure("n2", "s1")}))
    )
    wave = wave_to_json(Wave("alpha", 1, "ab" * 8, 1, (("s1", "s2"), ()), ("node-1",)))

    def of(pattern: str) -> tuple[bytes, ...]:
        return tuple(data for key, data in sorted(objects.items()) if fnmatchcase(key, pattern))

    def named(name: str, pattern: str, read: Callable[..., object], word: str = "key") -> Reader:
        return Reader(name, "a/key", of(pattern), lambda data: read(data, **{word: "a/key"}))

    yield named("plan", "campaigns/*/plans/*", plan_from_json)
    yield named("shard", "campaigns/*/shards/*", read_shard, "path")
    yield named("cases", "campaigns/*/sources/*", read_table, "path")
    yield named("part", "campaigns/*/part-*.csv", read_part)
    yield named("entry", "campaigns/*/entry-*.json", entry_from_json)
    yield named("manifest", "campaigns/*/manifest.json", attempt_manifest_from_json)
    yield named("committed", "campaigns/*/committed/*", shard_commit_from_json)
    first = keys.commit(1)
    yield Reader("commit", first, of(first), lambda d: commit_from_json(d, key=first))
    yield named("snapshot", "db/snapshots/*/manifest.json", snapshot_manifest_from_json)
    yield Reader(
        "node failures",
        "a/key",
        (node_failures,),
        lambda d: node_failures_from_json(d, key="a/key"),
    )
    yield Reader("wave", "a/key", (wave,), lambda d: wave_from_json(d, key="a/key"))
    verified = verified_to_json(Verified(Stack("ATLAS", "2.9.0"), ("Add", "Mul"), "2026-11-23"))
    yield Reader("journal", "a/key", (_sealed(folder),), _unsealed)
    yield Reader("verified", "a/key", (verified,), lambda d: verified_from_json(d, key="a/key"))
    yield named("version files", "db/versions/*/manifest.json", version_files_from_json)
    yield named("measurements", f"{keys.MEASUREMENTS}*", _measurements)
    yield named("shown", f"{keys.SHOWN}*", _shown)
    yield named("pairs", "db/versions/*/pairs.parquet", _pairs)
    yield Reader("channel", "a/key", (_PROMOTION,), lambda d: promotion_from_json(d, key="a/key"))
    yield Reader("retired", "a/key", (_RETIRED,), lambda d: retirement_from_json(d, key="a/key"))
    yield Reader("reused", "a/key", (_REUSE,), lambda d: reuse_from_json(d, key="a/key"))
    yield Reader("collectives", "a/key", (_PAIR_TABLE,), _collectives)
    yield Reader("contexts", "a/key", (_CONTEXTS,), lambda d: read_table(d, path="a/key"))
    yield Reader("HEAD", keys.HEAD, of(keys.HEAD), lambda data: _head(objects, data))


_ROWS = b"Task ID\n1\n"


def _sealed(folder: Path) -> bytes:
    """Return the journal of a session with its seal."""
    summary, journal = folder / "rows.csv", folder / "journal.jsonl"
    summary.write_bytes(_ROWS)
    journal.write_text('{"event": "finish", "at_s": 1.0}\n')
    ended = SessionReport(Ending.COMPLETE, "", None, 1.0, "")
    session = ReplayedPass("{}", "OP Type\n", ended)
    return seal(summary, journal, REPLAY, PROVENANCE, session).read_bytes()


def _unsealed(data: bytes) -> object:
    found = unseal(zstandard.compress(_ROWS), zstandard.compress(data), key="a/key")
    return found.seal.decoded(REPLAY, ReplayedPass, "a/key")


def _collectives(data: bytes) -> object:
    """Return cases of several ranks, as a worker and a merge read them in a shard."""
    try:
        records = read_table(data, path="a/key")
        return [
            collective_case_of(one.case) for one in records if is_collective(one.case.kernel_type)
        ]
    except BadInput as error:
        raise BadInput(str(error), path="a/key") from error


def _measurements(data: bytes, *, key: str) -> object:
    table = measurement_rows(data, _PATH, key=key)
    check_rows(table, key)
    return table


def _shown(data: bytes, *, key: str) -> object:
    return shown_tables(data, _PATH, key=key), list(interval_rows(data, _PATH, key=key))


def _pairs(data: bytes, *, key: str) -> object:
    return lent_pairs(read_parquet(data, key=key), key=key)


def _head(objects: Mapping[str, bytes], data: bytes) -> object:
    store = MemoryStore()
    for key, held in objects.items():
        if key.startswith(keys.COMMITS):
            store.put(key, held)
    store.put(keys.HEAD, data)
    return find_head(store)


def _of_files(folder: Path) -> Iterator[Reader]:
    """Return the readers of files that Ascend's tools, users or other processes write."""
    bundled = write_bundled_profile("quickstart", folder / "bundled").read_bytes()
    some = b"".join(bundled.splitlines(keepends=True)[:12])
    layouts = {name: profile_bytes(name, _LAUNCHES) for name in LAYOUTS}
    details = (some, *(d for n, d in layouts.items() if LAYOUTS[n][0].startswith("kernel")))
    summaries = tuple(d for n, d in layouts.items() if LAYOUTS[n][0].startswith("op_summary"))

    def in_file(name: str, *samples: bytes) -> Callable[[Callable[[Path], object]], Reader]:
        path = folder / name
        path.parent.mkdir(exist_ok=True, parents=True)

        def written(data: bytes, read: Callable[[Path], object]) -> object:
            path.write_bytes(data)
            return read(path)

        return lambda read: Reader(
            name, str(path.parent), samples, lambda data: written(data, read)
        )

    yield in_file("r_ascend_pt/kernel_details.csv", *details)(lambda path: read_profile([path]))
    yield in_file("skip/kernel_details.csv", *details)(
        lambda path: read_profile([path], skip_bad_rows=True)
    )
    yield in_file("capture.zip", _zipped(some))(lambda path: read_profile([path]))
    database = write_database(folder / "sample.db", _LAUNCHES).read_bytes()
    yield in_file("msprof_1.db", database)(lambda path: read_profile([path]))
    yield in_file("gz/kernel_details.csv.gz", gzip.compress(some))(lambda p: read_profile([p]))
    yield in_file("op_summary_1.csv", *summaries)(lambda path: read_profile([path]))
    yield in_file("launches.csv", *summaries)(lambda path: list(read_op_summary(path)))
    yield in_file("operator_details.csv", _OPERATORS)(read_operator_rows)
    yield in_file("run_ascend_pt/profiler_info_0.json", _INFO)(
        lambda path: software_of([path.parent / "kernel_details.csv"])
    )
    yield in_file("window/kernel_details.csv", _KERNELS)(lambda p: npu_spans(p, "hcom_allReduce_"))
    yield in_file("tree/Add.csv", _TREE)(read_kernel_file)
    yield in_file("values.jsonl", _VALUES)(read_attention_values)
    yield in_file("opmeter_calls.jsonl", _CALLS)(lambda path: list(read_calls(path)))
    yield in_file("run_ascend_pt/communication.json", _COLLECTIVES)(
        lambda path: read_transfers(path.parent)
    )
    yield in_file("run_ascend_pt/profiler_metadata.json", _GROUPS)(
        lambda path: read_group_ranks(path.parent / "ASCEND_PROFILER_OUTPUT")
    )
    yield in_file("run_ascend_pt/trace_view.json", _TRACE)(
        lambda path: call_parameters(path.parent)
    )
    yield in_file("run_ascend_pt/step_trace_time.csv", _STEPS)(read_step_times)
    yield in_file("hccl/hcom_allReduce_.csv", _COMM)(
        lambda path: timed_points("all_reduce", read_comm_table(path), str(path))
    )
    yield in_file("hccl_test.txt", _HCCL_TEST)(
        lambda path: read_hccl_test(path.read_text(errors="replace").splitlines(), str(path))
    )
    yield in_file(f"pulled/{MARKER}", _MARKER)(lambda path: check_is_real(path.parent))


def _zipped(table: bytes) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("rank0_ascend_pt/kernel_details.csv", table)
    return data.getvalue()


def _of_texts() -> Iterator[Reader]:
    """Return the readers of text that comes with a campaign and is UTF-8 already."""

    def text(data: bytes) -> str:
        return data.decode("utf-8", "replace")

    mapping = Path("tests/fixtures/op_mapping/rich.yaml").read_bytes()
    campaign = (files("collector") / "data/quickstart/campaign.yaml").read_bytes()
    rich = "{site: s, backend: npu, resource: a/b, devices_per_node: 8, shape: node, cpu: '8', "
    rich += "memory: 1Gi, node_selector: {a: b}, tolerations: [{key: k}], host_paths: [/opt/b]}"
    sites = (b"site: s\nbackend: cpu\ndevices_per_node: 1\nshape: device\ncpu: '1'\nmemory: 3Gi\n",)
    sites += (rich.encode(),)
    yield Reader(
        "op_mapping", "m.yaml", (mapping,), lambda d: check_op_mapping(text(d), path="m.yaml")
    )
    decoder = (files("collector") / "data/models/deepseek-v3.json").read_bytes()
    yield Reader(
        "config", "config.json", (decoder,), lambda d: read_config(d, name="m", path="config.json")
    )
    yield Reader(
        "campaign",
        "c.yaml",
        (campaign, _CAMPAIGN),
        lambda d: campaign_from_text(text(d), path="c.yaml", base=Path("/nowhere")),
    )
    yield Reader("site", "s.yaml", sites, lambda d: site_from_text(text(d), path="s.yaml"))
    yield Reader("misses", "m.jsonl", (_MISSES,), lambda d: misses_from_lines(d, path="m.jsonl"))
    yield Reader(
        "queries", "q.jsonl", (_QUERIES,), lambda d: manifest_from_lines(d, path="q.jsonl")
    )
    yield Reader(
        "density", "d.yaml", (_DENSITY,), lambda d: standard_from_text(text(d), path="d.yaml")
    )
    yield Reader("applied", "made", (_SENT,), lambda d: applied_from(_config_map(text(d))))


_CELLS = {"Input Shapes": "8,8;8,8", "Input Data Types": "FLOAT;FLOAT", "EP Size": "2"}
_MISSED = {"kernel_type": "Add", "cells": _CELLS, "reason": "outside", "count": 2, "weight": 4.5}
_MISSES = b"".join(json.dumps(_MISSED | {"count": n}).encode() + b"\n" for n in (1, 2))
_QUERY = {"workload_id": "a", "critical": True, "query": {"kernel_type": "Add", **_CELLS}}
_QUERIES = b"".join(json.dumps(_QUERY | {"workload_id": w}).encode() + b"\n" for w in "ab")
_DENSITY = b"""schema_version: 1
axes:
  rows: {range: [1, 64], segments: [{to: 8, max_gap: 2}, {to: 64, max_ratio: 2}]}
  depths: {segments: [{to: 64, max_ratio: 1.5}], required_values: [3, 5]}
kernels:
  Add: {t: rows, d: depths}
"""


def _config_map(campaign: str) -> dict[str, object]:
    return {
        "metadata": {"name": "opmeter-campaign-made", "labels": {"opmeter.io/campaign": "made"}},
        "data": {"campaign.yaml": campaign, "site": "a3-800t", **_REACHED},
    }


_PAIR = CollectiveCase(
    Collective("all_to_all", 4096, "bfloat16", 2, 1),
    Grid((2, 2)),
    4,
    "event",
    "HCCL_ALGO=level0:NA",
)
_PATH = "CPU/vllm_ascend/v"
_RETIRED = readable_json(asdict(Retirement(1, (1, 2, 4), 10, 2, "tester", "2026-11-28")))
_PROMOTION = readable_json(
    asdict(Promotion("stable", 1, 3, "0" * 64, {"verify": "no problems"}, "", "a@b", ""))
)
_RATIO = RatioEstimate(1.0, 0.01, 3.0, 0.0, 6)
_REUSE = readable_json(
    asdict(
        Reuse(
            *("c", 2, 1, "A3/vllm_ascend/new", "s", "A3/vllm_ascend/old", "t", 0.05),
            (ReusedKernel("Add", "F", "ND", "", _RATIO, ("0" * 20,)),),
        )
    )
)
_PAIR_TABLE = write_table([_PAIR.record()])
_FIRST, _SECOND = (replace(_PAIR.record(), kernel_type=name) for name in ("Add", "Mul"))
_CONTEXTS = write_table([_FIRST, replace(_PAIR.record(), before=(_FIRST, _SECOND, _FIRST))])
_REACHED = {
    "image": "r/i@sha256:" + 64 * "0",
    "controller_image": "r/c:1",
    "root": "s3://bucket/prefix",
}
_CAMPAIGN = b"""campaign: made
sources: [{bundled: quickstart}, {profile: p, stack: target}]
operators: [Add, MatMulV2]
backend: npu
target: {device: A3, vllm: 0.18.0, torch: 2.9.0, cann: '8.5'}
devices: 4
measure: {budget_s: 1.0, repeats: [3, 100], cache: warm, aic_metrics: [PipeUtilization]}
shards: {target_s: 720, session_s: 240}
limits: {case_s: 60, memory_gb: 56}
"""
_SENT = _CAMPAIGN.replace(b", {profile: p, stack: target}", b"")
_OPERATORS = b"""Name,Input Shapes,Call Stack
npu::npu_fused_infer_attention_score,"1,2,3;4,5,6;;7",x
aten::add,"1,2",x
"""
_STEPS = b"Step,Computing,Communication(Not Overlapped),Free\n3,35.64,0,2214.72\n4,34.3,1,2208.1\n"
_INFO = json.dumps({"torch_npu_version": "2.7.1", "cann_version": "8.3.RC1", "config": {}}).encode()
_TREE = (
    b"OP State,Accelerator Core,Input Shapes,Input Data Types,Input Formats,Output Shapes,"
    b"Output Data Types,Output Formats,Average Duration(us)\n"
    b'dynamic,AI_VECTOR_CORE,"""1,64;1,64""",FLOAT;FLOAT,ND;ND,"""1,64""",FLOAT,ND,10.5\n'
)
_CALLS = (
    json.dumps(
        {
            "rank": 0,
            "step": 1,
            "order": 0,
            "operator": "npu::npu_rms_norm",
            "kernels": ["RmsNorm"],
            "cells": {"Input Shapes": '"4,8;8"', "Input Data Types": "FLOAT;FLOAT"},
            "arguments": {"gamma": {"shape": [8], "dtype": "float32", "format": "ND"}},
        }
    ).encode()
    + b"\n"
)
_VALUES = (
    json.dumps(
        {
            "query_shape": [1, 8, 128],
            "key_shape": [4, 128, 1024],
            "value_shape": [4, 128, 1024],
            "atten_mask_shape": [],
            "block_table_shape": [1, 4],
            "actual_seq_lengths_kv": [77],
            "num_heads": 8,
            "input_layout": "TND",
        }
    ).encode()
    + b"\n"
)
_GROUPS = b'{"parallel_group_info": {"group_name_19": {"global_ranks": [0, 2]}}}'
_TRACE = b"""[{"ph": "X", "name": "aten::empty", "ts": "17.93", "args": {"Call stack": "a;\\r\\n"}},
{"ph": "X", "name": "hcom_allReduce__586_0_1", "dur": 79.5, "args": {"connection_id": 1175,
"data_type": "FP32", "alg_type": "MESH-RING", "count": 4097000, "rank_size": 8}}]"""
_COLLECTIVES = json.dumps(
    {
        "step1": {
            "collective": {
                "hcom_allReduce__586_0_1@17": {
                    "Communication Time Info": {"Elapse Time(ms)": 1.5},
                    "Communication Bandwidth Info": {
                        "SDMA": {"Transit Size(MB)": 2.5},
                        "RDMA": {"Transit Size(MB)": 0},
                    },
                }
            }
        }
    }
).encode()
_COMM = (
    b"message_bytes,num_devices,dtype,topology_tier,Duration(us),bandwidth_gbps,round_spread\n"
    b"1024,16,DT_BF16,1,12.50,0.08,0.01\n2048,16,DT_BF16,1,13.00,0.16,0.02\n"
)
_KERNELS = (
    b"Step Id,Name,Type,Start Time(us),Duration(us)\n"
    b"1,hcom_allReduce__1_1_1,hcom_allReduce_,1764246877843020.800\t,12.5\n"
    b"1,hcom_allReduce__1_2_1,hcom_allReduce_,1764246877843120.800\t,13\n"
)
_HCCL_TEST = (
    b"data_size(Bytes): | aveg_time(us): | alg_bandwidth(GB/s): | check_result:\n"
    b"8192 | 50.00 | 0.16384 | success\n"
    b"local rank_id 3, check result failed, 32768 | 90.00 | 0.36409 | failed\n"
)
_MARKER = b'{"commit": 1, "content_hash": "ab", "runtime": "real", "files": {"a/Add.csv": "cd"}}'
_LAUNCHES = (
    ProfileRow(start="100.000\t"),
    ProfileRow(
        "MatMulV2", '"64,32;32,16"', out_shapes='"64,16"', core="AI_CORE", start="200.500\t"
    ),
    collective("300.0\t", "40.25"),
    unknown_inputs("MemSet", start="400.0\t"),
)
