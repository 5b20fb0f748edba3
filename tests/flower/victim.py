"""Train and recover the site app over a loopback grid, slowly enough to be killed: victim.py PLACE."""

import os
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "siteapp")]

from loopback import by_app  # noqa: E402
from scenes import context, grid  # noqa: E402
from siteapp import client, server  # noqa: E402


def main(place: Path) -> None:
    honest = by_app(client.app)

    def slowly(site, message):
        time.sleep(0.01)
        return honest(site, message)

    paths = {"history": str(place / "h"), "recovered": str(place / "out")}
    config = {**paths, "malicious": "site-2", "method": "retrain", "rounds": 4, "sites": 8, "deadline": 60.0}
    print("ready", os.getpid(), flush=True)
    server.app(grid(slowly), context(mode="train", **config))
    server.app(grid(slowly), context(mode="recover", **config))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
