"""What recording costs on NVIDIA FLARE: CPU seconds of the server per round, with the Recorder and without.

    python benchmarks/flare_recording.py --parameters 1000000 --sites 10 --rounds 6

FLARE's own runner, communicator and FedAvg in this process, without the network; the sites answer at once,
with the model they were sent plus a vector that was drawn before. Runs with and without take turns.
"""

import argparse
import logging
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tests" / "nvflare"))

from flare_job import Persistor, answer, run  # noqa: E402
from nvflare.app_common.workflows.fedavg import FedAvg  # noqa: E402

import fedcrab  # noqa: E402
from fedcrab.nvflare import Recorder  # noqa: E402

SELECTIONS = {"selective": fedcrab.Selective(), "compact": fedcrab.Compact()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--sites", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    rng = np.random.default_rng(0)
    names = [f"site-{i + 1}" for i in range(options.sites)]
    steps = {n: rng.standard_normal(options.parameters).astype(np.float32) for n in names}
    seconds = dict[str, list[float]]()
    for repeat in range(options.repeats + 1):  # the first one is for the imports
        for kind in ("without", *SELECTIONS):
            spent = one(kind, steps, options.rounds, options.parameters)
            if repeat:
                seconds.setdefault(kind, []).append(spent / options.rounds)
    for kind, found in seconds.items():
        listed = " ".join(f"{s:.3f}" for s in found)
        print(f"{kind:10} {np.median(found):.3f} CPU seconds a round ({listed})")


def one(kind: str, steps: dict[str, np.ndarray], rounds: int, size: int) -> float:
    place = Path(tempfile.mkdtemp())
    recorder = None if kind == "without" else Recorder(str(place / "h"), selection=SELECTIONS[kind])
    controller = FedAvg(
        num_clients=len(steps), num_rounds=rounds, task_check_period=0.05, aggregator=recorder
    )

    def site(step: np.ndarray):
        return lambda _round, params, _meta: answer({"w": params["w"] + step})

    began = time.process_time()
    outcome = run(controller, {n: site(s) for n, s in steps.items()}, Persistor(w=np.zeros(size, np.float32)))
    spent = time.process_time() - began
    shutil.rmtree(place)
    assert outcome.failures == []
    return spent


if __name__ == "__main__":
    main()
