"""What goes wrong on the fake NPU, by order of a test.

    path = write_faults(tmp_path / "faults.json", Fault("crash", call="aclnnRmsNorm(", nth=3))
    env = environment(fake, faults=path)

The order is a JSON file, named by FAKE_CANN_FAULTS. The fake msprof reads it: what concerns
launches it hands to the runtime of the process that it starts (runtime/faults.c), the rest it does
to what it exports (damage.py). How often a fault has struck is counted beside the file, over all
processes, so that one may strike only once.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from collector.engine.kernels import calls_of

_OF_LAUNCHES = ("crash", "hang")
_OF_WINDOWS = (
    *("lose_head", "lose", "rename", "hide_shapes", "jitter", "block", "slices"),
    *("status", "no_export", "refuse", "between", "refuse_export", "hide_counters", "plain"),
    *("wrap", "scale", "drift", "ignores"),
)
_OF_DEVICES = ("throttle", "neighbour")


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong.

    fault   crash        the launch is a segmentation fault
            hang         the launch never returns
            lose_head    the first `count` records of a window are lost
            lose         a share of the records is lost
            rename       a share of the records bears the OP Type `to`
            hide_shapes  N/A instead of shapes
            hide_counters  N/A instead of counters
            plain        ND instead of FRACTAL_NZ
            wrap         of launches with one task id, the later ones are lost
            scale        durations are this many times as long: `share`
            drift        in every second window durations are longer by this share
            ignores      where times are physical, the device ignores `to` (physical.py)
            jitter       durations stray by up to this share
            between      CANN does `to` (between.py) with this share of the calls
            block        the header says `to`: Dim (CANN 8) or Num (CANN 9)
            slices       the op_summary comes in `count` files
            status       msprof exits with `count`, after it has exported
            no_export    there is no op_summary at the end of the run
            refuse       msprof exits with `count`, and starts nothing
            refuse_export  msprof parses nothing that was recorded before; it exits with `count`
            throttle     npu-smi says that the cores' clock is `count` MHz
            neighbour    npu-smi lists another process on the device
    call    only launches whose line in the log (calls.py) holds this text
    device  only launches on this one; -1: on any
    kernel  only launches of this OP Type
    nth     of the launches in question, only this one of a process (from 1), or each (0)
    times   at most so often, over all processes; 0: always
    """

    fault: str
    call: str = ""
    device: int = -1
    kernel: str = ""
    nth: int = 0
    times: int = 0
    share: float = 1.0
    count: int = 0
    to: str = ""

    def __post_init__(self) -> None:
        if self.fault not in (*_OF_LAUNCHES, *_OF_WINDOWS, *_OF_DEVICES):
            raise ValueError(f"no such fault: {self.fault!r}")


@dataclass(frozen=True, slots=True)
class Orders:
    """The requested faults; `folder` has the counts of their occurrences."""

    faults: tuple[Fault, ...] = ()
    seed: int = 0
    folder: Path | None = None

    def striking(self, kind: str) -> list[Fault]:
        """Return the faults of a kind that occur now, and count them."""
        numbered = enumerate(self.faults)
        return [f for i, f in numbered if f.fault == kind and self._may_fail(i, f.times)]

    def next_window(self) -> int:
        """Count windows, so that a second one has other random numbers."""
        number = 0
        while self.folder is not None and not _claim(self.folder / f"window.{number}"):
            number += 1
        return number

    def for_launches(self) -> str:
        """Return the lines that the runtime reads."""
        return "".join(
            f"{fault.fault}\t{fault.nth}\t{fault.times}\t{fault.device}\t{self._state(i)}"
            f"\t{_words(fault)}\n"
            for i, fault in enumerate(self.faults)
            if fault.fault in _OF_LAUNCHES
        )

    def _state(self, index: int) -> str:
        return f"{self.folder}/fault-{index}"

    def _may_fail(self, index: int, times: int) -> bool:
        return times == 0 or any(_claim(Path(f"{self._state(index)}.{i}")) for i in range(times))


def write_faults(path: Path, *faults: Fault, seed: int = 0) -> Path:
    """Request faults and forget earlier occurrences. Returns the path."""
    folder = _folder(path)
    folder.mkdir(exist_ok=True)
    for struck in folder.iterdir():
        struck.unlink()
    path.write_text(json.dumps({"seed": seed, "faults": [asdict(fault) for fault in faults]}))
    return path


def for_ranks(path: Path, *faults: Fault) -> dict[str, str]:
    """Return the environment of processes that no fake msprof starts, so that faults affect their
    launches."""
    orders = Orders(faults, folder=_folder(write_faults(path, *faults)))
    lines = path.with_name(path.name + ".launches")
    lines.write_text(orders.for_launches())
    return {"FAKE_CANN_LAUNCH_FAULTS": str(lines)}


def ordered() -> Orders:
    """Return the faults that this process's environment names; none if it names no file."""
    name = os.environ.get("FAKE_CANN_FAULTS")
    if not name:
        return Orders()
    content = json.loads(Path(name).read_text())
    faults = tuple(Fault(**fault) for fault in content["faults"])
    return Orders(faults, content["seed"], _folder(Path(name)))


def struck(path: Path) -> list[str]:
    """Return which faults of a file have occurred: `fault-0.0` is the first one's first time.
    Unlimited faults of windows are not counted."""
    return sorted(p.name for p in _folder(path).iterdir() if p.name.startswith("fault-"))


def _folder(path: Path) -> Path:
    return path.with_name(path.name + ".struck")


def _claim(path: Path) -> bool:
    try:
        path.open("x").close()
    except FileExistsError:
        return False
    return True


def _words(fault: Fault) -> str:
    """Return the texts of which a launch's line must contain one: for a kernel the calls that may
    launch it."""
    words: Sequence[str] = [fault.call]
    if fault.kernel:
        words = [f" {name}(" for name in calls_of(fault.kernel)]
    return "\t".join(words)
