"""Where every page is looked at."""

import pytest

from tests.pages.place import Place


@pytest.fixture
def place(db: None) -> Place:
    return Place()
