#!/usr/bin/env python3
"""gpu-speed.py: GPT-2 124M by compiled trainers beside compiled PyTorch on one card, in one run (a part of tools/gpu-check).

    gpu-speed.py TRAINERS RESULTS

TRAINERS holds speed.gpt2.all and speed.gpt2.10G (batch 64, 1024 tokens, bf16). The two take turns: seconds a step are medians
over all turns. RESULTS gets speed.json with every figure; the table is printed:

    tokens a second of both trainers, and their ratio to PyTorch's (torch.compile, autocast to bf16, fused AdamW)
    attention forward and backward of a layer, beside scaled_dot_product_attention's flash kernels
    memory-bound kernels of the plan that take 20 us or more: bytes of operands and results, each once, a second, beside
    copy_ of 1 GiB

Where PyTorch's step does not fit into the card's memory in one piece, it runs in the largest halves that fit.
"""
import array
import json
import os
import random
import statistics
import subprocess
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH, T, C, HEADS, LAYERS, VOCAB = 64, 1024, 768, 12, 12, 50257
TURNS, STEPS, WARM_UP = 2, 8, 3


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.qkv, self.proj = nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.fc, self.out = nn.Linear(C, 4 * C), nn.Linear(4 * C, C)

    def forward(self, x):
        b = x.shape[0]
        q, k, v = (z.view(b, T, HEADS, C // HEADS).transpose(1, 2) for z in self.qkv(self.ln_1(x)).split(C, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, T, C))
        return x + self.out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, C), nn.Embedding(T, C)
        self.h = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(C)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, x, y):
        h = self.wte(x) + self.wpe.weight
        for block in self.h:
            h = block(h)
        logits = F.linear(self.ln_f(h), self.wte.weight)
        return F.cross_entropy(logits.view(-1, VOCAB), y.view(-1))


class Torch:
    def __init__(self, micro):
        torch.manual_seed(1)
        torch.set_float32_matmul_precision("high")
        self.net = Gpt2().cuda()
        self.loss_of = torch.compile(self.net)
        wide = [p for p in self.net.parameters() if p.dim() > 1]
        flat = [p for p in self.net.parameters() if p.dim() < 2]
        self.opt = torch.optim.AdamW([{"params": wide, "weight_decay": 0.1}, {"params": flat, "weight_decay": 0.0}],
                                     lr=6e-4, betas=(0.9, 0.95), fused=True)
        self.x = torch.randint(0, VOCAB, (BATCH, T), device="cuda")
        self.y = torch.randint(0, VOCAB, (BATCH, T), device="cuda")
        self.micro = micro
        self.run(WARM_UP)

    def run(self, steps):
        seconds = []
        for _ in range(steps):
            start = time.perf_counter()
            self.opt.zero_grad(set_to_none=True)
            for i in range(0, BATCH, self.micro):
                with torch.autocast("cuda", torch.bfloat16):
                    loss = self.loss_of(self.x[i:i + self.micro], self.y[i:i + self.micro])
                (loss * (self.micro / BATCH)).backward()
            nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            self.opt.step()
            loss.item()
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
        return seconds


def open_torch():
    micro = BATCH
    while True:
        try:
            return Torch(micro)
        except torch.cuda.OutOfMemoryError:
            micro //= 2
            if not micro:
                raise
        torch.cuda.empty_cache()


def timed(run, times=20):
    """Seconds of one run on the card: the median of `times`."""
    for _ in range(3):
        run()
    seconds = []
    for _ in range(times):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        run()
        b.record()
        b.synchronize()
        seconds.append(a.elapsed_time(b) / 1e3)
    return statistics.median(seconds)


def flash_seconds():
    """Forward and backward of one layer's attention."""
    q, k, v = (torch.randn(BATCH, HEADS, T, C // HEADS, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    dy = torch.randn_like(q)

    def run():
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        torch.autograd.grad(y, (q, k, v), dy)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        return timed(run)


def copy_rate():
    a = torch.empty(1 << 30, device="cuda", dtype=torch.uint8)
    b = torch.empty_like(a)
    return 2 * a.numel() / timed(lambda: b.copy_(a))


def trainer(path, command, tokens, *args):
    said = subprocess.run([path, command, "--json", "--data", "text=" + tokens, *args], capture_output=True, text=True, check=False)
    if said.returncode:
        sys.exit(f"{os.path.basename(path)} {command}: {said.stderr.strip()[-300:]}")
    return json.loads(said.stdout)


def seconds_of(bench):
    return bench["step_seconds_median"]


def main():
    folder, results = sys.argv[1], sys.argv[2]
    tokens = os.path.join(folder, "tokens.bin")
    draw = random.Random(1)
    with open(tokens, "wb") as f:
        array.array("H", (draw.randrange(VOCAB) for _ in range(1 << 20))).tofile(f)
    paths = {name: os.path.join(folder, "speed.gpt2." + name) for name in ("all", "10G")}
    figures = {"card": torch.cuda.get_device_name(), "torch": torch.__version__, "copy_bytes_per_second": copy_rate(),
               "flash_layer_seconds": flash_seconds()}
    torch.cuda.empty_cache()
    profile = trainer(paths["all"], "profile", tokens, "--steps", "5")["steps"]
    ours = {name: [] for name in paths}
    theirs = []
    for _ in range(TURNS):
        for name, path in paths.items():
            ours[name].append(seconds_of(trainer(path, "bench", tokens, "--steps", str(STEPS))))
        net = open_torch()
        theirs += net.run(STEPS)
        figures["torch_micro_batch"] = net.micro
        del net
        torch.cuda.empty_cache()
    step = {name: statistics.median(s) for name, s in ours.items()}
    step["torch"] = statistics.median(theirs)
    figures["step_seconds"] = step
    attention = sum(s["seconds"] * s["runs"] for s in profile if s["name"].startswith("attention")) / LAYERS
    figures["attention_layer_seconds"] = attention
    bound = [s for s in profile if s.get("bytes") and s["seconds"] >= 2e-5]
    rate = sum(s["bytes"] * s["runs"] for s in bound) / sum(s["seconds"] * s["runs"] for s in bound) if bound else 0
    figures["memory_bound_bytes_per_second"] = rate
    figures["memory_bound_steps"] = sorted(({"name": s["name"], "source": s["source"], "share_of_copy": s["bytes"] / s["seconds"] /
                                             figures["copy_bytes_per_second"], "seconds": s["seconds"]} for s in bound),
                                           key=lambda s: -s["seconds"])
    with open(os.path.join(results, "speed.json"), "w", encoding="utf-8") as f:
        json.dump(figures, f, indent=1)
    count = BATCH * T
    print(f"{figures['card']}, PyTorch {figures['torch']}; GPT-2 124M, batch {BATCH}, {T} tokens, bf16")
    print(f"{'':34} {'ours':>12} {'PyTorch':>12} {'ratio':>7} {'wanted':>7}")

    def row(what, mine, other, wanted):
        print(f"{what:34} {mine:12.4g} {other:12.4g} {mine / other:7.2f} {wanted:7.2f}")
    row("tokens/s, all memory", count / step["all"], count / step["torch"], 1.0)
    row("tokens/s, 10 GiB (beside all)", count / step["10G"], count / step["all"], 0.7)
    row("attention, layers/s", 1 / attention, 1 / figures["flash_layer_seconds"], 0.6)
    row("memory-bound kernels, GB/s (copy)", rate / 1e9, figures["copy_bytes_per_second"] / 1e9, 0.8)


if __name__ == "__main__":
    main()
