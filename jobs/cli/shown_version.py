"""The version directory that a verb looks things up in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from collector.errors import BadInput
from jobs.cli.db import chosen_commit

if TYPE_CHECKING:
    from collector.database.state import State
    from collector.stack import Stack
    from collector.store.base import Store


@dataclass(frozen=True, slots=True)
class ShownVersion:
    """A directory of a database's version, by its `place` there."""

    store: Store
    state: State
    place: str

    @property
    def stack(self) -> Stack:
        return self.state.versions[self.place].shown_stack


def open_version(root: str, number: int | None, directory: str | None) -> ShownVersion:
    """The directory that is named, or the only one, of a version, or the newest. BadInput for one
    that is not there."""
    from collector.database.snapshot import load_state
    from jobs.cli.opening import open_root

    store = open_root(root)
    state = load_state(store, chosen_commit(store, root, number))
    there = sorted(state.versions)
    place = there[0] if directory is None and len(there) == 1 else directory
    if place is None or place not in state.versions:
        raise BadInput(f"--directory: expected one of {', '.join(there)}")
    return ShownVersion(store, state, place)
