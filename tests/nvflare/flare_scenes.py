"""Small trainings: sites whose loss is ‖w - target‖²/2, and an attacker that pulls elsewhere."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flare_job import Outcome, Persistor, Site, answer, run
from nvflare.app_common.workflows.fedavg import FedAvg

from fedcrab.nvflare import Recorder

TARGETS = {"site-1": 1.0, "site-2": 1.5, "site-3": 2.0, "site-4": 0.5}
STEPS = {"site-1": 10, "site-2": 30, "site-3": 20, "site-4": 40}


def initial() -> dict[str, Any]:
    return {"w": np.zeros((2, 3), np.float32), "b": np.ones(4, np.float64), "seen": np.array(0, np.int64)}


def pulled(
    name: str, to: float | None = None, *, diff: bool = False, steps: Any = "own", **more: Any
) -> Site:
    """A site that goes a quarter of the way to its target, with a little noise of its own."""
    target = TARGETS[name] if to is None else to
    told = STEPS[name] if steps == "own" else steps

    def site(round: int, params: dict[str, Any], meta: dict[str, Any]) -> Any:
        noise = np.random.default_rng([round, int(name[-1])])
        share = 0.25 * meta.get("local_epochs", 2) / 2
        step = {k: share * (target - v) + 0.05 * noise.standard_normal(v.shape) for k, v in params.items()}
        step["seen"] = np.array(3)
        if diff:
            sent = {k: v.astype(params[k].dtype) for k, v in step.items()}
        else:
            sent = {k: (params[k] + v).astype(params[k].dtype) for k, v in step.items()}
        loss = float(np.mean([np.mean((params[k] - target) ** 2) for k in ("w", "b")]))
        return answer(sent, told, diff=diff, loss=loss, **more)

    return site


def sites(**other: Any) -> dict[str, Site]:
    """All four, with others in the places of some."""
    given = {name.replace("_", "-"): site for name, site in other.items()}
    return {name: given.get(name) or pulled(name) for name in TARGETS}


def trained(
    place: Path,
    who: Mapping[str, Site] | None = None,
    *,
    rounds: int = 4,
    persistor: Persistor | None = None,
    job: Mapping[str, Any] | None = None,
    **recorder: Any,
) -> tuple[Outcome, Persistor]:
    """A FedAvg job with a Recorder; how it ended, and where its model was saved."""
    who, saved = who or sites(), persistor or Persistor(**initial())
    settings = {"num_clients": len(who), "num_rounds": rounds, "task_check_period": 0.01, **(job or {})}
    controller = FedAvg(**settings, aggregator=Recorder(str(place), **recorder))
    return run(controller, who, saved), saved


def plain(who: Mapping[str, Site], *, rounds: int, **job: Any) -> dict[str, Any]:
    """The model that FLARE's own FedAvg makes, without fedcrab."""
    saved = Persistor(**initial())
    settings = {"num_clients": len(who), "num_rounds": rounds, "task_check_period": 0.01, **job}
    outcome = run(FedAvg(**settings), who, saved)
    assert outcome.failures == []
    return saved.saved


def apart(left: Mapping[str, Any], right: Mapping[str, Any]) -> float:
    """The greatest difference of two models' trained numbers."""
    return max(float(np.abs(np.asarray(left[k]) - np.asarray(right[k])).max()) for k in ("w", "b"))
