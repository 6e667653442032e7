#!/usr/bin/python3
"""make_zoo.py [MODEL..]: what PyTorch says about the zoo, for tests/oracle/zoo: every model at a small size, in f64.

    zoo-MODEL.safetensors       weights, random in every place
    zoo-MODEL-grad.safetensors  the gradients of the first batch's loss, by all of them
    zoo-MODEL.jsonl             the losses of ten steps of the model's usual optimizer
    rgb-x.npy, rgb-y.npy, mlm-x.npy, mlm-y.npy, zoo-tokens.bin    data beside those of make_fixtures.py

The sizes here stand in tests/oracle/zoo as -D overrides. The fixtures are committed; this script is needed only to make new ones.
"""
import json
import os
import sys

import numpy as np
import torch

import zoo_networks as zoo
from make_fixtures import OUT, Images, Text, make_images, make_text, noise, write_safetensors
from networks import Gpt, Mlp, loss_of

STEPS = 10
torch.set_num_threads(1)


class Old:
    """A network of networks.py."""

    def __init__(self, net):
        self.net = net

    def params(self):
        p = self.net.params()
        return {k: v + 0.1 * torch.randn(v.shape) for k, v in p.items()}

    def loss(self, p, x, y):
        return loss_of(self.net.logits(p, {}, x.long() if isinstance(self.net, Gpt) else x), y.long())


class Array:
    """x and y in file order."""

    def __init__(self, x, y, batch):
        self.x, self.y, self.batch = torch.from_numpy(x), torch.from_numpy(y), batch

    def sample(self, step):
        per = len(self.x) // self.batch * self.batch
        i = [(step * self.batch + k) % per for k in range(self.batch)]
        return self.x[i].double() if self.x.dtype == torch.uint8 else self.x[i], self.y[i]


def rgb():
    x = np.empty((12, 3, 64, 64), np.uint8)
    rows, cols = np.mgrid[0:64, 0:64]
    y = (noise(12, 21) % 10).astype(np.int32)
    for i in range(12):
        for c in range(3):
            wave = 100 + 80 * np.sin(rows * (1 + y[i]) / 9.0 + c) * np.cos(cols * (1 + (int(y[i]) + c) % 4) / 11.0)
            x[i, c] = np.clip(wave + noise(4096, 300 + 3 * i + c).reshape(64, 64) / 8.0, 0, 255).astype(np.uint8)
    return x, y


def masked_text(n, T, vocab):
    """Tokens from 2 on, 1 for the mask, 0 behind the end; every third or so is asked for."""
    tokens = 2 + noise(n * T, 31).reshape(n, T).astype(np.int32) % (vocab - 2)
    ask = noise(n * T, 32).reshape(n, T) < 80
    ask[:, 0] = True
    length = T - noise(n, 33).astype(np.int32) % (T // 2)
    inside = np.arange(T)[None, :] < length[:, None]
    x = np.where(inside, np.where(ask, 1, tokens), 0).astype(np.int32)
    return x, np.where(inside & ask, tokens, -100).astype(np.int32)


def tokens(n):
    return (noise(n, 41).astype(np.uint16) % 61) * 4


class Windows(Text):
    def __init__(self, ids, window, batch):
        self.b, self.window, self.batch = torch.from_numpy(ids.astype(np.int64)), window, batch
        self.per = (len(ids) - 1) // window // batch * batch


def text(window, batch):
    return Windows(np.frombuffer(make_text(1000), np.uint8), window, batch)


def pictures(batch):
    x, y = make_images(62)
    return Array(x, y.astype(np.int64), batch)


SGD = lambda lr, wd: lambda g: torch.optim.SGD([dict(q, weight_decay=wd * q["weight_decay"]) for q in g], lr=lr, momentum=0.9)
ADAM = lambda lr: lambda g: torch.optim.Adam([dict(q, weight_decay=0) for q in g], lr=lr)
ADAMW = lambda lr, wd: lambda g: torch.optim.AdamW([dict(q, weight_decay=wd * q["weight_decay"]) for q in g], lr=lr, betas=(0.9, 0.95))

# The same sizes and optimizers stand in tests/oracle/zoo.
MODELS = {
    "mlp": lambda: (Old(Mlp(16, 12)), pictures(4), ADAMW(1e-3, 0.01)),
    "lenet5": lambda: (zoo.Lenet5(), pictures(4), SGD(0.01, 5e-4)),
    "vgg16": lambda: (zoo.Vgg16(2, 16), pictures(8), SGD(0.01, 5e-4)),
    "resnet18": lambda: (zoo.Resnet(2, (2, 2, 2, 2), False, True), Array(*rgb(), 4), SGD(0.002, 5e-4)),
    "resnet50": lambda: (zoo.Resnet(2, (3, 4, 6, 3), True, False), pictures(8), SGD(0.002, 5e-4)),
    "mobilenet_v2": lambda: (zoo.MobilenetV2(1), pictures(8), SGD(0.002, 4e-5)),
    "unet": lambda: (zoo.Unet(2), pictures(4), ADAM(2e-4)),
    "vit_b16": lambda: (zoo.Vit(16, 2, 2), Array(*rgb(), 4), ADAMW(1e-3, 0.05)),
    "lstm-char": lambda: (zoo.LstmChar(8, 12, 2), text(12, 4), ADAM(2e-3)),
    "gpt-char": lambda: (Old(Gpt(T=16, C=32, heads=2, layers=2)), text(16, 3), ADAMW(1e-3, 0.1)),
    "gpt2": lambda: (zoo.Gpt2(16, 20, 16, 2, 2), Windows(tokens(900), 16, 3), ADAMW(1e-3, 0.1)),
    "llama": lambda: (zoo.Llama(16, 24, 2, 4, 2, 32, 5), text(16, 3), ADAMW(1e-3, 0.1)),
    "bert": lambda: (zoo.Bert(12, 16, 2, 2, 64, 14), Array(*masked_text(16, 12, 64), 4), ADAMW(5e-4, 0.01)),
    "autoencoder": lambda: (zoo.Autoencoder(16, 3), pictures(4), ADAM(1e-3)),
    "blocks": lambda: (zoo.Blocks(), pictures(4), SGD(0.01, 0)),
}


def write_model(name):
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(1)
    net, data, build = MODELS[name]()
    weights = {k: v.detach().clone() for k, v in net.params().items()}
    write_safetensors(os.path.join(OUT, "zoo-%s.safetensors" % name), weights)
    torch.set_default_dtype(torch.float64)
    p = {k: v.double().requires_grad_(True) for k, v in weights.items()}
    opt = build([{"params": [v for v in p.values() if v.dim() >= 2], "weight_decay": 1.0},
                 {"params": [v for v in p.values() if v.dim() < 2], "weight_decay": 0.0}])
    losses = []
    for step in range(STEPS):
        x, y = data.sample(step)
        opt.zero_grad()
        loss = net.loss(p, x, y)
        loss.backward()
        if step == 0:
            write_safetensors(os.path.join(OUT, "zoo-%s-grad.safetensors" % name), {k: v.grad for k, v in p.items()})
        opt.step()
        losses.append(loss.item())
    with open(os.path.join(OUT, "zoo-%s.jsonl" % name), "w") as f:
        for i, loss in enumerate(losses):
            f.write(json.dumps({"step": i + 1, "loss": loss}) + "\n")
    size = sum(v.numel() for v in weights.values())
    print("%-13s %6d parameters, loss %.4f -> %.4f" % (name, size, losses[0], losses[-1]))


def main():
    x, y = rgb()
    np.save(os.path.join(OUT, "rgb-x.npy"), x)
    np.save(os.path.join(OUT, "rgb-y.npy"), y)
    x, y = masked_text(16, 12, 64)
    np.save(os.path.join(OUT, "mlm-x.npy"), x)
    np.save(os.path.join(OUT, "mlm-y.npy"), y)
    tokens(900).tofile(os.path.join(OUT, "zoo-tokens.bin"))
    for name in sys.argv[1:] or MODELS:
        write_model(name)


if __name__ == "__main__":
    main()
