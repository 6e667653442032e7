"""make_tuning.py: numbers of newer optimizers and of what acts on parameters by name, made with PyTorch (2.5 or later,
for torch.optim.Adafactor, on a CPU).

    tuning.safetensors          w [2,3] and b [2]
    tuning.txt                  for tests/oracle/cases/tuning: name, then w and b after each of three steps
    MODEL-lion.jsonl, MODEL-adafactor.jsonl     as make_fixtures.py's, from the weights that it made
    convnet-frozen.jsonl        with the first stage frozen
    gpt2-hf.safetensors         a small GPT-2 with the names, layouts and buffers of public checkpoints, in bf16
    gpt2-lora.safetensors       adapters for it, with PEFT's names
    gpt2-whole.jsonl, gpt2-lora.jsonl           it trains as a whole; its adapters alone
    gpt2-merged.safetensors     two weights with their adapters merged, after that
    tokens.bin                  what it reads
    llama-hf.safetensors, .jsonl                a small Llama with the names and buffers of public checkpoints, in f16

The fixtures are committed; this script is needed only to make new ones:  python3 tests/oracle/make_tuning.py
"""
import csv
import json
import os
import struct

import torch
import torch.nn.functional as F

import make_fixtures as base
import zoo_networks
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


# ---- fine-tuning ------------------------------------------------------------------------------------------------------

class FrozenConvnet(Convnet):
    """The first stage's batch norm normalises with its running statistics."""

    def logits(self, p, stats, x):
        x = ((x * (1 / 255.0) - 0.286) / 0.353).reshape(-1, 1, 28, 28)
        for name in ("stage1", "stage2"):
            x = F.conv2d(x, p[name + ".conv.weight"], padding=1)
            mean = stats.setdefault(name + ".norm.running_mean", torch.zeros(x.shape[1]))
            var = stats.setdefault(name + ".norm.running_var", torch.ones(x.shape[1]))
            x = F.batch_norm(x, mean, var, p[name + ".norm.weight"], p[name + ".norm.bias"],
                             training=name == "stage2")
            x = F.max_pool2d(F.relu(x), 2)
        x = F.relu(F.linear(x.flatten(1), p["fc1.weight"], p["fc1.bias"]))
        return F.linear(x, p["fc2.weight"], p["fc2.bias"])


def steps_of(trained, loss_at, lr, steps=10):
    """AdamW with clipping to 1 and decay 0.1 of what has two dimensions."""
    wide = [v for v in trained.values() if v.dim() >= 2]
    flat = [v for v in trained.values() if v.dim() < 2]
    opt = torch.optim.AdamW([{"params": wide, "weight_decay": 0.1}, {"params": flat, "weight_decay": 0.0}], lr=lr)
    lines = []
    for step in range(steps):
        opt.zero_grad()
        loss = loss_at(step)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(list(trained.values()), 1.0)
        opt.step()
        lines.append({"step": step + 1, "loss": loss.item(), "grad_norm": norm.item(), "lr": lr})
    return lines


def write_lines(name, lines):
    with open(os.path.join(OUT, name + ".jsonl"), "w") as f:
        f.writelines(json.dumps(line) + "\n" for line in lines)
    print("%-20s loss %.4f -> %.4f" % (name, lines[0]["loss"], lines[-1]["loss"]))


def write_frozen():
    data = base.Images(*base.make_images(62))
    p = read_safetensors(os.path.join(OUT, "convnet.safetensors"))
    trained = {k: v.requires_grad_(True) for k, v in p.items() if not k.startswith("stage1.")}
    net, stats = FrozenConvnet(channels=4, wide=16), {}

    def loss_at(step):
        x, y = data.sample(step)
        return F.cross_entropy(net.logits(p, stats, x), y)
    write_lines("convnet-frozen", steps_of(trained, loss_at, 2e-3))


class Gpt2(Gpt):
    """models/gpt2.dl: weights [in, out], a tied head, adapters where there are any."""

    def linear(self, p, name, x):
        y = x @ p[name + ".weight"] + p[name + ".bias"]
        a, b = p.get(name + ".lora_A.weight"), p.get(name + ".lora_B.weight")
        return y if a is None else y + 2.0 * ((x @ a.T) @ b.T)

    def attend(self, p, name, x):
        B, T, C = x.shape
        q, k, v = (t.reshape(B, T, self.heads, C // self.heads).transpose(1, 2)
                   for t in self.linear(p, name + ".c_attn", x).split(C, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.linear(p, name + ".c_proj", y.transpose(1, 2).reshape(B, T, C))

    def logits(self, p, stats, x):
        x = p["wte.weight"][x] + p["wpe.weight"]
        for i in range(self.layers):
            h = "h.%d." % i
            x = x + self.attend(p, h + "attn", self.norm(p, h + "ln_1", x))
            y = F.gelu(self.linear(p, h + "mlp.c_fc", self.norm(p, h + "ln_2", x)), approximate="tanh")
            x = x + self.linear(p, h + "mlp.c_proj", y)
        return self.norm(p, "ln_f", x) @ p["wte.weight"].T


def save(path, tensors):
    """safetensors with each tensor in its own type."""
    names = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.bool: "BOOL"}
    head, at, parts = {"__metadata__": {"format": "pt"}}, 0, []
    for name, t in tensors.items():
        data = bytes(t.contiguous().flatten().view(torch.uint8).tolist())
        head[name] = {"dtype": names[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
        parts.append(data)
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(parts))


def gpt2_weights(net):
    p = {k: v for k, v in net.params().items() if k != "lm_head.weight"}
    for k, v in p.items():
        if k.endswith(".bias") or ".ln_" in k or k.startswith("ln_f"):
            v.add_(torch.empty_like(v).normal_(0, 0.05))
        elif v.dim() == 2 and not k.startswith("w"):
            p[k] = torch.empty(v.shape[1], v.shape[0]).normal_(0, 0.1)
    return {k: v.to(torch.bfloat16) for k, v in p.items()}


def write_gpt2():
    T, C, batch = 8, 16, 2
    torch.manual_seed(3)
    net = Gpt2(T=T, C=C, heads=2, layers=2, std=0.1)
    stored = gpt2_weights(net)
    adapters = {}
    for i in range(net.layers):
        name = "h.%d.attn.c_attn.lora_" % i
        adapters[name + "A.weight"] = torch.empty(2, C).uniform_(-0.25, 0.25)
        adapters[name + "B.weight"] = torch.empty(3 * C, 2).normal_(0, 0.05)
    public = {"transformer." + k: v for k, v in stored.items()}
    for i in range(net.layers):
        public["transformer.h.%d.attn.bias" % i] = torch.ones(T, T).tril().bool().reshape(1, 1, T, T)
        public["transformer.h.%d.attn.masked_bias" % i] = torch.tensor(-1e4)
    public["lm_head.weight"] = stored["wte.weight"]
    save(os.path.join(OUT, "gpt2-hf.safetensors"), public)
    save(os.path.join(OUT, "gpt2-lora.safetensors"),
         {"base_model.model.transformer." + k: v for k, v in adapters.items()})
    text = base.make_text(400)
    with open(os.path.join(OUT, "tokens.bin"), "wb") as f:
        f.write(struct.pack("<%dH" % len(text), *text))

    def run(name, trained, p):
        data = base.Text(text, T)
        data.batch = batch
        data.per = (len(text) - 1) // T // batch * batch

        def loss_at(step):
            x, y = data.sample(step)
            return base.loss_of(net.logits(p, {}, x), y)
        write_lines(name, steps_of(trained, loss_at, 1e-2))

    p = {k: v.float().requires_grad_(True) for k, v in stored.items()}
    run("gpt2-whole", p, p)
    p = {k: v.float() for k, v in stored.items()}
    lora = {k: v.requires_grad_(True) for k, v in adapters.items()}
    run("gpt2-lora", lora, {**p, **lora})
    merged = {}
    for i in range(net.layers):
        k = "h.%d.attn.c_attn" % i
        merged[k + ".weight"] = (p[k + ".weight"] + 2.0 * (lora[k + ".lora_B.weight"]
                                                           @ lora[k + ".lora_A.weight"]).T).detach()
    save(os.path.join(OUT, "gpt2-merged.safetensors"), merged)


def write_llama():
    """make_zoo.py's weights, rounded."""
    T = 16
    net = zoo_networks.Llama(T, 24, 2, 4, 2, 32, 5)
    stored = {k: v.half() for k, v in read_safetensors(os.path.join(OUT, "zoo-llama.safetensors")).items()}
    public = dict(stored)
    for i in range(net.layers):
        public["model.layers.%d.self_attn.rotary_emb.inv_freq" % i] = 1.0 / 10000 ** (torch.arange(0, 6, 2) / 6)
    save(os.path.join(OUT, "llama-hf.safetensors"), public)
    p = {k: v.float().requires_grad_(True) for k, v in stored.items()}
    data = base.Text(base.make_text(1000), T)

    def loss_at(step):
        x, y = data.sample(step)
        return net.loss(p, x, y)
    write_lines("llama-hf", steps_of(p, loss_at, 1e-2))


def main():
    write_frozen()
    write_gpt2()
    write_llama()
    base.write_safetensors(os.path.join(OUT, "tuning.safetensors"), START)
    with open(os.path.join(OUT, "tuning.txt"), "w") as f:
        for name, case in CASES.items():
            f.write(name + " " + " ".join("%.9g" % v for v in case()) + "\n")
    write_networks()


if __name__ == "__main__":
    main()
