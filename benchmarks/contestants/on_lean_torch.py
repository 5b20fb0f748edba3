"""torch by hand: the MLP with many clients in batched products, the CNN in a lean loop.

The MLP's gradients are written out, and the descent is part of the products that make them. The CNN is
in channels_last with pooling before ReLU, its descent one fused call; its bare loop is on_bare_torch.py.
"""

import numpy as np
import torch
from halves import Halves
from network import accuracy, network
from torch import nn
from trial import Trial

STACK = 5  # clients at once: their weights stay in the core's cache; the fastest of 2, 5, 10 and 20 here


def batched_mlp(trial, clients):
    x = torch.from_numpy(trial.x).view(trial.clients, trial.examples, 784)
    y = torch.from_numpy(trial.y)
    rate, batch = trial.learning_rate, trial.batch
    minus_one = torch.full((1, 1, 1), -1.0)

    def train_stack(model, members):
        n = len(members)
        w1, b1, w2, b2 = (p.expand(n, *p.shape).contiguous() for p in unpacked(model))
        flat_x, flat_y = x[members].view(-1, 784), y[members].view(-1)
        begins = torch.arange(n)[:, None] * trial.examples
        for _ in range(trial.epochs):
            orders = torch.rand(n, trial.examples).argsort(1) + begins
            for rows in orders.split(batch, 1):
                xb = flat_x.index_select(0, rows.reshape(-1)).view(n, -1, 784)
                yb, step = flat_y[rows], -rate / rows.shape[1]
                h = torch.baddbmm(b1, xb, w1.mT).relu_()
                error = torch.baddbmm(b2, h, w2.mT).softmax(-1)
                error.scatter_add_(2, yb[:, :, None], minus_one.expand(*yb.shape, 1))
                below = torch.bmm(error, w2)
                below = torch.ops.aten.threshold_backward(below, h, 0)
                w2.baddbmm_(error.mT, h, alpha=step)
                b2.add_(error.sum(1, keepdim=True), alpha=step)
                w1.baddbmm_(below.mT, xb, alpha=step)
                b1.add_(below.sum(1, keepdim=True), alpha=step)
        return torch.cat([p.sum(0).view(-1) for p in (w1, b1, w2, b2)])

    def train(model):
        with torch.inference_mode():
            given = torch.from_numpy(model)
            return sum(train_stack(given, s) for s in torch.tensor(clients).split(STACK)).numpy()

    return train


def unpacked(model):
    w1, b1, w2, b2 = model.split([784 * 128, 128, 1280, 10])
    return w1.view(128, 784), b1.view(1, 128), w2.view(10, 128), b2.view(1, 10)


def channels_last(images):
    """With the strides of channels_last even for one channel, by which torch chooses the faster kernels."""
    n, c, h, w = images.shape
    packed = images.permute(0, 2, 3, 1).contiguous()
    return packed.as_strided((n, c, h, w), (h * w * c, 1, w * c, c))


def looped_cnn(trial, clients):
    x, y = torch.from_numpy(trial.x), torch.from_numpy(trial.y)
    k1, r1, p1, k2, r2, p2, flat, last = network("cnn")
    module = nn.Sequential(k1, p1, r1, k2, p2, r2, flat, last)
    for convolution in (k1, k2):
        convolution.weight.data = channels_last(convolution.weight.data)
    parameters = list(module.parameters())
    weights = [p.detach() for p in parameters]

    def train_client(model, images, labels):
        write(weights, model)
        for _ in range(trial.epochs):
            for rows in torch.randperm(trial.examples).split(trial.batch):
                batch = channels_last(images.index_select(0, rows))
                loss = nn.functional.cross_entropy(module(batch), labels.index_select(0, rows))
                torch._foreach_add_(
                    weights, torch.autograd.grad(loss, parameters), alpha=-trial.learning_rate
                )
        return torch.cat([p.reshape(-1) for p in weights])

    def train(model):
        return sum(train_client(torch.from_numpy(model), x[c], y[c]) for c in clients).numpy()

    return train


def write(tensors, model):
    for tensor, values in zip(tensors, model.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(values.view(tensor.shape))


def make(clients):
    trial = Trial()
    torch.set_num_threads(trial.threads)
    return (batched_mlp if trial.model == "mlp" else looped_cnn)(trial, clients)


if __name__ == "__main__":
    trial = Trial()
    server = network(trial.model)
    model = torch.cat([p.detach().reshape(-1) for p in server.parameters()]).numpy()
    halves = Halves(make, trial.clients, trial.processes)
    for _ in range(trial.rounds):
        model = halves.average(model).astype(np.float32)
        trial.round_done()
    write([p.data for p in server.parameters()], torch.from_numpy(model))
    trial.report(accuracy(server, trial))
