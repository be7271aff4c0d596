"""The waves of a campaign as they lie in a store.

A wave's key is the hash of what it says. An object that says something else stands for no wave:
it is told, and written anew with the next wave of that hash.
"""

import logging
from collections.abc import Iterator, MutableMapping
from functools import partial

from collector import keys
from collector.errors import BadInput, NotFound
from collector.store.base import Store
from jobs.objects.waves import Wave, wave_from_json

logger = logging.getLogger(__name__)

KnownWaves = MutableMapping[str, Wave | None]  # by key; None for what is no wave


def find_waves(store: Store, campaign: str, known: KnownWaves) -> Iterator[Wave]:
    """Every wave of a campaign, each object read once as long as it is `known`."""
    for info in store.list(keys.waves(campaign)):
        if info.key not in known:
            known[info.key] = _read(store, campaign, info.key)
        if (wave := known[info.key]) is not None:
            yield wave


def _read(store: Store, campaign: str, key: str) -> Wave | None:
    name = keys.name_of(key, partial(keys.wave, campaign))
    if name is None:
        return None
    try:
        wave = wave_from_json(store.get(key), key=key)
        if (wave.campaign, wave.wave_hash) != (campaign, name):
            raise BadInput("the wave does not match the hash in its name", path=key)
    except (BadInput, NotFound) as error:
        logger.warning("skipping a wave that cannot be read: %s", error)
        return None
    return wave
