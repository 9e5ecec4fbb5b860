"""No garbage collection while pytest parses source: a plugin (`-p`), loaded before any other.

Before Python 3.11.8 a collection in the middle of `ast.parse` can break it ("AST constructor recursion depth
mismatch"): a finalizer that prints a traceback parses too. pytest parses every test module to rewrite its assertions,
and hypothesis, when that is imported late, for the summary.
"""

import gc

import pytest

gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    gc.collect()
    gc.disable()
