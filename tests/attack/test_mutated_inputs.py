"""Every reader accepts any bytes: it reads them, or reports in one line where and why not."""

import os
import random

import pytest

from collector.codec.errors import OpmeterError
from tests.attack.mutation import mutated
from tests.attack.readers import Reader, all_readers
from tests.attack.victim import Scene, build

_INPUTS = int(os.environ.get("OPMETER_ATTACK_INPUTS", "10000"))
_LONGEST_LINE = 2000
_NAMES = (
    *("plan", "shard", "cases", "part", "entry", "manifest", "committed", "commit", "snapshot"),
    *(
        "node failures",
        "wave",
        "verified",
        "version files",
        *("measurements", "shown", "pairs", "channel"),
        "collectives",
        "contexts",
        "HEAD",
        "r_ascend_pt/kernel_details.csv",
        *("capture.zip", "msprof_1.db", "gz/kernel_details.csv.gz"),
    ),
    *("skip/kernel_details.csv", "op_summary_1.csv", "launches.csv", "operator_details.csv"),
    *("run_ascend_pt/profiler_info_0.json", "tree/Add.csv", "values.jsonl", "opmeter_calls.jsonl"),
    *("window/kernel_details.csv", "run_ascend_pt/profiler_metadata.json"),
    *("run_ascend_pt/trace_view.json", "run_ascend_pt/step_trace_time.csv"),
    *("run_ascend_pt/communication.json", "hccl/hcom_allReduce_.csv", "hccl_test.txt"),
    *("pulled/.opmeter-pull.json", "op_mapping", "config", "campaign", "site", "applied"),
    *("misses", "queries", "density", "reused", "retired", "journal"),
)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reader]:
    objects = build(Scene(tmp_path_factory.mktemp("scene"))).objects()
    return {r.name: r for r in all_readers(objects, tmp_path_factory.mktemp("files"))}


def refused(reader: Reader, data: bytes) -> str:
    """Return the error of a reader for an input; empty if it accepts it."""
    try:
        reader.read(data)
    except OpmeterError as error:
        return str(error)
    return ""


def test_every_reader_is_listed_and_accepts_its_samples(known: dict[str, Reader]) -> None:
    assert set(known) == set(_NAMES)
    for reader in known.values():
        assert reader.samples
        taken = [not refused(reader, sample) for sample in reader.samples]
        assert any(taken), reader.name


@pytest.mark.parametrize("name", _NAMES)
def test_mutated_inputs_are_read_or_refused_in_one_line(
    known: dict[str, Reader], name: str
) -> None:
    reader = known[name]
    for seed in range(_INPUTS // len(_NAMES)):
        chance = random.Random(f"{name} {seed}")
        message = refused(reader, mutated(reader.samples, chance))
        assert "\n" not in message and "\r" not in message and "\x1b" not in message, (
            seed,
            message,
        )
        assert len(message) <= _LONGEST_LINE, (seed, message[:200])
        assert not message or reader.where in message, (seed, message)
