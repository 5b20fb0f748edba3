"""A site: nothing of fedcrab in it. What it does depends on the round and its data alone."""

import argparse

import nvflare.client as flare
import task

parser = argparse.ArgumentParser()
parser.add_argument("--sites", type=int, default=3)
parser.add_argument("--attackers", default="")
parser.add_argument("--epochs", type=int, default=2)
options = parser.parse_args()

flare.init()
name = flare.get_site_name()
site = int(name.removeprefix("site-")) - 1
x, y = task.load(site, options.sites)
if name in options.attackers.split(","):
    x, y = task.poisoned(x, y)

while flare.is_running():
    received = flare.receive()
    if received is None:
        break
    w = received.params["numpy_key"]
    epochs = (received.meta or {}).get("local_epochs", options.epochs)  # a recovery may ask for fewer
    seed = 1000 * received.current_round + site
    trained = task.train(w, x, y, epochs=epochs, rate=0.5, seed=seed)
    flare.send(
        flare.FLModel(
            params={"numpy_key": trained},
            metrics={"loss": task.loss(w, x, y)},
            meta={"NUM_STEPS_CURRENT_ROUND": len(y)},
        )
    )
