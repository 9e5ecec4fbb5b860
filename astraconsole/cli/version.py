"""Which `astra` this is."""

from importlib.metadata import PackageNotFoundError, version


def program() -> str:
    """`astra 1.2.3`; `astra` alone where it runs out of a folder that was never installed."""
    try:
        return f"astra {version('astraconsole')}"
    except PackageNotFoundError:
        return "astra"
