"""A SuperLink and SuperNodes on loopback, with TLS and SuperNode authentication; nothing reaches further.

Flower starts a process for every message, which imports Flower for two seconds. `quickly` has them forked
from one process that has imported it; the trials that kill processes, and all slow ones, do without.
"""

import contextlib
import functools
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from credentials import authority, node_key
from flwr.proto.control_pb2 import ListRunsRequest, RegisterNodeRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from trials.forked import forking

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[2]
APP = Path(__file__).parent / "siteapp"
AMPLE = 300.0  # seconds that a process may take to be there; on a busy machine it needs dozens
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_OVERRIDE_RESOURCES": '{"CPU": 1}',  # one worker: each takes seconds to import torch
    "RAY_worker_niceness": "0",  # 15 by default: beside other tests its workers would hardly run
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
PROGRAMS = (
    *("flwr", "flower-superlink", "flower-superexec", "flower-supernode"),
    *("flwr-serverapp", "flwr-clientapp", "flwr-simulation", "fedcrab", "python"),
)
IMPORTS = (
    "fedcrab.flower",
    "flwr.superlink.main",
    "flwr.supernode.main",
    "flwr.supernode.start_client_internal",
)


def environment(home: Path) -> dict[str, str]:
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    python = f"{ROOT / 'src'}"
    return {**os.environ, **QUIET, "PATH": path, "PYTHONPATH": python, "FLWR_HOME": str(home)}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Deployment:
    """Processes of one trial, each in a group of its own, all ended with it."""

    def __init__(self, place: Path, sites: int) -> None:
        self.place, self.home = place, place / "flwr"
        self.port, self.names = free_port(), [f"site-{i}" for i in range(sites)]
        self.ca = authority(place / "tls")
        self.home.mkdir()
        self.configure(f'root-certificates = "{self.ca}"')
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = environment(self.home)

    def configure(self, security: str) -> None:
        """Where the `flwr` command finds the SuperLink."""
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "trial"\n\n[superlink.trial]\n'
            f'address = "127.0.0.1:{self.port}"\n{security}\n'
        )

    def start(self, name: str, *command: str) -> None:
        with (self.place / f"{name}.log").open("ab") as out:
            self.processes[name] = subprocess.Popen(
                command,
                stdout=out,
                stderr=out,
                env=self.environment,
                cwd=self.place,
                start_new_session=True,
            )

    def start_link(self) -> None:
        tls = self.place / "tls"
        files = ("--ssl-ca-certfile", "ca.pem", "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key")
        given = [str(tls / f) if not f.startswith("--") else f for f in files]
        options = ("--port", str(self.port), "--enable-supernode-auth", "--database", "state.db")
        self.start("link", "flower-superlink", *given, *options)
        self.wait_for("link", "Uvicorn running")

    def start_simulation(self) -> None:
        """The SuperLink that `flwr run` starts by itself for a simulation, on a port of this trial."""
        self.configure("insecure = true")
        self.start("link", "flower-superlink", "--insecure", "--simulation", "--port", str(self.port))
        self.wait_for("link", "Uvicorn running")

    @functools.cached_property
    def control(self) -> ControlHttpClient:
        """What the `flwr` command talks through, without a process for every question."""
        version = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
        plain = "insecure" in (self.home / "config.toml").read_text()
        trusted = None if plain else self.ca.read_bytes()
        return ControlHttpClient.from_server_address(f"127.0.0.1:{self.port}", plain, trusted, [version])

    def register(self) -> None:
        """What `flwr supernode register KEY --name NAME` does."""
        for name in self.names:
            public = node_key(self.place / f"{name}.key")
            self.control.RegisterNode(RegisterNodeRequest(public_key=public, name=name))

    def start_node(self, name: str, *more: str, key: Path | None = None) -> None:
        partition = self.names.index(name) if name in self.names else 0
        key = key or self.place / f"{name}.key"
        self.start(
            name,
            *("flower-supernode", "--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port())),
            *("--auth-supernode-private-key", str(key), "--node-config", f"partition-id={partition}"),
            *(more or ("--root-certificates", str(self.ca))),
        )

    def run(self, command: list[str]) -> str:
        done = subprocess.run(
            command, env=self.environment, cwd=self.place, capture_output=True, text=True, timeout=AMPLE
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def flwr_run(self, *more: str, app: Path = APP, **config: object) -> str:
        """Start a run of the app; its id."""
        told = " ".join(f"{k.replace('_', '-')}={_toml(v)}" for k, v in config.items())
        out = self.run(["flwr", "run", str(app), "--run-config", told, *more])
        return re.search(r"started run (\d+)", out).group(1)

    def status(self, run: str) -> str:
        found = self.control.ListRuns(ListRunsRequest(run_id=int(run))).run_dict[int(run)].status
        return ":".join(part for part in (found.status, found.sub_status, found.details) if part)

    def finished(self, run: str, seconds: float) -> str:
        """The run's status when it has ended."""
        end = time.monotonic() + seconds
        while not (status := self.status(run)).startswith("finished"):
            assert time.monotonic() < end, (
                f"run {run} is {status} after {seconds} s\n{self.log('link')[-4000:]}"
            )
            time.sleep(0.5)
        return status

    def log(self, name: str) -> str:
        return (self.place / f"{name}.log").read_text(errors="replace")

    def wait_for(self, name: str, pattern: str, seconds: float = AMPLE, *, after: int = 0) -> None:
        end = time.monotonic() + seconds
        while not re.search(pattern, self.log(name)[after:]):
            ended = self.processes[name].poll()
            assert ended is None, f"{name} ended with {ended}\n{self.log(name)[-3000:]}"
            assert time.monotonic() < end, f"{name}: no {pattern!r}\n{self.log(name)[-3000:]}"
            time.sleep(0.1)

    def kill(self, name: str) -> None:
        """At once, with all that it started."""
        process = self.processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        if "control" in self.__dict__:
            self.control.close()
        for name in list(self.processes):
            self.kill(name)
        for pid in self.ours():  # what the SuperLink and the SuperNodes had started
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def ours(self, word: str = "") -> list[int]:
        """The processes of this trial whose command has this word in it."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"FLWR_HOME={self.home}\0".encode() in (process / "environ").read_bytes():
                    command = (process / "cmdline").read_bytes().decode(errors="replace")
                    found += [int(process.name)] if word in command else []
        return sorted(found)


def _toml(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


@contextlib.contextmanager
def quickly(trial: Deployment, *imports: str) -> Iterator[Deployment]:
    """Its programs are forks of a process that has imported Flower, and these modules."""
    with forking(
        trial.place / "forked", trial.environment, PROGRAMS, (*IMPORTS, *imports)
    ) as trial.environment:
        try:
            yield trial
        finally:
            trial.close()


@contextlib.contextmanager
def deployed(trial: Deployment) -> Iterator[Deployment]:
    """A SuperLink, registered keys, and a SuperNode a site."""
    try:
        trial.start_link()
        trial.register()
        for name in trial.names:
            trial.start_node(name)
        for name in trial.names:
            trial.wait_for(name, "SuperNode ID")
        yield trial
    finally:
        trial.close()


@contextlib.contextmanager
def simulated(trial: Deployment) -> Iterator[Deployment]:
    """A SuperLink that simulates its nodes."""
    try:
        trial.start_simulation()
        yield trial
    finally:
        trial.close()
