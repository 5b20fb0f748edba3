"""A FLARE job in this process: FLARE's own runner, communicator and FedAvg; only the network is left out.

A site is a function of the model it is sent. It answers through the runner as a job's process would: under
the name that the server knows it by, whatever it says of itself.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from nvflare.apis.client import Client
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.impl.wf_comm_server import WFCommServer
from nvflare.apis.server_engine_spec import ServerEngineSpec
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.utils.event import fire_event_to_components
from nvflare.app_common.abstract.model import ModelLearnable, make_model_learnable
from nvflare.app_common.abstract.model_persistor import ModelPersistor
from nvflare.app_common.app_constant import AppConstants
from nvflare.private.defs import SpecialTaskName
from nvflare.private.fed.server.server_json_config import WorkFlow
from nvflare.private.fed.server.server_runner import ServerRunner, ServerRunnerConfig

JOB = "job"
STEPS = "NUM_STEPS_CURRENT_ROUND"
Site = Callable[[int, dict[str, Any], dict[str, Any]], "Shareable | None"]


class Engine(ServerEngineSpec):
    """As much of a server's engine as a runner needs in one process."""

    def __init__(self, sites: Mapping[str, Site], handlers: list[Any], components: Mapping[str, Any]) -> None:
        self.clients = {name: Client(name, f"token-{name}") for name in sites}
        self.handlers, self.components = handlers, components
        self.contexts = FLContextManager(self, "server", JOB)

    def new_context(self) -> FLContext:
        return self.contexts.new_context()

    def fire_event(self, event_type: str, fl_ctx: FLContext) -> None:
        fire_event_to_components(event_type, self.handlers, fl_ctx)

    def get_clients(self) -> list[Client]:
        return list(self.clients.values())

    def get_participating_clients(self) -> dict[str, Client]:
        return {}

    def get_component(self, component_id: str) -> Any:
        return self.components.get(component_id)

    def register_aux_message_handler(self, topic: str, message_handle_func: Any) -> None: ...

    def send_aux_request(self, *args: Any, **more: Any) -> dict[str, Any]:
        return {}

    def persist_components(self, fl_ctx: FLContext, completed: bool) -> None: ...

    def shutdown_streamer(self) -> None: ...


Engine.__abstractmethods__ = frozenset()  # the rest of an engine is the network


def copied(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters that nobody else holds, torch's or numpy's."""
    return {k: v.clone() if hasattr(v, "clone") else np.array(v) for k, v in params.items()}


class Persistor(ModelPersistor):
    """Gives the initial model, and holds the last one that was saved."""

    def __init__(self, **params: Any) -> None:
        super().__init__()
        self.saved: dict[str, Any] = copied(params)

    def load_model(self, fl_ctx: FLContext) -> ModelLearnable:
        return make_model_learnable(copied(self.saved), {})

    def save_model(self, model: ModelLearnable, fl_ctx: FLContext) -> None:
        self.saved = copied(model["weights"])


def run(
    controller: Any, sites: Mapping[str, Site], persistor: Persistor | None = None, **components: Any
) -> "Outcome":
    """Run a job to its end; the sites answer on threads of their own."""
    handlers = [controller, *components.values()]
    if getattr(controller, "aggregator", None) is not None:
        handlers.append(controller.aggregator)
    engine = Engine(sites, handlers, {"persistor": persistor or Persistor(), **components})
    communicator = WFCommServer(task_check_period=0.01)
    controller.set_communicator(communicator)
    handlers.append(communicator)
    config = ServerRunnerConfig(600, 0.01, [WorkFlow("controller", controller)], {}, {}, handlers, {})
    runner = ServerRunner(config, JOB, engine)
    runner.check_end_run_readiness = lambda fl_ctx: None  # five seconds for messages on their way
    handlers.append(runner)
    engine.contexts.private_stickers[FLContextKey.RUNNER] = runner
    outcome = Outcome(controller)
    handlers.append(outcome)

    def served(name: str, site: Site) -> None:
        try:
            serve(runner, engine, name, site)
        except Exception as error:  # of the test itself: nobody would wait for this site in vain
            outcome.failures.append(f"{name}: {type(error).__name__}: {error}")
            runner.abort_signal.trigger(True)

    threads = [threading.Thread(target=served, args=item) for item in sites.items()]
    for thread in threads:
        thread.start()
    runner.run()
    for thread in threads:
        thread.join(60)
    return outcome


class Outcome(WFCommServer):
    """What is said when a job is aborted."""

    def __init__(self, controller: Any) -> None:
        super().__init__()
        self.controller, self.failures = controller, list[str]()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == "_fatal_system_error":
            self.failures.append(str(fl_ctx.get_prop(FLContextKey.EVENT_DATA)))


def serve(runner: ServerRunner, engine: Engine, name: str, site: Site) -> None:
    """Ask for tasks and submit results, until the run ends."""
    client = engine.clients[name]
    while True:
        with engine.new_context() as fl_ctx:
            fl_ctx.set_peer_context(says(name))
            task, task_id, data = runner.process_task_request(client, fl_ctx)
        if task == SpecialTaskName.END_RUN:
            return
        if task == SpecialTaskName.TRY_AGAIN:
            time.sleep(0.005)
            continue
        dxo, number = from_shareable(data), data.get_header(AppConstants.CURRENT_ROUND)
        told = {**(dxo.meta or {}), "total_rounds": data.get_header(AppConstants.NUM_ROUNDS)}
        result = site(number, copied(dxo.data), told)
        if result is None:  # killed: never heard of again
            return
        for key, value in (data.get_cookie_jar() or {}).items():
            result.add_cookie(key, value)
        with engine.new_context() as fl_ctx:
            fl_ctx.set_peer_context(says(result.get_header("lies", name)))
            runner.process_submission(client, task, task_id, result, fl_ctx)


def says(name: str) -> FLContext:
    """What a site says of itself."""
    peer = FLContext()
    peer.put(ReservedKey.RUN_NUM, JOB, private=False, sticky=False)
    peer.put(ReservedKey.IDENTITY_NAME, name, private=False, sticky=False)
    return peer


def answer(
    params: Any, steps: Any = 10, *, diff: bool = False, loss: Any = None, lies: str = ""
) -> Shareable:
    """A result as FLARE's client API sends it."""
    meta: dict[str, Any] = {} if steps is None else {STEPS: steps}
    if loss is not None:
        meta["initial_metrics"] = {"loss": loss}
    kind = DataKind.WEIGHT_DIFF if diff else DataKind.WEIGHTS
    result: Shareable = DXO(kind, data=params, meta=meta).to_shareable()
    if lies:
        result.set_header("lies", lies)
    return result


def failure() -> Shareable:
    """The result of a site whose training raised an exception."""
    return make_reply(ReturnCode.EXECUTION_EXCEPTION)
