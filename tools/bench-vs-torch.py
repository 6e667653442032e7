#!/usr/bin/python3
"""bench-vs-torch.py: seconds a training step, compiled trainer beside PyTorch, in one run.

    bench-vs-torch.py [--model NAME]... [--threads N] [--rounds N] [--steps N] [--budget SIZE] [--json FILE]

For each model the same network (tests/oracle/networks.py), the same batch, optimizer and number of threads. The two take
turns for `rounds` rounds of `steps` steps, so that both see the same state of the machine; what counts is the median
over all rounds, and the ratio of the medians. Needs Debian's python3-torch; exits 2 without it.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "oracle"))


def batch_of(model, torch):
    """One batch as the model file has it: data of the real shape; its values do not matter for time."""
    gen = torch.Generator().manual_seed(1)
    if model == "gpt-char":
        return (torch.randint(32, 127, (12, 64), generator=gen), torch.randint(32, 127, (12, 64), generator=gen))
    return (torch.randint(0, 256, (64, 28, 28), generator=gen).float(), torch.randint(0, 10, (64,), generator=gen))


class Torch:
    def __init__(self, model, torch, networks):
        self.net = {"gpt-char": networks.Gpt, "convnet": networks.Convnet, "mlp": networks.Mlp}[model]()
        torch.manual_seed(1)
        self.p = {k: v.requires_grad_(True) for k, v in self.net.params().items()}
        self.stats, self.loss_of = {}, networks.loss_of
        self.x, self.y = batch_of(model, torch)
        wide = [v for v in self.p.values() if v.dim() >= 2]
        flat = [v for v in self.p.values() if v.dim() < 2]
        self.opt = torch.optim.AdamW([{"params": wide, "weight_decay": 0.01}, {"params": flat, "weight_decay": 0.0}], lr=1e-3)
        self.run(5)

    def run(self, steps):
        seconds = []
        for _ in range(steps):
            start = time.perf_counter()
            self.opt.zero_grad(set_to_none=True)
            loss = self.loss_of(self.net.logits(self.p, self.stats, self.x), self.y)
            loss.backward()
            self.opt.step()
            loss.item()
            seconds.append(time.perf_counter() - start)
        return seconds


class Compiled:
    def __init__(self, model, threads, budget, folder):
        self.path, self.threads = os.path.join(folder, model), threads
        command = [os.path.join(ROOT, "build", "dlc"), os.path.join(ROOT, "models", model + ".dl"), "-o", self.path,
                   "--threads", str(threads)] + (["--mem-budget", budget] if budget else [])
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        self.compile_seconds = time.perf_counter() - start
        self.data = []
        if model == "gpt-char":
            text = os.path.join(folder, "text.txt")
            with open(text, "wb") as f:
                f.write(bytes(32 + (i * 7919 >> 3) % 95 for i in range(100000)))
            self.data = ["--data", "text=" + text]

    def run(self, steps):
        """The median of one round, as the trainer measures itself."""
        said = subprocess.run([self.path, "bench", "--steps", str(steps), "--json", "--threads", str(self.threads)] + self.data,
                              check=True, capture_output=True, text=True).stdout
        return [json.loads(said)["step_seconds_median"]]


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--model", action="append", choices=["mlp", "convnet", "gpt-char"])
    a.add_argument("--threads", type=int, default=int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
    a.add_argument("--rounds", type=int, default=7)
    a.add_argument("--steps", type=int, default=40)
    a.add_argument("--budget", help="passed to dlc as --mem-budget; unlimited by default")
    a.add_argument("--json", help="write the numbers to this file")
    o = a.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(o.threads)
    try:
        import torch
        import networks
    except ImportError as e:
        print("bench-vs-torch: %s; on Debian 12 the package is python3-torch" % e, file=sys.stderr)
        return 2
    torch.set_num_threads(o.threads)
    out = []
    print("%-10s %12s %12s %7s   (ms a step, medians of %d rounds of %d steps, %d threads, PyTorch %s)"
          % ("model", "dlc", "PyTorch", "ratio", o.rounds, o.steps, o.threads, torch.__version__))
    with tempfile.TemporaryDirectory() as folder:
        for model in o.model or ["gpt-char", "convnet", "mlp"]:
            ours, theirs = Compiled(model, o.threads, o.budget, folder), Torch(model, torch, networks)
            a_times, b_times = [], []
            for _ in range(o.rounds):
                a_times += ours.run(o.steps)
                b_times += theirs.run(o.steps)
            a_s, b_s = statistics.median(a_times), statistics.median(b_times)
            print("%-10s %12.3f %12.3f %7.3f" % (model, 1e3 * a_s, 1e3 * b_s, a_s / b_s))
            out.append({"model": model, "dlc_seconds": a_s, "torch_seconds": b_s, "ratio": a_s / b_s, "threads": o.threads,
                        "compile_seconds": ours.compile_seconds})
    if o.json:
        with open(o.json, "w") as f:
            json.dump(out, f, indent=1)
            f.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
