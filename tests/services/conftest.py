"""An editor at work on a cluster with a machine."""

import pytest

from tests import builders as make
from tests.builders import T0


@pytest.fixture
def editor(db):
    return make.access(make.workspace())


@pytest.fixture
def east(editor):
    return make.cluster(editor.workspace)


@pytest.fixture
def on(east):
    return make.machine(east, "gpu-08")


@pytest.fixture
def running(editor, east, on):
    """A running worker of a run `llama` with the default policy; more of `asked` by calling it."""

    def start(now=T0, **asked):
        worker = make.workers(make.submit(editor, east, **asked))[0]
        return worker, make.run_on(worker, on, now)

    return start
