"""JAX by hand: one jit of a ``lax.map`` over clients of a ``scan`` over steps. No federated framework.

Orders are drawn by numpy, batches of unequal size by masking; the clients' sum is made on the way.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np
from halves import Halves
from trial import Trial

SHAPES = [(784, 128), (128,), (128, 10), (10,)]
ENDS = np.cumsum([np.prod(shape) for shape in SHAPES])[:-1]


def start():
    """Uniform within 1/√inputs, as torch has it."""
    rng = np.random.default_rng(0)
    bounds = [784**-0.5, 784**-0.5, 128**-0.5, 128**-0.5]
    parts = [rng.uniform(-b, b, np.prod(shape)) for b, shape in zip(bounds, SHAPES, strict=True)]
    return np.concatenate(parts).astype(np.float32)


def unpacked(model, split):
    return [part.reshape(shape) for part, shape in zip(split(model, ENDS), SHAPES, strict=True)]


def make(clients):
    import jax
    import jax.numpy as jnp
    from jax import lax

    trial = Trial()
    batch, examples = trial.batch, trial.examples
    steps = -(-examples // batch)
    mine = slice(clients[0], clients[-1] + 1)
    x, y = jnp.asarray(trial.x[mine].reshape(len(clients), examples, 784)), jnp.asarray(trial.y[mine])
    present = jnp.asarray((np.arange(steps * batch) < examples).reshape(steps, batch), jnp.float32)
    counts = present.sum(1)

    def loss(parameters, images, labels, mask, count):
        w1, b1, w2, b2 = parameters
        log_p = jax.nn.log_softmax(jax.nn.relu(images @ w1 + b1) @ w2 + b2)
        return -(jnp.take_along_axis(log_p, labels[:, None], 1)[:, 0] * mask).sum() / count

    gradient = jax.grad(loss)

    def client(parameters, own):
        images, labels, orders = own

        def step(parameters, batch):
            rows, mask, count = batch
            found = gradient(parameters, images[rows], labels[rows], mask, count)
            return [p - trial.learning_rate * g for p, g in zip(parameters, found, strict=True)], None

        def epoch(parameters, order):
            return lax.scan(step, parameters, (order, present, counts))

        return lax.scan(epoch, parameters, orders)[0]

    @jax.jit
    def round_of(model, orders):
        parameters = unpacked(model, jnp.split)
        after = lax.map(lambda own: client(parameters, own), (x, y, orders))
        return jnp.concatenate([p.sum(0).reshape(-1) for p in after])

    rng = np.random.default_rng(clients[0])

    def train(model):
        orders = np.zeros((len(clients), trial.epochs, steps * batch), np.int32)
        orders[..., :examples] = np.arange(examples)
        rng.permuted(orders[..., :examples], axis=2, out=orders[..., :examples])
        return np.asarray(round_of(model, orders.reshape(len(clients), trial.epochs, steps, batch)))

    return train


def accuracy(model, trial):
    w1, b1, w2, b2 = unpacked(model, np.split)
    found = np.maximum(trial.test_x.reshape(-1, 784) @ w1 + b1, 0) @ w2 + b2
    return (found.argmax(1) == trial.test_y).mean()


if __name__ == "__main__":
    trial = Trial()
    halves, model = Halves(make, trial.clients, trial.processes), start()
    for _ in range(trial.rounds):
        model = halves.average(model)
        trial.round_done()
    trial.report(accuracy(model, trial))
