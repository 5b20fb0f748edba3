"""Which workflows of FLARE are recorded besides FedAvg, and which are refused, in one sentence."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flare_job import Outcome, Persistor, Site, answer, failure, run
from flare_scenes import STEPS, apart, initial, pulled, sites
from nvflare.apis.dxo import DataKind
from nvflare.app_common.aggregators import InTimeAccumulateWeightedAggregator
from nvflare.app_common.shareablegenerators.full_model_shareable_generator import FullModelShareableGenerator
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.app_common.workflows.scaffold import Scaffold
from nvflare.app_common.workflows.scatter_and_gather import ScatterAndGather
from nvflare.app_common.workflows.scatter_and_gather_scaffold import ScatterAndGatherScaffold

import fedcrab
from fedcrab import History
from fedcrab.nvflare import Recorder, Recovery
from fedcrab.recover.folder import RecoveryFolder


class OwnGenerator(FullModelShareableGenerator):
    """One that makes something else of the average, as FedOpt's does."""


def scattered(
    aggregator: Any, who: dict[str, Site], *, rounds: int = 4, generator: Any = None, **settings: Any
) -> tuple[Outcome, dict[str, Any]]:
    """A ScatterAndGather job; how it ended, and its last model."""
    saved = Persistor(**initial())
    quick = {"wait_time_after_min_received": 0, "snapshot_every_n_rounds": 0, "memory_gc_rounds": 0}
    controller = ScatterAndGather(
        len(who), rounds, persistor_id="persistor", task_check_period=0.01, **{**quick, **settings}
    )
    more = {"aggregator": aggregator, "shareable_generator": generator or FullModelShareableGenerator()}
    return run(controller, who, saved, **more), saved.saved


@pytest.mark.parametrize("weights", [{}, {"site-1": 3.0}], ids=["by steps", "weighted"])
def test_scatter_and_gather_is_recorded_and_trains_as_without(tmp_path: Path, weights: Any) -> None:
    outcome, recorded = scattered(Recorder(str(tmp_path / "h"), aggregation_weights=weights), sites())
    assert outcome.failures == []
    plain = InTimeAccumulateWeightedAggregator(
        aggregation_weights=weights, expected_data_kind=DataKind.WEIGHTS
    )
    outcome, without = scattered(plain, sites())
    assert outcome.failures == []
    assert apart(recorded, without) < 1e-6
    assert History.verify(tmp_path / "h") == []
    history = History.open(tmp_path / "h")
    assert history.closed
    assert [r.clients for r in history.rounds] == [tuple(STEPS)] * 4
    assert history.rounds[0].examples[0] == 10 * weights.get("site-1", 1)


def test_scatter_and_gather_is_recovered_on_its_sites(tmp_path: Path) -> None:
    told: dict[str, list[tuple[int, int]]] = {}

    def noting(when: str) -> Site:
        def site(round: int, params: dict[str, Any], meta: dict[str, Any]) -> Any:
            told.setdefault(when, []).append((round, meta["total_rounds"]))
            return pulled("site-1")(round, params, meta)

        return site

    attacked = sites(site_1=noting("training"), site_2=pulled("site-2", -8.0))
    assert scattered(Recorder(str(tmp_path / "h")), attacked)[0].failures == []
    honest = {name: site for name, site in sites().items() if name != "site-2"}
    plain = InTimeAccumulateWeightedAggregator(expected_data_kind=DataKind.WEIGHTS)
    _, wanted = scattered(plain, honest)
    controller = Recovery(str(tmp_path / "h"), "site-2", str(tmp_path / "out"), method="retrain")
    assert run(controller, {**honest, "site-1": noting("recovery")}).failures == []
    history = History.open(tmp_path / "h")
    found = history.charter.layout.views(RecoveryFolder.open(tmp_path / "out" / "retrain").model(history))
    assert apart(found, wanted) < 1e-5
    assert told["recovery"] == told["training"] == [(t, 4) for t in range(4)]


def test_who_fails_lies_or_comes_late_in_scatter_and_gather(tmp_path: Path) -> None:
    def failing(round: int, params: dict[str, Any], meta: dict[str, Any]) -> Any:
        return failure() if round == 1 else pulled("site-4")(round, params, meta)

    def hostile(round: int, params: dict[str, Any], meta: dict[str, Any]) -> Any:
        return (
            answer({**params, "w": params["w"] + np.nan})
            if round == 2
            else pulled("site-2")(round, params, meta)
        )

    who = sites(site_4=failing, site_2=hostile, site_3=pulled("site-3", lies="site-1"))
    outcome, _ = scattered(Recorder(str(tmp_path / "h")), who, ignore_result_error=True)
    assert outcome.failures == []
    history = History.open(tmp_path / "h")
    left_out = [{r.client: r.reason for r in entry.rejected} for entry in history.rounds]
    assert left_out[1] == {"site-4": "failed: EXECUTION_EXCEPTION"}
    assert list(left_out[2]) == ["site-2"]
    assert history.rounds[3].clients == tuple(STEPS)


def test_scatter_and_gather_resumes_after_a_kill(tmp_path: Path) -> None:
    def dying(site: str) -> Site:
        return lambda t, *sent: failure() if t == 2 else pulled(site)(t, *sent)

    assert scattered(Recorder(str(tmp_path / "whole")), sites())[0].failures == []
    cut, _ = scattered(Recorder(str(tmp_path / "h")), {name: dying(name) for name in STEPS})
    assert cut.failures
    assert len(History.open(tmp_path / "h").rounds) == 2
    assert scattered(Recorder(str(tmp_path / "h")), sites())[0].failures == []
    whole, resumed = History.open(tmp_path / "whole"), History.open(tmp_path / "h")
    assert [r.after for r in resumed.rounds] == [r.after for r in whole.rounds]


class OwnModel(FedAvg):
    """A workflow that makes another model of the average, as FedOpt's does."""

    def update_model(self, model: Any, model_update: Any, replace_meta: bool = True) -> Any:
        return super().update_model(model, model_update, replace_meta)


class Between(FedAvg):
    """A workflow that changes the model between two rounds, unseen."""

    def save_model(self, model: Any) -> None:
        model.params = {name: value * 2 for name, value in model.params.items()}


@pytest.mark.parametrize(
    ("kind", "told"),
    [(OwnModel, "OwnModel cannot be recorded"), (Between, "changes the model between rounds")],
)
def test_a_workflow_that_does_not_send_the_average_is_refused(tmp_path: Path, kind: Any, told: str) -> None:
    recorder = Recorder(str(tmp_path / "h"))
    controller = kind(num_clients=4, num_rounds=3, task_check_period=0.01, aggregator=recorder)
    outcome = run(controller, sites(), Persistor(**initial()))
    assert told in outcome.failures[0]


def test_other_workflows_are_refused(tmp_path: Path) -> None:
    recorder = Recorder(str(tmp_path / "h"))
    outcome, _ = scattered(recorder, sites(), generator=OwnGenerator())
    assert "a job with OwnGenerator cannot be recorded" in outcome.failures[0]
    for kind in (Scaffold, ScatterAndGatherScaffold):
        more = {"num_clients": 4} if kind is Scaffold else {"min_clients": 4, "snapshot_every_n_rounds": 0}
        controller = kind(num_rounds=2, persistor_id="persistor", task_check_period=0.01, **more)
        other = {
            "aggregator": Recorder(str(tmp_path / "h")),
            "shareable_generator": FullModelShareableGenerator(),
        }
        outcome = run(controller, sites(), Persistor(**initial()), **other)
        assert f"{kind.__name__} cannot be recorded" in outcome.failures[0]
    assert not (tmp_path / "h").exists()


def test_weights_and_rounds_that_contradict_the_job_are_refused(tmp_path: Path) -> None:
    def job(recorder: Recorder, **settings: Any) -> str:
        controller = FedAvg(
            num_clients=4, num_rounds=2, aggregator=recorder, task_check_period=0.01, **settings
        )
        return run(controller, sites(), Persistor(**initial())).failures[0]

    twice = Recorder(str(tmp_path / "h"), aggregation_weights={"site-1": 2.0})
    assert "given twice" in job(twice, aggregation_weights={"site-1": 3.0})
    assert "starts with round 3" in job(Recorder(str(tmp_path / "h")), start_round=3)
    assert not (tmp_path / "h").exists()


def test_half_precision_stays_half_and_is_the_same_history(tmp_path: Path) -> None:
    half = {"w": np.zeros((2, 3), np.float16), "b": np.ones(4, np.float16), "seen": np.array(0, np.int64)}
    saved, recorder = Persistor(**half), Recorder(str(tmp_path / "h"), selection=fedcrab.Everything())
    controller = FedAvg(num_clients=4, num_rounds=3, task_check_period=0.01, aggregator=recorder)
    assert run(controller, sites(), saved).failures == []
    assert saved.saved["w"].dtype == np.float16
    last = History.open(tmp_path / "h").final_model()
    assert np.array_equal(last[:6].astype(np.float16), saved.saved["w"].ravel())
