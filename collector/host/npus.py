"""The Ascend NPUs of this machine that a session would see, as `npu-smi` names them.

`npu-smi info` lists the chips in torch's order; ASCEND_RT_VISIBLE_DEVICES selects from them, as for
a session. The board of a chip reports its model.
"""

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from collector.codec.errors import BadInput, HostFault, NoDevice
from collector.host.processes import others_among, tool_output
from collector.model.measurement import Condition

_VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"
_REMEDY = ": mount /usr/local/bin/npu-smi and /usr/local/dcmi, and the driver's lib64"

# A chip is two lines of the table: `| 0  910B3 | OK | ...`, `| 0 | 0000:C1:00.0 | ... 1 / 65536 |`;
# on A3 the second one has the physical id of the die next to the chip's.
_FIRST = re.compile(r"\|\s*(\d+)\s+(\S.*?)\s*\|\s*([A-Za-z]+)\s*\|.*\|")
_SECOND = re.compile(r"\|\s*(\d+)(?:\s+\d+)?\s*\|\s*[0-9A-Fa-f]{4}:\S+\s*\|.*?(?:/\s*(\d+))?\s*\|")

# Unfit to measure, of OK, Warning, Alarm, Critical and UNKNOWN (not started, gone).
_UNFIT = ("ALARM", "CRITICAL", "UNKNOWN")


@dataclass(frozen=True, slots=True)
class Npu:
    """One chip (on A3: one die). `index` is torch's number for it, `physical` its index among all
    chips that npu-smi sees; `card`, `chip` and `health` are as npu-smi prints them."""

    index: int
    physical: int
    card: int
    chip: int
    name: str
    memory_gb: int
    health: str = "OK"


@dataclass(frozen=True, slots=True)
class Board:
    """The board of a chip. `soc` is the chip's name in CANN, `Ascend910B3` or `Ascend910_9392`."""

    soc: str
    driver: str
    firmware: str
    serial: str


def list_npus(environment: Mapping[str, str] = os.environ) -> tuple[Npu, ...]:
    """Return the NPUs that this process may use. Raises NoDevice, with the remedy, if there is
    none."""
    found = visible_npus(parse_npu_smi(run_npu_smi("info")), environment.get(_VISIBLE))
    if not found:
        raise NoDevice(f"backend npu: {_VISIBLE}={environment.get(_VISIBLE)!r} leaves no NPU")
    return found


def check_health(environment: Mapping[str, str] = os.environ, count: int | None = None) -> None:
    """Raise HostFault if npu-smi reports as broken one of the NPUs that this process may use, or
    one of the first `count` of them."""
    chosen = list_npus(environment)[:count]
    if broken := [npu for npu in chosen if npu.health.upper() in _UNFIT]:
        reported = ", ".join(f"{npu.physical} {npu.health}" for npu in broken)
        raise HostFault(f"backend npu: npu-smi reports the health of NPU {reported}")


def exclusive_chip(index: int, at_once: int, environment: Mapping[str, str] = os.environ) -> str:
    """Return the chip that a device must not share if `at_once` of this machine's devices may
    measure: the two dies of an A3's chip share its power and memory, and measure together only if
    all dies may. Empty if the device is a whole chip."""
    machine = parse_npu_smi(run_npu_smi("info"))
    seen = visible_npus(machine, environment.get(_VISIBLE))
    if index >= len(seen) or at_once >= len(machine):
        return ""
    card = seen[index].card
    shared = sum(npu.card == card for npu in machine) > 1
    return f"chip{card}" if shared else ""


def one_a_chip_first(found: Sequence[Npu]) -> list[int]:
    """Return the indexes of NPUs, one die of every chip before the second of any."""
    met: Counter[int] = Counter()
    turns: list[tuple[int, int]] = []
    for npu in found:
        turns.append((met[npu.card], npu.index))
        met[npu.card] += 1
    return [index for _, index in sorted(turns)]


def board_of(npu: Npu) -> Board:
    """Return the board of a chip. Raises HostFault if npu-smi does not report it."""
    card = ("info", "-t", "board", "-i", str(npu.card))
    return parse_board(run_npu_smi(*card), run_npu_smi(*card, "-c", str(npu.chip)))


def cube_cores_of(npu: Npu) -> int | None:
    """Return the number of cube cores of a chip; None if npu-smi does not report it, or has no such
    query. An npu-smi that does not respond has listed no chip before."""
    try:
        reported = run_npu_smi("info", "-t", "common", "-i", str(npu.card), "-c", str(npu.chip))
    except HostFault:
        return None
    return parse_cores(reported)


def parse_cores(text: str) -> int | None:
    """Return the cores in the output of `npu-smi info -t common`, if it reports one number. On A2
    and A3 an AI core has one cube core."""
    cores = _number(text, r"AI\s?core Count")
    return None if cores is None else int(cores)


def parse_npu_smi(text: str) -> tuple[Npu, ...]:
    """Parse the output of `npu-smi info`. Raises NoDevice if it lists no chip."""
    found: list[Npu] = []
    first: re.Match[str] | None = None
    for line in text.splitlines():
        if first is not None and (second := _SECOND.fullmatch(line.strip())):
            memory_gb = round(int(second[2] or 0) / 1024)
            place = len(found)
            card, chip, health = int(first[1]), int(second[1]), first[3]
            found.append(Npu(place, place, card, chip, first[2], memory_gb, health))
        first = _FIRST.fullmatch(line.strip())
    if not found:
        raise NoDevice(f"backend npu: npu-smi lists no NPU: {' '.join(text.split())[:300]}")
    return tuple(found)


def parse_board(card: str, chip: str) -> Board:
    """Parse the output of `npu-smi info -t board` for a card, and for one of its chips."""
    of_card, of_chip = _fields(card), _fields(chip)
    both = {**of_card, **of_chip}
    name = both.get("Chip Name", "").replace(" ", "")
    if not name:
        raise HostFault(f"backend npu: npu-smi lists no chip: {' '.join(chip.split())[:300]}")
    # The rule of vLLM-Ascend: A3 has an NPU Name, A2 has none.
    number = both.get("NPU Name", "")
    soc = f"{name}_{number}" if number else name if name.startswith("Ascend") else f"Ascend{name}"
    die = of_chip.get("VDie ID") or of_chip.get("Die ID") or ""
    serial = (
        die.replace(" ", "-") or f"{of_card.get('Serial Number', '')}/{of_chip.get('Chip ID', '')}"
    )
    return Board(
        soc=soc,
        driver=of_card.get("Software Version", ""),
        firmware=of_card.get("Firmware Version", "") or of_chip.get("Firmware Version", ""),
        serial=serial,
    )


def visible_npus(found: Sequence[Npu], variable: str | None) -> tuple[Npu, ...]:
    """Return the NPUs that ASCEND_RT_VISIBLE_DEVICES selects, numbered again."""
    if variable is None:
        return tuple(found)
    chosen: list[Npu] = []
    for entry in variable.split(","):
        number = entry.strip()
        if not number.isdigit() or int(number) >= len(found):
            break
        if any(npu.physical == int(number) for npu in chosen):
            raise HostFault(f"{_VISIBLE}={variable!r} names NPU {number} twice")
        chosen.append(found[int(number)])
    return tuple(replace(npu, index=index) for index, npu in enumerate(chosen))


def _fields(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines() if ":" in line)
    values = {name.strip(): value.strip() for name, _, value in pairs}
    return {name: value for name, value in values.items() if value not in ("", "NA")}


def run_npu_smi(*arguments: str, patience_s: float | None = None) -> str:
    """Return the output of npu-smi. Raises HostFault if it is missing or does not respond."""
    return tool_output("npu", "npu-smi", *arguments, remedy=_REMEDY, patience_s=patience_s)


# The database's name of an NPU: by its chip, its memory and the number of its cube cores.

_A2 = "ATLAS_800_A2_"
_A3 = "ATLAS_800_A3_"
_KEPT = 0.1  # a driver reserves some memory: of 64 GB torch sees 61


@dataclass(frozen=True, slots=True)
class _Chip:
    """A known chip; a device of A3 is one of its two dies. `names` are by GB of memory; if the name
    is not certain, there are several, or none."""

    cube_cores: int
    names: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


# Cores and clocks are those of CANN's platform tables (src/platform/platform_config of its open
# runtime). A name is msmodeling's, and states the speed of the cubes: 376T are 24 at 1,800 MHz (to
# which 910B1 and 939x, at 1,850, are nearest), 313T 20 at 1,800, 280T 20 at 1,500; a name of A3
# has both dies. 9372, 20 at 1,800, would be 626T: it has no name of its own. Nor have 9579 (28
# cores with 128 GB), 9599 and 950DT (36). Of Ascend 950PR, at 1,650 MHz, 28 cores are 425T (378
# TFLOPS of 16 bits), 32 are 486T (432); Atlas 850 and Atlas 950 have the same chip with 128 GB.
_24_CORES, _A3_24_CORES = {64: (f"{_A2}376T_64G",)}, {64: (f"{_A3}752T_128G_DIE",)}
_950_PR = "Ascend950PR_"
_CHIPS: Mapping[str, _Chip] = {
    "Ascend910B1": _Chip(24, _24_CORES),
    "Ascend910B2": _Chip(24, _24_CORES),
    "Ascend910B2C": _Chip(24, _24_CORES),
    "Ascend910B3": _Chip(20, {64: (f"{_A2}313T_64G",)}),
    "Ascend910B4": _Chip(20, {32: (f"{_A2}280T_32G_PCIE",)}),
    "Ascend910B4-1": _Chip(20, {64: (f"{_A2}280T_64G", f"{_A2}280T_64G_PCIE")}),
    "Ascend910_9362": _Chip(20, {64: (f"{_A3}560T_128G_DIE",)}),
    "Ascend910_9372": _Chip(20),
    **{f"Ascend910_{number}": _Chip(24, _A3_24_CORES) for number in (9381, 9382, 9391, 9392)},
    f"{_950_PR}957b": _Chip(28, {112: ("ATLAS_350_425T_112G",)}),
    f"{_950_PR}957c": _Chip(28, {84: ("ATLAS_350_425T_84G",)}),
    f"{_950_PR}9579": _Chip(28),
    f"{_950_PR}958b": _Chip(32, {112: ("ATLAS_850_486T_112G",)}),
    f"{_950_PR}9589": _Chip(32, {128: ("ATLAS_850_486T_128G", "ATLAS_950_486T_128G")}),
    f"{_950_PR}9599": _Chip(36),
}


def device_names(
    soc: str, memory_gb: float | None = None, cube_cores: int | None = None
) -> tuple[str, ...]:
    """Return the names that the database may have for a chip; none for an unknown chip, memory or
    number of cores."""
    chip = _CHIPS.get(soc)
    if chip is None or cube_cores not in (None, chip.cube_cores):
        return ()
    return tuple(
        name
        for gb, names in chip.names.items()
        if memory_gb is None or abs(memory_gb - gb) <= _KEPT * gb
        for name in names
    )


def memory_gb_of(device: str) -> int | None:
    """Return the memory of an NPU with this name in the database; None for another device."""
    known = (pair for chip in _CHIPS.values() for pair in chip.names.items())
    return next((gb for gb, names in known if device in names), None)


def slice_problem(soc: str, cube_cores: int | None) -> str:
    """Return the problem of a device with fewer cores than its chip; empty if it has all."""
    chip = _CHIPS.get(soc)
    if chip is None or cube_cores is None or cube_cores >= chip.cube_cores:
        return ""
    return (
        f"this {soc} reports {cube_cores} cube cores, expected {chip.cube_cores}: a slice of "
        "a device, whose durations differ from those of the device; measure on a whole device"
    )


def device_name(
    soc: str, memory_gb: float, cube_cores: int | None = None, requested: str | None = None
) -> str:
    """Return the name of a chip: `requested` if the chip may have it, otherwise its only name.

    Raises BadInput, with the setting to write, if the name is ambiguous or unknown; HostFault if
    `requested` is the name of another chip, or if the device is a part of one."""
    if fault := slice_problem(soc, cube_cores):
        raise HostFault(fault)
    names = device_names(soc, memory_gb, cube_cores)
    cores = f" and {cube_cores} cube cores" if cube_cores else ""
    this = f"{soc} with {memory_gb:g} GB{cores}"
    if requested is not None:
        if names and requested not in names:
            raise HostFault(f"expected {requested}, got {this}, {' or '.join(names)}")
        return requested
    if len(names) == 1:
        return names[0]
    problem = "has several possible names" if names else "has no known name"
    which = f"one of {', '.join(names)}" if names else "its name in the database"
    raise BadInput(
        f"backend npu: {this} {problem}: set it in the campaign, "
        f"target: {{device: NAME, ...}} with {which}"
    )


# The condition of one Ascend NPU, as `npu-smi` reports it: two queries, each a process.
#
# The format of the output is from Huawei's documentation of npu-smi and from published outputs of
# 910B and A3 (HDK 26.1.0, A2 and A3: "npu-smi info -t common -i id -c chip_id", "npu-smi info -t
# proc-mem -i id -c chip_id"); it was not checked on a device:
#
#     Aicore Usage Rate(%)           : 70
#     Aicore Freq(MHZ)               : 1800
#     Aicore curFreq(MHZ)            : 1800
#     Temperature(C)                 : 66
#     NPU Real-time Power(W)         : 331.1
#
#     Process id:1654497 Process name:python            Process memory(MB):177
#
# and `No process in device.` if there is none. In a container these are the processes of
# containers. npu-smi does not report why a clock is not higher: an idle 910B3 shows 800 MHz, one at
# work its rated 1,800.

_NPU_CONDITION_PATIENCE_S = 10.0  # no longer than that between two cases
_PROCESS = re.compile(r"Process id:\s*(\d+)\s+Process name:.*?\s*Process memory\(MB\):\s*\d+")
_NONE = "No process in device."


@dataclass(frozen=True, slots=True)
class NpuCondition:
    """Reads the condition of one chip."""

    npu: Npu

    def read(self, session: int | None = None) -> Condition | None:
        """Return the condition; None if npu-smi does not respond. `session` is the process that
        has the device open, by default this one."""
        chip = ("-i", str(self.npu.card), "-c", str(self.npu.chip))
        try:
            common, processes = (
                run_npu_smi("info", "-t", what, *chip, patience_s=_NPU_CONDITION_PATIENCE_S)
                for what in ("common", "proc-mem")
            )
        except HostFault:
            return None
        return parse_condition(common, processes, session)


def open_npu(index: int) -> NpuCondition | None:
    """Open the NPU of torch's number; None if npu-smi does not list it."""
    try:
        found = list_npus()
    except HostFault:
        return None
    return NpuCondition(found[index]) if index < len(found) else None


def parse_condition(common: str, processes: str, session: int | None = None) -> Condition:
    """Parse the output of npu-smi for a chip; fields in an undocumented format stay unknown."""
    usage = _number(common, r"Aicore Usage Rate\(%\)")
    pids = parse_processes(processes)
    others = None if pids is None else others_among(pids, session)
    return Condition(
        clock_mhz=_number(common, r"Aicore curFreq\(MHZ\)") or None,
        rated_mhz=_number(common, r"Aicore Freq\(MHZ\)") or None,
        temperature_c=_number(common, r"Temperature\(C\)"),
        power_w=_number(common, r"NPU Real-time Power\(W\)"),
        busy=usage / 100 if usage is not None and usage <= 100 else None,
        others=None if others is None else len(others),
    )


def parse_processes(text: str) -> list[int] | None:
    """Return the ids of the processes that use a chip; None if the output has another format."""
    lines = [line.strip() for line in text.splitlines()]
    reported = [line for line in lines if line.startswith("Process id")]
    found = [match for line in reported if (match := _PROCESS.fullmatch(line))]
    if len(found) < len(reported) or (_NONE in lines) == bool(reported):
        return None
    return [int(match[1]) for match in found]


def _number(text: str, name: str) -> float | None:
    """Return the number of a field; None if there are several, as for a chip and its controller."""
    line = rf"^\s*{name}\s*:\s*([0-9]{{1,6}}(?:\.[0-9]{{1,6}})?)\s*$"
    reported = set(re.findall(line, text, flags=re.IGNORECASE | re.MULTILINE))
    return float(reported.pop()) if len(reported) == 1 else None
