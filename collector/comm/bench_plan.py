"""The plan of a bench, fixed before any rank starts: every rank of every node reads the same plan.

The plan consists of plain values and goes to the ranks as a file; the ranks first check that all
have the same plan.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from collector.codec.canonical import sha256_hex
from collector.codec.errors import BadInput
from collector.ranks.collective import OPERATIONS, Collective, check_collective
from collector.ranks.topology import Grid


class Mode(StrEnum):
    """How a call is timed.

    `event`: the ranks begin together and wait for each call. `alternating`: the operation that
    serving runs before it comes first, without waiting in between; the ranks are then as far apart
    as that operation left them, as in a model. `kernel`: calls follow each other without waiting,
    and a profiler reports the durations of their kernels."""

    EVENT = "event"
    ALTERNATING = "alternating"
    KERNEL = "kernel"


# Approximate: torch_npu has msprof export a window before it reads it, torch reads its own.
_WINDOW_S = {"npu": 10.0, "cuda": 1.0}
# Below this size, a pair of events around a call measures mostly the launch.
_KERNEL_BELOW_BYTES = 1 << 20


def default_mode(operation: str, message_bytes: int, backend: str) -> Mode:
    """Return the mode that is nearest to production, as far as comparisons exist.

    hccl: on 16 and 8 dies of Atlas A3 (msmodeling's reports on vLLM-Ascend 0.18), `event` of
    all_gather and reduce_scatter was 19 to 63 % above serving between 1 and 9 MB, `alternating`
    within 9 %; below 1 MB events have a lower bound of 60 us where a kernel takes 5 to 30;
    all_reduce was measured `alternating` at every size. Operations without a comparison use the
    same limit. nccl: events include the launch there, too, so `kernel` below the limit; above it
    there is no evidence against `event`. gloo runs no kernel, and a call has finished when it
    returns: `event`."""
    if backend == "cpu":
        return Mode.EVENT
    above = Mode.ALTERNATING if backend == "npu" else Mode.EVENT
    if backend == "npu" and operation == "all_reduce":
        return above
    return Mode.KERNEL if message_bytes < _KERNEL_BELOW_BYTES else above


def window_s(backend: str) -> float:
    """Return the time to read a profiler's window; mode kernel has one per case and round."""
    return _WINDOW_S.get(backend, 0.0)


def plan_number(plan: str) -> int:
    """Return a number that identifies a plan's text: 48 bits of a hash, which fit a float64."""
    return int(sha256_hex(plan.encode())[:12], 16)


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """A plan with `rounds` rounds over all cases. Each case makes as many calls as fit `budget_s`,
    within `iterations` (fewest, most). A `mode` of None uses the `default_mode` of each case.
    Raises BadInput for a mode that the backend does not have.

    If the time jumps between two neighbouring sizes, sizes between them are measured, too, until
    neighbours differ by at most `jump_factor`; None disables the search."""

    backend: str
    grid: Grid
    world: int
    mode: Mode | None
    rounds: int
    budget_s: float
    iterations: tuple[int, int]
    collectives: tuple[Collective, ...]
    jump_factor: float | None = None

    def __post_init__(self) -> None:
        if self.jump_factor is not None and not 1 < self.jump_factor < float("inf"):
            raise BadInput(
                f"jump factor: expected a finite factor above 1, got {self.jump_factor:g}"
            )
        if self.mode is Mode.KERNEL and self.backend == "cpu":
            raise BadInput(
                "mode: expected event or alternating on cpu, got kernel: gloo moves data on host "
                "threads and runs no kernel"
            )

    @property
    def expected_s(self) -> float:
        """Return how long the ranks measure: a budget for each round of each case, and the time to
        read a profiler's window. Not included: calls that take longer than their budget, sizes
        between jumps, and starting."""
        windows = sum(self.mode_of(case) is Mode.KERNEL for case in self.collectives)
        reading_s = windows * window_s(self.backend)
        return self.rounds * (len(self.collectives) * self.budget_s + reading_s)

    def mode_of(self, collective: Collective) -> Mode:
        """Return how a case is timed."""
        one = collective
        return self.mode or default_mode(one.operation, one.message_bytes, self.backend)

    def groups(self, collective: Collective) -> tuple[tuple[int, ...], ...]:
        """Return the groups that run the case: all of its tier, or only the first."""
        found = self.grid.groups(collective.group_size, collective.tier, self.world)
        return found if collective.together else found[:1]

    def all_groups(self) -> tuple[tuple[int, ...], ...]:
        """Return every group that a case needs, in the order in which all ranks create them."""
        alike = dict.fromkeys(self.groups(case) for case in self.collectives)
        return tuple(dict.fromkeys(group for groups in alike for group in groups))

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def number(self) -> int:
        """Return a number by which ranks check that they have the same plan."""
        return plan_number(self.to_json())


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A case that is not measured, and the reason."""

    collective: Collective
    reason: str


def collectives_of(
    operations: Iterable[str],
    sizes: Sequence[int],
    dtype: str,
    group_sizes: Iterable[int],
    tiers: Sequence[int],
    *,
    grid: Grid,
    world: int,
) -> tuple[list[Collective], list[LeftOut]]:
    """Return the cases of all combinations, in run order by operation and group, and those that
    cannot run: a tier may have no group of the size. A tier with several groups is measured with
    one group alone, and with all at once. Without `tiers` a group consists of the nearest ranks.
    Raises BadInput for values that no combination allows."""
    if wrong := [tier for tier in tiers if not 0 <= tier <= grid.innermost_tier]:
        raise BadInput(
            f"tier: expected 0 to {grid.innermost_tier} in the grid {grid}, got {wrong[0]}"
        )
    cases: list[Collective] = []
    for operation in dict.fromkeys(operations):
        if operation not in OPERATIONS:
            known = ", ".join(OPERATIONS)
            raise BadInput(f"operation: expected one of {known}, got {operation!r}")
        for group_size in dict.fromkeys(group_sizes):
            if group_size < 2:
                raise BadInput(f"group size: expected at least 2 ranks, got {group_size}")
            for tier in dict.fromkeys(tiers or (grid.natural_tier(group_size),)):
                is_there = grid.has_group(group_size, tier, world)
                has_several = is_there and len(grid.groups(group_size, tier, world)) > 1
                for together in (False, True) if has_several else (False,):
                    group = (dtype, group_size, tier, together)
                    cases += [Collective(operation, size, *group) for size in sizes]
    return measurable(cases, grid=grid, world=world)


def measurable(
    cases: Iterable[Collective], *, grid: Grid, world: int
) -> tuple[list[Collective], list[LeftOut]]:
    """Return the cases that a world of ranks can run, and those that it cannot."""
    found: list[Collective] = []
    left_out: list[LeftOut] = []
    for case in cases:
        if grid.has_group(case.group_size, case.tier, world):
            try:
                check_collective(case)
                found.append(case)
            except BadInput as error:
                left_out.append(LeftOut(case, str(error).removeprefix(f"{case}: ")))
        else:
            group = f"{case.group_size} ranks of tier {case.tier}"
            left_out.append(LeftOut(case, f"no group of {group} among {world} ranks"))
    return found, left_out


def powers_of_two(first: int, last: int) -> tuple[int, ...]:
    """Return first, 2 first, 4 first ... up to last, in bytes."""
    return tuple(first << power for power in range((last // first).bit_length()))


# Sizes that Qwen3-32B and DeepSeek-V3 sent on Atlas A3 under vLLM-Ascend 0.15 to 0.18, prefill and
# decode, counted in step traces by the consumer's maintainers (msmodeling, run_comm_bench.sh).
_OF_16_DIES = (
    19008, 75968, 163840, 284880, 303872, 327680, 588752, 607744, 1320960, 2641920, 2652160,
    3952640, 5263360, 9185280, 22435840, 41943040,
)  # fmt: skip
_OF_8_DIES = (
    272, 528, 1152, 3072, 7168, 14336, 32320, 64640, 74880, 129280, 149760, 223488, 294912, 465920,
    595968, 786432, 946176, 1863680, 2781184, 3670016,
)  # fmt: skip

SIZE_GRIDS = {
    "full": powers_of_two(128, 512 << 20),
    "quick": (1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 28),
    "production": tuple(sorted({*_OF_16_DIES, *_OF_8_DIES})),
}


def chosen_sizes(words: Iterable[str], largest_bytes: int | None = None) -> tuple[int, ...]:
    """Return sizes in bytes, ascending, each once, from names of SIZE_GRIDS and numbers, up to
    `largest_bytes`.

    Raises BadInput for a word that is neither, and if no size is left."""
    found: set[int] = set()
    for word in words:
        if word in SIZE_GRIDS:
            found.update(SIZE_GRIDS[word])
        elif word.isascii() and word.isdigit() and int(word) > 0:
            found.add(int(word))
        else:
            names = ", ".join(SIZE_GRIDS)
            raise BadInput(f"size: expected a number of bytes or one of {names}, got {word!r}")
    kept = tuple(size for size in sorted(found) if largest_bytes is None or size <= largest_bytes)
    if not kept:
        raise BadInput("expected at least one message size to measure, got none")
    return kept
