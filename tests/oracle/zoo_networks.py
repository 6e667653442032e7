"""The zoo of models/*.dl in PyTorch: functions of named parameters, names and layouts as in the .dl files.

A net has `params()` (fresh values, name -> tensor: random in every place, so that nothing hides behind a zero or a one) and
`loss(p, x, y)`, where x and y are a batch as the data give it. make_zoo.py uses them at small sizes.
"""
import math

import torch
import torch.nn.functional as F


# The middle of the biases of norms: keeps the units behind them alive in narrow networks.
BIAS = 1.5


class Params(dict):
    def weight(self, name, *shape, gain=1.0):
        fan_in = math.prod(shape[1:]) if len(shape) > 1 else shape[0]
        self[name] = torch.randn(*shape) * gain / math.sqrt(fan_in)

    def near(self, name, n, value):
        self[name] = value + 0.1 * torch.randn(n)

    def linear(self, name, fan_in, out, bias=True, gain=1.0):
        self.weight(name + ".weight", out, fan_in, gain=gain)
        if bias:
            self.near(name + ".bias", out, 0)

    def conv(self, name, fan_in, out, k, groups=1, bias=False):
        self.weight(name + ".weight", out, fan_in // groups, k, k, gain=math.sqrt(2))
        if bias:
            self.near(name + ".bias", out, 0)

    def norm(self, name, n, bias=True):
        self.near(name + ".weight", n, 1)
        if bias:
            self.near(name + ".bias", n, BIAS)


def imagenet(x):
    """Bytes with the mean and deviation of each channel that torchvision's checkpoints expect."""
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return (x / 255 - mean[:, None, None]) / std[:, None, None]


def linear(p, name, x):
    return F.linear(x, p[name + ".weight"], p.get(name + ".bias"))


def conv(p, name, x, stride=1, groups=1):
    w = p[name + ".weight"]
    return F.conv2d(x, w, p.get(name + ".bias"), stride=stride, padding=w.shape[2] // 2, groups=groups)


def batch_norm(p, name, x):
    n = x.shape[1]
    return F.batch_norm(x, torch.zeros(n), torch.ones(n), p[name + ".weight"], p[name + ".bias"], training=True)


def layer_norm(p, name, x, eps=1e-5):
    return F.layer_norm(x, x.shape[-1:], p[name + ".weight"], p[name + ".bias"], eps)


def heads_of(x, heads):
    return x.reshape(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


def attend(q, k, v, heads, mask=None):
    """q [N, T, C], k and v [N, T, fewer or as many]; mask broadcasts to [N, heads, T, T], True where a key counts."""
    width = q.shape[2] // heads
    q, k, v = heads_of(q, heads), heads_of(k, k.shape[2] // width), heads_of(v, v.shape[2] // width)
    k, v = (t.repeat_interleave(heads // t.shape[1], 1) for t in (k, v))
    s = q @ k.transpose(-2, -1) / math.sqrt(width)
    if mask is not None:
        s = s.masked_fill(~mask, float("-inf"))
    y = F.softmax(s, -1) @ v
    return y.transpose(1, 2).reshape(y.shape[0], y.shape[2], -1)


def class_loss(logits, y):
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1).long())


class Lenet5:
    def params(self):
        p = Params()
        p.conv("conv1", 1, 6, 5, bias=True)
        p.conv("conv2", 6, 16, 5, bias=True)
        for name, a, b in (("fc1", 400, 120), ("fc2", 120, 84), ("fc3", 84, 10)):
            p.linear(name, a, b)
        return p

    def loss(self, p, x, y):
        x = (x / 255 - 0.286) / 0.353
        x = F.avg_pool2d(torch.tanh(conv(p, "conv1", x.reshape(-1, 1, 28, 28))), 2)
        x = F.avg_pool2d(torch.tanh(F.conv2d(x, p["conv2.weight"], p["conv2.bias"])), 2).flatten(1)
        return class_loss(linear(p, "fc3", torch.tanh(linear(p, "fc2", torch.tanh(linear(p, "fc1", x))))), y)


class Vgg16:
    plan = ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3))

    def __init__(self, width, wide):
        self.width, self.wide = width, wide

    def params(self):
        p, i, c = Params(), 0, 1
        for k, n in self.plan:
            for _ in range(n):
                p.conv("features.%d" % i, c, k * self.width, 3, bias=True)
                c, i = k * self.width, i + 2
            i += 1
        p.linear("classifier.0", c, self.wide, gain=1.4)
        p.linear("classifier.3", self.wide, self.wide, gain=1.4)
        p.linear("classifier.6", self.wide, 10)
        return p

    def loss(self, p, x, y):
        x, i = F.pad(((x / 255 - 0.286) / 0.353).reshape(-1, 1, 28, 28), (2, 2, 2, 2)), 0
        for _, n in self.plan:
            for _ in range(n):
                x, i = F.relu(conv(p, "features.%d" % i, x)), i + 2
            x, i = F.max_pool2d(x, 2), i + 1
        x = F.relu(linear(p, "classifier.0", x.flatten(1)))
        return class_loss(linear(p, "classifier.6", F.relu(linear(p, "classifier.3", x))), y)


class Resnet:
    """resnet18 (basic blocks) and resnet50 (bottlenecks); `big` with the first layers for large pictures."""

    def __init__(self, width, blocks, bottleneck, big):
        self.width, self.blocks, self.bottleneck, self.big = width, blocks, bottleneck, big

    def each(self):
        """name, channels in, inside and out, stride of every block"""
        c = self.width
        for s, n in enumerate(self.blocks):
            for i in range(n):
                inside = self.width << s
                out = 4 * inside if self.bottleneck else inside
                yield "layer%d.%d" % (s + 1, i), c, inside, out, 2 if s > 0 and i == 0 else 1
                c = out

    def params(self):
        p = Params()
        p.conv("conv1", 3 if self.big else 1, self.width, 7 if self.big else 3)
        p.norm("bn1", self.width)
        for name, c, inside, out, stride in self.each():
            sizes = ((c, inside, 1), (inside, inside, 3), (inside, out, 1)) if self.bottleneck else (
                (c, inside, 3), (inside, out, 3))
            for j, (a, b, k) in enumerate(sizes):
                p.conv("%s.conv%d" % (name, j + 1), a, b, k)
                p.norm("%s.bn%d" % (name, j + 1), b)
            if stride != 1 or c != out:
                p.conv(name + ".downsample.0", c, out, 1)
                p.norm(name + ".downsample.1", out)
        p.linear("fc", out, 10)
        return p

    def loss(self, p, x, y):
        if self.big:
            x = F.relu(batch_norm(p, "bn1", conv(p, "conv1", imagenet(x), 2)))
            x = F.max_pool2d(x, 3, 2, 1)
        else:
            x = ((x / 255 - 0.286) / 0.353).reshape(-1, 1, 28, 28)
            x = F.relu(batch_norm(p, "bn1", conv(p, "conv1", x, 2)))
        for name, c, _, out, stride in self.each():
            z, last = x, 3 if self.bottleneck else 2
            for j in range(1, last + 1):
                z = conv(p, "%s.conv%d" % (name, j), z, stride if j == last - 1 else 1)
                z = batch_norm(p, "%s.bn%d" % (name, j), z)
                z = F.relu(z) if j < last else z
            if stride != 1 or c != out:
                x = batch_norm(p, name + ".downsample.1", conv(p, name + ".downsample.0", x, stride))
            x = F.relu(x + z)
        return class_loss(linear(p, "fc", x.mean((2, 3))), y)


class MobilenetV2:
    stages = ((1, 2, 1, 1), (6, 3, 2, 2), (6, 4, 3, 2), (6, 8, 4, 2), (6, 12, 3, 1), (6, 20, 3, 2), (6, 40, 1, 1))

    def __init__(self, unit):
        self.unit = unit

    def each(self):
        c, k = 4 * self.unit, 1
        for expand, out, n, stride in self.stages:
            for i in range(n):
                yield "features.%d" % k, c, c * expand, out * self.unit, stride if i == 0 else 1
                c, k = out * self.unit, k + 1

    def params(self):
        p = Params()
        p.conv("features.0.0", 1, 4 * self.unit, 3)
        p.norm("features.0.1", 4 * self.unit)
        for name, c, inside, out, _ in self.each():
            i = 0
            if inside > c:
                p.conv(name + ".conv.0.0", c, inside, 1)
                p.norm(name + ".conv.0.1", inside)
                i = 1
            p.conv("%s.conv.%d.0" % (name, i), inside, inside, 3, groups=inside)
            p.norm("%s.conv.%d.1" % (name, i), inside)
            p.conv("%s.conv.%d" % (name, i + 1), inside, out, 1)
            p.norm("%s.conv.%d" % (name, i + 2), out)
        p.conv("features.18.0", out, 160 * self.unit, 1)
        p.norm("features.18.1", 160 * self.unit)
        p.linear("classifier.1", 160 * self.unit, 10)
        return p

    def conv_norm(self, p, name, x, stride=1, groups=1):
        return F.relu6(batch_norm(p, name + ".1", conv(p, name + ".0", x, stride, groups)))

    def loss(self, p, x, y):
        x = self.conv_norm(p, "features.0", ((x / 255 - 0.286) / 0.353).reshape(-1, 1, 28, 28))
        for name, c, inside, out, stride in self.each():
            z, i = x, 0
            if inside > c:
                z, i = self.conv_norm(p, name + ".conv.0", z), 1
            z = self.conv_norm(p, "%s.conv.%d" % (name, i), z, stride, inside)
            z = batch_norm(p, "%s.conv.%d" % (name, i + 2), conv(p, "%s.conv.%d" % (name, i + 1), z))
            x = x + z if stride == 1 and c == out else z
        x = self.conv_norm(p, "features.18", x)
        return class_loss(linear(p, "classifier.1", x.mean((2, 3))), y)


class Unet:
    def __init__(self, width):
        self.width = width

    def double(self, p, name, a, b):
        p.conv(name + ".double_conv.0", a, b, 3)
        p.norm(name + ".double_conv.1", b)
        p.conv(name + ".double_conv.3", b, b, 3)
        p.norm(name + ".double_conv.4", b)

    def params(self):
        p, w = Params(), self.width
        self.double(p, "inc", 1, w)
        for i in range(1, 5):
            self.double(p, "down%d.maxpool_conv.1" % i, w << (i - 1), w << i)
        for i in range(1, 5):
            c = w << (5 - i)
            p.weight("up%d.up.weight" % i, c, c // 2, 2, 2)
            p.near("up%d.up.bias" % i, c // 2, 0)
            self.double(p, "up%d.conv" % i, c, c // 2)
        p.conv("outc.conv", w, 2, 1, bias=True)
        return p

    def run(self, p, name, x):
        for i in (0, 3):
            x = F.relu(batch_norm(p, "%s.double_conv.%d" % (name, i + 1), conv(p, "%s.double_conv.%d" % (name, i), x)))
        return x

    def loss(self, p, x, y):
        x = x.reshape(-1, 1, 28, 28) * (1 / 255)
        target = (x > 0.1).long()[:, 0]
        levels = [self.run(p, "inc", F.pad(x, (0, 4, 0, 4)))]
        for i in range(1, 5):
            levels.append(self.run(p, "down%d.maxpool_conv.1" % i, F.max_pool2d(levels[-1], 2)))
        x = levels.pop()
        for i in range(1, 5):
            x = F.conv_transpose2d(x, p["up%d.up.weight" % i], p["up%d.up.bias" % i], stride=2)
            x = self.run(p, "up%d.conv" % i, torch.cat([levels.pop(), x], 1))
        return F.cross_entropy(conv(p, "outc.conv", x)[:, :, :28, :28], target)


class Vit:
    def __init__(self, C, heads, layers):
        self.C, self.heads, self.layers = C, heads, layers

    def params(self):
        p, C = Params(), self.C
        p.conv("conv_proj", 3, C, 16, bias=True)
        p["class_token"] = torch.randn(1, 1, C)
        p["encoder.pos_embedding"] = torch.randn(1, 17, C)
        for i in range(self.layers):
            h = "encoder.layers.encoder_layer_%d." % i
            p.norm(h + "ln_1", C)
            p.weight(h + "self_attention.in_proj_weight", 3 * C, C)
            p.near(h + "self_attention.in_proj_bias", 3 * C, 0)
            p.linear(h + "self_attention.out_proj", C, C)
            p.norm(h + "ln_2", C)
            p.linear(h + "mlp.0", C, 4 * C)
            p.linear(h + "mlp.3", 4 * C, C)
        p.norm("encoder.ln", C)
        p.linear("heads.head", C, 10)
        return p

    def loss(self, p, x, y):
        x = F.conv2d(imagenet(x), p["conv_proj.weight"], p["conv_proj.bias"], stride=16)
        x = x.flatten(2).transpose(1, 2)
        x = torch.cat([p["class_token"].expand(len(x), 1, self.C), x], 1) + p["encoder.pos_embedding"]
        for i in range(self.layers):
            h = "encoder.layers.encoder_layer_%d." % i
            z = layer_norm(p, h + "ln_1", x, 1e-6)
            z = F.linear(z, p[h + "self_attention.in_proj_weight"], p[h + "self_attention.in_proj_bias"])
            x = x + linear(p, h + "self_attention.out_proj", attend(*z.chunk(3, 2), self.heads))
            x = x + linear(p, h + "mlp.3", F.gelu(linear(p, h + "mlp.0", layer_norm(p, h + "ln_2", x, 1e-6))))
        return class_loss(linear(p, "heads.head", layer_norm(p, "encoder.ln", x, 1e-6)[:, 0]), y)


class LstmChar:
    def __init__(self, C, hidden, layers):
        self.C, self.hidden, self.layers = C, hidden, layers

    def params(self):
        p = Params()
        p["embedding.weight"] = torch.randn(256, self.C)
        for i in range(self.layers):
            p.weight("lstm.weight_ih_l%d" % i, 4 * self.hidden, self.hidden if i else self.C)
            p.weight("lstm.weight_hh_l%d" % i, 4 * self.hidden, self.hidden)
            p.near("lstm.bias_ih_l%d" % i, 4 * self.hidden, 0)
            p.near("lstm.bias_hh_l%d" % i, 4 * self.hidden, 0)
        p.linear("head", self.hidden, 256)
        return p

    def loss(self, p, x, y):
        zero = torch.zeros(self.layers, len(x), self.hidden)
        flat = [p["lstm.%s_l%d" % (n, i)] for i in range(self.layers)
                for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        x, _, _ = torch._VF.lstm(p["embedding.weight"][x.long()], (zero, zero), flat, True, self.layers, 0.0, True, False, True)
        return class_loss(linear(p, "head", x), y)


class Gpt2:
    def __init__(self, T, context, C, heads, layers):
        self.T, self.context, self.C, self.heads, self.layers = T, context, C, heads, layers

    def params(self):
        p, C = Params(), self.C
        p["wte.weight"] = torch.randn(256, C) * 0.3
        p["wpe.weight"] = torch.randn(self.context, C) * 0.3
        for i in range(self.layers):
            h = "h.%d." % i
            p.norm(h + "ln_1", C)
            p.norm(h + "ln_2", C)
            for name, a, b in (("attn.c_attn", C, 3 * C), ("attn.c_proj", C, C), ("mlp.c_fc", C, 4 * C), ("mlp.c_proj", 4 * C, C)):
                p[h + name + ".weight"] = torch.randn(a, b) / math.sqrt(a)
                p.near(h + name + ".bias", b, 0)
        p.norm("ln_f", C)
        return p

    def conv1d(self, p, name, x):
        return x @ p[name + ".weight"] + p[name + ".bias"]

    def loss(self, p, x, y):
        x = p["wte.weight"][x.long()] + p["wpe.weight"][:self.T]
        causal = torch.ones(self.T, self.T, dtype=torch.bool).tril()
        for i in range(self.layers):
            h = "h.%d." % i
            q, k, v = self.conv1d(p, h + "attn.c_attn", layer_norm(p, h + "ln_1", x)).chunk(3, 2)
            x = x + self.conv1d(p, h + "attn.c_proj", attend(q, k, v, self.heads, causal))
            z = F.gelu(self.conv1d(p, h + "mlp.c_fc", layer_norm(p, h + "ln_2", x)), approximate="tanh")
            x = x + self.conv1d(p, h + "mlp.c_proj", z)
        return class_loss(layer_norm(p, "ln_f", x) @ p["wte.weight"].T, y)


class Llama:
    def __init__(self, T, C, layers, heads, kv_heads, hidden, window):
        self.T, self.C, self.layers, self.heads, self.kv_heads = T, C, layers, heads, kv_heads
        self.hidden, self.window = hidden, window

    def params(self):
        p, C = Params(), self.C
        kv = C // self.heads * self.kv_heads
        p["model.embed_tokens.weight"] = torch.randn(256, C)
        for i in range(self.layers):
            h = "model.layers.%d." % i
            p.norm(h + "input_layernorm", C, bias=False)
            p.norm(h + "post_attention_layernorm", C, bias=False)
            for name, a, b in (("self_attn.q_proj", C, C), ("self_attn.k_proj", C, kv), ("self_attn.v_proj", C, kv),
                               ("self_attn.o_proj", C, C), ("mlp.gate_proj", C, self.hidden), ("mlp.up_proj", C, self.hidden),
                               ("mlp.down_proj", self.hidden, C)):
                p.linear(h + name, a, b, bias=False)
        p.norm("model.norm", C, bias=False)
        p.linear("lm_head", C, 256, bias=False)
        return p

    def rms(self, p, name, x):
        return p[name + ".weight"] * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))

    def rotate(self, x, heads):
        width = self.C // self.heads
        rate = 1.0 / (10000 ** (torch.arange(0, width, 2).float() / width))
        angle = torch.cat([torch.outer(torch.arange(self.T).float(), rate)] * 2, -1)
        x = heads_of(x, heads)
        half = torch.cat([-x[..., width // 2:], x[..., :width // 2]], -1)
        return (x * angle.cos() + half * angle.sin()).transpose(1, 2).reshape(x.shape[0], self.T, -1)

    def loss(self, p, x, y):
        x = p["model.embed_tokens.weight"][x.long()]
        i, j = torch.arange(self.T)[:, None], torch.arange(self.T)[None, :]
        near = (j <= i) & (i - j < self.window)
        for n in range(self.layers):
            h = "model.layers.%d." % n
            z = self.rms(p, h + "input_layernorm", x)
            q = self.rotate(linear(p, h + "self_attn.q_proj", z), self.heads)
            k = self.rotate(linear(p, h + "self_attn.k_proj", z), self.kv_heads)
            z = attend(q, k, linear(p, h + "self_attn.v_proj", z), self.heads, near)
            x = x + linear(p, h + "self_attn.o_proj", z)
            z = self.rms(p, h + "post_attention_layernorm", x)
            z = F.silu(linear(p, h + "mlp.gate_proj", z)) * linear(p, h + "mlp.up_proj", z)
            x = x + linear(p, h + "mlp.down_proj", z)
        return class_loss(linear(p, "lm_head", self.rms(p, "model.norm", x)), y)


class Bert:
    def __init__(self, T, C, layers, heads, vocab, positions):
        self.T, self.C, self.layers, self.heads, self.vocab, self.positions = T, C, layers, heads, vocab, positions

    def params(self):
        p, C, e = Params(), self.C, "bert.embeddings."
        p[e + "word_embeddings.weight"] = torch.randn(self.vocab, C) * 0.5
        p[e + "position_embeddings.weight"] = torch.randn(self.positions, C) * 0.5
        p[e + "token_type_embeddings.weight"] = torch.randn(2, C) * 0.5
        p.norm(e + "LayerNorm", C)
        for i in range(self.layers):
            h = "bert.encoder.layer.%d." % i
            for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
                p.linear(h + name, C, C)
            p.norm(h + "attention.output.LayerNorm", C)
            p.linear(h + "intermediate.dense", C, 4 * C)
            p.linear(h + "output.dense", 4 * C, C)
            p.norm(h + "output.LayerNorm", C)
        p.linear("cls.predictions.transform.dense", C, C)
        p.norm("cls.predictions.transform.LayerNorm", C)
        p.near("cls.predictions.bias", self.vocab, 0)
        return p

    def loss(self, p, x, y):
        e, x = "bert.embeddings.", x.long()
        valid = (x != 0)[:, None, None, :]
        h = p[e + "word_embeddings.weight"][x] + p[e + "position_embeddings.weight"][:self.T] + p[e + "token_type_embeddings.weight"][0]
        h = layer_norm(p, e + "LayerNorm", h, 1e-12)
        for i in range(self.layers):
            n = "bert.encoder.layer.%d." % i
            q, k, v = (linear(p, n + "attention.self." + t, h) for t in ("query", "key", "value"))
            z = linear(p, n + "attention.output.dense", attend(q, k, v, self.heads, valid))
            h = layer_norm(p, n + "attention.output.LayerNorm", h + z, 1e-12)
            z = linear(p, n + "output.dense", F.gelu(linear(p, n + "intermediate.dense", h)))
            h = layer_norm(p, n + "output.LayerNorm", h + z, 1e-12)
        h = layer_norm(p, "cls.predictions.transform.LayerNorm", F.gelu(linear(p, "cls.predictions.transform.dense", h)), 1e-12)
        return class_loss(h @ p[e + "word_embeddings.weight"].T + p["cls.predictions.bias"], y)


class Autoencoder:
    def __init__(self, wide, code):
        sizes = [784, wide, wide // 2, wide // 4, code]
        self.layers = [("encoder.%d" % (2 * i), sizes[i], sizes[i + 1]) for i in range(4)]
        self.layers += [("decoder.%d" % (2 * i), sizes[4 - i], sizes[3 - i]) for i in range(4)]

    def params(self):
        p = Params()
        for name, a, b in self.layers:
            p.linear(name, a, b)
        return p

    def loss(self, p, x, y):
        x = x.reshape(-1, 784) * (1 / 255)
        z = x
        for name, _, _ in self.layers:
            z = linear(p, name, z)
            z = z if name in ("encoder.6", "decoder.6") else F.relu(z)
        return F.binary_cross_entropy_with_logits(z, x)


class Blocks:
    """tests/oracle/cases/blocks.dl"""

    def params(self):
        p = Params()
        p.conv("a", 1, 4, 3, bias=True)
        p.norm("b", 4)
        p.conv("c", 4, 4, 3, groups=4, bias=True)
        p.weight("d.weight", 4, 3, 3, 3)
        p.near("d.bias", 6, 0)
        p.norm("e", 360, bias=False)
        for name, n in (("f", 10), ("g", 3), ("h", 3)):
            p.linear(name, 360, n)
        return p

    def loss(self, p, x, y):
        x = F.conv2d(x.reshape(-1, 1, 28, 28) / 255, p["a.weight"], p["a.bias"], stride=3, dilation=2)
        x = F.leaky_relu(F.group_norm(x, 2, p["b.weight"], p["b.bias"]), 0.1)
        x = conv(p, "c", x, groups=4)
        x = F.conv_transpose2d(x, p["d.weight"], p["d.bias"], stride=2, padding=1, output_padding=1, groups=2)
        z = F.softplus(F.interpolate(F.adaptive_avg_pool2d(x, (5, 3)), scale_factor=2).flatten(1))
        z = p["e.weight"] * z * torch.rsqrt(z.pow(2).mean(-1, keepdim=True) + 1e-6)
        out, target = linear(p, "g", z), torch.tanh(linear(p, "h", z))
        weights = torch.tensor([1, 2, 0.5, 1, 1, 1, 3, 0.1, 1, 1])
        loss = F.cross_entropy(linear(p, "f", z), y.long(), weight=weights, label_smoothing=0.1, ignore_index=3)
        loss = loss + F.binary_cross_entropy_with_logits(out, torch.sigmoid(target))
        loss = loss + F.binary_cross_entropy_with_logits(out, torch.sigmoid(target), pos_weight=torch.tensor(3.0))
        return loss + F.l1_loss(out, target) + 0.5 * F.huber_loss(out, target, delta=0.3)
