"""What a FedAvg job does on FLARE is recorded as it was, under names that no site can claim."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flare_job import Persistor, answer, failure
from flare_scenes import STEPS, apart, initial, plain, pulled, sites, trained
from nvflare.job_config.fed_job_config import FedJobConfig

import fedcrab
from fedcrab import History
from fedcrab.nvflare import Recorder


def reasons(history: History, round: int) -> dict[str, str]:
    return {r.client: r.reason for r in history.rounds[round].rejected}


def test_a_job_is_recorded_and_trains_as_without(tmp_path: Path) -> None:
    outcome, saved = trained(tmp_path / "h")
    assert outcome.failures == []
    assert apart(saved.saved, plain(sites(), rounds=4)) < 1e-6
    assert History.verify(tmp_path / "h") == []
    history = History.open(tmp_path / "h")
    assert history.closed
    assert [r.clients for r in history.rounds] == [tuple(STEPS)] * 4
    assert [r.examples.tolist() for r in history.rounds] == [list(map(float, STEPS.values()))] * 4
    assert history.rounds[0].loss == 0.5  # the median, by steps, of what the sites report
    assert history.rounds[3].loss < 0.25
    names = {f.name: (f.trained, f.integer) for f in history.charter.layout.fields}
    assert names == {"w": (True, False), "b": (True, False), "seen": (False, True)}
    assert {k: v.dtype for k, v in saved.saved.items()} == {k: v.dtype for k, v in initial().items()}
    last = history.charter.layout.views(history.final_model())
    assert all(np.allclose(last[k], saved.saved[k]) for k in last)
    assert int(saved.saved["seen"]) == 12


def test_full_parameters_and_differences_are_the_same_history(tmp_path: Path) -> None:
    mixed = sites(site_2=pulled("site-2", diff=True))
    trained(tmp_path / "full", selection=fedcrab.Everything())
    trained(tmp_path / "mixed", mixed, selection=fedcrab.Everything())
    full, differences = (History.open(tmp_path / name) for name in ("full", "mixed"))
    for t in range(4):
        np.testing.assert_allclose(full.updates(t).vectors, differences.updates(t).vectors, atol=1e-6)


def test_a_site_is_who_the_server_says_it_is(tmp_path: Path) -> None:
    trained(tmp_path / "h", sites(site_3=pulled("site-3", lies="site-1")), selection=fedcrab.Everything())
    trained(tmp_path / "honest", selection=fedcrab.Everything())
    lying, honest = (History.open(tmp_path / name) for name in ("h", "honest"))
    assert lying.clients == honest.clients
    np.testing.assert_array_equal(lying.updates(2).vectors, honest.updates(2).vectors)


HOSTILE = {
    "not finite": lambda p: ({**p, "w": p["w"] + np.nan}, 10),
    "10^12 steps": lambda p: (p, 10**12),
    "no steps": lambda p: (p, 0),
    "text for steps": lambda p: (p, "many"),
    "shape": lambda p: ({**p, "w": np.zeros(7, np.float32)}, 10),
    "names": lambda p: ({**p, "more": np.zeros(1)}, 10),
    "objects": lambda p: ({**p, "w": np.array([None] * 6, object).reshape(2, 3)}, 10),
    "too large": lambda p: ({**p, "b": p["b"] + 1e300}, 10),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_cannot_be_used_is_left_out_and_the_round_goes_on(tmp_path: Path, kind: str) -> None:
    def hostile(round: int, params: dict[str, Any], meta: dict[str, Any]) -> Any:
        return answer(*HOSTILE[kind](params)) if round == 1 else pulled("site-2")(round, params, meta)

    outcome, saved = trained(tmp_path / "h", sites(site_2=hostile), rounds=2)
    assert outcome.failures == []
    history = History.open(tmp_path / "h")
    assert history.rounds[0].clients == tuple(STEPS)
    assert history.rounds[1].clients == ("site-1", "site-3", "site-4")
    assert list(reasons(history, 1)) == ["site-2"]
    assert all(np.isfinite(v).all() for v in saved.saved.values())


def test_steps_that_are_not_told_count_as_one_and_the_job_weighs_sites(tmp_path: Path) -> None:
    silent = {name: pulled(name, steps=None) for name in STEPS}
    job = {"aggregation_weights": {"site-1": 3.0}}
    _, saved = trained(tmp_path / "h", silent, job=job)
    assert History.open(tmp_path / "h").rounds[0].examples.tolist() == [3, 1, 1, 1]
    assert apart(saved.saved, plain(silent, rounds=4, **job)) < 1e-6


def test_a_site_that_fails_is_in_the_ledger_with_its_reason(tmp_path: Path) -> None:
    def failing(round: int, params: dict[str, Any], meta: dict[str, Any]) -> Any:
        return failure() if round == 1 else pulled("site-4")(round, params, meta)

    outcome, _ = trained(tmp_path / "h", sites(site_4=failing), job={"ignore_result_error": True})
    assert outcome.failures == []
    history = History.open(tmp_path / "h")
    assert reasons(history, 1) == {"site-4": "failed: EXECUTION_EXCEPTION"}
    assert history.rounds[2].clients == tuple(STEPS)


def test_a_round_without_a_usable_answer_leaves_the_model(tmp_path: Path) -> None:
    def empty(name: str) -> Any:
        def site(round: int, params: dict[str, Any], meta: dict[str, Any]) -> Any:
            bad = {k: v * np.nan if k == "w" else v for k, v in params.items()}
            return answer(bad) if round == 1 else pulled(name)(round, params, meta)

        return site

    outcome, _ = trained(
        tmp_path / "h", {name: empty(name) for name in STEPS}, selection=fedcrab.Everything()
    )
    assert outcome.failures == []
    history = History.open(tmp_path / "h")
    assert [len(r.clients) for r in history.rounds] == [4, 0, 4, 4]
    np.testing.assert_array_equal(history.model(1), history.model(2))


def test_only_those_asked_are_in_a_round(tmp_path: Path) -> None:
    trained(tmp_path / "h", job={"num_clients": 2}, rounds=6)
    history = History.open(tmp_path / "h")
    assert {len(r.clients) for r in history.rounds} == {2}
    assert all(not r.rejected for r in history.rounds)


@pytest.mark.parametrize("given", [False, True], ids=["persistor", "model"])
def test_a_job_that_was_killed_goes_on_in_a_new_one(tmp_path: Path, given: bool) -> None:
    def dying(site: str) -> Any:  # all of them: the job must not end the round before it ends itself
        return lambda t, *sent: failure() if t == 2 else pulled(site)(t, *sent)

    told: list[tuple[int, int]] = []

    def noting(round: int, params: dict[str, Any], meta: dict[str, Any]) -> Any:
        told.append((round, meta["total_rounds"]))
        return pulled("site-1")(round, params, meta)

    trained(tmp_path / "whole", rounds=5)
    everybody = {site.replace("-", "_"): dying(site) for site in sites()}
    outcome, _ = trained(tmp_path / "h", sites(**everybody), rounds=5)
    assert outcome.failures
    assert (len(History.open(tmp_path / "h").rounds), History.open(tmp_path / "h").closed) == (2, False)
    job = {"model": initial(), "save_filename": str(tmp_path / "model")} if given else {}
    outcome, _ = trained(tmp_path / "h", sites(site_1=noting), rounds=5, job=job)
    assert outcome.failures == []
    assert told == [(2, 5), (3, 5), (4, 5)]
    whole, resumed = History.open(tmp_path / "whole"), History.open(tmp_path / "h")
    assert resumed.closed
    assert [r.after for r in resumed.rounds] == [r.after for r in whole.rounds]


def test_a_training_that_ended_is_not_gone_on_with(tmp_path: Path) -> None:
    trained(tmp_path / "h", rounds=2)
    before = History.open(tmp_path / "h").contents.head
    outcome, _ = trained(tmp_path / "h", rounds=3)
    assert "this training ended after 2 rounds" in outcome.failures[0]
    assert History.open(tmp_path / "h").contents.head == before
    outcome, _ = trained(tmp_path / "h", rounds=2)  # nothing is left to do
    assert outcome.failures == []
    outcome, _ = trained(tmp_path / "h", rounds=2, persistor=Persistor(w=np.zeros(3, np.float32)))
    assert "recorded with another model" in outcome.failures[0]


def test_the_server_s_own_function_gives_the_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "probe_of_the_server.py").write_text(
        "def evaluate(round, params):\n    return {'loss': 100.0 - round, 'probabilities': [0.5, 0.5]}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    trained(tmp_path / "h", evaluate="probe_of_the_server:evaluate")
    history = History.open(tmp_path / "h")
    assert history.charter.initial_loss == 100
    assert [(r.loss, r.divergence) for r in history.rounds] == [(99.0 - t, 0.0) for t in range(4)]
    outcome, _ = trained(tmp_path / "other", evaluate="probe_of_the_server:nothing")
    assert "module:function" in outcome.failures[0]
    assert not (tmp_path / "other").exists()
    sys.modules.pop("probe_of_the_server")


def test_a_recording_that_fails_ends_the_job(tmp_path: Path) -> None:
    (tmp_path / "h").write_text("in the way")
    asked: list[int] = []

    def counting(round: int, params: dict[str, Any], meta: dict[str, Any]) -> Any:
        asked.append(round)
        return pulled("site-1")(round, params, meta)

    outcome, _ = trained(tmp_path / "h", sites(site_1=counting))
    assert "fedcrab" in outcome.failures[0]
    assert "already exists" in outcome.failures[0]
    assert 1 not in asked  # no second round


def test_a_job_that_cannot_be_recorded_is_refused(tmp_path: Path) -> None:
    outcome, _ = trained(tmp_path / "h", job={"exclude_vars": "w"})
    assert "exclude_vars" in outcome.failures[0]
    assert not (tmp_path / "h").exists()
    settings = Persistor()
    settings.saved = {
        "eta0": np.array(0.1),
        "learning_rate": np.array("constant"),
    }  # as scikit-learn's recipe
    outcome, _ = trained(tmp_path / "h", persistor=settings)
    assert "the model's 'learning_rate' cannot be recorded" in outcome.failures[0]
    assert not (tmp_path / "h").exists()
    with pytest.raises(fedcrab.ConfigError, match="head_every"):
        Recorder("h", head_every=-1)


def test_the_job_file_has_every_setting(tmp_path: Path) -> None:
    """FLARE writes a component down by its arguments; what is built from that is the same Recorder."""
    chosen = fedcrab.Compact(bits=8, max_window=3)
    recorder = Recorder("h", selection=chosen, buffers=["b"], loss_key="val", keep_open=True, head_every=2)
    arguments = FedJobConfig("job", 1)._get_args(recorder, str(tmp_path))
    again = Recorder(**json.loads(json.dumps(arguments)))
    for name in ("history", "evaluate", "selection", "buffers", "loss_key", "keep_open", "head_every"):
        assert getattr(again, name) == getattr(recorder, name)
    settings = {"bits": 8, "alpha": 0.1, "rounds": 0.6, "clients": 0.7, "max_window": 3}
    assert again.selection == {"kind": "compact", **settings}
