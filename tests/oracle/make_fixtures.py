#!/usr/bin/python3
"""make_fixtures.py: numbers that dlc must match, made with PyTorch (Debian's python3-torch 1.13 on a CPU).

Builds in PyTorch the networks of models/mlp.dl, convnet.dl and gpt-char.dl at small sizes (the -D overrides are in
tests/oracle/run), gives them random initial weights (MODEL.safetensors), trains each 20 steps with each optimizer on
batches in file order, with clipping and a cosine schedule, and writes what happened:

    images, labels     an IDX pair, deterministic         text.txt    bytes, deterministic
    MODEL.safetensors  initial weights                    MODEL-OPTIMIZER.jsonl    step, loss, grad_norm, lr
    cases.txt          numbers for tests/oracle/cases     case-p.safetensors       (1, -2, .5)

The fixtures are committed; this script is needed only to make new ones:  /usr/bin/python3 tests/oracle/make_fixtures.py
"""
import json
import math
import os
import struct

import numpy as np
import torch
import torch.nn.functional as F

from networks import Convnet, Gpt, Mlp, loss_of

torch.set_num_threads(1)
HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.environ.get("OUT", os.path.join(HERE, "fixtures"))
STEPS = 20


# ---- data -------------------------------------------------------------------------------------------------------

def noise(n, seed):
    """Bytes from a linear congruential generator: the same everywhere, for ever."""
    out, x = [], seed
    for _ in range(n):
        x = (x * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append(x >> 56)
    return np.array(out, np.uint8)


def make_images(n):
    """Ten kinds of blobs with noise on them: something that a network can learn."""
    labels = noise(n, 1) % 10
    rows, cols = np.mgrid[0:28, 0:28]
    images = np.empty((n, 28, 28), np.uint8)
    for i, k in enumerate(labels):
        r, c = 6 + 4 * (int(k) // 3), 6 + 7 * (int(k) % 3)
        blob = np.exp(-((rows - r) ** 2 + (cols - c) ** 2) / 18.0) * 200
        images[i] = np.clip(blob + noise(784, 100 + i).reshape(28, 28) / 6.0, 0, 255).astype(np.uint8)
    return images, labels


def make_text(n):
    words = "the plan of a step is made before it runs and no byte of it is asked for twice , so it cannot fail .".split()
    picks = noise(n, 7)
    text = " ".join(words[int(p) % len(words)] for p in picks)
    return text[:n].encode()


def write_idx(path, array):
    with open(path, "wb") as f:
        f.write(struct.pack(">BBBB", 0, 0, 8, array.ndim))
        f.write(struct.pack(">%dI" % array.ndim, *array.shape))
        f.write(array.astype(np.uint8).tobytes())


def write_safetensors(path, tensors):
    head, at, parts = {}, 0, []
    for name, t in tensors.items():
        data = t.detach().numpy().astype("<f4").tobytes()
        head[name] = {"dtype": "F32", "shape": list(t.shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
        parts.append(data)
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(parts))


# ---- batches in file order ----------------------------------------------------------------------------------------

class Images:
    batch = 4

    def __init__(self, images, labels):
        per = len(labels) // self.batch * self.batch
        self.x = torch.from_numpy(images.astype(np.float32))[:per]
        self.y = torch.from_numpy(labels.astype(np.int64))[:per]

    def sample(self, step):
        i = [(step * self.batch + k) % len(self.y) for k in range(self.batch)]
        return self.x[i], self.y[i]


class Text:
    batch = 3

    def __init__(self, text, window):
        self.b = torch.from_numpy(np.frombuffer(text, np.uint8).astype(np.int64))
        self.window = window
        self.per = (len(text) - 1) // window // self.batch * self.batch

    def sample(self, step):
        t = self.window
        at = [(step * self.batch + k) % self.per * t for k in range(self.batch)]
        return (torch.stack([self.b[i:i + t] for i in at]), torch.stack([self.b[i + 1:i + t + 1] for i in at]))


# ---- training -----------------------------------------------------------------------------------------------------

def cosine(it, peak, low, warmup, total):
    if it < warmup:
        return peak * (it + 1) / (warmup + 1)
    if it > total:
        return low
    return low + (1 + math.cos(math.pi * (it - warmup) / (total - warmup))) / 2 * (peak - low)


# The same settings stand in tests/oracle/run, as -D overrides.
OPTIMIZERS = {
    "sgd": (0.05, lambda g, lr: torch.optim.SGD(g, lr=lr, momentum=0.9, nesterov=True)),
    "adam": (2e-3, lambda g, lr: torch.optim.Adam(g, lr=lr, betas=(0.9, 0.95))),
    "adamw": (2e-3, lambda g, lr: torch.optim.AdamW(g, lr=lr, betas=(0.9, 0.95))),
}
DECAY = {"sgd": 0.01, "adam": 0.01, "adamw": 0.1}
CLIP, WARMUP, LOW = 1.0, 5, 1e-4


def train(net, weights, data, optimizer):
    peak, build = OPTIMIZERS[optimizer]
    p = {k: v.clone().requires_grad_(True) for k, v in weights.items()}
    stats = {}
    wide = [v for v in p.values() if v.dim() >= 2]
    flat = [v for v in p.values() if v.dim() < 2]
    opt = build([{"params": wide, "weight_decay": DECAY[optimizer]}, {"params": flat, "weight_decay": 0.0}], peak)
    lines = []
    for step in range(STEPS):
        lr = cosine(step, peak, LOW, WARMUP, STEPS)
        for g in opt.param_groups:
            g["lr"] = lr
        x, y = data.sample(step)
        opt.zero_grad()
        loss = loss_of(net.logits(p, stats, x), y)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(list(p.values()), CLIP)
        opt.step()
        lines.append({"step": step + 1, "loss": loss.item(), "grad_norm": norm.item(), "lr": lr})
    return lines, stats


def write_model(name, net, data):
    torch.manual_seed(1)
    weights = net.params()
    write_safetensors(os.path.join(OUT, name + ".safetensors"), weights)
    for optimizer in OPTIMIZERS:
        lines, stats = train(net, weights, data, optimizer)
        with open(os.path.join(OUT, "%s-%s.jsonl" % (name, optimizer)), "w") as f:
            for line in lines:
                f.write(json.dumps(line) + "\n")
        if stats:
            write_safetensors(os.path.join(OUT, "%s-%s-stats.safetensors" % (name, optimizer)), stats)
        print("%-10s %-6s loss %.4f -> %.4f" % (name, optimizer, lines[0]["loss"], lines[-1]["loss"]))


# ---- single rules: tests/oracle/cases ------------------------------------------------------------------------------

def optimizer_case(build):
    """Parameters after each of two steps with the gradients of cases/gradients.csv."""
    p = torch.tensor([[1.0, -2.0, 0.5]], requires_grad=True)
    opt, out = build([p]), []
    for g in ([0.1, -0.2, 0.3], [0.0, 0.5, -0.3]):
        p.grad = torch.tensor([g])
        opt.step()
        out += p.detach().reshape(-1).tolist()
    return out


def uneven_case():
    """cases/uneven.csv as one batch: loss, and p after a step of rate 1."""
    x = torch.tensor([[1.0, 2, 3], [1, 0, 0], [0, 0, 5], [2, 1, 2], [-1, 3, 0], [0.5, 2, -2]])
    p = torch.zeros(3, requires_grad=True)
    loss = F.cross_entropy(x + p, torch.tensor([0, 2, 1, -100, -100, 2]))
    loss.backward()
    return [loss.item()] + (-p.grad).tolist()


def write_cases():
    cases = {
        "sgd": optimizer_case(lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01)),
        "momentum": optimizer_case(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5)),
        "nesterov": optimizer_case(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)),
        "adam": optimizer_case(lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.01)),
        "adamw": optimizer_case(lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.01)),
        "uneven": uneven_case(),
    }
    with open(os.path.join(OUT, "cases.txt"), "w") as f:
        for name, values in cases.items():
            f.write(name + " " + " ".join("%.9g" % v for v in values) + "\n")
    write_safetensors(os.path.join(OUT, "case-p.safetensors"), {"p": torch.tensor([[1.0, -2.0, 0.5]])})


def main():
    os.makedirs(OUT, exist_ok=True)
    images, labels = make_images(62)
    write_idx(os.path.join(OUT, "images"), images)
    write_idx(os.path.join(OUT, "labels"), labels)
    text = make_text(1000)
    with open(os.path.join(OUT, "text.txt"), "wb") as f:
        f.write(text)
    pictures = Images(images, labels)
    write_model("mlp", Mlp(hidden=16, narrow=12), pictures)
    write_model("convnet", Convnet(channels=4, wide=16), pictures)
    write_cases()
    write_model("gpt-char", Gpt(T=16, C=32, heads=2, layers=2), Text(text, 16))


if __name__ == "__main__":
    main()
