"""The workflow of a recorded job, FedAvg or ScatterAndGather, and which jobs cannot be recorded.

Both pass each result to their aggregator and send its answer out as the next model. They differ only in the
names of their settings, which are found here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.shareablegenerators.full_model_shareable_generator import FullModelShareableGenerator
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.app_common.workflows.scatter_and_gather import ScatterAndGather

from fedcrab.errors import ConfigError

# What a subclass must not override: the model that is sent would not be the recorded mean.
MEAN_ONLY = {
    FedAvg: ("update_model", "_aggregate_one_result", "_get_aggregated_result"),
    ScatterAndGather: ("control_flow", "_accept_train_result", "_prepare_train_task_data"),
}


class Workflow:
    """The settings of a job's controller whose rounds can be recorded."""

    def __init__(self, controller: FedAvg | ScatterAndGather, weights: Mapping[str, float]) -> None:
        self.controller = controller
        self._prefix = "" if isinstance(controller, FedAvg) else "_"
        own: Mapping[str, float] = getattr(controller, "aggregation_weights", {})
        if own and weights:
            raise ConfigError("aggregation_weights are given twice; leave those of the Recorder out")
        self.weights = dict(own or weights)
        self.rounds = self.start_round + self._get("num_rounds")  # of the whole training

    @classmethod
    def of(cls, aggregator: object, fl_ctx: FLContext, weights: Mapping[str, float]) -> Workflow:
        """Return the current workflow; raises ConfigError if this aggregator cannot record it."""
        runner = fl_ctx.get_prop(FLContextKey.RUNNER)
        controller = runner.config.workflows[runner.current_wf_index].controller
        name, kind = type(controller).__name__, _kind(controller)
        if kind is None or getattr(controller, "aggregator", None) is not aggregator:
            raise ConfigError(
                f"{name} cannot be recorded: the Recorder must be the aggregator of FedAvg or "
                "ScatterAndGather; give aggregator=Recorder(...) to a FedAvg recipe, or to FedAvg"
            )
        changed = [what for what in MEAN_ONLY[kind] if getattr(type(controller), what) != getattr(kind, what)]
        if changed:
            raise ConfigError(f"{name} cannot be recorded: it is no plain average ({changed[0]} is its own)")
        generator = getattr(controller, "shareable_gen", None)
        if generator is not None and type(generator) is not FullModelShareableGenerator:
            raise ConfigError(
                f"a job with {type(generator).__name__} cannot be recorded: a recovery does not repeat what "
                "it makes of the average; FullModelShareableGenerator leaves the average as it is"
            )
        for setting in ("exclude_vars", "enable_tensor_disk_offload"):
            if getattr(controller, setting, None):
                raise ConfigError(f"a job with {setting} cannot be recorded; leave it out")
        return cls(controller, weights)

    def _get(self, name: str) -> Any:
        return getattr(self.controller, self._prefix + name)

    @property
    def sends_metrics(self) -> bool:
        """Whether the workflow sends averaged metrics along with the next model, as FedAvg does."""
        return isinstance(self.controller, FedAvg)

    @property
    def task_name(self) -> str:
        """The name of the sites' training task."""
        return str(
            self.controller.task_name
            if isinstance(self.controller, FedAvg)
            else self.controller.train_task_name
        )

    @property
    def start_round(self) -> int:
        """The round that this job begins with."""
        return int(self._get("start_round"))

    @property
    def current_round(self) -> int:
        """The current round."""
        return int(self._get("current_round"))

    def resume_at(self, done: int) -> None:
        """Skip the rounds that are already recorded."""
        setattr(self.controller, f"{self._prefix}start_round", done)
        setattr(self.controller, f"{self._prefix}num_rounds", max(self.rounds - done, 0))

    def given_model(self) -> dict[str, Any] | None:
        """Return the parameters that came with the job itself, not from a persistor; or None."""
        given = getattr(self.controller, "model", None)
        if given is None:
            return None
        if not isinstance(given, FLModel):
            given = self.controller.model = FLModel(params_type=ParamsType.FULL, params=dict(given))
        params: dict[str, Any] = given.params
        return params


def _kind(controller: object) -> type[FedAvg] | type[ScatterAndGather] | None:
    return next((kind for kind in MEAN_ONLY if isinstance(controller, kind)), None)
