"""Traces open in Perfetto: merged ones with kernels, arrows and counters, passes with tracks."""

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from jobs.cli.options import HostOptions, VersionOptions
from jobs.cli.step import step_command
from jobs.cli.trace import merge_trace_command
from tests.browser.perfetto import opened_in_perfetto, query
from tests.unit.collector.profiles.test_profiles_trace_merge import TIMES, TRACE

RECORDINGS = Path(__file__).parents[1] / "fixtures" / "recordings"


def test_perfetto_has_the_kernels_arrows_and_counters(tmp_path: Path, browser: Any) -> None:
    (tmp_path / "trace.json").write_text(json.dumps(TRACE))
    (tmp_path / "times.json").write_text(json.dumps(TIMES))
    output = tmp_path / "merged.json"
    merge_trace_command(tmp_path / "trace.json", tmp_path / "times.json", output=output)
    with opened_in_perfetto(browser, output) as page:
        faults = "select name, value from stats where severity = 'error' and value > 0"
        assert query(page, faults, "name", "value") == []
        kernels = "select name, ts, dur from slice where category = 'kernel' order by ts"
        first_ns = query(page, kernels, "ts")[0][0]
        assert [
            [name, (ts - first_ns) / 1000, dur / 1000]
            for name, ts, dur in query(page, kernels, "name", "ts", "dur")
        ] == [
            ["aten::mm", 0, 50],
            ["aten::add", 50, 7.5],
            ["aten::relu", 98.5, 3],
            ["aten::relu", 101.5, 5],
        ]
        arrows = """select launched.name as host, kernel.name as device from flow
            join slice launched on launched.id = flow.slice_out
            join slice kernel on kernel.id = flow.slice_in order by kernel.ts"""
        names = ["aten::mm", "aten::add", "aten::relu", "aten::relu"]
        assert query(page, arrows, "host", "device") == [[name, name] for name in names]
        counters = """select t.name as name, max(c.value) as most from counter c
            join counter_track t on t.id = c.track_id group by t.name order by t.name"""
        assert query(page, counters, "name", "most") == [
            ["device memory allocated bytes", 640],
            ["memory of the operator bytes", 256],
        ]
        picture = Image.open(BytesIO(page.screenshot())).convert("RGB")
        (tmp_path / "perfetto.png").write_bytes(page.screenshot())
        assert len(picture.getcolors(1 << 20)) > 20
        title = page.get_by_text("Device, placed from events").first
        assert title.is_visible()


def test_perfetto_has_a_track_for_the_host_and_each_stream(tmp_path: Path, browser: Any) -> None:
    output = tmp_path / "pass.json"
    step_command(
        str(RECORDINGS / "qwen3-32b_tp=4_graph.json.gz"),
        device="ATLAS_800_A3_752T_128G_DIE",
        trace=output,
        where=VersionOptions(),
        host=HostOptions(host_us="50"),
    )
    with opened_in_perfetto(browser, output) as page:
        faults = "select name, value from stats where severity = 'error' and value > 0"
        assert query(page, faults, "name", "value") == []
        tracks = """select t.name as name, count(*) as times from slice s
            join thread_track k on k.id = s.track_id join thread t using (utid)
            group by t.name order by t.name"""
        found = dict(query(page, tracks, "name", "times"))
        assert found.keys() == {"host", "stream 1", "stream 2", "stream 3", "stream 4", "stream 6"}
        assert sum(times for name, times in found.items() if name != "host") == 809 + 2 * 130 + 8
        critical = """select sum(dur) as took from slice where extract_arg(arg_set_id,
            'args.critical path') = 1"""
        whole = "select max(ts + dur) - min(ts) as took from slice"
        assert query(page, critical, "took")[0][0] == pytest.approx(
            query(page, whole, "took")[0][0], abs=2000
        )
