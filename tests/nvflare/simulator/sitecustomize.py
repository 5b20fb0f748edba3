"""FLARE's simulator without what holds tests up, for Python processes that find this file on their path.

The threads that start its workers share one dictionary: two workers may be told the same name, and the round
then waits for ever for the other one. Here each thread has its own. A worker may also take longer than a
minute to start, as it does on a busy machine, and sites ask for their next task five times a second.
"""

import os
import sys
import threading

os.environ["NVFLARE_END_RUN_READINESS_TIMEOUT"] = "0.2"  # seconds for messages on their way, 5 otherwise


def repair() -> None:
    from nvflare.private.fed.app.simulator.simulator_runner import SimulatorClientRunner
    from nvflare.private.fed.server.server_json_config import ServerJsonConfigurator

    own = threading.local()

    def build_ctx(runner: SimulatorClientRunner) -> dict:
        if not hasattr(own, "build_ctx"):
            own.build_ctx = dict(runner.__dict__["build_ctx"])
        return own.build_ctx

    def set_build_ctx(runner: SimulatorClientRunner, given: dict) -> None:
        runner.__dict__["build_ctx"] = given

    SimulatorClientRunner.build_ctx = property(build_ctx, set_build_ctx)
    connect, configure = SimulatorClientRunner._create_connection, ServerJsonConfigurator.__init__

    def patient(runner: SimulatorClientRunner, port: int, timeout: float = 0.0):
        return connect(runner, port, timeout=600.0)

    def quick(configurator: ServerJsonConfigurator, *given, **more) -> None:
        configure(configurator, *given, **more)
        configurator.task_request_interval = 0.2

    SimulatorClientRunner._create_connection = patient
    ServerJsonConfigurator.__init__ = quick


if "nvflare.private.fed.app.simulator.simulator_worker" not in sys.orig_argv:
    repair()
