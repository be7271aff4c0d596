"""The condition of one Ascend NPU, as `npu-smi` tells it: two questions, each a program.

What it prints is taken from Huawei's documentation of npu-smi and from what others have printed of
910B and A3 (HDK 26.1.0, A2 and A3: "npu-smi info -t common -i id -c chip_id", "npu-smi info -t
proc-mem -i id -c chip_id"); no device was at hand:

    Aicore Usage Rate(%)           : 70
    Aicore Freq(MHZ)               : 1800
    Aicore curFreq(MHZ)            : 1800
    Temperature(C)                 : 66
    NPU Real-time Power(W)         : 331.1

    Process id:1654497 Process name:python            Process memory(MB):177

and `No process in device.` where there is none. In a container these are the processes of
containers. Why a clock is not higher, npu-smi does not say: an idle 910B3 shows 800 MHz, one at
work its rated 1,800.
"""

import re

from collector.condition import Condition
from collector.errors import HostFault
from collector.host.npus import Npu, ask_npu_smi, list_npus
from collector.host.own_processes import others_among

_PATIENCE_S = 10.0  # nothing is worth more of it between two cases
_PROCESS = re.compile(r"Process id:\s*(\d+)\s+Process name:.*?\s*Process memory\(MB\):\s*\d+")
_NONE = "No process in device."


class NpuCondition:
    """Reads the condition of one chip."""

    def __init__(self, npu: Npu):
        self._npu = npu

    def read(self) -> Condition | None:
        """None where npu-smi does not answer."""
        try:
            common, processes = self._ask("common"), self._ask("proc-mem")
        except HostFault:
            return None
        return parse_condition(common, processes)

    def _ask(self, what: str) -> str:
        chip = ("-i", str(self._npu.card), "-c", str(self._npu.chip))
        return ask_npu_smi("info", "-t", what, *chip, patience_s=_PATIENCE_S)


def open_npu(index: int) -> NpuCondition | None:
    """The NPU of torch's number; None where npu-smi does not tell which that is."""
    try:
        found = list_npus()
    except HostFault:
        return None
    return NpuCondition(found[index]) if index < len(found) else None


def parse_condition(common: str, processes: str) -> Condition:
    """What npu-smi printed of a chip; whatever is not printed as documented is not told."""
    usage = _number(common, r"Aicore Usage Rate\(%\)")
    pids = parse_processes(processes)
    others = None if pids is None else others_among(pids)
    return Condition(
        clock_mhz=_number(common, r"Aicore curFreq\(MHZ\)") or None,
        rated_mhz=_number(common, r"Aicore Freq\(MHZ\)") or None,
        temperature_c=_number(common, r"Temperature\(C\)"),
        power_w=_number(common, r"NPU Real-time Power\(W\)"),
        busy=usage / 100 if usage is not None and usage <= 100 else None,
        others=None if others is None else len(others),
    )


def parse_processes(text: str) -> list[int] | None:
    """The ids of the processes that have a chip; None where that is not what was printed."""
    lines = [line.strip() for line in text.splitlines()]
    told = [line for line in lines if line.startswith("Process id")]
    found = [match for line in told if (match := _PROCESS.fullmatch(line))]
    if len(found) < len(told) or (_NONE in lines) == bool(told):
        return None
    return [int(match[1]) for match in found]


def _number(text: str, name: str) -> float | None:
    """The one number of a name; None where there are several, as of a chip and its controller."""
    line = rf"^\s*{name}\s*:\s*([0-9]{{1,6}}(?:\.[0-9]{{1,6}})?)\s*$"
    told = set(re.findall(line, text, flags=re.MULTILINE))
    return float(told.pop()) if len(told) == 1 else None
