"""For any damage of one object of a store, published durations are true, and missing ones are
reported."""

import os

import pytest

from tests.attack.damage import DamagedStore, damaged
from tests.attack.victim import Scene, aftermath, build, true_duration_us

_SEEDS = int(os.environ.get("OPMETER_ATTACK_STORES", "200"))
_PORTIONS = max(10, _SEEDS // 100)  # each is a test, which may take at most a quarter of an hour
_LONGEST_LINE = 2000


def check(scene: Scene, objects: dict[str, bytes], seed: int) -> None:
    """Damage a store by a seed, continue as usual, and compare with the true durations."""
    store, damage = damaged(objects, seed)
    seen = aftermath(scene, store)
    wrong = {
        shapes: shown
        for shapes, shown in seen.shown.items()
        if shapes not in scene.shapes or (shown and float(shown) != true_duration_us(shapes))
    }
    assert not wrong, f"seed {seed}: {damage}: published, and not what was measured: {wrong}"
    unreadable = [line for line in seen.message if "\n" in line or len(line) > _LONGEST_LINE]
    assert not unreadable, f"seed {seed}: {damage}: {unreadable}"
    lacking = [shapes for shapes in scene.shapes if not seen.shown.get(shapes)]
    named = any(key in line for key in damage.keys for line in seen.message)
    assert named or not lacking, f"seed {seed}: {damage}: {lacking} are lost; said: {seen.message}"
    in_database = any(key.startswith("db/") for key in damage.keys)
    assert in_database or not lacking, f"seed {seed}: {damage}: {lacking} were not measured again"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return Scene(tmp_path_factory.mktemp("scene"))


@pytest.fixture(scope="module")
def objects(scene: Scene) -> dict[str, bytes]:
    return build(scene).objects()


def test_undamaged_store_finishes_without_warnings(scene: Scene, objects: dict[str, bytes]) -> None:
    seen = aftermath(scene, DamagedStore(objects))
    assert seen.message == []
    assert {shapes: float(us) for shapes, us in seen.shown.items()} == {
        shapes: true_duration_us(shapes) for shapes in scene.shapes
    }


@pytest.mark.parametrize("portion", range(_PORTIONS))
def test_damaged_store_gives_true_results_or_a_line_with_the_key(
    scene: Scene, objects: dict[str, bytes], portion: int
) -> None:
    for seed in range(portion, _SEEDS, _PORTIONS):
        check(scene, objects, seed)
