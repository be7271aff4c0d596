"""`opmeter step` with the waits of captured messages."""

import pytest

pytest.importorskip("torch")
from collector.capture.messages import Message, write_messages
from tests.unit.jobs.cli.test_jobs_step import RECORDED, passes_of, step

pytestmark = pytest.mark.torch


def test_captures_of_several_ranks_give_the_waits_of_messages(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for rank, duration_ns in enumerate((90_000, 10_000)):
        output = tmp_path / "prof" / f"rank{rank}_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
        output.mkdir(parents=True)
        sent = Message("hcom_allReduce_", 64, "FP32", "group_name_1", (0, 1))
        write_messages([(0, "hcom_allReduce__001_0_1", sent, (0, duration_ns))], output)
    words = (str(RECORDED), "--device", "ATLAS_800_A3_752T_128G_DIE")
    given, captured = (passes_of(*words, "--wait-us", waits)[0] for waits in ("40", "prof"))
    assert captured["parts_us"]["waiting"] == pytest.approx(given["parts_us"]["waiting"], rel=0.05)
    lines = step(*words, "--wait-us", "prof")
    assert (
        "wait for other ranks, each message: 2.00 us to 78.0 us, of 1 message of 2 ranks" in lines
    )
