"""What a version of a database lacks of a manifest of queries, of misses, or of a standard."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from collector.codec.errors import BadInput
from collector.model.case import Case
from collector.model.demand import Demand, MissedCase, read_queries_file, record_of_cells
from collector.model.stack import backend_of
from collector.model.vocabulary import BASE_CELLS, INPUT_DTYPES, INPUT_SHAPES
from collector.ops.own import find_operator
from collector.ops.refusals import refusal
from jobs.planning.demand import is_standard, read_standard, required_by
from jobs.planning.sources import completed_case
from opmeter import Channel, Version
from opmeter.cases import arguments_of

_MEASURED = (Channel.MEASURED, Channel.POOLED)
_NOT_MEASURED = "not measured"
_QUERIES = (".jsonl", ".json")


@dataclass(frozen=True, slots=True)
class LackingCase:
    """A required case that a version lacks, or that cannot be measured; `reason` says which.

    `cells` are those of a row of a tree."""

    kernel_type: str
    cells: Mapping[str, str]
    is_critical: bool
    weight: float
    workloads: tuple[str, ...]
    reason: str

    @property
    def shapes(self) -> str:
        return self.cells.get(INPUT_SHAPES, "").strip('"')

    @property
    def dtypes(self) -> str:
        return self.cells.get(INPUT_DTYPES, "")


@dataclass(frozen=True, slots=True)
class Conformity:
    """How a version compares with a demand of `required` cases.

    `refused` cannot be measured; `without_case` counts sizes that make no case, by reason."""

    version_path: str
    required: int
    lacking: tuple[LackingCase, ...]
    refused: tuple[LackingCase, ...]
    without_case: tuple[tuple[str, int], ...] = ()

    def missed(self) -> Iterator[MissedCase]:
        """Yield what is lacking as misses. A critical case weighs as much as all others."""
        most = sum(one.weight for one in self.lacking)
        for one in self.lacking:
            weight = most if one.is_critical else one.weight
            yield MissedCase(one.kernel_type, one.cells, one.reason, 1, weight)

    def plain(self) -> dict[str, object]:
        return {
            "version_path": self.version_path,
            "conforms": not self.lacking,
            "required": self.required,
            "lacking": [asdict(one) for one in self.lacking],
            "refused": [asdict(one) for one in self.refused],
            "without_case": dict(self.without_case),
        }


def is_demand(file: Path) -> bool:
    """Return whether a file demands durations: JSON lines (a manifest, misses), or a density
    standard. Raises BadInput for a file that is no YAML."""
    return file.suffix in _QUERIES or is_standard(file)


def conformity(version: Version, file: Path) -> Conformity:
    """Return what a version lacks of a demand: of critical queries durations that are measured, of
    others and of misses any duration; of a density standard the sizes that it requires on the lines
    of the version's cases, and that are not measured. Raises BadInput for an invalid file, and if
    the version has no case of a standard's kernels."""
    if file.suffix in _QUERIES:
        return _conformity(version, read_queries_file(file))
    standard = read_standard(file)
    cases = list(_cases(version, tuple(standard.kernels)))
    if not cases:
        kernels = ", ".join(standard.kernels)
        raise BadInput(f"expected cases of {kernels} in {version.path}, got none", path=file)
    backend = backend_of(version.path.partition("/")[0])
    required = required_by(standard, cases, backend, path=file)
    found = _conformity(version, required.demands, only_measured=True)
    without = tuple(sorted(required.refused.items()))
    return replace(found, required=found.required + len(cases), without_case=without)


def _cases(version: Version, kernels: tuple[str, ...]) -> Iterator[Case]:
    for kernel in kernels:
        for cells, _ in version.cases(kernel):
            yield record_of_cells(kernel, cells).case


def _conformity(
    version: Version, demands: Iterable[Demand], *, only_measured: bool = False
) -> Conformity:
    backend = backend_of(version.path.partition("/")[0])
    ordered = sorted(demands, key=lambda one: (not one.is_critical, -one.weight))
    lacking: list[LackingCase] = []
    refused: list[LackingCase] = []
    for one in ordered:
        record = one.record
        cells = {**{n: record.cells.get(n, "") for n in BASE_CELLS}, **record.extra}
        answer = version.query(record.kernel_type, **arguments_of(cells))
        is_exact = only_measured or one.is_critical
        if answer.channel in _MEASURED or (answer.reason is None and not is_exact):
            continue
        no = refusal(completed_case(record).case, find_operator, backend)
        reason = no.reason if no else str(answer.reason or _NOT_MEASURED)
        case = LackingCase(
            record.kernel_type, cells, one.is_critical, one.weight, one.workloads, reason
        )
        (refused if no else lacking).append(case)
    return Conformity(version.path, len(ordered), tuple(lacking), tuple(refused))
