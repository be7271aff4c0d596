"""A profile written from facts, for users without one: the bundled quickstart.

The facts of a real run (its cases, counts and durations) are in `collector/data/{name}/`. This
module writes them as a `kernel_details.csv` in the profiler's own layout (CANN 8.3, level 2), so
that the whole chain runs as with a real profile.
"""

from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path

from collector.codec.errors import BadInput
from collector.codec.numbers import microseconds
from collector.codec.table import table_bytes
from collector.model.record import CaseRecord, ProfileStatistics, read_table
from collector.model.vocabulary import ACCELERATOR_CORE, BASE_CELLS, COUNTERS, NOT_KNOWN, OP_STATE

_LEADING = (
    *("Step Id", "Device_id", "Model ID", "Task ID", "Stream ID", "Name", "Type", OP_STATE),
    *(ACCELERATOR_CORE, "Start Time(us)", "Duration(us)", "Wait Time(us)"),
    *("Block Dim", "Mix Block Dim", "HF32 Eligible"),
)
_IO_CELLS = BASE_CELLS[2:]
COLUMNS = (*_LEADING, *_IO_CELLS, "Context ID", *COUNTERS)

_FACTS = "facts.csv"  # the file that makes a folder a sample
_START_NS = 1_764_246_877_000_000_000
_GAP_NS = 1_000
_NO_MODEL = "4294967295"  # UINT32_MAX, which msprof writes for "no model"


def bundled_file(name: str, file: str) -> bytes:
    """Return a file of a bundled sample; raise BadInput, with the known names, for others."""
    samples = files("collector") / "data"
    names = sorted(one.name for one in samples.iterdir() if (one / _FACTS).is_file())
    if name not in names:
        raise BadInput(f"no bundled sample {name!r}; there are: {', '.join(names)}")
    return (samples / name / file).read_bytes()


def write_bundled_profile(name: str, folder: Path) -> Path:
    """Write the sample's profile into `folder`, and return the path of its kernel_details.csv."""
    facts = read_table(bundled_file(name, _FACTS), path=f"{name}/{_FACTS}")
    path = folder / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bundled_kernel_details(facts))
    return path


def bundled_kernel_details(facts: Iterable[CaseRecord]) -> bytes:
    """Return the bytes of a kernel_details.csv in which each case runs as often as in the facts."""
    rows: list[list[str]] = []
    start_ns = _START_NS
    for record in facts:
        if (profile := record.profile) is None:
            continue
        for _ in range(profile.count):
            rows.append(_row(len(rows), record, profile, start_ns))
            start_ns += round(profile.mean_us * 1000) + _GAP_NS
    return table_bytes(COLUMNS, rows, line_end="\r\n")


def _row(task: int, record: CaseRecord, profile: ProfileStatistics, start_ns: int) -> list[str]:
    core = record.cells[ACCELERATOR_CORE]
    is_communication = core == "COMMUNICATION"
    counters = dict(profile.counters)
    leading = {
        "Step Id": "13",
        "Device_id": "0",
        "Model ID": _NO_MODEL,
        "Task ID": NOT_KNOWN if is_communication else str(task),
        "Stream ID": NOT_KNOWN if is_communication else "2",
        "Name": f"{record.kernel_type}_{task}",
        "Type": record.kernel_type,
        OP_STATE: record.cells[OP_STATE],
        ACCELERATOR_CORE: core,
        "Start Time(us)": f"{microseconds(start_ns)}\t",
        "Duration(us)": microseconds(round(profile.mean_us * 1000)),
        "Wait Time(us)": f"{_GAP_NS / 1000:.6f}" if task else "0",
        "Block Dim": "0" if is_communication else "20" if core == "AI_CORE" else "40",
        "Mix Block Dim": NOT_KNOWN if is_communication else "0",
        "HF32 Eligible": NOT_KNOWN if is_communication else "NO",
    }
    return [
        *(leading[name] for name in _LEADING),
        *(record.cells[name] for name in _IO_CELLS),
        NOT_KNOWN,
        *(f"{counters[name]:.3f}" if name in counters else NOT_KNOWN for name in COUNTERS),
    ]
