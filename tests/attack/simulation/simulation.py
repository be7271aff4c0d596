"""One seed, from its faults to its last check."""

import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.attack.simulation.ending import check_end
from tests.attack.simulation.faults import Faults
from tests.attack.simulation.scene_alone import Alone
from tests.attack.simulation.scene_cluster import InCluster
from tests.attack.simulation.stage import Stage
from tests.attack.simulation.world import Violation, World

_NOISE_S = (60.0, 3600.0)
_QUIET_S = 4 * 3600.0  # after which an unfinished simulation never ends
_IN_CLUSTER = 0.7
_MOST_STEPS = 400_000


Scene = Alone | InCluster


@dataclass(frozen=True)
class Simulated:
    """The result of one seed; `broken` is empty if every invariant held."""

    seed: int
    scene: str
    faults: dict[str, object]
    virtual_s: float
    steps: int
    calls: int
    shards: int
    commits: int
    broken: str


def simulate_seed(
    seed: int, trace: Callable[[str], None] | None = None, changes: Sequence[str] = ()
) -> Simulated:
    """Run a seed to its end, with some of its faults set by `changes` (NAME=VALUE)."""
    world = World(seed, trace)
    faults = Faults.drawn(world.chance)
    for name, _, value in (change.partition("=") for change in changes):
        faults.set(name, value)
    drawn = {name: value for name, value in asdict(faults).items() if value}
    folder = Path(tempfile.mkdtemp(prefix="played-", dir=_memory()))
    stage = Stage(world, faults, folder, seed)
    scene = (InCluster if world.chance.random() < _IN_CLUSTER else Alone)(stage)
    world.say(f"seed {seed}: {type(scene).__name__} {drawn} {list(stage.expected.values())}")
    broken = ""
    try:
        with _unexpected_errors_reported(world):
            _simulation(stage, scene)
            check_end(stage)
    except Violation as error:
        broken = str(error)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Simulated(
        seed,
        type(scene).__name__,
        drawn,
        world.now,
        world.steps,
        stage.depot.calls,
        stage.promises.shards,
        stage.promises.commits,
        broken,
    )


def _simulation(stage: Stage, scene: Scene) -> None:
    world, chance = stage.world, stage.chance
    low, high = _NOISE_S
    noise_s = low * (high / low) ** chance.random()
    for call, count in _misfortunes(stage, scene):
        for _ in range(count):
            world.after(chance.random() * noise_s, lambda call=call: stage.is_quiet or call())

    def be_quiet() -> None:
        stage.be_quiet()
        scene.be_quiet()

    world.after(noise_s, be_quiet)
    scene.begin()
    limit_s = noise_s + _QUIET_S
    world.run(lambda: scene.is_done() or world.now > limit_s or world.steps > _MOST_STEPS)
    if not scene.is_done():
        raise Violation(f"not finished after {world.now:.0f} s and {world.steps} steps")


def _misfortunes(stage: Stage, scene: Scene) -> list[tuple[Callable[[], None], int]]:
    """The events of a simulation, and their rates."""
    known = {
        "kills": stage.kill_one,
        "outages": stage.store_away,
        "rot": stage.rot_one,
        **scene.misfortunes(),
    }
    return [(call, int(getattr(stage.faults, name))) for name, call in known.items()]


@contextmanager
def _unexpected_errors_reported(world: World) -> Iterator[None]:
    """A record with a traceback is an unexpected error that was caught."""

    class UnexpectedErrors(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info:
                what = logging.Formatter().formatException(record.exc_info)
                world.fail(Violation(f"error in the log: {record.getMessage()}\n{what}"))

    handler, root = UnexpectedErrors(logging.ERROR), logging.getLogger()
    root.addHandler(handler)
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        root.removeHandler(handler)


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
