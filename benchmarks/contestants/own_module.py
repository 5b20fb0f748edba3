"""Modules of a user's own, which no fast path knows: for fedcrab's plain loop against a bare one."""

import torch
from torch import nn


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 5, stride=2), nn.Conv2d(8, 16, 3, stride=2)
        self.hidden, self.last = nn.Linear(400, 64), nn.Linear(64, 10)

    def forward(self, x):
        x = nn.functional.gelu(self.second(nn.functional.gelu(self.first(x))))
        return self.last(torch.tanh(self.hidden(x.flatten(1))))


def own(shape=(1, 28, 28), classes=10):
    return Own()


class Block(nn.Module):
    """Attention and a hidden layer, each beside a shortcut."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_hidden = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = self.qkv(self.before_attention(x)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.before_hidden(x))))


class Transformer(nn.Module):
    """Reads an image as a sequence of patches."""

    def __init__(self, shape, classes, width=64, heads=4, blocks=2):
        super().__init__()
        length, patch = shape
        self.inputs, self.places = nn.Linear(patch, width), nn.Parameter(torch.randn(length, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x):
        return self.last(self.norm(self.blocks(self.inputs(x) + self.places)).mean(1))


def transformer(shape=(16, 49), classes=10):
    return Transformer(shape, classes)


class Adapted(nn.Module):
    """A frozen linear layer and a trained product of two thin matrices (Hu et al., ICLR 2022)."""

    def __init__(self, linear, rank=4):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, linear.in_features) / linear.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(linear.out_features, rank))

    def forward(self, x):
        return self.linear(x) + nn.functional.linear(nn.functional.linear(x, self.a), self.b)


def lora(shape=(16, 49), classes=10):
    module = Transformer(shape, classes).requires_grad_(False)
    for block in module.blocks:
        block.qkv, block.out = Adapted(block.qkv), Adapted(block.out)
    module.last.requires_grad_(True)
    return module
