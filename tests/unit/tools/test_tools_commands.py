"""The command of the tools lists them, and refuses what no recipe makes."""

import pytest

from tools.__main__ import TOOLS, main

pytestmark = pytest.mark.fast


def test_tools_are_listed_with_what_they_make_and_read(capsys):
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert all(f"{name}\n" in shown and tool.makes in shown for name, tool in TOOLS.items())


def test_unknown_model_or_layout_is_refused(capsys):
    release = ["recordings", "--release", "vllm-ascend-0.18"]
    assert main([*release, "--model", "no-such-model"]) == 1
    assert main([*release, "--model", "qwen3-32b", "--layout", "tp=3"]) == 1
    assert capsys.readouterr().out == ""
