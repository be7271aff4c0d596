"""The parts of every simulation: a world, a store, its true durations, and watched invariants."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from tests.attack.simulation.campaigns import MESSAGES, SHAPES, Expected
from tests.attack.simulation.device import Node, Truth
from tests.attack.simulation.faults import Faults
from tests.attack.simulation.gangs import Meetings
from tests.attack.simulation.process import Process
from tests.attack.simulation.promises import Promises
from tests.attack.simulation.rot import rot_object
from tests.attack.simulation.storage import Depot
from tests.attack.simulation.world import World

_TROUBLES = ("device", "sessions", "stuck")


@dataclass
class Stage:
    """`expected` are the campaigns with their current settings, by name; `processes` those that may
    be killed."""

    world: World
    faults: Faults
    folder: Path
    seed: int
    depot: Depot = field(init=False)
    truth: Truth = field(init=False)
    promises: Promises = field(init=False)
    nodes: list[Node] = field(default_factory=list)
    expected: dict[str, Expected] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)
    is_quiet: bool = False
    meetings: Meetings = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.depot = Depot(self.world, self.faults)
        self.truth = Truth(self.seed, self.faults)
        self.promises = Promises(self.world, self.depot, self.truth, SHAPES, MESSAGES)
        self._draw_campaigns(self.chance)

    @property
    def chance(self) -> Random:
        return self.world.chance

    def draw_nodes(self, count: int, name: str) -> None:
        """Machines; the first is always intact, so that the simulation ends, and so is the second
        if a gang needs both."""
        sound = 2 if self.faults.gangs else 1
        for number in range(count):
            is_bad = number >= sound and self.chance.random() < self.faults.bad_nodes
            trouble = self.chance.choice(_TROUBLES) if is_bad else ""
            self.nodes.append(Node(f"{name}{number}", self.truth, self.faults, trouble))

    def kill_one(self) -> None:
        """Kill any process at any time."""
        alive = [p for process in self.processes for p in process.family() if not p.is_killed]
        self.processes = [p for p in self.processes if not p.is_killed]
        if alive:
            chosen = self.chance.choice(alive)
            self.world.say(f"KILL {chosen.name}")
            chosen.kill()

    def store_away(self) -> None:
        """For all machines, or for one."""
        until = self.world.now + self.chance.choice((5.0, 60.0, 300.0, 1500.0))
        if self.chance.random() < 0.6:
            self.depot.away_until = until
            self.world.say(f"OUTAGE of the store until {until:.0f}")
        else:
            node = self.chance.choice(self.nodes).name
            self.depot.away_from[node] = until
            self.world.say(f"OUTAGE of the store for {node} until {until:.0f}")

    def rot_one(self) -> None:
        """Damage a stored object."""
        if key := rot_object(self.depot, self.chance):
            self.world.say(f"ROT {key}")
            self.promises.rotten.add(key)

    def edit(self) -> None:
        """A user edits a campaign."""
        name = self.chance.choice(sorted(self.expected))
        self.expected[name] = self.expected[name].edited()
        self.world.say(f"EDIT {name}: cases {self.expected[name].first}-{self.expected[name].last}")

    def be_quiet(self) -> None:
        """Stop all faults."""
        self.world.say("QUIET")
        self.is_quiet = True
        self.faults.cease()
        self.depot.away_until = 0.0
        self.depot.away_from.clear()

    def _draw_campaigns(self, chance: Random) -> None:
        for name in ("one", "two")[: 1 + (chance.random() < 0.3)]:
            first = chance.randrange(0, 6)
            cases = chance.randrange(2, 25)
            shards = chance.randrange(1, 13)
            devices = chance.randrange(1, 5)
            expected = Expected(name, first, first + cases, devices, shards)
            if gangs := self.faults.gangs:
                expected = replace(
                    expected, devices=max(2, devices), gangs=chance.randint(1, gangs)
                )
            self.expected[name] = expected
