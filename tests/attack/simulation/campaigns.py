"""The campaigns of a simulation: small ones, whose cases are distinguished by their shapes."""

from dataclasses import dataclass, replace

from collector.codec.canonical import sha256_hex
from collector.model import keys
from collector.model.record import write_table
from collector.model.vocabulary import INPUT_SHAPES
from collector.ranks.collective import Collective, CollectiveCase
from collector.ranks.topology import Grid
from jobs.planning.sources import completed_records
from tests.attack.simulation.device import STACK
from tests.unit.collector.database.campaign_maker import add_record

_MOST = 40
RECORDS = tuple(add_record(64 * n) for n in range(1, _MOST + 1))
CASES = tuple(record.case_id for record in completed_records(RECORDS))
SHAPES = {r.cells[INPUT_SHAPES]: case for r, case in zip(RECORDS, CASES, strict=True)}
RANKS, RANKS_A_POD = 4, 2
_MOST_GANGS = 6
_CASE_S = 0.017  # more than the forecast of a case, so that each device has a shard
_MESSAGES = tuple(1024 * n for n in range(1, _MOST_GANGS + 1))
GANG_RECORDS = tuple(
    CollectiveCase(
        Collective("all_reduce", size, "float32", RANKS, 0), Grid((RANKS,)), RANKS, "event"
    ).record()
    for size in _MESSAGES
)
GANG_CASES = tuple(record.case_id for record in completed_records(GANG_RECORDS))
SHAPES |= {r.cells[INPUT_SHAPES]: c for r, c in zip(GANG_RECORDS, GANG_CASES, strict=True)}
MESSAGES = dict(zip(map(str, _MESSAGES), GANG_CASES, strict=True))


@dataclass(frozen=True)
class Expected:
    """A campaign with the settings that a user requests: the cases from `first` to `last`."""

    name: str
    first: int
    last: int
    devices: int
    shards: int
    update: str = "missing-only"
    gangs: int = 0  # number of cases of several ranks

    @property
    def cases(self) -> frozenset[str]:
        return frozenset((*CASES[self.first : self.last], *GANG_CASES[: self.gangs]))

    @property
    def table(self) -> bytes:
        return write_table((*RECORDS[self.first : self.last], *GANG_RECORDS[: self.gangs]))

    @property
    def source_key(self) -> str:
        return keys.source(self.name, sha256_hex(self.table))

    def edited(self) -> "Expected":
        """Return it with one case more if there is one, else with one less."""
        more = self.last < _MOST
        return replace(self, last=self.last + 1 if more else self.last - 1)

    @property
    def text(self) -> str:
        """Return campaign.yaml. Small targets give many shards, small sessions split them."""
        cases = self.last - self.first
        target_s = max(0.01, min(1.0 * cases / self.shards, _CASE_S * cases / self.devices))
        return (
            f"campaign: {self.name}\n"
            f"sources: [{{cases: {sha256_hex(self.table)}}}]\n"
            f"backend: cpu\ndevices: {self.devices}\nupdate: {self.update}\n"
            f"target: {{device: {STACK.device}, torch: {STACK.torch}}}\n"
            f"shards: {{target_s: {target_s}, session_s: 3}}\n"
            "limits: {case_s: 60, memory_gb: 1}\n"
        )
