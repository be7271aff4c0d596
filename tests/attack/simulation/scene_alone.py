"""A simulation without a cluster: users run campaigns on their machines, and merge concurrently."""

from collections.abc import Callable

from jobs.campaign.campaign_file import RunOptions
from tests.attack.simulation.alone import Machine
from tests.attack.simulation.stage import Stage

_EVERY_S = 150.0
_CROWDS = 0.5  # share of the times at which all users merge at once


class Alone:
    """Two to four machines; each command is repeated until the campaign is finished."""

    def __init__(self, stage: Stage):
        self._stage = stage
        stage.draw_nodes(stage.chance.randrange(2, 5), "host")
        self._machines = [Machine(stage.depot, node, stage.folder) for node in stage.nodes]
        self._done: set[str] = set()
        self._wishes = stage.faults.people

    def begin(self) -> None:
        self._reconcile()

    def is_done(self) -> bool:
        return self._stage.is_quiet and self._done == set(self._stage.expected)

    def misfortunes(self) -> dict[str, Callable[[], None]]:
        """The other events here, by their fault."""
        return {"people": self._stage.edit}

    def be_quiet(self) -> None:
        for node in self._stage.nodes:
            node.trouble = ""
        self._done.clear()

    def _reconcile(self) -> None:
        """Run the next command of a user whose machine is free."""
        stage = self._stage
        if self.is_done():
            return
        stage.world.after(_EVERY_S * (0.5 + stage.chance.random()), self._reconcile)
        free = [machine for machine in self._machines if machine.is_free]
        if stage.is_quiet:
            free = [m for m in free if m is self._machines[0]]
        crowd = not stage.is_quiet and stage.chance.random() < _CROWDS
        for machine in free:
            self._learn(machine)
            self._use(machine, merges=crowd)

    def _learn(self, machine: Machine) -> None:
        for name, how in machine.ended.items():
            if how == "0" and self._stage.is_quiet and machine.is_final(name):
                self._done.add(name)
        machine.ended.clear()

    def _use(self, machine: Machine, *, merges: bool) -> None:
        stage, chance = self._stage, self._stage.chance
        todo = sorted(set(stage.expected) - self._done)
        if not todo:
            return
        expected = stage.expected[chance.choice(todo)]
        if merges:
            machine.merge(expected, allow_missing=chance.random() < 0.7)
        else:
            machine.run(expected, self._options(), final=stage.is_quiet)
        assert machine.process is not None
        stage.processes.append(machine.process)

    def _options(self) -> RunOptions:
        if self._stage.is_quiet or not self._wishes or self._stage.chance.random() < 0.8:
            return RunOptions()
        self._wishes -= 1
        again = self._stage.chance.random() < 0.5
        return RunOptions(again=again, retry_failed=not again)
