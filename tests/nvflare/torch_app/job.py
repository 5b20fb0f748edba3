"""FLARE's PyTorch FedAvg recipe, recorded where a history is named."""

import argparse

import net as app
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.client.config import ExchangeFormat, TransferType
from nvflare.recipe import SimEnv

import fedcrab
from fedcrab.nvflare import Recorder

parser = argparse.ArgumentParser()
parser.add_argument("--name", default="deep")
parser.add_argument("--history", default="")
parser.add_argument("--attackers", default="nobody")
parser.add_argument("--clients", default="site-1,site-2,site-3")
parser.add_argument("--transfer", default="FULL", choices=["FULL", "DIFF"])
parser.add_argument("--format", default="NUMPY", choices=["NUMPY", "PYTORCH"])
parser.add_argument("--rounds", type=int, default=3)
options = parser.parse_args()

clients = options.clients.split(",")
recorder = Recorder(options.history, selection=fedcrab.Compact()) if options.history else None
recipe = FedAvgRecipe(
    name=options.name,
    model=app.make(),
    min_clients=len(clients),
    num_rounds=options.rounds,
    train_script="client.py",
    train_args=f"--attackers {options.attackers}",
    params_transfer_type=TransferType[options.transfer],
    server_expected_format=ExchangeFormat[options.format],
    aggregator=recorder,
)
recipe.add_client_file("net.py")
recipe.execute(SimEnv(clients=clients, workspace_root="workspace"))
