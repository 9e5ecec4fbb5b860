"""No garbage collection until all tests are collected: a plugin (`-p`), loaded before any other.

Before Python 3.11.8 a collection in the middle of `ast.parse` can break it ("AST constructor recursion depth
mismatch"), and pytest parses every test module, and some plugins, to rewrite their assertions. It is also quicker.
"""

import gc

import pytest

gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.enable()
