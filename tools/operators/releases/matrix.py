"""Write `collector/data/releases.csv`, which releases accept the calls of the catalogue, from the
schemas next to this file: `python -m tools releases`. It needs neither torch nor the
network; read the difference before it is committed.
"""

from collections.abc import Mapping
from functools import cache

from collector.codec.table import table_bytes
from collector.model.case import Case
from collector.ops.refusals import requires_950
from collector.ops.registry import all_ops
from collector.ops.releases import ABSENT, BOUND, BOUND_OTHERWISE, ROWS_OF_950, SCHEMA_UNKNOWN
from collector.ops.spec import OpSpec, library_of
from collector.ranks.distribution import DISTRIBUTE_KERNELS
from tools.operators.releases.binding import Passed, Schema, misfit, parse_schema
from tools.operators.releases.calls import passed_by, rows_by_kernel
from tools.operators.releases.wheels import FOLDER, RELEASES

Schemas = Mapping[str, tuple[Schema, ...]]
NAMES = tuple(release.replace("==", "-") for release in RELEASES)


def releases_table() -> bytes:
    """Return one row per operator of torch_npu or vLLM-Ascend, one column per release of either. An
    operator with cases of A2 and A3 and others of Ascend 950 has two."""
    cases = rows_by_kernel()
    table = [
        [op.kernel, op.call, kind, *(answer(op, release, of_kind) for release in NAMES)]
        for op in all_ops()
        if op.library != "torch" and op.kernel not in DISTRIBUTE_KERNELS
        for kind, of_kind in _kinds(cases.get(op.kernel, []))
    ]
    return table_bytes(("Kernel Type", "API", "Rows", *NAMES), table)


def _kinds(cases: list[Case]) -> list[tuple[str, list[Case]]]:
    of_950 = [case for case in cases if requires_950(case)]
    others = [case for case in cases if not requires_950(case)]
    return [("", others), (ROWS_OF_950, of_950)] if others and of_950 else [("", cases)]


def answer(op: OpSpec, release: str, cases: list[Case]) -> str:
    """Return how a release accepts the calls of an operator's rows: for its library, or for
    vLLM-Ascend the function with which it serves; empty if it does not apply."""
    call = _function(op, release)
    if not call:
        return ""
    schemas = _schemas(call, release)
    if not schemas:
        return ABSENT
    passed = _passed(op, cases, schemas)
    if wrong := sorted(filter(None, {misfit(one, schemas) for one in passed})):
        return "; ".join(wrong)
    if not any(schema.is_reported for schema in schemas):
        return SCHEMA_UNKNOWN
    newest = _schemas(call, _newest(release))
    as_newest = _passed(op, cases, newest) if newest else passed
    return BOUND if passed == as_newest else BOUND_OTHERWISE


def _passed(op: OpSpec, cases: list[Case], schemas: tuple[Schema, ...]) -> list[Passed]:
    found = (passed_by(op, case, schemas) for case in cases)
    return [passed for passed in found if passed is not None]


def _function(op: OpSpec, release: str) -> str:
    library = "vllm-ascend" if release.startswith("vllm_ascend") else "torch_npu"
    calls = (call for call in (op.call, op.npu.served) if library_of(call) == library)
    return next(calls, "")


def _schemas(call: str, release: str) -> tuple[Schema, ...]:
    """Return those of a function: the extension has no functions of Python."""
    schemas = schemas_of(release).get(call.rpartition(".")[2], ())
    is_of_extension = call.startswith("torch.ops._C_ascend.")
    return tuple(s for s in schemas if not (is_of_extension and s.is_of_python))


@cache
def schemas_of(release: str) -> Schemas:
    """Return the schemas of a wheel, by name without the overload."""
    found: dict[str, list[Schema]] = {}
    for line in (FOLDER / f"{release}.txt").read_text().splitlines():
        if not line.startswith("#"):
            schema = parse_schema(line)
            found.setdefault(schema.name, []).append(schema)
    return {name: tuple(schemas) for name, schemas in found.items()}


def _newest(release: str) -> str:
    library = release.partition("-")[0]
    return [name for name in NAMES if name.startswith(library)][-1]
