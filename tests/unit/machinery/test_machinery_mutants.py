"""Planted faults: which exist, and that each is applied at its place."""

import ast
from collections import Counter

import pytest

from tests.mutants.faults import KINDS, draw, faults_of

SOURCE = '''\
"""A module."""

import logging

LIMIT: int = 3


def total(first: int, second: float = 0.5) -> float:
    """Return a sum."""
    logging.info("total %s %s", first, second)
    if first < LIMIT:
        raise ValueError(f"{first + 1}")
    print(pow(first, second))
    return first + second
'''


@pytest.mark.fast
def test_every_kind_of_fault_is_found_once_where_it_changes_code():
    found = list(faults_of("a.py", SOURCE))
    assert Counter(mutant.kind for mutant in found) == {
        "comparison": 1,
        "boundary": 1,
        "arithmetic": 1,
        "constant": 2,
        "deleted": 2,
        "swapped": 1,
    }
    for mutant in found:
        faulty = mutant.applied(SOURCE.encode())
        assert ast.dump(ast.parse(faulty)) != ast.dump(ast.parse(SOURCE))


@pytest.mark.fast
def test_fault_is_not_applied_to_another_source():
    mutant = next(faults_of("a.py", SOURCE))
    with pytest.raises(ValueError, match="a.py"):
        mutant.applied(SOURCE.replace("LIMIT", "MOST").encode())


@pytest.mark.fast
def test_seed_draws_the_same_faults_of_each_kind(tmp_path):
    for number in range(3):
        (tmp_path / "made").mkdir(exist_ok=True)
        (tmp_path / "made" / f"m{number}.py").write_text(SOURCE)
    drawn = draw(tmp_path, ["made"], seed=7, count=12)
    assert drawn == draw(tmp_path, ["made"], seed=7, count=12)
    assert drawn != draw(tmp_path, ["made"], seed=8, count=12)
    assert Counter(mutant.kind for mutant in drawn) == dict.fromkeys(KINDS, 2)
