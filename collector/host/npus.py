"""The Ascend NPUs of this machine that a session would see, as `npu-smi` names them.

`npu-smi info` lists the chips in the order in which torch numbers them; ASCEND_RT_VISIBLE_DEVICES
chooses among them, as for a session. What a single chip is, its board tells.
"""

import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from collector.errors import HostFault

_VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"
_PATIENCE_S = 60.0
_REMEDY = "mount /usr/local/bin/npu-smi and /usr/local/dcmi, and the driver's lib64"

# A chip is two lines of the table: `| 0  910B3 | OK | ...`, `| 0 | 0000:C1:00.0 | ... 1 / 65536 |`;
# on A3 the second one has the physical id of the die beside the chip's.
_FIRST = re.compile(r"\|\s*(\d+)\s+(\S.*?)\s*\|\s*([A-Za-z]+)\s*\|.*\|")
_SECOND = re.compile(r"\|\s*(\d+)(?:\s+\d+)?\s*\|\s*[0-9A-Fa-f]{4}:\S+\s*\|.*?(?:/\s*(\d+))?\s*\|")

# Of OK, Warning, Alarm, Critical and UNKNOWN (not started, gone) those that nobody measures with.
_UNFIT = ("ALARM", "CRITICAL", "UNKNOWN")

# Of `npu-smi info -t common`. On A2 and A3 an AI core has one cube core.
_CORES = re.compile(r"^\s*AI\s?core Count\s*:\s*(\d+)\s*$", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Npu:
    """One chip (on A3: one die). `index` is torch's number for it, `physical` its place among all
    chips that npu-smi sees, `card`, `chip` and `health` are npu-smi's own words."""

    index: int
    physical: int
    card: int
    chip: int
    name: str
    memory_gb: int
    health: str = "OK"


@dataclass(frozen=True, slots=True)
class Board:
    """What one chip's board tells. `soc` is its name in CANN, `Ascend910B3` or `Ascend910_9392`."""

    soc: str
    driver: str
    firmware: str
    serial: str


def list_npus(environment: Mapping[str, str] = os.environ) -> tuple[Npu, ...]:
    """The NPUs that this process may use. HostFault, with the remedy, where there is none."""
    found = visible(parse(ask_npu_smi("info")), environment.get(_VISIBLE))
    if not found:
        raise HostFault(f"backend npu: {_VISIBLE}={environment.get(_VISIBLE)!r} leaves no NPU")
    return found


def check_health(environment: Mapping[str, str] = os.environ, count: int | None = None) -> None:
    """Raise HostFault where npu-smi says of one of the NPUs that this process may use, or of the
    first `count` of them, that it is broken."""
    chosen = list_npus(environment)[:count]
    if broken := [npu for npu in chosen if npu.health.upper() in _UNFIT]:
        told = ", ".join(f"{npu.physical} {npu.health}" for npu in broken)
        raise HostFault(f"backend npu: npu-smi reports the health of NPU {told}")


def chip_to_itself(index: int, at_once: int, environment: Mapping[str, str] = os.environ) -> str:
    """The chip that a device must have to itself where `at_once` of this machine's devices may
    measure: the two dies of an A3's chip share its power and memory, and measure together only
    where all dies may. Empty where the device is a chip of its own."""
    machine = parse(ask_npu_smi("info"))
    seen = visible(machine, environment.get(_VISIBLE))
    if index >= len(seen) or at_once >= len(machine):
        return ""
    card = seen[index].card
    shared = sum(npu.card == card for npu in machine) > 1
    return f"chip{card}" if shared else ""


def one_a_chip_first(found: Sequence[Npu]) -> list[int]:
    """The indexes of NPUs, one die of every chip before the second of any."""
    met: Counter[int] = Counter()
    turns: list[tuple[int, int]] = []
    for npu in found:
        turns.append((met[npu.card], npu.index))
        met[npu.card] += 1
    return [index for _, index in sorted(turns)]


def board_of(npu: Npu) -> Board:
    """What the board of a chip says. Raises HostFault where npu-smi does not tell."""
    card = ("info", "-t", "board", "-i", str(npu.card))
    return parse_board(ask_npu_smi(*card), ask_npu_smi(*card, "-c", str(npu.chip)))


def cube_cores_of(npu: Npu) -> int | None:
    """How many cube cores a chip shows; None where npu-smi does not tell, or has no such query:
    one that does not answer at all has listed no chip."""
    try:
        told = ask_npu_smi("info", "-t", "common", "-i", str(npu.card), "-c", str(npu.chip))
    except HostFault:
        return None
    return parse_cores(told)


def parse_cores(text: str) -> int | None:
    """The cores in what `npu-smi info -t common` printed, where it tells one number."""
    told = set(_CORES.findall(text))
    return int(told.pop()) if len(told) == 1 else None


def parse(text: str) -> tuple[Npu, ...]:
    """The chips in what `npu-smi info` printed. Raises HostFault where it names none."""
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
        raise HostFault(f"backend npu: npu-smi lists no NPU: {' '.join(text.split())[:300]}")
    return tuple(found)


def parse_board(card: str, chip: str) -> Board:
    """What `npu-smi info -t board` printed of a card, and of one chip of it."""
    of_card, of_chip = _fields(card), _fields(chip)
    both = {**of_card, **of_chip}
    name = both.get("Chip Name", "").replace(" ", "")
    if not name:
        raise HostFault(f"backend npu: npu-smi lists no chip: {' '.join(chip.split())[:300]}")
    # As vLLM-Ascend puts it together: A3 has an NPU Name, A2 has not.
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


def visible(found: Sequence[Npu], variable: str | None) -> tuple[Npu, ...]:
    """Those that ASCEND_RT_VISIBLE_DEVICES leaves, numbered anew."""
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


def ask_npu_smi(*arguments: str, patience_s: float | None = None) -> str:
    """What npu-smi prints. Raises HostFault where there is none, or it does not answer."""
    patience_s = patience_s or _PATIENCE_S
    command = shutil.which("npu-smi")
    if command is None:
        raise HostFault(f"backend npu: npu-smi is not on PATH, so no NPU can be listed: {_REMEDY}")
    try:
        answer = subprocess.run(
            [command, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=patience_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise HostFault(
            f"backend npu: npu-smi does not respond within {patience_s:g} s: "
            "the driver or an NPU hangs"
        ) from error
    except OSError as error:
        raise HostFault(f"backend npu: {command} cannot be run: {error.strerror}") from error
    return answer.stdout or answer.stderr
