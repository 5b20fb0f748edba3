"""A provisioned FLARE on loopback: a server and sites, each in processes of its own, with mutual TLS."""

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from flare_processes import ROOT, end_all, environment

from fedcrab.nvflare import make_recovery_job

APP = ROOT / "examples" / "nvflare"
ADMIN = "admin@trial.org"  # as in the operator's program
FLARE_STORE = "/tmp/nvflare"  # FLARE's own default, in which all servers of a machine would share their jobs
AMPLE = 900.0  # seconds that a process may take to be there; on a busy machine it needs minutes
PROJECT = """
api_version: 3
name: trial
participants:
  - {{name: localhost, type: server, org: trial, fed_learn_port: {port}}}
{sites}
  - {{name: admin@trial.org, type: admin, org: trial, role: project_admin}}
builders:
  - path: nvflare.lighter.impl.workspace.WorkspaceBuilder
    args: {{template_file: [master_template.yml]}}
  - path: nvflare.lighter.impl.static_file.StaticFileBuilder
    args: {{config_folder: config}}
  - path: nvflare.lighter.impl.cert.CertBuilder
  - path: nvflare.lighter.impl.signature.SignatureBuilder
"""
OPERATOR = """
import sys, time
from nvflare.fuel.flare_api.flare_api import new_secure_session

kit, order, given, *names = sys.argv[1:]
end = time.monotonic() + 600
while True:
    try:
        session = new_secure_session("admin@trial.org", kit, timeout=10.0)
        if {c.name for c in session.get_connected_client_list()} >= set(names):
            break
        session.close()
    except Exception:
        if time.monotonic() > end:
            raise
    time.sleep(0.5)
try:
    print(session.submit_job(given) if order == "submit" else session.abort_job(given))
except Exception as error:
    print(type(error).__name__)
    sys.exit(order == "submit")
finally:
    session.close()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Deployment:
    """Started by :func:`deployed`, which ends every process of it."""

    def __init__(self, place: Path, sites: int) -> None:
        self._started: list[subprocess.Popen[bytes]] = []
        self.place, self.names = place, [f"site-{i + 1}" for i in range(sites)]
        env = environment(place)
        self.env = {**env, "PYTHONPATH": f"{env['WITHOUT_TORCH']}:{env['PYTHONPATH']}"}
        listed = "\n".join(f"  - {{name: {name}, type: client, org: trial}}" for name in self.names)
        (place / "project.yml").write_text(PROJECT.format(port=free_port(), sites=listed))
        self.command("nvflare provision -p project.yml -w ws --force")
        self.kits = place / "ws" / "trial" / "prod_00"
        for path in self.kits.glob("*/local/resources.json.default"):
            text = path.read_text().replace(FLARE_STORE, str(place / "store"))
            path.with_name("resources.json").write_text(text)

    def command(self, command: str) -> str:
        """Run to the end, in the trial's place."""
        done = subprocess.run(
            ["sh", "-c", command], cwd=self.place, env=self.env, text=True, capture_output=True, timeout=AMPLE
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, *names: str) -> None:
        """Start these parties, the server being ``localhost``."""
        for name in names:
            with (self.place / f"{name}.log").open("ab") as log:
                process = subprocess.Popen(
                    ["bash", "startup/sub_start.sh", "--once"],
                    cwd=self.kits / name,
                    env=self.env,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            self._started.append(process)

    def close(self) -> None:
        """End every process of the trial."""
        end_all(self.place)
        for process in self._started:
            process.wait(AMPLE)

    def kill(self, name: str) -> None:
        """All processes of a party, its jobs' included."""
        end_all(self.kits / name)

    def submit(self, folder: Path) -> str:
        """Submit a job, once every site is connected; its id."""
        return self._operator("submit", str(folder), *self.names)

    def abort(self, job: str) -> None:
        """Give a job up, where the server knows it."""
        self._operator("abort", job)

    def _operator(self, *words: str) -> str:
        program = [sys.executable, "-c", OPERATOR, str(self.kits / ADMIN), *words]
        done = subprocess.run(
            program, cwd=self.place, env=self.env, text=True, capture_output=True, timeout=2 * AMPLE
        )
        assert done.returncode == 0, done.stdout + done.stderr + self.logs()
        return done.stdout.split()[-1]

    def logs(self) -> str:
        """The last lines of every party, for a message."""
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in self.place.glob("*.log"))


def until(holds: Callable[[], bool], trial: Deployment, seconds: float = AMPLE) -> None:
    """Wait until something holds; AssertionError where it does not in time."""
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(Exception):
            if holds():
                return
        assert time.monotonic() < end, trial.logs()
        time.sleep(0.3)


@contextlib.contextmanager
def deployed(place: Path, sites: int) -> Iterator[Deployment]:
    """A server and sites that are running."""
    trial = Deployment(place, sites)
    try:
        trial.start("localhost", *trial.names)
        yield trial
    finally:
        trial.close()


def training(
    place: Path, name: str, history: Path, *, rounds: int, attackers: str = "nobody", **more: Any
) -> Path:
    """The folder of a training job of the example's app."""
    program = f"""
import sys, json; sys.path.insert(0, {str(APP)!r})
import task
from fedcrab.nvflare import Recorder
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
settings = json.loads({json.dumps(more)!r})
recipe = NumpyFedAvgRecipe(name={name!r}, model=task.initial().tolist(), min_clients=3, num_rounds={rounds},
    train_script="client.py", train_args="--sites 3 --attackers {attackers}",
    aggregator=Recorder({str(history)!r}, **settings))
recipe.add_client_file("task.py")
recipe.export(job_dir={str(place / "jobs")!r})
"""
    return _exported(place, name, program)


def recovery(training: Path, name: str, arguments: Mapping[str, Any]) -> Path:
    """The folder of the job that recovers what this training's job trained."""
    return make_recovery_job(training, training.parent / name, **arguments)


def _exported(place: Path, name: str, program: str) -> Path:
    env = environment(place)
    env["PYTHONPATH"] = f"{env['WITHOUT_TORCH']}:{env['PYTHONPATH']}"
    done = subprocess.run([sys.executable, "-c", program], cwd=APP, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return place / "jobs" / name
