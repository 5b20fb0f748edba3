"""JAX by hand: one jit of a ``lax.map`` over clients of a ``scan`` over steps. No federated framework.

Orders are drawn by numpy, batches of unequal size by masking; the clients' sum is made on the way.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np
from halves import Halves
from trial import Trial

SHAPES = {
    "mlp": [(784, 128), (128,), (128, 10), (10,)],
    "cnn": [(5, 5, 1, 16), (16,), (5, 5, 16, 32), (32,), (512, 10), (10,)],
}


def start(model):
    """Uniform within 1/√inputs, as torch has it."""
    rng, parts, bound = np.random.default_rng(0), [], 1.0
    for shape in SHAPES[model]:
        bound = np.prod(shape[:-1]) ** -0.5 if len(shape) > 1 else bound
        parts.append(rng.uniform(-bound, bound, np.prod(shape)))
    return np.concatenate(parts).astype(np.float32)


def make(clients):
    import jax
    import jax.numpy as jnp
    from jax import lax

    trial = Trial()
    shapes = SHAPES[trial.model]
    ends = np.cumsum([np.prod(shape) for shape in shapes])[:-1]
    batch, examples = trial.batch, trial.examples
    steps = -(-examples // batch)
    image = (784,) if trial.model == "mlp" else (28, 28, 1)
    x = jnp.asarray(trial.x[clients[0] : clients[-1] + 1].reshape(len(clients), examples, *image))
    y = jnp.asarray(trial.y[clients[0] : clients[-1] + 1])
    present = jnp.asarray((np.arange(steps * batch) < examples).reshape(steps, batch), jnp.float32)
    counts = present.sum(1)

    def logits(parameters, images):
        if trial.model == "mlp":
            w1, b1, w2, b2 = parameters
            return jax.nn.relu(images @ w1 + b1) @ w2 + b2
        k1, c1, k2, c2, w, b = parameters
        for kernel, bias in ((k1, c1), (k2, c2)):
            images = lax.conv_general_dilated(
                images, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            images = lax.reduce_window(images, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
            images = jax.nn.relu(images + bias)
        return images.reshape(len(images), -1) @ w + b

    def loss(parameters, images, labels, mask, count):
        log_p = jax.nn.log_softmax(logits(parameters, images))
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
        parameters = [p.reshape(shape) for p, shape in zip(jnp.split(model, ends), shapes, strict=True)]
        after = lax.map(lambda own: client(parameters, own), (x, y, orders))
        return jnp.concatenate([p.sum(0).reshape(-1) for p in after])

    rng = np.random.default_rng(clients[0])

    def train(model):
        orders = np.zeros((len(clients), trial.epochs, steps * batch), np.int32)
        orders[..., :examples] = np.arange(examples)
        rng.permuted(orders[..., :examples], axis=2, out=orders[..., :examples])
        drawn = orders.reshape(len(clients), trial.epochs, steps, batch)
        return np.asarray(round_of(model, drawn))

    return train


def accuracy(model, trial):
    import jax

    shapes = SHAPES[trial.model]
    parts = np.split(model, np.cumsum([np.prod(shape) for shape in shapes])[:-1])
    parts = [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
    if trial.model == "mlp":
        w1, b1, w2, b2 = parts
        found = np.maximum(trial.test_x.reshape(-1, 784) @ w1 + b1, 0) @ w2 + b2
        return (found.argmax(1) == trial.test_y).mean()
    images = trial.test_x.transpose(0, 2, 3, 1)
    for kernel, bias in ((parts[0], parts[1]), (parts[2], parts[3])):
        images = jax.lax.conv_general_dilated(
            images, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        n, h, w, c = images.shape
        images = np.maximum(np.asarray(images).reshape(n, h // 2, 2, w // 2, 2, c).max((2, 4)) + bias, 0)
    return ((images.reshape(len(images), -1) @ parts[4] + parts[5]).argmax(1) == trial.test_y).mean()


if __name__ == "__main__":
    trial = Trial()
    halves, model = Halves(make, trial.clients, trial.processes), start(trial.model)
    for _ in range(trial.rounds):
        model = halves.average(model)
        trial.round_done()
    trial.report(accuracy(model, trial))
