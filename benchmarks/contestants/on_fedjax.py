"""FedJAX: its own federated averaging, on a model in stax."""

import jax

jax.tree_map = jax.tree_util.tree_map  # gone from jax since FedJAX's last release

import fedjax
import numpy as np
from fedjax.algorithms import fed_avg
from jax.example_libraries import stax
from trial import Trial

trial = Trial()
if trial.model == "mlp":
    layers = [stax.Flatten, stax.Dense(128), stax.Relu, stax.Dense(10)]
else:
    pool = stax.MaxPool((2, 2), strides=(2, 2))
    layers = [
        stax.Conv(16, (5, 5)), stax.Relu, pool, stax.Conv(32, (5, 5)), stax.Relu, pool,
        stax.Flatten, stax.Dense(10),
    ]  # fmt: skip
init, apply = stax.serial(*layers)
x = trial.x.transpose(0, 1, 3, 4, 2)  # channels last, which XLA prefers on a processor


def loss(batch, logits):
    return -jax.nn.log_softmax(logits)[np.arange(len(batch["y"])), batch["y"]]


def mean_loss(params, batch, rng):
    return loss(batch, apply(params, batch["x"])).mean()


algorithm = fed_avg.federated_averaging(
    jax.grad(mean_loss),
    fedjax.optimizers.sgd(trial.learning_rate),
    fedjax.optimizers.sgd(1.0),
    fedjax.ShuffleRepeatBatchHParams(batch_size=trial.batch, num_epochs=trial.epochs),
)
clients = [
    (str(c), fedjax.ClientDataset({"x": x[c], "y": trial.y[c]}), jax.random.PRNGKey(c))
    for c in range(trial.clients)
]
state = algorithm.init(init(jax.random.PRNGKey(0), (-1, 28, 28, 1))[1])
for _ in range(trial.rounds):
    state, _ = algorithm.apply(state, clients)
    jax.block_until_ready(state.params)
    trial.round_done()
logits = apply(state.params, trial.test_x.transpose(0, 2, 3, 1))
trial.report((np.asarray(logits).argmax(1) == trial.test_y).mean())
