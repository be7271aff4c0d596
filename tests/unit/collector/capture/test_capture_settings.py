"""Incompatible options of a capture are refused before anything starts."""

import json

import pytest

from collector.capture.settings import (
    Activity,
    CaptureSettings,
    CoreMetrics,
    Export,
    Level,
    dynamic_config,
    faults_of_versions,
)
from collector.codec.errors import BadInput

pytestmark = pytest.mark.fast
BARE = {"level": "Level_none", "shapes": False, "metrics": "AiCoreNone"}
# Incompatible options, and the words of their one fault.
REFUSED = (
    (BARE, "records marks alone"),
    ({"op_attr": True}, "use export db"),
    ({**BARE, "marks": True, "op_attr": True, "export": "db"}, "from Level0 on"),
    ({"level": "Level0", "shapes": False}, "metrics PipeUtilization"),
    ({"level": "Level0", "metrics": "AiCoreNone"}, "shapes of kernels"),
    ({"record_op_args": True, "static_kernels": True}, "skip_first of at least 1"),
    ({"gc_threshold_ms": -1.0}, "gc_threshold_ms"),
    ({"total_steps": 8, "skip_first": 1, "wait": 1, "repeat": 2, "steps": 2}, "at least 9"),
    ({"steps": 0}, "at least 1"),
    ({"max_bytes": 1 << 30}, "expected a trial"),
    ({"max_bytes": 0, "trial": True}, "max_bytes"),
    ({**BARE, "marks": True, "trial": True}, "trial"),
    ({"total_steps": 3, "trial": True}, "at least 4"),
    ({"warmup": -1}, "at least 0"),
    ({"activities": "CPU", "trial": True}, "trial: expected activities with NPU"),
    ({"activities": "CPU", "marks": True, "l2_cache": True}, "marks, l2_cache: expected"),
    ({"activities": "NPU", "stack": True}, "stack: expected activities with CPU"),
    ({"activities": "NPU", "gc_threshold_ms": 0.0}, "gc_threshold_ms: expected activities"),
    ({"worker_name": "a/b"}, "worker_name"),
    ({"worker_name": ""}, "worker_name"),
    ({"worker_name": ".."}, "worker_name"),
    ({"worker_name": "w" * 201}, "worker_name"),
)


def test_invalid_combinations_of_settings_are_refused_with_their_reason(tmp_path):
    for options, words in REFUSED:
        with pytest.raises(BadInput) as refused:
            CaptureSettings(tmp_path / "prof", **options).check({})
        assert words in str(refused.value), options
    for options in (
        {},
        {**BARE, "marks": True},
        {**BARE, "marks": True, "export": "db"},
        {"marks": True, "export": "db"},
        {"op_attr": True, "export": "db"},
        {"activities": "CPU", "stack": True},
        {"activities": "NPU", "marks": True, "trial": True},
        {"worker_name": "训练_0-a.b~"},
    ):
        CaptureSettings(tmp_path / "prof", **options).check({})
    fits = {"total_steps": 9, "skip_first": 1, "wait": 1, "repeat": 2, "steps": 2}
    CaptureSettings(tmp_path / "prof", **fits).check({})
    for options in ({"level": "Level3"}, {"activities": "GPU"}, {"activities": ()}):
        with pytest.raises(BadInput):
            CaptureSettings(tmp_path, **options)
    for given in ("NPU,CPU", ["NPU", "CPU"], (Activity.CPU, Activity.NPU)):
        assert CaptureSettings(tmp_path, activities=given).activities == ("CPU", "NPU")


def test_paths_that_torch_npu_refuses_are_refused(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").write_text("")
    for name in ("a:b", "prof#1", "link", "link/below", "file"):
        with pytest.raises(BadInput):
            CaptureSettings(tmp_path / name).check({})
    CaptureSettings(tmp_path / "采集_1-a.b ~").check({})


def test_environment_of_another_profiler_or_of_several_nodes_is_refused(tmp_path):
    settings = CaptureSettings(tmp_path, static_kernels=True, skip_first=1)
    settings.check({"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"})
    for environment in ({"WORLD_SIZE": "2"}, {"MSMONITOR_USE_DAEMON": "1"}):
        with pytest.raises(BadInput):
            settings.check(environment)


def test_versions_that_cannot_record_a_requested_feature_are_named(tmp_path):
    settings = CaptureSettings(tmp_path, stack=True)
    (fault,) = faults_of_versions(settings, {"torch_npu": "2.10.0.post4"})
    assert "post6" in fault and "15697" in fault
    bare = CaptureSettings(tmp_path)
    assert not list(faults_of_versions(bare, {"torch_npu": "2.10.0.post4"}))


def test_the_file_of_a_dynamic_capture_starts_at_the_next_step(tmp_path):
    settings = CaptureSettings(
        tmp_path, steps=2, export=Export.DB, level=Level.LEVEL2, activities="NPU"
    )
    made = json.loads(json.dumps(dynamic_config(settings)))
    assert (made["active"], made["warmup"], made["start_step"]) == (2, 1, -1)
    assert (made["record_shapes"], made["activities"]) == (True, ["NPU"])
    experimental = made["experimental_config"]
    assert experimental["profiler_level"] == "Level2"
    assert experimental["export_type"] == ["db"]
    assert experimental["aic_metrics"] == CoreMetrics.PIPE_UTILIZATION
