"""The supervisor's reactions, without sockets, files or a clock."""

import uuid

import pytest

from machines.agent.attempt import Attempt, StopCause, end_reason
from machines.agent.effects import Accept, Leave, Remove, Save, Stop
from machines.agent.runtimes.base import Exited, Failed, MemoryKills, Progress
from machines.agent.supervisor import Supervisor
from machines.orders import Order
from machines.protocol import Acknowledge, Assignments, EndReason, Phase, Report, Welcome

CONSOLE = "c" * 32


def order(time_limit_seconds: float | None = None, stop_grace_seconds: float = 30) -> Order:
    uid = uuid.uuid4().hex
    return Order(
        attempt=uid,
        worker=uid,
        run=uid,
        worker_name="r-0",
        run_name="r",
        number=1,
        image="",
        command="true",
        time_limit_seconds=time_limit_seconds,
        stop_grace_seconds=stop_grace_seconds,
    )


def welcomed() -> Supervisor:
    supervisor = Supervisor(CONSOLE)
    supervisor.on_welcome(Welcome(CONSOLE, "m", 5, 5, 1 << 30))
    return supervisor


def running(supervisor: Supervisor, item: Order, at: float = 1.0) -> None:
    supervisor.on_assignments(Assignments(supervisor.applied_revision + 1, [item]), at)
    supervisor.on_event(Progress(item.attempt, Phase.RUNNING, at), "", at)


def sent(supervisor: Supervisor, now: float) -> dict[str, Report]:
    return {report.attempt: report for frame in supervisor.take_reports(now) for report in frame.items}


def kinds(effects: list) -> list[str]:
    return [type(effect).__name__ for effect in effects]


def test_what_is_listed_and_missing_is_started_once():
    supervisor, item = welcomed(), order()
    assert kinds(supervisor.on_assignments(Assignments(1, [item]), 1)) == ["Accept"]
    assert supervisor.on_assignments(Assignments(2, [item]), 2) == []


def test_what_runs_and_is_not_listed_is_stopped_with_its_grace():
    supervisor, item = welcomed(), order(stop_grace_seconds=7)
    running(supervisor, item)
    effects = supervisor.on_assignments(Assignments(5, []), 3)
    assert kinds(effects) == ["Save", "Stop"]
    assert effects[1] == Stop(item.attempt, 7)


def test_it_is_stopped_once_however_often_the_set_is_sent():
    supervisor, item = welcomed(), order()
    running(supervisor, item)
    supervisor.on_assignments(Assignments(5, []), 3)
    assert supervisor.on_assignments(Assignments(6, []), 4) == []


def test_a_lower_revision_on_the_same_connection_is_ignored():
    supervisor, item = welcomed(), order()
    supervisor.on_assignments(Assignments(7, [item]), 1)
    assert supervisor.on_assignments(Assignments(6, []), 2) == []
    assert supervisor.applied_revision == 7


def test_a_lower_revision_on_a_new_connection_counts():
    supervisor, item = welcomed(), order()
    supervisor.on_assignments(Assignments(7, [item]), 1)
    supervisor.on_disconnected()
    supervisor.on_welcome(Welcome(CONSOLE, "m", 5, 5, 1))
    assert kinds(supervisor.on_assignments(Assignments(2, []), 2)) == ["Save", "Stop"]


def test_a_foreign_console_is_left_and_not_obeyed():
    supervisor = Supervisor(CONSOLE)
    effects = supervisor.on_welcome(Welcome("f" * 32, "m", 5, 5, 1))
    assert kinds(effects) == ["Leave"]
    assert isinstance(effects[0], Leave)
    assert supervisor.on_assignments(Assignments(1, [order()]), 1) == []


def test_the_first_console_that_welcomes_a_machine_is_its_console():
    supervisor = Supervisor()
    supervisor.on_welcome(Welcome(CONSOLE, "m", 5, 5, 1))
    supervisor.on_disconnected()
    assert kinds(supervisor.on_welcome(Welcome("f" * 32, "m", 5, 5, 1))) == ["Leave"]


def test_a_report_tells_every_phase_with_its_age():
    supervisor, item = welcomed(), order()
    supervisor.on_assignments(Assignments(1, [item]), 10)
    supervisor.on_event(Progress(item.attempt, Phase.RUNNING, 12), "", 12)
    report = sent(supervisor, 15)[item.attempt]
    assert [(age.phase, age.seconds_ago) for age in report.phases] == [(Phase.PREPARING, 5), (Phase.RUNNING, 3)]


def test_the_same_phase_again_tells_nothing_new():
    supervisor, item = welcomed(), order()
    running(supervisor, item)
    sent(supervisor, 2)
    supervisor.on_event(Progress(item.attempt, Phase.RUNNING, 5), "", 5)
    assert sent(supervisor, 6) == {}


def test_pull_progress_is_told_without_being_written_down():
    supervisor, item = welcomed(), order()
    supervisor.on_assignments(Assignments(1, [item]), 1)
    supervisor.on_event(Progress(item.attempt, Phase.PULLING, 1, pull_progress="3 %"), "", 1)
    assert supervisor.on_event(Progress(item.attempt, Phase.PULLING, 2, pull_progress="61 %"), "", 2) == []
    assert sent(supervisor, 3)[item.attempt].pull_progress == "61 %"


def test_a_report_is_repeated_until_it_is_acknowledged():
    supervisor, item = welcomed(), order()
    running(supervisor, item)
    report = sent(supervisor, 1)[item.attempt]
    supervisor.on_tick(5.9)
    assert sent(supervisor, 5.9) == {}
    supervisor.on_tick(6)
    assert sent(supervisor, 6)[item.attempt].seq == report.seq
    supervisor.on_acknowledge(Acknowledge([(item.attempt, report.seq)]))
    supervisor.on_tick(60)
    assert sent(supervisor, 60) == {}


def test_an_acknowledgement_of_an_earlier_report_is_none_of_the_later():
    supervisor, item = welcomed(), order()
    supervisor.on_assignments(Assignments(1, [item]), 1)
    earlier = sent(supervisor, 1)[item.attempt].seq
    supervisor.on_event(Progress(item.attempt, Phase.RUNNING, 2), "", 2)
    supervisor.on_acknowledge(Acknowledge([(item.attempt, earlier)]))
    assert item.attempt in sent(supervisor, 3)


def test_everything_unacknowledged_is_sent_again_on_a_new_connection():
    supervisor, item = welcomed(), order()
    running(supervisor, item)
    sent(supervisor, 1)
    supervisor.on_disconnected()
    assert sent(supervisor, 100) == {}
    supervisor.on_welcome(Welcome(CONSOLE, "m", 5, 5, 1))
    assert item.attempt in sent(supervisor, 101)


def test_a_time_limit_counts_from_running_and_while_disconnected():
    supervisor, item = welcomed(), order(time_limit_seconds=60, stop_grace_seconds=3)
    supervisor.on_assignments(Assignments(1, [item]), 0)
    assert supervisor.on_tick(1000) == []
    supervisor.on_event(Progress(item.attempt, Phase.RUNNING, 1000), "", 1000)
    supervisor.on_disconnected()
    assert supervisor.on_tick(1059.9) == []
    assert Stop(item.attempt, 3) in supervisor.on_tick(1060)
    assert supervisor.on_tick(1061) == []
    supervisor.on_event(Exited(item.attempt, 1062, 0), "", 1062)
    supervisor.on_welcome(Welcome(CONSOLE, "m", 5, 5, 1))
    assert sent(supervisor, 1063)[item.attempt].end_reason == EndReason.TIME_LIMIT


@pytest.mark.parametrize(
    ("cause", "stop_at", "event", "reason"),
    [
        (None, 0, Exited("a", 5, 0), EndReason.EXITED),
        (None, 0, Exited("a", 5, None), EndReason.EXITED),
        (None, 0, Exited("a", 5, 137), EndReason.EXITED),
        (None, 0, Exited("a", 5, 137, oom_killed=True), EndReason.OOM_KILLED),
        (None, 0, Failed("a", 5, EndReason.IMAGE_PULL, "denied"), EndReason.IMAGE_PULL),
        (StopCause.UNWANTED, 4, Exited("a", 5, 137), EndReason.STOPPED),
        (StopCause.UNWANTED, 4, Exited("a", 5, 137, oom_killed=True), EndReason.STOPPED),
        (StopCause.UNWANTED, 4, Exited("a", 5, 0), EndReason.STOPPED),
        (StopCause.UNWANTED, 4, Failed("a", 5, EndReason.START_FAILED), EndReason.STOPPED),
        (StopCause.TIME_LIMIT, 4, Exited("a", 5, 0), EndReason.TIME_LIMIT),
        (StopCause.UNWANTED, 6, Exited("a", 5, 0), EndReason.EXITED),  # it ended before the stop
        (StopCause.UNWANTED, 6, Exited("a", 5, 137, oom_killed=True), EndReason.OOM_KILLED),
        (None, 0, Failed("a", 5, EndReason.MACHINE_REBOOTED), EndReason.MACHINE_REBOOTED),
    ],
)
def test_the_reason_of_an_end(cause, stop_at, event, reason):
    assert end_reason(Attempt("a", stop_cause=cause, stop_at=stop_at), event) == reason


@pytest.mark.parametrize(("code", "wanted"), [(0, False), (1, True), (None, True)])
def test_the_end_of_the_log_belongs_to_an_end_that_is_no_success(code, wanted):
    supervisor, item = welcomed(), order()
    running(supervisor, item)
    assert supervisor.wants_tail(Exited(item.attempt, 2, code)) is wanted


def test_an_attempt_stopped_with_code_0_still_shows_the_end_of_its_log():
    supervisor, item = welcomed(), order()
    running(supervisor, item)
    supervisor.on_assignments(Assignments(9, []), 2)
    assert supervisor.wants_tail(Exited(item.attempt, 3, 0))


def test_nothing_is_reported_after_an_end():
    supervisor, item = welcomed(), order()
    running(supervisor, item)
    supervisor.on_event(Exited(item.attempt, 2, 3), "log", 2)
    before = sent(supervisor, 2)[item.attempt]
    supervisor.on_event(Exited(item.attempt, 3, None), "", 3)
    supervisor.on_event(MemoryKills(item.attempt, 4), "", 3)
    assert sent(supervisor, 3) == {}
    assert (before.exit_code, before.log_tail) == (3, "log")


def test_an_ended_attempt_that_is_listed_again_does_not_start_again():
    supervisor, item = welcomed(), order()
    running(supervisor, item)
    supervisor.on_event(Exited(item.attempt, 2, 0), "", 2)
    assert supervisor.on_assignments(Assignments(50, [item]), 3) == []


def test_a_live_attempt_to_be_forgotten_is_stopped_then_removed_then_told():
    supervisor, item = welcomed(), order()
    running(supervisor, item)
    assert kinds(supervisor.on_assignments(Assignments(5, [], [item.attempt]), 2)) == ["Save", "Stop"]
    effects = supervisor.on_event(Exited(item.attempt, 3, 143), "", 3)
    assert kinds(effects) == ["Save", "Remove"]
    assert supervisor.on_assignments(Assignments(6, [], [item.attempt]), 3) == []
    supervisor.on_removed(item.attempt, 4)
    report = sent(supervisor, 4)[item.attempt]
    assert [age.phase for age in report.phases][-2:] == [Phase.ENDED, Phase.FORGOTTEN]
    supervisor.on_acknowledge(Acknowledge([(item.attempt, report.seq)]))
    assert item.attempt not in supervisor.attempts


def test_an_ended_attempt_is_removed_at_once():
    supervisor, item = welcomed(), order()
    running(supervisor, item)
    supervisor.on_event(Exited(item.attempt, 3, 0), "", 3)
    assert supervisor.on_assignments(Assignments(5, [], [item.attempt]), 4) == [Remove(item.attempt)]


def test_what_the_machine_does_not_know_is_reported_forgotten():
    supervisor = welcomed()
    supervisor.on_assignments(Assignments(1, [], ["a" * 32]), 1)
    report = sent(supervisor, 1)["a" * 32]
    assert [age.phase for age in report.phases] == [Phase.FORGOTTEN]
    assert "a" * 32 not in supervisor.known(10)


def test_an_end_that_is_acknowledged_is_written_down_without_its_log():
    supervisor, item = welcomed(), order()
    running(supervisor, item)
    supervisor.on_event(Exited(item.attempt, 3, 1), "Traceback", 3)
    supervisor.on_acknowledge(Acknowledge([(item.attempt, sent(supervisor, 3)[item.attempt].seq)]))
    (save,) = supervisor.on_tick(4)
    assert isinstance(save, Save)
    assert save.attempt.acknowledged == save.attempt.seq
    assert save.attempt.log_tail == ""


def test_after_a_restart_reports_count_on_above_whatever_was_sent():
    supervisor, item = welcomed(), order()
    running(supervisor, item)
    before = sent(supervisor, 1)[item.attempt].seq
    again = Supervisor(CONSOLE)
    again.restore([supervisor.attempts[item.attempt]])
    again.on_welcome(Welcome(CONSOLE, "m", 5, 5, 1))
    assert sent(again, 2)[item.attempt].seq > before + 1000


def test_an_acknowledged_end_is_not_sent_after_a_restart():
    supervisor, item = welcomed(), order()
    running(supervisor, item)
    supervisor.on_event(Exited(item.attempt, 3, 0), "", 3)
    supervisor.on_acknowledge(Acknowledge([(item.attempt, sent(supervisor, 3)[item.attempt].seq)]))
    again = Supervisor(CONSOLE)
    again.restore([supervisor.attempts[item.attempt]])
    again.on_welcome(Welcome(CONSOLE, "m", 5, 5, 1))
    assert sent(again, 4) == {}
    assert again.known(10) == [item.attempt]


def test_a_stop_that_was_asked_for_is_asked_again_after_a_restart_with_the_rest_of_its_grace():
    supervisor, item = welcomed(), order(stop_grace_seconds=30)
    running(supervisor, item)
    supervisor.on_assignments(Assignments(5, []), 10)
    again = Supervisor(CONSOLE)
    again.restore([supervisor.attempts[item.attempt]])
    assert again.stops_pending(15) == [Stop(item.attempt, 25)]
    assert again.stops_pending(100) == [Stop(item.attempt, 0)]


def test_a_machine_removed_from_its_cluster_stops_everything():
    supervisor, item = welcomed(), order()
    running(supervisor, item)
    assert kinds(supervisor.on_removed_machine(2)) == ["Save", "Stop"]
    assert not supervisor.idle


def test_many_reports_travel_in_bounded_frames():
    supervisor = welcomed()
    items = [order() for _ in range(450)]
    supervisor.on_assignments(Assignments(1, items), 1)
    for item in items:
        supervisor.on_event(Exited(item.attempt, 2, 1), "x" * 16384, 2)
    frames = supervisor.take_reports(3)
    assert sum(len(frame.items) for frame in frames) == 450
    assert max(sum(len(report.log_tail) for report in frame.items) for frame in frames) <= 256 * 1024


def test_a_hello_that_cannot_name_all_names_those_that_matter():
    supervisor = welcomed()
    old, new, live = order(), order(), order()
    for item in (old, new):
        running(supervisor, item)
        supervisor.on_event(Exited(item.attempt, 2, 0), "", 2)
    for report in sent(supervisor, 2).values():
        supervisor.on_acknowledge(Acknowledge([(report.attempt, report.seq)]))
    running(supervisor, live)
    assert supervisor.known(2) == [live.attempt, new.attempt]


def test_an_accepted_order_is_taken_as_it_is():
    supervisor, item = welcomed(), order()
    (effect,) = supervisor.on_assignments(Assignments(1, [item]), 1)
    assert isinstance(effect, Accept)
    assert effect.order is item
