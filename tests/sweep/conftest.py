"""A world in which every route leads somewhere."""

import pytest

from tests.world import World, make_world


@pytest.fixture
def world(db: None) -> World:
    return make_world()


@pytest.fixture
def committed_world(transactional_db: None) -> World:
    """Seen by other connections too: a consumer reads on a thread of its own."""
    return make_world()
