"""The NPUs of a session, from outputs in npu-smi's format on A2 and A3."""

import os

import pytest

from collector.codec.errors import BadInput, HostFault
from collector.host.npus import (
    Board,
    Npu,
    board_of,
    check_health,
    cube_cores_of,
    exclusive_chip,
    list_npus,
    one_a_chip_first,
    parse_board,
    parse_cores,
    parse_npu_smi,
    visible_npus,
)
from collector.host.stack import device_locks, device_serial, npu_stack
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast

_HEAD = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.rc2                 Version: 24.1.rc2                                             |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  {phy}                | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
"""
_TAIL = """\
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 0       0                 | 1234          | python                   | 512                     |
+===========================+===============+====================================================+
"""
A2 = (
    _HEAD.format(phy="      ")
    + """\
| 0     910B3               | OK            | 93.6        38                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3162 / 65536         |
+===========================+===============+====================================================+
| 3     910B3               | Warning       | 90.2        37                0    / 0             |
| 0                         | 0000:01:00.0  | 0           0    / 0          3161 / 65536         |
"""
    + _TAIL
)
A3 = (
    _HEAD.format(phy="Phy-ID")
    + """\
| 0     Ascend910           | OK            | 171.0       37                0    / 0             |
| 0     0                   | 0000:9D:00.0  | 0           0    / 0          3126 / 65536         |
+------------------------------------------------------------------------------------------------+
| 0     Ascend910           | OK            | -           36                0    / 0             |
| 1     1                   | 0000:9F:00.0  | 0           0    / 0          2906 / 65536         |
"""
    + _TAIL
)
CARD = """        NPU ID                         : 3
        Product Name                   : IT21DMDA
        Model                          : NA
        Serial Number                  : 1023A5000001
        Software Version               : 24.1.rc2
        Firmware Version               : 7.3.0.1.231
        PCIe Bus Info                  : 0000:C1:00.0
        Chip Count                     : 1
"""
CHIP_A2 = """        NPU ID                         : 3
        Chip ID                        : 0
        Chip Type                      : Ascend
        Chip Name                      : 910B3
        VDie ID                        : 42C711D4 20B03704 4A10C8D4 14CC040A D2102003
        Firmware Version               : 7.3.0.1.231
"""
COMMON = """        NPU ID                         : 3
        Chip Count                     : 1

        Chip ID                        : 0
        Memory Usage Rate(%)           : 4
        Aicore Usage Rate(%)           : 0
        Aicore Freq(MHZ)               : 1800
        Aicore Count                   : 20
        Temperature(C)                 : 38
"""
CHIP_A3 = """        NPU ID                         : 0
        NPU Name                       : 9392
        Chip ID                        : 1
        Chip Name                      : Ascend910
"""


@pytest.fixture
def npu_smi(tmp_path, monkeypatch):
    """Put a program of this name on PATH that behaves like a machine with two 910B3."""
    for name, text in (("info", A2), ("card", CARD), ("chip", CHIP_A2), ("common", COMMON)):
        (tmp_path / name).write_text(text)
    monkeypatch.delenv("ASCEND_RT_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def put(script):
        (tmp_path / "npu-smi").write_text(f"#!/bin/sh\ncd {tmp_path}\n{script}\n")
        (tmp_path / "npu-smi").chmod(0o755)

    answers = "*common*) cat common;; *-c*) cat chip;; *board*) cat card;; *) cat info;;"
    put(f'case "$*" in {answers} esac')
    return put


def test_every_chip_of_an_a2_has_its_name_and_memory():
    assert parse_npu_smi(A2) == (
        Npu(0, 0, 0, 0, "910B3", 64),
        Npu(1, 1, 3, 0, "910B3", 64, "Warning"),
    )


@pytest.mark.parametrize("reported", ["Alarm", "Critical", "UNKNOWN"])
def test_unhealthy_npu_is_reported_unless_it_is_unused(tmp_path, npu_smi, reported):
    check_health()  # a warning does not end a run
    (tmp_path / "info").write_text(A2.replace("Warning", reported))
    with pytest.raises(HostFault, match=naming("npu-smi", "NPU 1", reported)):
        check_health()
    check_health(count=1)
    check_health({"ASCEND_RT_VISIBLE_DEVICES": "0"})


def test_two_dies_of_an_a3_are_two_devices():
    assert parse_npu_smi(A3) == (Npu(0, 0, 0, 0, "Ascend910", 64), Npu(1, 1, 0, 1, "Ascend910", 64))


@pytest.mark.parametrize(
    ("answer", "visible_dies", "at_once", "chip"),
    [
        (A3, "0,1", 1, "chip0"),
        (A3, "1", 1, "chip0"),  # its other die may belong to another process
        (A3, "0,1", 2, ""),  # as many as there are dies
        (A2, "0,1", 1, ""),
        (A3, "", 1, ""),
    ],
)
def test_die_reserves_its_chip_unless_all_dies_may_measure(
    tmp_path, npu_smi, answer, visible_dies, at_once, chip
):
    (tmp_path / "info").write_text(answer)
    assert exclusive_chip(0, at_once, {"ASCEND_RT_VISIBLE_DEVICES": visible_dies}) == chip


def test_devices_are_dealt_out_over_all_chips_first():
    dies = [Npu(i, i, i // 2, i % 2, "Ascend910", 64) for i in range(6)]
    assert one_a_chip_first(dies) == [0, 2, 4, 1, 3, 5]
    assert one_a_chip_first(parse_npu_smi(A2)) == [0, 1]


@pytest.mark.parametrize("text", ["", "dcmi model initialized failed, ret is -8005"])
def test_output_without_npus_is_refused_and_quoted(text):
    with pytest.raises(HostFault, match=naming("npu-smi", "NPU", text)):
        parse_npu_smi(text)


def test_board_has_driver_firmware_chip_and_serial():
    serial = "42C711D4-20B03704-4A10C8D4-14CC040A-D2102003"
    assert parse_board(CARD, CHIP_A2) == Board("Ascend910B3", "24.1.rc2", "7.3.0.1.231", serial)
    assert parse_board(CARD, CHIP_A3) == Board(
        "Ascend910_9392", "24.1.rc2", "7.3.0.1.231", "1023A5000001/1"
    )
    with pytest.raises(HostFault, match=naming("npu-smi", "chip", "This device does not support")):
        parse_board(CARD, "This device does not support querying board.")


@pytest.mark.parametrize(
    ("variable", "seen"), [(None, [0, 1]), ("1,0", [1, 0]), (" 1 ", [1]), ("0,5,1", [0]), ("", [])]
)
def test_only_visible_npus_count_and_are_renumbered(variable, seen):
    found = visible_npus(parse_npu_smi(A2), variable)
    assert [npu.physical for npu in found] == seen
    assert [npu.index for npu in found] == list(range(len(seen)))


def test_an_npu_named_twice_is_refused():
    with pytest.raises(HostFault, match=naming("ASCEND_RT_VISIBLE_DEVICES", "'1,1'", "NPU 1")):
        visible_npus(parse_npu_smi(A2), "1,1")


def test_npu_smi_queries_name_the_selected_chip(npu_smi, monkeypatch):
    assert len(list_npus()) == 2
    assert device_locks("npu") == ["npu0", "npu1"]
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "1")
    (chosen,) = list_npus()
    assert (chosen.index, chosen.physical, chosen.card) == (0, 1, 3)
    assert board_of(chosen).soc == "Ascend910B3"
    assert device_locks("npu") == ["npu1"]
    assert device_serial("npu", 0).startswith("42C711D4-")
    with pytest.raises(HostFault, match=naming("npu device 1")):
        device_serial("npu", 1)
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "")
    with pytest.raises(HostFault, match=naming("ASCEND_RT_VISIBLE_DEVICES=''")):
        list_npus()


def test_cube_cores_are_parsed_or_unknown(npu_smi):
    assert cube_cores_of(list_npus()[0]) == 20
    assert parse_cores("This device does not support querying common.") is None
    assert parse_cores(COMMON + COMMON.replace(": 20", ": 24")) is None  # which of the two?


def test_npu_smi_without_the_core_query_gives_no_cores(npu_smi):
    npu_smi('case "$*" in *common*) echo Unsupported; exit 1;; *) cat info;; esac')
    assert cube_cores_of(list_npus()[0]) is None


def test_failing_npu_smi_is_reported_in_one_line(npu_smi, monkeypatch):
    monkeypatch.setattr("collector.host.processes._TOOL_PATIENCE_S", 0.1)
    npu_smi("exec sleep 5")
    with pytest.raises(HostFault, match=naming("npu-smi", "0.1 s")):
        list_npus()
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(HostFault, match=naming("npu-smi", "PATH", "/usr/local/bin/npu-smi")):
        list_npus()


def test_stack_has_the_versions_of_board_and_packages(monkeypatch):
    versions = {"torch_npu": "2.9.0.post1", "vllm_ascend": "0.18.0rc1"}
    installed = "collector.host.stack.installed_version"
    monkeypatch.setattr(installed, lambda *names: versions.get(names[0]))
    monkeypatch.setattr("collector.host.stack.cann_version", lambda: "8.5.0")
    board = parse_board(CARD, CHIP_A2)
    stack = npu_stack("2.9.0+cpu", parse_npu_smi(A2), board, 20, None)
    assert (
        stack.version_path == "ATLAS_800_A2_313T_64G/vllm_ascend/vllm0.18.0rc1_torch2.9.0_cann8.5.0"
    )
    assert (stack.driver, stack.firmware) == ("24.1.rc2", "7.3.0.1.231")
    assert stack.torch_npu == "2.9.0.post1"
    with pytest.raises(
        HostFault, match=naming("910B3", "Ascend910", "64 GB", "ASCEND_RT_VISIBLE_DEVICES")
    ):
        npu_stack("2.9.0", (*parse_npu_smi(A2), *parse_npu_smi(A3)), board, 20, None)
    with pytest.raises(HostFault, match=naming("10 cube cores", 20)):
        npu_stack("2.9.0", parse_npu_smi(A2), board, 10, None)
    monkeypatch.setattr("collector.host.stack.cann_version", lambda: None)
    with pytest.raises(BadInput, match=naming("CANN", "set_env.sh")):
        npu_stack("2.9.0", parse_npu_smi(A2), board, 20, None)
    versions.clear()
    with pytest.raises(BadInput, match=naming("torch_npu", "pip install")):
        npu_stack("2.9.0", parse_npu_smi(A2), board, 20, None)
