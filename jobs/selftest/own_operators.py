"""`opmeter ops --check`: one launch of each operator of a user's file on the CPU."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from collector.codec.errors import BadInput
from collector.codec.scratch import scratch_folder
from collector.model.plan import MeasureSettings
from collector.model.record import CaseRecord
from collector.ops.own import Operator, OperatorFile, load_operator_file
from collector.ops.runtime import with_runtime_columns
from collector.ops.small_cases import small_record
from collector.replay.check_session import check_spec
from collector.replay.journal import JOURNAL, MEASURED, CaseEntry, read_journal
from collector.replay.supervisor import run_session, why_it_ended
from opmeter.written_cases import case_of_text


@dataclass(frozen=True, slots=True)
class CheckedCase:
    """One case of an operator. `problem` is empty if its outputs are those of its signature and of
    its reference, if it has one."""

    operator: Operator
    case: str
    problem: str


def check_operator_file(file: OperatorFile) -> list[CheckedCase]:
    """Launch each operator of a file in a session on the CPU, with its examples, or with small
    sizes that follow from its signature. Raises BadInput for a file that cannot be loaded."""
    planned: list[tuple[Operator, CaseRecord]] = []
    found: list[CheckedCase] = []
    for one in load_operator_file(file):
        try:
            planned += ((one, record) for record in _records(one, file))
        except BadInput as error:
            found.append(CheckedCase(one, "", str(error)))
    problems = _problems(file, [record for _, record in planned]) if planned else ()
    found += (
        CheckedCase(one, record.case.describe(), problem)
        for (one, record), problem in zip(planned, problems, strict=True)
    )
    return sorted(found, key=lambda one: one.operator.line)


def _records(operator: Operator, file: OperatorFile) -> list[CaseRecord]:
    spec = operator.spec(file)
    if not operator.examples:
        return [small_record(spec)]
    texts = (f"{operator.kernel} {example}" for example in operator.examples)
    return [with_runtime_columns(case_of_text(text).record(), spec) for text in texts]


def _problems(file: OperatorFile, records: Sequence[CaseRecord]) -> list[str]:
    """Return what is wrong with each case, after one session."""
    measure = MeasureSettings(repeat_count=1)
    spec = replace(check_spec("cpu", 0, records, measure), operators=(file,))
    with scratch_folder("check") as folder:
        report = run_session(spec, folder)
        entries = read_journal(folder / JOURNAL).cases
    ended = why_it_ended(report, began=bool(entries))
    return [_problem(entries.get(ordinal), ended) for ordinal in range(len(records))]


def _problem(entry: CaseEntry | None, ended: str) -> str:
    if entry is None or not entry.outcome:
        return ended or "the session ended before it"
    if entry.outcome != MEASURED:
        return f"{entry.outcome}: {entry.reason}"
    return entry.doubt or entry.differs
