#!/usr/bin/env python3
"""learn.py [--no-store] [ROW..]: what the zoo's models learn when they train in full, on Fashion-MNIST and on the text of the Bible
(Debian packages dataset-fashion-mnist and bible-kjv), beside the figure that each has to reach.

A row is a model, one way to compile it, and the figure of its last evaluation. Minutes are processor time over the number of threads: what
training takes on cores of its own. All rows together take hours; their lines are kept in bench/learn.txt, each replaced when its row
is run again."""
import json
import os
import resource
import subprocess
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
os.chdir(ROOT)
DLC = os.path.abspath(os.environ.get("DLC", os.environ.get("B", "build") + "/dlc"))
STORE = os.path.abspath("bench/learn.txt")
TEXT = "gen1:1-rev22:21"  # all of it

# name, model, options of dlc, figure, target: a bound, or (row, how far the figure may be from that row's, in parts of it)
ROWS = [
    ("gpt-char", "gpt-char", ["--mem-budget", "64M"], "val_loss", "< 1.75"),
    ("gpt-char-bf16", "gpt-char", ["--mem-budget", "64M", "--precision", "bf16"], "val_loss", ("gpt-char", 0.01)),
    ("lstm-char", "lstm-char", ["--mem-budget", "128M"], "val_loss", "< 2.0"),
    ("llama", "llama", ["--mem-budget", "256M"], "val_loss", "< 1.5"),
    ("resnet18", "resnet18", ["--mem-budget", "128M", "-D", "width=16", "-D", "stem=1", "-D", "epochs=12"], "val_accuracy", "> 0.93"),
    ("resnet18-wide", "resnet18", ["--mem-budget", "256M", "-D", "epochs=6"], "val_accuracy", "> 0.91"),
    ("resnet18-narrow", "resnet18", ["--mem-budget", "64M", "-D", "width=16", "-D", "epochs=4"], "val_accuracy", "> 0.9"),
    ("resnet18-narrow-fp16", "resnet18", ["--mem-budget", "64M", "-D", "width=16", "-D", "epochs=4", "--precision", "fp16"],
     "val_accuracy", ("resnet18-narrow", 0.003)),
]


def stored():
    lines = {}
    if os.path.exists(STORE):
        with open(STORE, encoding="utf-8") as f:
            lines = {line.split()[0]: line.rstrip("\n") for line in f}
    return lines


def train(name, model, options, folder):
    """The last metrics of a run, with `minutes` and `steps`."""
    trainer = os.path.join(folder, name)
    subprocess.run([DLC, f"models/{model}.dl", *options, "--quiet", "-o", trainer], check=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([trainer, "train", "--out", trainer + ".run", "--metrics", trainer + ".jsonl"], check=True, cwd=folder,
                   stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    with open(trainer + ".jsonl", encoding="utf-8") as f:
        last = json.loads(f.readlines()[-1])
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return last | {"minutes": seconds / last["threads"] / 60}


def judge(figure, target, others):
    if isinstance(target, str):
        sign, bound = target.split()
        return target, figure < float(bound) if sign == "<" else figure > float(bound)
    name, part = target
    if name not in others:
        return f"within {100 * part:g} % of {name} (not run)", False
    other = float(others[name].split()[2])
    return f"within {100 * part:g} % of {other}", abs(figure - other) <= part * other


def main():
    args = [a for a in sys.argv[1:] if a != "--no-store"]
    unknown = [a for a in args if a not in [r[0] for r in ROWS]]
    if unknown:
        sys.exit(f"learn.py: no row {', '.join(unknown)}; there are {', '.join(r[0] for r in ROWS)}")
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "kjv.txt"), "w", encoding="utf-8") as f:
            subprocess.run(["bible", "-f", TEXT], check=True, stdout=f)
        for name, model, options, key, target in ROWS:
            if args and name not in args:
                continue
            last = train(name, model, options, folder)
            lines = stored()
            wanted, met = judge(last[key], target, lines)
            failed += not met
            line = (f"{name:<20} {key:<12} {last[key]:.4f}  {wanted:<26} {'' if met else 'MISSED '}"
                    f"{last['steps']} steps, {last['minutes']:.1f} min, arena {last['arena_high_water_bytes'] / 2**20:.1f} MiB; "
                    f"{' '.join(options)}")
            print(line, flush=True)
            lines[name] = line
            if "--no-store" not in sys.argv:
                with open(STORE, "w", encoding="utf-8") as f:
                    f.writelines(lines[r[0]] + "\n" for r in ROWS if r[0] in lines)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
