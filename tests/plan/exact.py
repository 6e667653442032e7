#!/usr/bin/env python3
"""The cheapest replays under a limit of live bytes, for small graphs: an integer programme that CBC solves (package
coinor-cbc), and a search over all states that confirms it on the smallest.

    exact.py solve FAMILY NODES SEED [BUDGET]   one graph of graphs.py, and the optimum's replays; without a budget: the
                                                smallest feasible one
    exact.py confirm [GRAPHS] [SEED]            the programme against the search on graphs of up to seven nodes, and exact.txt:
                                                its graphs are those of graphs.py, its optima of 16 nodes are found again
    exact.py hold [NODES]                       dlc against exact.txt, its graphs of up to so many nodes: a plan wherever the optimum has
                                                one, and a step at most 5 % longer
    exact.py fixtures [SECONDS]                 the lines of exact.txt; what CBC does not prove in time is left out

The programme follows Jain et al., "Checkmate" (2020). Ops keep their order; stage t ends with op t and may first replay
each earlier op once, in order; the last stage, `n`, reads what is kept.

    R[t,k] = 1   op k runs in stage t                     (k < t: a replay; R[t,t] = 1)
    L[v,e]       value v lives from its e-th event on until the next; events are the steps that make or may read v
    D[v,t]       value v lives while its op runs in stage t

    reads:  L[v,e-1] >= R, L[v,e-1] >= L[v,e]             makes:  D >= R, D >= L[v,e], L[v,e-1] >= L[v,e] - R
    each step: sum of the bytes of what lives in it <= budget          minimise sum of seconds * R

With the R whole, the least L and D are whole by themselves, so the R alone are integers. Bytes are counted as dlc does:
rounded up to 64, operands and results of an op together, variables always."""
import hashlib
import heapq
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import graphs  # noqa: E402

UNIT = 64
SLOWDOWN = 10  # plans slower than this are not considered, as by dlc


def units(size):
    return (size + UNIT - 1) // UNIT


class Problem:
    """A graph in numbers: ops 0..n-1, and op n, which reads what is kept; variables are left out of operands."""

    def __init__(self, graph):
        always = set(graph.vars)
        self.n = len(graph.ops)
        self.size = [units(b) for b in graph.bytes]
        self.base = sum(self.size[v] for v in graph.vars)
        self.reads = [[v for v in op.ins if v not in always] for op in graph.ops]
        self.reads.append([v for v in dict.fromkeys(graph.keep) if v not in always])
        self.makes = [op.outs for op in graph.ops] + [[]]
        self.cost = [op.ns for op in graph.ops] + [0]
        self.remat = [op.remat for op in graph.ops] + [False]
        self.maker = {v: k for k, outs in enumerate(self.makes) for v in outs}
        self.plain_ns = sum(self.cost)

    def plain_peak(self):
        """The largest sum of live bytes without replays, variables included."""
        last = dict(self.maker)
        for k, ins in enumerate(self.reads):
            for v in ins:
                last[v] = k
        return self.base + max(sum(self.size[v] for v, k in self.maker.items() if k <= t <= last[v])
                               for t in range(self.n + 1))

    def useful(self, t):
        """Ops that stage t may have a reason to run: their results are read later, or by one that has."""
        found = {t}
        needed = {v for k in range(t, self.n + 1) for v in self.reads[k]}
        for k in range(t - 1, -1, -1):
            if self.remat[k] and any(v in needed for v in self.makes[k]):
                found.add(k)
                needed.update(self.reads[k])
        return sorted(found)


# ---- the integer programme ----

def programme(p, budget):
    """Text in CPLEX's LP format. A budget of None: the budget is what is minimised."""
    steps = [(t, k) for t in range(p.n + 1) for k in p.useful(t)]
    events = {v: [] for v in p.maker}
    for s, (t, k) in enumerate(steps):
        for v in p.makes[k]:
            events[v].append((s, True))
        for v in p.reads[k]:
            events[v].append((s, False))
    runs = {s: f"R_{t}_{k}" for s, (t, k) in enumerate(steps) if k < t}
    rows, bounds, living = [], [], [[] for _ in steps]

    def at_least(var, run):
        """var >= R of the step"""
        rows.append(f"{var} - {runs[run]} >= 0" if run in runs else f"{var} >= 1")

    for v, list_ in events.items():
        first = next(i for i, (s, makes) in enumerate(list_) if makes)
        list_ = list_[first:]
        for e, (s, makes) in enumerate(list_):
            here, before = f"L_{v}_{e}", f"L_{v}_{e - 1}" if e > 0 else None
            last = e + 1 == len(list_)
            if makes:
                during = f"D_{v}_{s}"
                bounds.append(during)
                at_least(during, s)
                if not last:
                    rows.append(f"{during} - {here} >= 0")
                    if before:
                        rows.append(f"{before} - {here} + {runs[s]} >= 0")
                living[s].append((p.size[v], during))
            else:
                at_least(before, s)
                if not last:
                    rows.append(f"{before} - {here} >= 0")
                living[s].append((p.size[v], before))
            if not last:
                bounds.append(here)
                for between in range(s + 1, list_[e + 1][0]):
                    living[between].append((p.size[v], here))
    cost = " + ".join(f"{p.cost[steps[s][1]]} {r}" for s, r in runs.items()) or "0 R_none"
    for terms in living:
        if terms:
            total = " + ".join(f"{size} {var}" for size, var in terms)
            rows.append(f"{total} - B <= 0" if budget is None else f"{total} <= {budget - p.base}")
    if budget is None:
        rows.append(f"{cost} <= {(SLOWDOWN - 1) * p.plain_ns}")
    out = ["Minimize", f" cost: {'B' if budget is None else cost}", "Subject To"]
    out += [f" c{i}: {row}" for i, row in enumerate(rows)]
    out += ["Bounds"] + [f" 0 <= {b} <= 1" for b in bounds]
    out += ["Binaries"] + [f" {r}" for r in runs.values()] + ["End", ""]
    return "\n".join(out)


def solve(p, budget, seconds, replays=None):
    """The least extra nanoseconds within the budget in units (None: the least budget). None where the time did not
    suffice, -1 where there is no plan. The optimum's replays are added to the list, as (stage, op)."""
    with tempfile.TemporaryDirectory() as tmp:
        with open(f"{tmp}/p.lp", "w") as f:
            f.write(programme(p, budget))
        out = subprocess.run(["cbc", f"{tmp}/p.lp", "-sec", str(seconds), "-solve", "-solu", f"{tmp}/p.sol"],
                             capture_output=True, text=True).stdout
        if not os.path.exists(f"{tmp}/p.sol"):
            raise RuntimeError("cbc: " + out[-500:])
        with open(f"{tmp}/p.sol") as f:
            head = f.readline()
            runs = [line.split() for line in f if " R_" in line]
    if replays is not None:
        replays += sorted(tuple(int(x) for x in w[1].split("_")[1:]) for w in runs if float(w[2]) > 0.5 and w[1] != "R_none")
    if head.startswith("Infeasible") or head.startswith("Integer infeasible"):
        return -1
    if not head.startswith("Optimal"):
        return None
    value = round(float(head.split()[-1]))
    return value + p.base if budget is None else value


# ---- all states, for the smallest graphs ----

def search(p, budget, limit=200000):
    """The least extra nanoseconds over all sequences of steps, any op any number of times, by Dijkstra's algorithm over
    (ops done, values present). None where there are more than `limit` states, -1 where there is no plan."""
    room = budget - p.base
    queue, done = [(0, 0, frozenset())], set()
    while queue:
        cost, t, have = heapq.heappop(queue)
        if (t, have) in done:
            continue
        done.add((t, have))
        if len(done) > limit:
            return None
        if t == p.n + 1:
            return cost
        for k in [j for j in range(t) if p.remat[j]] + [t]:
            if not all(v in have for v in p.reads[k]):
                continue
            fixed = set(p.reads[k]) | set(p.makes[k])
            left = room - sum(p.size[v] for v in fixed)
            if left < 0:
                continue
            others = sorted(have - fixed)
            for kept in subsets(p, others, left):
                after = frozenset(kept) | fixed
                heapq.heappush(queue, (cost + (p.cost[k] if k < t else 0), t + (k == t), after))
    return -1


def subsets(p, values, room):
    """The largest subsets that fit: what fits beside them would not hurt."""
    out = []

    def walk(i, kept, left, skipped):
        if i == len(values):
            if all(s > left for s in skipped):
                out.append(kept)
            return
        size = p.size[values[i]]
        if size <= left:
            walk(i + 1, kept + [values[i]], left - size, skipped)
        walk(i + 1, kept, left, skipped + [size])

    walk(0, [], room, [])
    return out


def random_problem(r):
    """A training graph of up to seven nodes, or any acyclic graph of as many."""
    if r.chance(0.3):
        return graphs.make(r.pick(["chain", "diamond"]), 7, 1 + r.below(1000))
    g, values = graphs.Graph("tiny"), []
    g.var(64 * r.below(3) + 1)
    for i in range(3 + r.below(5)):
        ins = [r.pick(values) for _ in range(r.below(3))] if values else []
        if values and r.chance(0.5):
            ins.append(values[-1])
        values += g.op(f"op{i}", 1000 * (1 + r.below(9)), ins, [64 * (1 + r.below(9)) - r.below(64)
                                                                for _ in range(1 + r.below(2))], r.chance(0.8))
    g.keep = [v for v in values if r.chance(0.2)] + values[-1:]
    return g


def confirm(count, seed):
    """The search may replay an op twice in a stage, and so find less than the programme; more is a fault."""
    r, same, less, failed = graphs.Rng(seed), 0, 0, 0
    for i in range(count):
        p = Problem(random_problem(r))
        least = solve(p, None, 60)
        cases = [(least, "the least budget"), (least - 1, "one unit below")]
        cases += [(least + (p.plain_peak() - least) * j // 4, f"budget {j}") for j in (1, 2, 3)]
        for budget, what in cases:
            a, b = solve(p, budget, 60), search(p, budget)
            if a == b:
                same += 1
            elif b is not None and 0 <= b and (a == -1 or b < a):
                less += 1
            else:
                failed += 1
                print(f"FAIL graph {i} of seed {seed}, {what} ({budget}): programme {a}, search {b}")
    failed += confirm_fixtures()
    print(f"programme and search agree on {same} budgets; on {less} the search replays an op twice in a stage")
    if same < 4 * count:
        failed += 1
        print(f"FAIL they agree on too few of {5 * count}")
    print(f"{0 if failed else 1} passed, {failed} failed")
    return failed > 0


# ---- fixtures ----

def read_fixtures():
    """family, nodes, seed, digest, plain peak, least, pairs: words of each line of exact.txt."""
    with open(os.path.join(HERE, "exact.txt")) as f:
        return [line.split() for line in f if line[0] != "#"]


def confirm_fixtures():
    """Faults in exact.txt: graphs that are no longer those of graphs.py; optima of 16 nodes that CBC does not find again
    (the first two budgets of each graph)."""
    failed = 0
    for family, nodes, seed, was, peak, least, *pairs in read_fixtures():
        graph = graphs.make(family, int(nodes), int(seed))
        p, what = Problem(graph), f"FAIL exact.txt: {family} {nodes} {seed}"
        if digest(graph) != was or p.plain_peak() != int(peak):
            failed += 1
            print(f"{what}: another graph or peak")
            continue
        for pair in pairs[:2] if int(nodes) <= 16 else []:
            budget, extra = (int(x) for x in pair.split(":"))
            again = solve(p, budget, 60)
            if again not in (extra, None):
                failed += 1
                print(f"{what}, budget {budget}: {extra} ns, now {again}")
    return failed


def hold(most):
    """The curve of dlc, all plans of which are placed, beside the optima."""
    dlc = os.path.abspath(os.environ.get("DLC", os.environ.get("B", "build") + "/dlc"))
    passed = failed = 0
    for family, nodes, seed, _, _, _, *pairs in read_fixtures():
        if int(nodes) > most:
            continue
        graph = graphs.make(family, int(nodes), int(seed))
        plain = sum(op.ns for op in graph.ops)
        with tempfile.NamedTemporaryFile("w", suffix=".ir") as f:
            f.write(graph.text())
            f.flush()
            out = subprocess.run([dlc, f.name, "--no-build", "--quiet", "--machine", "generic-cpu", "--threads", "1",
                                  "--curve", "--json", "-"], capture_output=True, text=True)
        points = json.loads(out.stdout) if out.returncode == 0 else []
        for pair in pairs:
            budget, extra = (int(x) for x in pair.split(":"))
            ns = [1e9 * p["predicted_step_seconds"] for p in points if p["arena_bytes"] <= UNIT * budget]
            good = bool(ns) and min(ns) <= 1.05 * (plain + extra)
            passed, failed = passed + good, failed + (not good)
            if not good:
                print(f"FAIL {family} {nodes} {seed} at {UNIT * budget} bytes: "
                      f"{min(ns) if ns else 'no plan'}, optimum {plain + extra} ns")
    print(f"{passed} passed, {failed} failed")
    return failed > 0


CASES = [(f, n, s) for s in range(4) for f in ("chain", "residual", "unet", "diamond") for n in (16, 24, 32)]
SHARES = (0, 10, 25, 50, 75)  # percent of the way from the smallest budget to the plain peak


def digest(graph):
    return hashlib.sha256(graph.text().encode()).hexdigest()[:12]


def fixtures(seconds):
    print("# family nodes seed digest | plain peak | least budget: extra ns, and more of those; bytes in units of 64; '-': not known")
    seen = set()
    for family, nodes, seed in CASES:
        graph = graphs.make(family, nodes, seed)
        if digest(graph) in seen:
            continue
        seen.add(digest(graph))
        p = Problem(graph)
        least, peak, pairs = solve(p, None, seconds), p.plain_peak(), []
        for share in SHARES:
            if least is None:
                continue
            budget = least + (peak - least) * share // 100
            extra = solve(p, budget, seconds) if budget < peak else 0
            if extra is not None and f"{budget}:{extra}" not in pairs:
                pairs.append(f"{budget}:{extra}")
        print(family, nodes, seed, digest(graph), peak, "-" if least is None else least, *pairs, flush=True)


def main():
    args = sys.argv[1:]
    if len(args) in (4, 5) and args[0] == "solve":
        graph = graphs.make(args[1], int(args[2]), int(args[3]))
        p = Problem(graph)
        budget, replays = int(args[4]) // UNIT if len(args) == 5 else None, []
        answer = solve(p, budget, 600, replays)
        if answer is None or answer < 0:
            print("not solved in time" if answer is None else "no plan")
            return 0
        print(f"{answer * UNIT} bytes at least" if budget is None else f"{answer} ns extra")
        for t, k in replays:
            print(f"  op {k} again before op {t}: %{graph.number(p.makes[k][0])}")
        return 0
    if args and args[0] == "confirm":
        return confirm(int(args[1]) if len(args) > 1 else 40, int(args[2]) if len(args) > 2 else 1)
    if args and args[0] == "hold":
        return hold(int(args[1]) if len(args) > 1 else 1000)
    if args and args[0] == "fixtures":
        fixtures(float(args[1]) if len(args) > 1 else 60)
        return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
