"""The networks of models/*.dl in PyTorch: functions of named parameters, names and layouts as in the .dl files.

Each class has `params()` (fresh initial values, name -> tensor) and `logits(p, stats, x)`; `stats` takes the running
statistics of batch norm. make_fixtures.py uses them at small sizes, tools/bench-vs-torch.py at full size.
"""
import math

import torch
import torch.nn.functional as F


def linear_params(p, name, fan_in, fan_out, std=None, bias=True):
    bound = 1 / math.sqrt(fan_in)
    weight = torch.empty(fan_out, fan_in)
    p[name + ".weight"] = weight.uniform_(-bound, bound) if std is None else weight.normal_(0, std)
    if bias:
        p[name + ".bias"] = torch.empty(fan_out).uniform_(-bound, bound) if std is None else torch.zeros(fan_out)


def norm_params(p, name, n):
    p[name + ".weight"] = torch.ones(n)
    p[name + ".bias"] = torch.zeros(n)


def linear(p, name, x):
    return F.linear(x, p[name + ".weight"], p.get(name + ".bias"))


class Mlp:
    """models/mlp.dl"""

    def __init__(self, hidden=256, narrow=128):
        self.hidden, self.narrow = hidden, narrow

    def params(self):
        p = {}
        linear_params(p, "fc1", 784, self.hidden)
        linear_params(p, "fc2", self.hidden, self.narrow)
        linear_params(p, "fc3", self.narrow, 10)
        return p

    def logits(self, p, stats, x):
        x = x.reshape(-1, 784) * (1 / 255.0)
        return linear(p, "fc3", F.relu(linear(p, "fc2", F.relu(linear(p, "fc1", x)))))


class Convnet:
    """models/convnet.dl"""

    def __init__(self, channels=32, wide=128):
        self.channels, self.wide = channels, wide

    def params(self):
        p, c = {}, self.channels
        for name, cin, cout in (("stage1", 1, c), ("stage2", c, 2 * c)):
            bound = 1 / math.sqrt(cin * 9)
            p[name + ".conv.weight"] = torch.empty(cout, cin, 3, 3).uniform_(-bound, bound)
            norm_params(p, name + ".norm", cout)
        linear_params(p, "fc1", 2 * c * 49, self.wide)
        linear_params(p, "fc2", self.wide, 10)
        return p

    def logits(self, p, stats, x):
        x = ((x * (1 / 255.0) - 0.286) / 0.353).reshape(-1, 1, 28, 28)
        for name in ("stage1", "stage2"):
            x = F.conv2d(x, p[name + ".conv.weight"], padding=1)
            mean = stats.setdefault(name + ".norm.running_mean", torch.zeros(x.shape[1]))
            var = stats.setdefault(name + ".norm.running_var", torch.ones(x.shape[1]))
            x = F.batch_norm(x, mean, var, p[name + ".norm.weight"], p[name + ".norm.bias"], training=True)
            x = F.max_pool2d(F.relu(x), 2)
        return linear(p, "fc2", F.relu(linear(p, "fc1", x.flatten(1))))


class Gpt:
    """models/gpt-char.dl"""

    def __init__(self, T=64, C=128, heads=4, layers=4, vocab=256, std=0.02):
        self.T, self.C, self.heads, self.layers, self.vocab, self.std = T, C, heads, layers, vocab, std

    def params(self):
        p, C = {}, self.C
        out = self.std / math.sqrt(2 * self.layers)
        p["wte.weight"] = torch.empty(self.vocab, C).normal_(0, self.std)
        p["wpe.weight"] = torch.empty(self.T, C).normal_(0, self.std)
        for i in range(self.layers):
            h = "h.%d." % i
            norm_params(p, h + "ln_1", C)
            linear_params(p, h + "attn.c_attn", C, 3 * C, self.std)
            linear_params(p, h + "attn.c_proj", C, C, out)
            norm_params(p, h + "ln_2", C)
            linear_params(p, h + "mlp.c_fc", C, 4 * C, self.std)
            linear_params(p, h + "mlp.c_proj", 4 * C, C, out)
        norm_params(p, "ln_f", C)
        linear_params(p, "lm_head", C, self.vocab, self.std, bias=False)
        return p

    def attend(self, p, name, x):
        B, T, C = x.shape
        q, k, v = (t.reshape(B, T, self.heads, C // self.heads).transpose(1, 2)
                   for t in linear(p, name + ".c_attn", x).split(C, dim=2))
        s = q @ k.transpose(-2, -1) * (1 / math.sqrt(C // self.heads))
        s = s.masked_fill(torch.ones(T, T).tril() == 0, float("-inf"))
        return linear(p, name + ".c_proj", (F.softmax(s, -1) @ v).transpose(1, 2).reshape(B, T, C))

    def norm(self, p, name, x):
        return F.layer_norm(x, (self.C,), p[name + ".weight"], p[name + ".bias"])

    def logits(self, p, stats, x):
        x = p["wte.weight"][x] + p["wpe.weight"]
        for i in range(self.layers):
            h = "h.%d." % i
            x = x + self.attend(p, h + "attn", self.norm(p, h + "ln_1", x))
            y = F.gelu(linear(p, h + "mlp.c_fc", self.norm(p, h + "ln_2", x)), approximate="tanh")
            x = x + linear(p, h + "mlp.c_proj", y)
        return linear(p, "lm_head", self.norm(p, "ln_f", x))


def loss_of(logits, y):
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))
