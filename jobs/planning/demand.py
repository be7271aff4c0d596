"""Density standards as work: the sizes that a standard requires, as cases with their urgency."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from collector.codec.document import Entry, Fields, read_document
from collector.codec.errors import BadInput, file_errors
from collector.codec.files import MOST_YAML_BYTES, read_small_file
from collector.model.case import Case
from collector.model.demand import Demand
from collector.model.record import CaseRecord
from collector.ops.own import find_operator
from collector.ops.refusals import refusal
from collector.ops.runtime import completed_as_declared
from collector.workloads.density import Density, DensityLimit, Standard, required_cases
from collector.workloads.grid import Refusal
from collector.workloads.patterns import bundled_patterns

_VERSION = 1
_MOST_SIZES = 10_000  # of one axis
_MOST_CASES = 1_000_000
_LARGEST = 1 << 40


def read_standard(path: Path) -> Standard:
    """Return the density standard of a file.

    Raises BadInput, with the line, for one that is invalid or names unknown kernels or axes."""
    return standard_from_text(_text_of(path), path=str(path))


def is_standard(path: Path) -> bool:
    """Return whether a file has a density standard, valid or not, and not a campaign."""
    document = read_document(_text_of(path), str(path))
    if not document.is_mapping:
        what = "a campaign or a density standard (YAML), or JSON lines (.jsonl)"
        raise BadInput(f"expected {what}; `opmeter query --file` takes cases", path=path)
    found = document.mapping()
    return "axes" in found and "campaign" not in found


def _text_of(path: Path) -> str:
    with file_errors(path):
        data = read_small_file(path, MOST_YAML_BYTES)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput("the file is not valid UTF-8", path=path) from error


def standard_from_text(text: str, *, path: str) -> Standard:
    """Return the density standard of a text; see `read_standard`."""
    found = read_document(text, path).fields(
        ("schema_version", "axes", "kernels"), required=("schema_version", "axes", "kernels")
    )
    if (version := found["schema_version"]).integer(1) != _VERSION:
        raise version.mismatch(str(_VERSION), version.text())
    axes = {name: _density(entry) for name, entry in found["axes"].mapping().items()}
    kernels = {
        kernel: _axes_of(kernel, entry, axes)
        for kernel, entry in found["kernels"].mapping().items()
    }
    if not kernels:
        raise found["kernels"].refusal("expected at least one kernel type")
    return Standard(axes, kernels=kernels)


def _density(entry: Entry) -> Density:
    found = entry.fields(("range", "segments", "required_values"), required=("segments",))
    ends: tuple[int, int] | None = None
    if "range" in found:
        numbers = [item.integer(1) for item in found["range"].items()]
        if len(numbers) != 2 or numbers[0] > numbers[1] or numbers[1] > _LARGEST:
            raise found["range"].refusal("expected the first and the last size, such as [1, 4096]")
        ends = (numbers[0], numbers[1])
    steps: list[DensityLimit] = []
    for item in found["segments"].numbered():
        steps.append(_limit(item, steps[-1].to if steps else 0))
    required = tuple(
        item.integer(1)
        for item in (found["required_values"].numbered() if "required_values" in found else ())
    )
    density = Density(tuple(steps), required, ends)
    if ends and any(not ends[0] <= size <= ends[1] for size in required):
        raise found["required_values"].refusal(f"expected sizes from {ends[0]} to {ends[1]}")
    size, count = 1, 0
    while (following := density.largest_next(size)) is not None:
        size, count = max(following, size + 1), count + 1
        if count > _MOST_SIZES:
            raise found["segments"].refusal(f"expected at most {_MOST_SIZES:,} sizes, got more")
    return density


def _limit(entry: Entry, after: int) -> DensityLimit:
    found = entry.fields(("to", "max_gap", "max_ratio"), required=("to",))
    to = found["to"].integer(after + 1)
    if to > _LARGEST:
        raise found["to"].refusal(f"expected at most {_LARGEST}, got {to}")
    if ("max_gap" in found) == ("max_ratio" in found):
        raise entry.refusal("expected either max_gap or max_ratio")
    if "max_gap" in found:
        return DensityLimit(to, found["max_gap"].integer(1), 0.0)
    ratio = found["max_ratio"].positive()
    if ratio <= 1:
        raise found["max_ratio"].mismatch("a number above 1", found["max_ratio"].text())
    return DensityLimit(to, 0, min(ratio, float(_LARGEST)))


def _axes_of(kernel: str, entry: Entry, axes: Mapping[str, Density]) -> Mapping[str, str]:
    """Return the density of each axis of a kernel type, by name."""
    pattern = bundled_patterns().of(kernel)
    if pattern is None:
        raise entry.refusal("no pattern of shapes for this kernel type")
    shapes = pattern.of_shapes
    named: Fields = entry.fields((*shapes.axes, *shapes.model_axes))
    return {axis: of.choice(tuple(axes)) for axis, of in named.items()}


@dataclass(frozen=True, slots=True)
class RequiredCases:
    """The cases that a standard requires besides existing ones, and why others have no case."""

    demands: tuple[Demand, ...]
    refused: Mapping[str, int]


def required_by(
    standard: Standard, cases: Iterable[Case], backend: str, *, path: Path
) -> RequiredCases:
    """Return what a standard requires on the lines of these cases.

    A line is cases that differ in one size. Raises BadInput for more cases than can be planned."""
    by_kernel: dict[str, list[Case]] = {}
    for case in cases:
        if case.kernel_type in standard.kernels:
            by_kernel.setdefault(case.kernel_type, []).append(case)
    resolve = _resolver(backend)
    demands: dict[str, Demand] = {}
    refused: Counter[str] = Counter()
    sizes = bundled_patterns().sizes
    for kernel, own in sorted(by_kernel.items()):
        pattern = bundled_patterns().of(kernel)
        assert pattern is not None  # checked by read_standard
        for found, is_value in required_cases(pattern, own, standard, sizes, resolve):
            if isinstance(found, Refusal):
                refused[f"{kernel}: {found}"] += 1
                continue
            known = demands.get(found.case_id)
            critical = is_value or (known is not None and known.is_critical)
            demands[found.case_id] = Demand(found, is_critical=critical)
            if len(demands) > _MOST_CASES:
                raise BadInput(f"expected at most {_MOST_CASES:,} required cases", path=path)
    return RequiredCases(tuple(demands.values()), refused)


def _resolver(backend: str) -> Callable[[CaseRecord], CaseRecord | Refusal]:
    def resolve(record: CaseRecord) -> CaseRecord | Refusal:
        completed = completed_as_declared(record)
        no = refusal(completed.case, find_operator, backend)
        return no.why if no else completed

    return resolve
