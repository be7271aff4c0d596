"""What is imported for good is kept out of every later collection."""

import gc

import pytest

from collector.host import imports

pytestmark = pytest.mark.fast


def test_what_is_made_within_is_not_looked_through_and_what_comes_later_is():
    try:
        with imports.for_good():
            assert not gc.isenabled()
            kept: list[object] = []
            kept.append(kept)
        assert gc.isenabled()
        later: list[object] = []
        assert not any(known is kept for known in gc.get_objects())
        assert any(known is later for known in gc.get_objects())
    finally:
        gc.unfreeze()


def test_an_import_that_fails_leaves_collections_on():
    try:
        with pytest.raises(ModuleNotFoundError), imports.for_good():
            import no_such_module  # noqa: F401
        assert gc.isenabled()
    finally:
        gc.unfreeze()
