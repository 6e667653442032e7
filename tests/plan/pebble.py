#!/usr/bin/env python3
"""pebble.py FILE.ir [STATES]: bytes below which no plan of a graph of opaque nodes can be, whatever its order and its replays.

Only values of the largest size S count, and what is always there; all smaller values are taken to cost nothing and to be at hand. Of
such large values at most K are live at a time. The search visits every set of large values that can be reached from none, where any
op whose operands are there may run as often as it likes (its results come beside them), and any value may be dropped: pebbling with
recomputation (Sethi, "Complete register allocation problems", 1975), all positions of it. As long as an op can never run, K is too
few: a plan runs them all. So every plan needs K + 1 times S, and the variables; K grows until all can run, or until more than STATES
sets (100,000) would have to be looked at. Prints the bound."""
import collections
import re
import sys

ALIGN = 64


def read(file):
    """Ops as (operands, results), bytes by value, and the variables."""
    ops, size, variables = [], {}, set()
    with open(file) as f:
        for line in f:
            m = re.match(r"\s*(%[\d, %]+) = (\w+)([^{]*)\{.*\} : (.*)$", line)
            if not m:
                continue
            outs, ins = ([int(v) for v in re.findall(r"%(\d+)", m[g])] for g in (1, 3))
            for v, b in zip(outs, re.findall(r"\[(\d+)\]", m[4])):
                size[v] = (int(b) + ALIGN - 1) // ALIGN * ALIGN
            if m[2] == "var":
                variables.update(outs)
            else:
                ops.append((ins, outs))
    return ops, size, variables


def all_run(table, ops, most, limit):
    """Whether each op can run with at most so many large values at a time; None: more sets than the limit."""
    seen, todo, ran = {0}, [0], set()
    while todo:
        have = todo.pop()
        bits, rest = [], have
        while rest:
            bits.append(rest & -rest)
            rest &= rest - 1
        subsets = [0]
        for b in bits:
            subsets += [s | b for s in subsets]
        after = [have ^ b for b in bits]
        for s in subsets:
            for makes, op in table.get(s, ()):
                if bin(have | makes).count("1") <= most:
                    ran.add(op)
                    after.append(have | makes)
        for s in after:
            if s not in seen:
                seen.add(s)
                todo.append(s)
        if len(ran) == ops:
            return True
        if len(seen) > limit:
            return None
    return False


def bound(file, limit=100000):
    ops, size, variables = read(file)
    large = max((size[v] for v in size if v not in variables), default=0)
    bit = {v: 1 << i for i, v in enumerate(v for v in size if size[v] == large and v not in variables)}
    table = collections.defaultdict(list)
    for k, (ins, outs) in enumerate(ops):
        needs, makes = (sum(bit.get(v, 0) for v in set(values)) for values in (ins, outs))
        table[needs].append((makes, k))
    most = 1
    while all_run(table, len(ops), most, limit) is False:
        most += 1
    return most * large + sum(size[v] for v in variables)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    print(bound(sys.argv[1], *(int(n) for n in sys.argv[2:])))
