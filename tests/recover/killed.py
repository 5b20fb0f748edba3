"""A recovery in a process of its own, to be killed: ``python killed.py HISTORY OUT METHOD``."""

import hashlib
import sys
import time
from functools import partial

from fedcrab import History, plan
from fedcrab.recover import crab, federaser, fedrecover, replay, resumable, retrain
from recover.scenes import Answering, Quadratics

ILL = frozenset("be")
TASK = Quadratics(size=50, ill=ILL)
METHODS = {
    "crab": crab,
    "federaser": partial(federaser, epochs=3),
    "fedrecover": partial(fedrecover, warm_up=4, correct_every=3, tune=1),
    "replay": replay,
    "retrain": retrain,
}


def slowly(model, client, t, epochs):
    time.sleep(0.002)
    return TASK.answer(model, client, t, epochs)


def main(history: str, out: str, method: str) -> None:
    decided = plan(History.open(history), ILL)
    for step in resumable(out, METHODS[method], decided, Answering(slowly), request={"method": method}):
        print(step.round, hashlib.sha256(step.model).hexdigest(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
