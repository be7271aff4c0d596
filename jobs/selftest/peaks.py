"""The peak rates of this machine's processor, measured like all other cases.

Products measure its arithmetic, sums of cached tensors its caches, and a copy of a larger tensor
its memory.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from collector.codec.errors import OpmeterError
from collector.host.peaks_file import path_of_peaks, stored_peaks
from collector.model.measurement import Measurement
from collector.model.peaks import MachinePeaks, peaks_to_bytes
from collector.model.record import CaseRecord
from collector.model.stack import Stack
from collector.ops.references import addition, copying_kernel, product_kernel
from collector.ops.registry import find_operator
from collector.store.atomic import write_through
from jobs.doctor.machine import Check
from jobs.selftest.bench import Bench, Session, SessionRequest, unmeasured

_NAME = "peaks"
_REPEATS = 20
_PRODUCTS = (1024, 2048)
# Rows of 4 KiB: tensors of 256 KiB to 4 MiB (a sum reads two of them), and one of 256 MiB.
_COLUMNS, _IN_CACHES, _IN_MEMORY = 1024, (64, 128, 256, 512, 1024), 65536


# The cases for each rate of `MachinePeaks`.
Cases = Mapping[str, tuple[CaseRecord, ...]]
CASES: Cases = MappingProxyType(
    {
        "float32_flops_per_s": tuple(product_kernel(n, "FLOAT") for n in _PRODUCTS),
        "bfloat16_flops_per_s": tuple(product_kernel(n, "DT_BF16") for n in _PRODUCTS),
        "cache_bytes_per_s": tuple(addition(rows, _COLUMNS) for rows in _IN_CACHES),
        "memory_bytes_per_s": (copying_kernel(_IN_MEMORY, _COLUMNS),),
    }
)


def check_peaks(bench: Bench, cases: Cases = CASES) -> Check:
    """Measure the peaks; skip the check if another process used the cores."""
    session = _session(bench, cases)
    if fault := unmeasured(session, sum(map(len, cases.values()))):
        return Check(_NAME, False, fault, "the report contains the log of its session")
    peaks = best_rates(bench.stack, session.results, "", cases)
    if peaks is None:
        words = "another process used the cores: close other programs, --only peaks"
        return Check(_NAME, True, words, skipped=True)
    return Check(
        _NAME,
        True,
        f"{peaks.float32_flops_per_s / 1e9:,.0f} GFLOP/s in FLOAT, "
        f"{peaks.bfloat16_flops_per_s / 1e9:,.0f} in BF16; "
        f"{peaks.cache_bytes_per_s / 1e9:,.0f} GB/s from caches, "
        f"{peaks.memory_bytes_per_s / 1e9:,.0f} from memory",
    )


def own_peaks(bench: Bench) -> MachinePeaks | None:
    """Return the peaks that this self-test measures, or those of an earlier one if another process
    used the cores; None if there are neither."""
    return best_rates(bench.stack, _session(bench, CASES).results, "") or stored_peaks(bench.stack)


def _session(bench: Bench, cases: Cases) -> Session:
    records = tuple(record for alike in cases.values() for record in alike)
    return bench.session(SessionRequest(_NAME, records, repeats=_REPEATS))


def measured_peaks(done: Iterable[Session], stack: Stack, at: str) -> MachinePeaks | None:
    """Return the measured peaks; None if the check did not run, or shared the cores."""
    ours = (session for session in done if session.folder.name == _NAME)
    return next((best_rates(stack, session.results, at) for session in ours), None)


def best_rates(
    stack: Stack, results: Iterable[Measurement], at: str, cases: Cases = CASES
) -> MachinePeaks | None:
    """Return the best rate of each kind from undisturbed launches; None if a kind has none."""
    fastest_us = {
        m.case_id: m.timing.min_us
        for m in results
        if m.timing and m.is_good and (m.disturbance is None or m.disturbance.is_clean)
    }
    rates = {
        name: max((_rate(name, record, fastest_us) for record in alike), default=0.0)
        for name, alike in cases.items()
    }
    return MachinePeaks(stack=stack, at=at, **rates) if all(rates.values()) else None


def keep_peaks(peaks: MachinePeaks) -> str:
    """Store the better of these peaks and the stored ones; return a line with the result."""
    path = path_of_peaks(peaks.stack)
    earlier = stored_peaks(peaks.stack)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_through(path, peaks_to_bytes(peaks.better_of(earlier) if earlier else peaks))
    except (OSError, OpmeterError) as error:
        return f"cannot store the peaks: {path}: {error}; set OPMETER_PEAKS to another folder"
    return f"peaks, used to check the durations measured here: {path}"


def _rate(name: str, record: CaseRecord, fastest_us: Mapping[str, float]) -> float:
    """Return operations or bytes per second, as for the lower bound; 0 if unknown."""
    op, us = find_operator(record.kernel_type), fastest_us.get(record.case_id)
    if op is None or us is None:
        return 0.0
    work = op.flops if "flops" in name else op.traffic
    return work(record.case) / us * 1e6
