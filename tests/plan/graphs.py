#!/usr/bin/env python3
"""graphs.py FAMILY NODES SEED > FILE.ir: seeded training graphs of opaque nodes, in the form that tools/trace2ir prints.

A graph is a forward pass, built op by op, and the backward pass that reverse-mode differentiation derives from what each
op's gradient reads. It has at most NODES nodes, and nearly as many.

    gpt       transformer layers of one size; costs from a roofline of matrix products and bandwidth, in bfloat16;
              even seeds keep the attention matrix, odd ones have one fused attention op
    layered   layers of random ops with skip connections of any length, a few of them not replayable, sizes over four decades
    chain     ops in a row; SEED 0: all of one cost and size
    residual  blocks of two convolutions, norms and a sum
    unet      levels that halve, with skip connections between the way down and the way up
    diamond   forks of two or three branches that meet again, nested

Random numbers are of our own making, so that a seed means the same graph under every version of Python. Other scripts
use make(family, nodes, seed), which gives a Graph."""
import math
import sys


class Rng:
    """SplitMix64 (Steele, Lea and Flood, 2014)."""

    def __init__(self, seed):
        self.state = seed & 0xFFFFFFFFFFFFFFFF

    def word(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        return z ^ (z >> 31)

    def below(self, n):
        return self.word() % n

    def unit(self):
        return (self.word() >> 11) / float(1 << 53)

    def chance(self, p):
        return self.unit() < p

    def pick(self, items):
        return items[self.below(len(items))]


class Op:
    __slots__ = ("name", "ns", "ins", "outs", "remat")

    def __init__(self, name, ns, ins, outs, remat):
        self.name, self.ns, self.ins, self.outs, self.remat = name, ns, ins, outs, remat


class Graph:
    """Ops in execution order over values, which are numbered and have bytes. Variables are values that no op makes and
    that are always present; `keep` must exist at the end."""

    def __init__(self, name):
        self.name, self.bytes, self.vars, self.ops, self.keep = name, [], [], [], []

    def value(self, size):
        self.bytes.append(size)
        return len(self.bytes) - 1

    def var(self, size):
        v = self.value(size)
        self.vars.append(v)
        return v

    def op(self, name, ns, ins, sizes, remat=True):
        outs = [self.value(s) for s in sizes]
        self.ops.append(Op(name, max(1, int(ns)), list(dict.fromkeys(ins)), outs, remat))
        return outs

    def order(self):
        """Values in the order of their numbers in the text."""
        return self.vars + [v for op in self.ops for v in op.outs]

    def number(self, value):
        return self.order().index(value)

    def text(self):
        out = [f'module "{self.name}" batch 1 {{\n']
        out += [f'  var "v{v}" : u8[{self.bytes[v]}] param init const(0) stream 0\n' for v in self.vars]
        out.append("\n  func @step batch 1 {\n")
        out += [f'    %{v} = var {{name = "v{v}"}} : u8[{self.bytes[v]}]\n' for v in self.vars]
        for op in self.ops:
            res = ", ".join(f"%{v}" for v in op.outs)
            args = ", ".join(f"%{v}" for v in op.ins)
            types = ", ".join(f"u8[{self.bytes[v]}]" for v in op.outs)
            out.append(f'    {res} = opaque {args}{" " if args else ""}{{name = "{op.name}", seconds = {op.ns * 1e-9:.9g}, '
                       f'workspace = 0, remat = {"true" if op.remat else "false"}}} : {types}\n')
        out += [f'    output %{v} {{name = "v{v}"}}\n' for v in self.keep]
        out.append("  }\n}\n")
        return renumbered("".join(out), self)


def renumbered(text, graph):
    """The reader wants values numbered in the order of their definitions, as they are where variables come first."""
    order = graph.order()
    if order == list(range(len(order))):
        return text
    number = {v: i for i, v in enumerate(order)}
    parts = text.split("%")
    for i in range(1, len(parts)):
        digits = 0
        while parts[i][digits].isdigit():
            digits += 1
        parts[i] = str(number[int(parts[i][:digits])]) + parts[i][digits:]
    return "%".join(parts)


class Forward:
    """A forward op and what its backward op needs: `reads` of its operands and results; `weights` that get a gradient;
    `split`: one op for the gradient of the operand, one for that of the weights."""
    __slots__ = ("name", "ins", "outs", "weights", "reads", "back_ns", "split", "remat")


class Net:
    def __init__(self, name):
        self.g, self.tape = Graph(name), []
        self.free = set()  # operands that get no gradient

    def data(self, size, gradient=True):
        """What the first op reads. Its gradient, where it has one, is kept, so that no backward op is in vain."""
        v = self.g.var(size)
        if not gradient:
            self.free.add(v)
        return v

    def op(self, name, ns, ins, sizes, reads=(), weights=(), back=1.0, split=False, remat=True):
        """`reads` names operands and results that the gradient reads: ("in", i) or ("out", i). The first result is the
        one that is differentiated; others (a mask, a mean) are saved for the gradient."""
        f = Forward()
        f.name, f.ins, f.split, f.remat, f.back_ns = name, list(ins), split, remat, back * ns
        f.weights = [self.g.var(w) for w in weights]
        f.outs = self.g.op(name, ns, list(ins) + f.weights, sizes, remat)
        f.reads = [ins[i] if where == "in" else f.outs[i] for where, i in reads]
        self.tape.append(f)
        return f.outs[0]

    def backward(self, loss, add_ns):
        """Gradients flow from `loss`; those of a value with several readers are summed as they come. `add_ns` gives the
        cost of a sum of so many bytes."""
        g, grad, ready = self.g, {}, {}

        def give(v, d):
            if v in grad:
                d = g.op("sum", add_ns(g.bytes[v]), [grad[v], d], [g.bytes[v]])[0]
            grad[v] = d

        grad[loss] = g.op("seed", 1, [loss], [g.bytes[loss]])[0]
        for f in reversed(self.tape):
            dy = grad.pop(f.outs[0], None)
            if dy is None:
                continue
            wanted = [v for v in dict.fromkeys(f.ins) if v not in self.free]
            reads = list(dict.fromkeys(f.reads))
            dw = [g.bytes[w] for w in f.weights]
            if f.split and f.weights:
                if wanted:
                    self.hand_out(give, wanted, g.op(f.name + ".dx", f.back_ns / 2, [dy] + f.weights[:1],
                                                     [g.bytes[v] for v in wanted], f.remat))
                g.keep += g.op(f.name + ".dw", f.back_ns / 2, [dy] + reads, dw, f.remat)
            elif wanted or dw:
                outs = g.op(f.name + ".grad", f.back_ns, [dy] + reads + f.weights[:1],
                            [g.bytes[v] for v in wanted] + dw, f.remat)
                self.hand_out(give, wanted, outs[:len(wanted)])
                g.keep += outs[len(wanted):]
        g.keep += [grad[v] for v in g.vars if v in grad]
        g.keep.insert(0, loss)
        return g

    @staticmethod
    def hand_out(give, values, grads):
        for v, d in zip(values, grads):
            give(v, d)


# ---- large families ----

def gpt(layers, seed):
    batch, t, c, heads = 8, 1024, 1024, 16
    tokens, el = batch * t, 2
    net = Net("gpt")
    rate, bandwidth, launch = 150e12, 1.5e12, 4e3  # flops/s, bytes/s, ns

    def mm(m, n, k):
        return launch + 1e9 * max(2.0 * m * n * k / rate, el * float(m * n + n * k + m * k) / bandwidth)

    def moves(size):
        return launch + 1e9 * size / bandwidth

    act, wide, square = tokens * c * el, 4 * tokens * c * el, batch * heads * t * t * el

    def linear(name, x, n_in, n_out, reads_in=True):
        return net.op(name, mm(tokens, n_out, n_in), [x], [tokens * n_out * el], [("in", 0)] if reads_in else [],
                      [n_in * n_out * el, n_out * el], 2, True)

    def norm(x):
        return net.op("layer_norm", moves(2 * act), [x], [act, tokens * 4, tokens * 4],
                      [("in", 0), ("out", 1), ("out", 2)], [c * el, c * el], 1.5)

    def dropout(x, size):
        return net.op("dropout", moves(2 * size + size // el), [x], [size, size // el], [("out", 1)])

    def attention(x):
        y = linear("qkv", norm(x), c, 3 * c)
        if seed % 2:
            y = net.op("flash", mm(tokens, 2 * t, c) * 2, [y], [act, tokens * heads * 4],
                       [("in", 0), ("out", 0), ("out", 1)], (), 2.5)
            return linear("proj", y, c, c)
        q, k, v = (net.op("permute", moves(2 * act), [y], [act]) for _ in range(3))
        s = net.op("scores", mm(tokens, t, c), [q, k], [square], [("in", 0), ("in", 1)], (), 2)
        p = net.op("softmax", moves(2 * square), [s], [square], [("out", 0)], (), 1.5)
        y = net.op("context", mm(tokens, c, t), [dropout(p, square), v], [act], [("in", 0), ("in", 1)], (), 2)
        return linear("proj", net.op("permute", moves(2 * act), [y], [act]), c, c)

    def add(x, y):
        return net.op("add", moves(3 * act), [x, y], [act])

    x = net.op("embedding", moves(2 * act), [net.data(tokens * 8, False)], [act], [("in", 0)], [50257 * c * el])
    for _ in range(layers):
        x = add(x, dropout(attention(x), act))
        h = linear("fc", norm(x), c, 4 * c)
        h = net.op("gelu", moves(2 * wide), [h], [wide], [("in", 0)])
        x = add(x, dropout(linear("down", h, 4 * c, c), act))
    loss = net.op("loss", moves(act), [norm(x)], [64], [("in", 0)], (), 2)
    return net.backward(loss, lambda size: moves(3 * size))


def layered(count, seed):
    """`count` forward ops in layers of two to seven."""
    r, net = Rng(seed * 7919 + 11), Net("layered")
    seen, unread, layer, made = [net.data(4096)], set(), [], 0
    layer.append(seen[0])

    def ns(size):
        return 2000 + size * math.exp(2.5 * r.unit() - 1)

    while made < count:
        width = min(2 + r.below(6), count - made)
        fresh = []
        for _ in range(width):
            ins = [r.pick(layer)]
            if r.chance(0.4):
                ins.append(r.pick(layer))
            if r.chance(0.15):
                ins.append(seen[max(0, len(seen) - 1 - int(-math.log(1 - r.unit()) * 0.2 * len(seen)))])
            ins = list(dict.fromkeys(ins))
            size = 64 * max(1, int(math.exp(math.log(16) + r.unit() * math.log(1e4))))
            reads = [("in", i) for i in range(len(ins)) if r.chance(0.6)] + ([("out", 0)] if r.chance(0.35) else [])
            sizes = [size]
            if r.chance(0.2):
                sizes.append(64 * (1 + r.below(16)))
                reads.append(("out", 1))
            weights = [64 * (1 + r.below(256))] if r.chance(0.3) else []
            v = net.op(f"op{made}", ns(size), ins, sizes, reads, weights, 1 + r.unit(), r.chance(0.5), not r.chance(0.03))
            unread.difference_update(ins)
            unread.add(v)
            fresh.append(v)
            made += 1
        seen += fresh
        layer = fresh
    ends = sorted(unread)
    while len(ends) > 1:
        ends = [net.op("join", 2000, ends[i:i + 8], [64], ()) for i in range(0, len(ends), 8)]
    return net.backward(ends[0], lambda size: 2000 + size)


# ---- small families: sizes in units of 64 bytes, costs in units of a microsecond ----

UNIT, US = 64, 1000


def small_sum(size):
    return US * (1 + size // (8 * UNIT))


def chain(count, seed):
    r, net = Rng(seed * 104729 + 3), Net("chain")
    x = net.data(UNIT)
    for i in range(count):
        if seed == 0:
            x = net.op(f"f{i}", 10 * US, [x], [16 * UNIT], [("in", 0)], (), 2)
            continue
        reads = r.pick([[("in", 0)], [("in", 0)], [("out", 0)], [("in", 0), ("out", 0)], []])
        size = UNIT * (1 + r.below(32))
        sizes = [size] + ([UNIT * (1 + r.below(8))] if r.chance(0.15) else [])
        if len(sizes) > 1:
            reads = reads + [("out", 1)]
        x = net.op(f"f{i}", US * (1 + r.below(40)), [x], sizes, reads, [UNIT] if r.chance(0.3) else [],
                   1 + r.below(2), False)
    return net.backward(net.op("loss", US, [x], [UNIT], [("in", 0)]), small_sum)


def residual(blocks, seed):
    r, net = Rng(seed * 15485863 + 5), Net("residual")
    x = net.data(UNIT)
    size = UNIT * (8 + r.below(17))
    x = net.op("stem", US * (5 + r.below(20)), [x], [size], [("in", 0)], [UNIT], 1)
    for _ in range(blocks):
        heavy = US * (10 + r.below(30))
        y = net.op("conv", heavy, [x], [size], [("in", 0)], [UNIT], 2)
        y = net.op("norm_relu", US * (1 + r.below(5)), [y], [size, UNIT], [("in", 0), ("out", 1)], (), 1)
        y = net.op("conv", heavy, [y], [size], [("in", 0)], [UNIT], 2)
        x = net.op("add", US * (1 + r.below(3)), [x, y], [size])
    return net.backward(net.op("loss", US, [x], [UNIT], [("in", 0)]), small_sum)


def unet(levels, seed):
    r, net = Rng(seed * 32452843 + 7), Net("unet")
    x, size, skips = net.data(UNIT), UNIT * (24 + r.below(17)), []
    for _ in range(levels):
        x = net.op("conv", US * (8 + r.below(30)), [x], [size], [("in", 0)], [UNIT], 2)
        skips.append((x, size))
        size = max(UNIT, size // (2 * UNIT) * UNIT)
        x = net.op("down", US * (2 + r.below(8)), [x], [size], [("in", 0)])
    x = net.op("middle", US * (8 + r.below(30)), [x], [size], [("in", 0)], [UNIT], 2)
    for skip, wide in reversed(skips):
        x = net.op("up", US * (2 + r.below(8)), [x, skip], [wide], [("in", 0), ("in", 1)] if r.chance(0.5) else [("in", 0)])
    return net.backward(net.op("loss", US, [x], [UNIT], [("in", 0)]), small_sum)


def diamond(forks, seed):
    r, net = Rng(seed * 49979687 + 9), Net("diamond")

    def one(x):
        return net.op("op", US * (1 + r.below(30)), [x], [UNIT * (2 + r.below(24))],
                      r.pick([[("in", 0)], [("out", 0)], [("in", 0)]]), (), 1 + r.below(2))

    x, inner = one(net.data(UNIT)), None
    for _ in range(forks):
        ends = []
        for _ in range(2 + r.chance(0.3)):
            y = one(x)
            if r.chance(0.3):
                y = one(y)
            ends.append(y)
        if inner is not None and r.chance(0.5):
            ends.append(inner)
        inner = ends[0]
        x = net.op("meet", US * (1 + r.below(10)), ends, [UNIT * (2 + r.below(24))],
                   [("in", i) for i in range(len(ends)) if r.chance(0.5)])
    return net.backward(net.op("loss", US, [x], [UNIT], [("in", 0)]), small_sum)


FAMILIES = {"gpt": gpt, "layered": layered, "chain": chain, "residual": residual, "unet": unet, "diamond": diamond}


def make(family, nodes, seed):
    """The graph of the family and seed with as many units as give at most `nodes` nodes: exactly so up to a hundred nodes,
    within a few percent above (at least one unit in any case)."""
    build = FAMILIES[family]

    def size(units):
        return len(build(units, seed).ops)

    if nodes <= 100:
        units = 1
        while size(units + 1) <= nodes:
            units += 1
        return build(units, seed)
    few, many = size(4), size(44)
    units = max(1, int((nodes - few) * 40 / (many - few)) + 4)
    graph = build(units, seed)
    while units > 1 and not 0.97 * nodes <= len(graph.ops) <= nodes:
        units = max(1, min(int(units * nodes / len(graph.ops) * 0.995), units * 2))
        graph = build(units, seed)
    return graph


def main():
    if len(sys.argv) != 4 or sys.argv[1] not in FAMILIES or not (sys.argv[2] + sys.argv[3]).isdigit():
        print(f"usage: graphs.py {'|'.join(FAMILIES)} NODES SEED", file=sys.stderr)
        return 2
    sys.stdout.write(make(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])).text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
