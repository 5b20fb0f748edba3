"""The training: FedAvg on NumPy. One argument of the recipe records it."""

import argparse

import task
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.recipe import SimEnv

from fedcrab.nvflare import Recorder

parser = argparse.ArgumentParser()
parser.add_argument("--sites", type=int, default=3)
parser.add_argument("--rounds", type=int, default=6)
parser.add_argument("--attackers", default="")
parser.add_argument("--history", required=True)
options = parser.parse_args()

recipe = NumpyFedAvgRecipe(
    name="digits",
    model=task.initial().tolist(),
    min_clients=options.sites,
    num_rounds=options.rounds,
    train_script="client.py",
    train_args=f"--sites {options.sites} --attackers {options.attackers or 'nobody'}",
    aggregator=Recorder(options.history, evaluate="task:evaluate"),
)
recipe.add_server_file("task.py")
recipe.execute(SimEnv(num_clients=options.sites, num_threads=options.sites, workspace_root="workspace"))
