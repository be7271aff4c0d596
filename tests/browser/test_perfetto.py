"""A merged trace opens in Perfetto, with its kernels, arrows and counters."""

import json
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from jobs.cli.trace import merge_command
from tests.browser.perfetto import opened_in_perfetto, query
from tests.unit.collector.profiles.test_profiles_trace_merge import TIMES, TRACE


def test_perfetto_has_the_kernels_arrows_and_counters(tmp_path: Path, browser: Any) -> None:
    (tmp_path / "trace.json").write_text(json.dumps(TRACE))
    (tmp_path / "times.json").write_text(json.dumps(TIMES))
    output = tmp_path / "merged.json"
    merge_command(tmp_path / "trace.json", tmp_path / "times.json", output=output)
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
