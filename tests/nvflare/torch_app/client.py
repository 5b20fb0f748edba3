"""A site of FLARE's client API, in PyTorch."""

import argparse

import net as app
import nvflare.client as flare
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--sites", type=int, default=3)
parser.add_argument("--attackers", default="")
options = parser.parse_args()

flare.init()
site = flare.get_site_name()
x, y = app.part(site, options.sites, options.attackers)
while flare.is_running():
    received = flare.receive()
    if received is None:
        break
    print("told", site, received.current_round, received.total_rounds, flush=True)
    net = app.make()
    net.load_state_dict({name: torch.as_tensor(value) for name, value in received.params.items()})
    app.train(net, x, y, round=received.current_round, site=site)
    meta = {"NUM_STEPS_CURRENT_ROUND": len(y)}
    flare.send(flare.FLModel(params=net.state_dict(), metrics={"loss": 1.0}, meta=meta))
