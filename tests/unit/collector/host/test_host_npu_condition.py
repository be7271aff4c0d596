"""Reading an NPU, from outputs in npu-smi's format on A2 and A3."""

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
NO_PROCESS = HEAD + "        No process in device.\n        Chip ID                        : 0\n"


def processes(*pids):
    lines = [
        f"        Process id:{pid:<8}Process name:{name:<18}Process memory(MB):177"
        for pid, name in zip(pids, ["python", "", "a : b"], strict=False)
    ]
    return "\n".join([HEAD, *lines, "        Chip ID                        : 0"])


def test_npu_condition_has_every_reported_value():
    reported = parse_condition(COMMON, processes(os.getpid(), NOBODYS))
    assert reported == Condition(1650.0, 1800.0, 66.0, 331.1, 0.7, None, 1)


def test_value_reported_twice_is_ambiguous_and_absent():
    reported = parse_condition(COMMON + CONTROLLER, NO_PROCESS)
    assert reported.temperature_c is None and reported.power_w == 331.1


@pytest.mark.parametrize(
    "text",
    [
        "This device does not support querying common.",
        "",
        "Aicore curFreq(MHZ) : NA\nAicore Usage Rate(%) : 101\nAicore Freq(MHZ) : 0",
        "Aicore curFreq(MHZ)            : 1e999\nTemperature(C) : -\nTemperature(C) : 1 2",
    ],
)
def test_output_in_another_format_is_absent(text):
    assert parse_condition(text, text) == Condition()


def test_process_list_is_complete_or_unknown():
    assert parse_processes(processes(11, 22, 33)) == [11, 22, 33]
    assert parse_processes(NO_PROCESS) == []
    assert parse_processes(NO_PROCESS + processes(11)) is None
    assert parse_processes(processes(11) + "\nProcess id:x Process name:") is None
    assert parse_processes("This device does not support querying proc-mem.") is None


@given(st.text(), st.text())
def test_any_output_is_parsed_without_an_error(common, listed):
    reported = parse_condition(common, listed)
    assert reported.others is None
    parse_processes(f"Process id:{listed}")


def test_both_queries_name_the_chip_and_a_failing_one_gives_no_reading(monkeypatch):
    requested = []

    def answer(*arguments, patience_s):
        requested.append(arguments)
        if len(requested) > 2:
            raise HostFault("npu-smi does not answer")
        return COMMON if "common" in arguments else NO_PROCESS

    monkeypatch.setattr(npus, "run_npu_smi", answer)
    npu = NpuCondition(Npu(3, 3, card=1, chip=1, name="Ascend910", memory_gb=64))
    assert npu.read().busy == 0.7 and npu.read() is None
    chip = ("-i", "1", "-c", "1")
    assert requested[:2] == [("info", "-t", "common", *chip), ("info", "-t", "proc-mem", *chip)]


def test_machine_without_npu_smi_has_no_condition(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert open_npu(0) is None
