"""Where every page is looked at."""

from typing import Any

import pytest

from tests.pages.place import Place


@pytest.fixture
def place(db: None) -> Place:
    return Place()


@pytest.fixture
def machines_are_not_waited_for(settings: Any) -> None:
    settings.CALL_TIMEOUT_SECONDS = 0.01
