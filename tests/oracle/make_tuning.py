"""make_tuning.py: numbers of newer optimizers and of what acts on parameters by name, made with PyTorch (2.5 or later,
for torch.optim.Adafactor, on a CPU).

    tuning.safetensors          w [2,3] and b [2]
    tuning.txt                  for tests/oracle/cases/tuning: name, then w and b after each of three steps
    MODEL-lion.jsonl, MODEL-adafactor.jsonl     as make_fixtures.py's, from the weights that it made

The fixtures are committed; this script is needed only to make new ones:  python3 tests/oracle/make_tuning.py
"""
import csv
import json
import os
import struct

import torch

import make_fixtures as base
from networks import Convnet, Gpt, Mlp

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = base.OUT


class Lion(torch.optim.Optimizer):
    """Algorithm 2 of Chen et al., Symbolic Discovery of Optimization Algorithms (2023)."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                update = (b1 * m + (1 - b1) * p.grad).sign()
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * update)
                m.mul_(b2).add_((1 - b2) * p.grad)


# ---- cases/tuning -------------------------------------------------------------------------------------------------

START = {"w": torch.tensor([[0.5, -1.0, 0.25], [2.0, -0.125, 1.5]]), "b": torch.tensor([1.0, -0.5])}


def rows():
    with open(os.path.join(HERE, "cases", "tuning.csv")) as f:
        return [[float(x) for x in row[:8]] for row in list(csv.reader(f))[1:]]


def run_case(build, clip=None, ema=None):
    """w and b after each step, or their averages."""
    p = {k: v.clone().requires_grad_(True) for k, v in START.items()}
    opt, out = build(p), []
    shadow = torch.optim.swa_utils.AveragedModel(
        torch.nn.ParameterDict(p), multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(ema)) if ema else None
    for row in rows():
        p["w"].grad = torch.tensor(row[:6]).reshape(2, 3)
        p["b"].grad = torch.tensor(row[6:])
        if clip:
            clip(list(p.values()))
        opt.step()
        if shadow:
            shadow.update_parameters(torch.nn.ParameterDict(p))
        now = shadow.module if shadow else p
        for k in ("w", "b"):
            out += now[k].detach().reshape(-1).tolist()
    return out


def groups(p, **of_b):
    return [{"params": [p["w"]]}, dict({"params": [p["b"]]}, **of_b)]


def both_clips(params):
    torch.nn.utils.clip_grad_norm_(params, 0.5)
    torch.nn.utils.clip_grad_value_(params, 0.2)


CASES = {
    "lion": lambda: run_case(lambda p: Lion(groups(p, weight_decay=0.0), lr=0.1, weight_decay=0.1)),
    "adafactor": lambda: run_case(lambda p: torch.optim.Adafactor(p.values(), lr=0.05)),
    "adafactor-decay": lambda: run_case(lambda p: torch.optim.Adafactor(
        groups(p, weight_decay=0.0), lr=0.5, beta2_decay=-0.5, eps=(1e-4, 0.3), d=1.5, weight_decay=0.2)),
    "groups": lambda: run_case(lambda p: torch.optim.AdamW(
        groups(p, lr=0.01, weight_decay=0.3, betas=(0.8, 0.9)), lr=0.1, weight_decay=0.01)),
    "scaled": lambda: run_case(lambda p: torch.optim.SGD(groups(p, lr=0.01), lr=0.1, momentum=0.9)),
    "clip-value": lambda: run_case(lambda p: torch.optim.SGD(p.values(), lr=1.0),
                                   clip=lambda ps: torch.nn.utils.clip_grad_value_(ps, 0.2)),
    "clip-both": lambda: run_case(lambda p: torch.optim.SGD(p.values(), lr=1.0), clip=both_clips),
    "ema": lambda: run_case(lambda p: torch.optim.SGD(p.values(), lr=1.0), ema=0.75),
}


# ---- whole networks ---------------------------------------------------------------------------------------------------

def read_safetensors(path):
    with open(path, "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    return {k: torch.frombuffer(bytearray(data[v["data_offsets"][0]:v["data_offsets"][1]]), dtype=torch.float32)
            .reshape(v["shape"]) for k, v in head.items() if k != "__metadata__"}


# The same settings stand in tests/oracle/run, as -D overrides.
OPTIMIZERS = {
    "lion": (1e-4, lambda g, lr: Lion(g, lr=lr, betas=(0.9, 0.95))),
    "adafactor": (2e-2, lambda g, lr: torch.optim.Adafactor(g, lr=lr)),
}
DECAY = {"lion": 0.5, "adafactor": 0.1}


def write_networks():
    base.OPTIMIZERS.update(OPTIMIZERS)
    base.DECAY.update(DECAY)
    base.LOW = 1e-5
    pictures = base.Images(*base.make_images(62))
    for name, net, data in (("mlp", Mlp(hidden=16, narrow=12), pictures),
                            ("convnet", Convnet(channels=4, wide=16), pictures),
                            ("gpt-char", Gpt(T=16, C=32, heads=2, layers=2), base.Text(base.make_text(1000), 16))):
        weights = read_safetensors(os.path.join(OUT, name + ".safetensors"))
        for optimizer in OPTIMIZERS:
            lines, stats = base.train(net, weights, data, optimizer)
            with open(os.path.join(OUT, "%s-%s.jsonl" % (name, optimizer)), "w") as f:
                f.writelines(json.dumps(line) + "\n" for line in lines)
            if stats:
                base.write_safetensors(os.path.join(OUT, "%s-%s-stats.safetensors" % (name, optimizer)), stats)
            print("%-10s %-10s loss %.4f -> %.4f" % (name, optimizer, lines[0]["loss"], lines[-1]["loss"]))


def main():
    base.write_safetensors(os.path.join(OUT, "tuning.safetensors"), START)
    with open(os.path.join(OUT, "tuning.txt"), "w") as f:
        for name, case in CASES.items():
            f.write(name + " " + " ".join("%.9g" % v for v in case()) + "\n")
    write_networks()


if __name__ == "__main__":
    main()
