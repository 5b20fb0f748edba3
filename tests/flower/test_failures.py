"""What clients send is hostile, or never comes: the round goes on without them, or is tried again."""

from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.app.error import Error
from loopback import by_app
from scenes import HASTY, SITES, Plain, everyone, grid, initial, recorded
from siteapp import client

from fedcrab import FedcrabError, History
from fedcrab.errors import FleetError
from fedcrab.flower import FlowerFleet, Patience, Recorder

BAD = "site-5"
honest = by_app(client.app)


def changed(message: Message, arrays=None, metrics=None, **more) -> Message:
    """The honest answer with something else in it."""
    content = honest(BAD, message).content
    made = {"arrays": arrays or content["arrays"], "metrics": metrics or content["metrics"], **more}
    return Message(RecordDict({k: v for k, v in made.items() if v is not DROPPED}), reply_to=message)


DROPPED = MetricRecord({"dropped": 1})
COUNT = {"num-examples": 50, "train_loss": 1.0}


def arrays_with(message: Message, **replaced: np.ndarray | Array | None) -> ArrayRecord:
    found = dict(honest(BAD, message).content["arrays"])
    for name, array in replaced.items():
        found.pop(name, None)
        if array is not None:
            found[name] = array if isinstance(array, Array) else Array(array)
    return ArrayRecord(found)


def forged(dtype: str, shape: tuple[int, ...], data: bytes, stype: str = "numpy.ndarray") -> Array:
    return Array(dtype=dtype, shape=shape, stype=stype, data=data)


HUGE = Array(np.zeros((12, 4), np.float32)).data.replace(b"(12, 4), }", b"(10**9,), ")
LARGE = Array(np.zeros((12, 4), np.float32)).data.replace(b"(12, 4)", b"(99, 4)")
HOSTILE = {
    "silence": (lambda m: None, "did not answer"),
    "error": (lambda m: Message(Error(2, "no disk"), reply_to=m), "no disk"),
    "nan": (lambda m: changed(m, arrays_with(m, bias=np.full(4, np.nan, np.float32))), "not finite"),
    "overflow": (lambda m: changed(m, arrays_with(m, bias=np.full(4, 1e300))), "not finite"),
    "shape": (lambda m: changed(m, arrays_with(m, bias=np.zeros((2, 2), np.float32))), "has shape"),
    "broadcast": (lambda m: changed(m, arrays_with(m, bias=np.zeros((), np.float32))), "has shape"),
    "missing array": (lambda m: changed(m, arrays_with(m, bias=None)), "instead of"),
    "more arrays": (lambda m: changed(m, arrays_with(m, extra=np.zeros(3))), "instead of"),
    "text": (lambda m: changed(m, arrays_with(m, bias=np.array(["a"] * 4))), "cannot be read"),
    "garbage": (
        lambda m: changed(m, arrays_with(m, bias=forged("float32", (4,), b"?" * 40))),
        "cannot be read",
    ),
    "lying header": (
        lambda m: changed(m, arrays_with(m, weight=forged("float32", (12, 4), LARGE))),
        "cannot",
    ),
    "broken header": (
        lambda m: changed(m, arrays_with(m, weight=forged("float32", (12, 4), HUGE))),
        "cannot",
    ),
    "pickle": (lambda m: changed(m, arrays_with(m, bias=forged("O", (4,), b"x" * 9, "pickle"))), "cannot"),
    "no examples": (lambda m: changed(m, metrics=MetricRecord({"train_loss": 1.0})), "no 'num-examples'"),
    "no metrics": (lambda m: changed(m, metrics=DROPPED), "0 metric records"),
    "two records": (lambda m: changed(m, more=MetricRecord(COUNT)), "2 metric records"),
    "list": (lambda m: changed(m, metrics=MetricRecord({**COUNT, "num-examples": [1, 2]})), "not a number"),
    "zero": (lambda m: changed(m, metrics=MetricRecord({**COUNT, "num-examples": 0})), "examples is 0"),
    "infinite": (lambda m: changed(m, metrics=MetricRecord({**COUNT, "num-examples": float("inf")})), "inf"),
    "absurd": (lambda m: changed(m, metrics=MetricRecord({**COUNT, "num-examples": 10**12})), "1e+12"),
    "odd metric": (lambda m: changed(m, metrics=MetricRecord({**COUNT, "x": 1})), "other names"),
}


def hostile(kind: str):
    return lambda site, message: HOSTILE[kind][0](message) if site == BAD else honest(site, message)


@pytest.mark.parametrize("kind", HOSTILE)
def test_the_round_goes_on_without_it_and_the_ledger_says_why(kind: str, tmp_path: Path) -> None:
    history = recorded(tmp_path / "h", grid(hostile(kind)), rounds=1)
    entry = history.rounds[0]
    assert entry.clients == tuple(s for s in SITES if s != BAD)
    assert [r.client for r in entry.rejected] == [BAD]
    assert HOSTILE[kind][1] in entry.rejected[0].reason
    assert History.verify(tmp_path / "h") == []


@pytest.mark.parametrize("kind", ["silence", "error", "nan", "no examples"])
def test_a_recovery_goes_on_without_it(kind: str, tmp_path: Path) -> None:
    history = recorded(tmp_path / "h", grid(), rounds=1)
    fleet = FlowerFleet(grid(hostile(kind)), history, patience=HASTY)
    updates = fleet.train(history.model(0), SITES, round=0)
    assert updates.clients == tuple(s for s in SITES if s != BAD)
    assert HOSTILE[kind][1] in {r.client: r.reason for r in fleet.rejected}[BAD]


def test_an_error_comes_from_the_superlink_and_is_told_by_the_message_it_replies_to(tmp_path: Path) -> None:
    def leaves(site: str, message: Message) -> Message | None:
        if site != BAD:
            return honest(site, message)
        over.disconnect(BAD)  # after it was asked: the SuperLink answers in its place
        return None

    over = grid(leaves)
    history = recorded(tmp_path / "h", over, rounds=1)
    assert [(r.client, "error 5" in r.reason) for r in history.rounds[0].rejected] == [(BAD, True)]


def test_too_few_answers_are_tried_again_and_each_counts_once(tmp_path: Path) -> None:
    asked: dict[str, int] = {}

    def slow(site: str, message: Message) -> Message | None:
        asked[site] = asked.get(site, 0) + 1
        first = asked[site] == 1 and int(site[-1]) > 2  # five of eight are silent at first
        return None if first else honest(site, message)

    history = recorded(tmp_path / "h", grid(slow), rounds=1)
    assert history.rounds[0].clients == tuple(SITES)
    assert asked == {site: 1 + (int(site[-1]) > 2) for site in SITES}
    straight = recorded(tmp_path / "straight", grid(), rounds=1)
    assert history.rounds[0].digests == straight.rounds[0].digests


def test_a_late_answer_to_the_first_question_counts_once(tmp_path: Path) -> None:
    held: dict[str, Message] = {}

    def late(site: str, message: Message) -> Message | None:
        if int(site[-1]) < 3 or site in held:
            if site in held:  # asked again: now the first question is answered, and then this one too
                over.answer(honest(site, held[site]))
            return honest(site, message)
        held[site] = message
        return None

    over = grid(late)
    history = recorded(tmp_path / "h", over, rounds=1)
    straight = recorded(tmp_path / "straight", grid(), rounds=1)
    assert history.rounds[0].digests == straight.rounds[0].digests


def test_too_few_answers_end_in_a_clear_error_and_a_whole_history(tmp_path: Path) -> None:
    def dies(site: str, message: Message) -> Message | None:
        later = message.content["config"]["server-round"] > 2
        return None if later and int(site[-1]) > 2 else honest(site, message)

    with pytest.raises(FleetError, match=r"3 of 8 clients gave a usable answer .* quorum of 4"):
        recorded(tmp_path / "h", grid(dies))
    assert len(History.open(tmp_path / "h").rounds) == 2
    whole = recorded(tmp_path / "whole", grid())
    assert [r.digests for r in recorded(tmp_path / "h", grid()).rounds] == [r.digests for r in whole.rounds]


def test_a_strategy_that_waits_for_clients_is_stopped_in_the_end(tmp_path: Path) -> None:
    strategy = everyone()
    strategy.min_available_nodes = 9
    with pytest.raises(FleetError, match=r"8 clients are connected, .* for more"):
        recorded(tmp_path / "h", grid(), strategy=strategy)


def test_a_recovery_waits_for_clients_once_and_names_those_that_are_missing(tmp_path: Path) -> None:
    history = recorded(tmp_path / "h", grid(), rounds=1)
    few = FlowerFleet(grid(sites=SITES[:3]), history, patience=HASTY)
    with pytest.raises(FleetError, match=r"5 of 8 clients are not connected \(site-3, site-4"):
        few.train(history.model(0), SITES, round=0)
    most = FlowerFleet(grid(sites=SITES[:5]), history, patience=HASTY)
    assert most.train(history.model(0), SITES, round=0).clients == tuple(SITES[:5])
    assert {r.client: r.reason for r in most.rejected}["site-7"] == "is not connected"


def test_a_round_of_which_the_strategy_makes_nothing_leaves_the_model(tmp_path: Path) -> None:
    strategy = everyone()
    strategy.aggregate_train = lambda server_round, replies: (None, None)
    history = recorded(tmp_path / "h", grid(), rounds=2, strategy=strategy)
    assert history.final_model().tobytes() == Plain.model.flatten(initial()).tobytes()
    assert [len(r.clients) for r in history.rounds] == [0, 0]
    assert "returned no model" in history.rounds[0].rejected[0].reason


def test_a_loop_of_ones_own_is_recorded_too(tmp_path: Path) -> None:
    recorder, over, arrays = Recorder(everyone(), tmp_path / "h"), grid(hostile("error")), initial()
    for server_round in (1, 2):
        messages = recorder.configure_train(server_round, arrays, client_config(), over)
        arrays, _ = recorder.aggregate_train(server_round, over.send_and_receive(messages, timeout=2))
    history = History.open(tmp_path / "h")
    assert [len(r.clients) for r in history.rounds] == [7, 7]
    assert history.final_model().tobytes() == Plain.model.flatten(arrays).tobytes()


def client_config():
    from flwr.app import ConfigRecord

    return ConfigRecord()


@pytest.mark.parametrize(
    "settings",
    [
        {"deadline": 0},
        {"quorum": 0},
        {"quorum": 1.5},
        {"attempts": 0},
        {"poll": -1},
        {"deadline": float("nan")},
    ],
)
def test_patience_is_checked(settings: dict[str, float]) -> None:
    with pytest.raises(FedcrabError):
        Patience(**settings)
