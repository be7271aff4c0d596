"""What is read of an NPU, from answers written as npu-smi gives them on A2 and A3."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.codec.errors import HostFault
from collector.host import npus
from collector.host.npus import Npu, NpuCondition, open_npu, parse_condition, parse_processes
from collector.model.measurement import Condition

pytestmark = pytest.mark.fast

NOBODYS = (1 << 22) + 1  # more than Linux gives to any process
COMMON = """\
        NPU ID                         : 1
        Chip ID                        : 0
        Memory Usage Rate(%)           : 0
        HBM Usage Rate(%)              : 91
        Aicore Usage Rate(%)           : 70
        Aicore Freq(MHZ)               : 1800
        Aicore curFreq(MHZ)            : 1650
        Aicore Count                   : 20
        Temperature(C)                 : 66
        NPU Real-time Power(W)         : 331.1
"""
CONTROLLER = """
        Chip Name                      : mcu
        Temperature(C)                 : 40
"""
HEAD = "        NPU ID                         : 1\n"
NOBODY = HEAD + "        No process in device.\n        Chip ID                        : 0\n"


def processes(*pids):
    lines = [
        f"        Process id:{pid:<8}Process name:{name:<18}Process memory(MB):177"
        for pid, name in zip(pids, ["python", "", "a : b"], strict=False)
    ]
    return "\n".join([HEAD, *lines, "        Chip ID                        : 0"])


def test_an_npu_that_tells_everything():
    told = parse_condition(COMMON, processes(os.getpid(), NOBODYS))
    assert told == Condition(1650.0, 1800.0, 66.0, 331.1, 0.7, None, 1)


def test_a_name_with_two_numbers_is_told_of_a_chip_and_of_something_else():
    told = parse_condition(COMMON + CONTROLLER, NOBODY)
    assert told.temperature_c is None and told.power_w == 331.1


@pytest.mark.parametrize(
    "text",
    [
        "This device does not support querying common.",
        "",
        "Aicore curFreq(MHZ) : NA\nAicore Usage Rate(%) : 101\nAicore Freq(MHZ) : 0",
        "Aicore curFreq(MHZ)            : 1e999\nTemperature(C) : -\nTemperature(C) : 1 2",
    ],
)
def test_what_is_not_printed_as_documented_is_not_told(text):
    assert parse_condition(text, text) == Condition()


def test_processes_are_told_all_or_none():
    assert parse_processes(processes(11, 22, 33)) == [11, 22, 33]
    assert parse_processes(NOBODY) == []
    assert parse_processes(NOBODY + processes(11)) is None
    assert parse_processes(processes(11) + "\nProcess id:x Process name:") is None
    assert parse_processes("This device does not support querying proc-mem.") is None


@given(st.text(), st.text())
def test_any_text_tells_something_or_nothing(common, listed):
    told = parse_condition(common, listed)
    assert told.others is None
    parse_processes(f"Process id:{listed}")


def test_both_questions_are_about_the_chip_and_silence_tells_nothing(monkeypatch):
    asked = []

    def answer(*arguments, patience_s):
        asked.append(arguments)
        if len(asked) > 2:
            raise HostFault("npu-smi does not answer")
        return COMMON if "common" in arguments else NOBODY

    monkeypatch.setattr(npus, "run_npu_smi", answer)
    npu = NpuCondition(Npu(3, 3, card=1, chip=1, name="Ascend910", memory_gb=64))
    assert npu.read().busy == 0.7 and npu.read() is None
    chip = ("-i", "1", "-c", "1")
    assert asked[:2] == [("info", "-t", "common", *chip), ("info", "-t", "proc-mem", *chip)]


def test_without_npu_smi_nothing_is_asked(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert open_npu(0) is None
