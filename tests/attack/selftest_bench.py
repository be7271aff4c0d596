"""A self-test bench whose sessions have run: it exports their records again, with faults."""

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from collector.codec.errors import OpmeterError
from collector.model.stack import Stack
from collector.replay.check_session import check_result
from collector.replay.journal import JOURNAL
from collector.replay.msprof import OUTPUT, discard_exports, profiles_of
from jobs.selftest.bench import Session, SessionRequest, begun
from tests.npu.fakecann.faults import Fault, ordered, write_faults
from tests.npu.fakecann.profiler import export


@dataclass
class LyingBench:
    """Return recorded sessions as they would be if msprof had exported them under some faults. A
    session without a launch of the affected kernels stays as recorded."""

    stack: Stack
    recorded: dict[str, Session]
    folder: Path
    faults: tuple[Fault, ...]
    backend: str = "npu"
    done: dict[str, Session] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        path = write_faults(self.folder / "faults.json", *self.faults)
        os.environ["FAKE_CANN_FAULTS"] = str(path)

    def session(self, expected: SessionRequest) -> Session:
        if expected.name not in self.recorded:
            raise OpmeterError(f"no session {expected.name} was recorded")
        if expected.name not in self.done:
            self.done[expected.name] = self._lied(self.recorded[expected.name], expected)
        return begun(self.done[expected.name])

    def _lied(self, reported: Session, expected: SessionRequest) -> Session:
        assert [case.record for case in reported.spec.cases] == list(expected.records)
        if not any(self._concerns(fault, reported) for fault in self.faults):
            return reported
        folder = self.folder / expected.name
        shutil.copytree(reported.folder / OUTPUT, folder / OUTPUT)
        shutil.copy(reported.folder / JOURNAL, folder)
        discard_exports(folder)
        for profile in profiles_of(folder / OUTPUT):
            assert export(profile, ordered()) == 0
        result = check_result(reported.spec, folder, reported.report)
        return Session(reported.spec, folder, reported.report, result)

    def _concerns(self, fault: Fault, reported: Session) -> bool:
        return not fault.kernel or any(row.op_type == fault.kernel for row in reported.launches)
