"""`opmeter run` as a process that can be killed, and the state of its store afterwards."""

import contextlib
import csv
import io
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import zstandard

from collector.measuring.batches import TRIED_AGAIN
from collector.model import keys
from collector.model.case import case_from_cells
from collector.model.manifest import manifest_from_json, shard_commit_from_json
from collector.model.measurement import Measurement
from collector.model.record import read_table
from collector.profiles.bundled import bundled_file, bundled_kernel_details
from collector.quality.canaries import is_suspect
from collector.store import open_store
from collector.store.base import Store
from collector.worker.attempt import read_part
from jobs.planning.stored_plans import committed_shards

_CHECKOUT = Path(__file__).parents[3]
NAME = "drill"
CASES = 109  # of the bundled sample
_ATTEMPTS = f"campaigns/{NAME}/attempts/"
# The sample's sequence, vocabulary and flat parameters; sizes of heads and layers are kept.
_LONG_AXIS = re.compile(r"\b(4096|\d{6,})\b(?!\.)")
_CUT = 128
_ANSWERED_AT_ONCE = re.compile("unsupported|rejected")


@dataclass(frozen=True)
class Runs:
    """Runs of the drill's campaign in a folder, against one store."""

    folder: Path
    root: str
    environment: dict[str, str]
    campaign: Path

    @property
    def store(self) -> Store:
        with self._environment():
            return open_store(self.root)

    @property
    def _variables(self) -> dict[str, str]:
        own = {"PYTHONPATH": str(_CHECKOUT), "OPMETER_LOCKS": str(self.folder / "locks")}
        return os.environ | own | self.environment

    def start(self, *arguments: str, **environment: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            self._command("run", str(self.campaign), *arguments),
            cwd=self.folder,
            env=self._variables | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def finish(self, *arguments: str) -> str:
        """Run to the end; return the output."""
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=900)
        assert process.returncode == 0, output.decode()
        return output.decode()

    def command(self, *arguments: str) -> str:
        """Return the standard output of a command, which must succeed."""
        done = subprocess.run(
            self._command(*arguments),
            cwd=self.folder,
            env=self._variables,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def plan(self) -> str:
        """Print the forecast; write nothing."""
        return self.command("plan", str(self.campaign), "--dry-run")

    def plan_for_good(self) -> str:
        return self.command("plan", str(self.campaign))

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "jobs.cli", *arguments, "--root", self.root]

    def processes(self) -> list[str]:
        """Return the processes of this store: the command, its workers and their sessions."""
        return [line for line in _command_lines() if self.root in line or str(self.folder) in line]

    def wait_until_alone(self, limit_s: float = 10.0) -> list[str]:
        """Return the processes that are still running after a while."""
        deadline = time.monotonic() + limit_s
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

    def objects(self) -> int:
        """Return the number of objects of the store."""
        return sum(1 for _ in self.store.list(""))

    def uploaded(self) -> dict[tuple[str, str], str]:
        """Return shard and measured case -> the attempt whose part has it, of all uploaded
        parts."""
        return {(shard, m.case_id): attempt for shard, attempt, m in self._measured()}

    def believed(self) -> set[tuple[str, str]]:
        """Return shard and case of the uploaded results, except for disturbed ones and lost
        records: only those may be measured again."""
        return {
            (shard, m.case_id)
            for shard, _, m in self._measured()
            if m.outcome not in TRIED_AGAIN and not is_suspect(m)
        }

    def _measured(self) -> Iterator[tuple[str, str, Measurement]]:
        """Return shard, attempt and measurement of all uploaded parts."""
        store = self.store
        for key in _keys(store, "/part-"):
            shard, attempt = key.split("/")[3:5]
            for m in read_part(store.get(key), key=key):
                if not _ANSWERED_AT_ONCE.search(m.outcome):
                    yield shard, attempt, m

    def source_cases(self) -> set[str]:
        """Return the cases of all tables of the campaign's plans."""
        store = self.store
        tables = [store.get(info.key) for info in store.list(f"campaigns/{NAME}/sources/")]
        return {record.case_id for table in tables for record in read_table(table)}

    def attempts(self) -> set[str]:
        """Return every attempt that has left an object, including sessions without parts."""
        return {info.key.split("/")[4] for info in self.store.list(_ATTEMPTS)}

    def launched(self, but_not: set[str]) -> set[tuple[str, str]]:
        """Return shard and case of every launch in a raw op_summary, except for these attempts."""
        store = self.store
        cases = set()
        for key in _keys(store, "/op_summary-"):
            shard, attempt = key.split("/")[3:5]
            if attempt in but_not:
                continue
            text = zstandard.decompress(store.get(key)).decode()
            for row in csv.DictReader(io.StringIO(text, newline="")):
                if "::" not in row["OP Type"]:  # else torch's own operator, next to the cases
                    cases.add((shard, case_from_cells(row["OP Type"], row).case_id))
        return cases

    def finals(self) -> Counter[tuple[int, str]]:
        """Return the number of final outcomes of each case of each plan, over all committed
        shards."""
        store, count = self.store, Counter()
        for shard in committed_shards(store, NAME):
            commit = shard_commit_from_json(store.get(keys.committed(NAME, shard)))
            manifest = manifest_from_json(store.get(commit.manifest.key))
            count.update((manifest.plan, case) for case in manifest.final)
        return count

    @contextlib.contextmanager
    def _environment(self) -> Iterator[None]:
        before = {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def short_campaign(folder: Path) -> Path:
    """Write a campaign over the bundled sample into a folder. All cases are those of the sample
    with their long axes cut: at full length a few of them last longer than all the others."""
    facts = bundled_file("quickstart", "facts.csv").decode()
    cut = _LONG_AXIS.sub(lambda axis: str(int(axis[0]) // _CUT), facts)
    (folder / "kernel_details.csv").write_bytes(bundled_kernel_details(read_table(cut.encode())))
    campaign = folder / "campaign.yaml"
    campaign.write_bytes((Path(__file__).parent / "campaign.yaml").read_bytes())
    return campaign


def _keys(store: Store, part: str) -> list[str]:
    return [info.key for info in store.list(_ATTEMPTS) if part in info.key]


def _command_lines() -> Iterator[str]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                yield " ".join(process.cmdline())
