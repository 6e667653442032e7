#!/usr/bin/env python3
"""bpe_oracle.py: a byte-pair vocabulary and what a text is in it, for tests: nothing here is shared with runtime/bpe*.c.

    bpe_oracle.py train TEXT VOCAB.json MERGES.txt TOKENIZER.json MERGES_WANTED   learns merges from a text
    bpe_oracle.py encode TEXT VOCAB.json MERGES.txt                               ids, one a line

Words are found by running the published pattern, as Python's re, over a copy of the text in which each character is replaced by
one that stands for its class. Merging is the loop of GPT-2's published encoder."""
import json
import re
import sys
import unicodedata
from collections import Counter

PATTERN = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?1+| ?[^\sA-Za-z1]+|\s+(?!\S)|\s+")
SPACES = set("\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000") | {chr(c) for c in range(0x2000, 0x200B)}


def alphabet():
    """Byte to character: printable bytes are themselves, the others come from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def stand_in(c):
    if c in "'strevmld":
        return c
    if c in SPACES:
        return " " if c == " " else "\t"
    kind = unicodedata.category(c)[0]
    return "A" if kind == "L" else "1" if kind == "N" else "."


def words(data):
    # a byte of no character comes back as a surrogate, whose class is "other"
    text = data.decode("utf-8", "surrogateescape")
    for m in PATTERN.finditer("".join(map(stand_in, text))):
        yield text[m.start():m.end()].encode("utf-8", "surrogateescape")


def merge(word, ranks):
    while len(word) > 1:
        pair = min(zip(word, word[1:]), key=lambda p: ranks.get(p, 1 << 60))
        if pair not in ranks:
            break
        out, i = [], 0
        while i < len(word):
            if tuple(word[i:i + 2]) == pair:
                out.append(pair[0] + pair[1])
                i += 2
            else:
                out.append(word[i])
                i += 1
        word = out
    return word


def train(data, count):
    chars = alphabet()
    seen = {tuple(chars[b] for b in w): n for w, n in Counter(words(data)).items()}
    merges = []
    for _ in range(count):
        pairs = Counter()
        for w, n in seen.items():
            for p in zip(w, w[1:]):
                pairs[p] += n
        if not pairs:
            break
        best = min(pairs, key=lambda p: (-pairs[p], p))
        merges.append(best)
        seen = {tuple(merge(list(w), {best: 0})): n for w, n in seen.items()}
    return merges


def main():
    what, data = sys.argv[1], open(sys.argv[2], "rb").read()
    if what == "train":
        merges = train(data, int(sys.argv[6]))
        tokens = list(alphabet().values()) + [a + b for a, b in merges]
        vocab = {t: i for i, t in enumerate(dict.fromkeys(tokens))}
        vocab["<|endoftext|>"] = len(vocab)
        json.dump(vocab, open(sys.argv[3], "w"))
        with open(sys.argv[4], "w", encoding="utf-8") as out:
            out.write("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges))
        whole = {"version": "1.0", "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
                 "model": {"type": "BPE", "vocab": vocab, "merges": [f"{a} {b}" for a, b in merges]}}
        json.dump(whole, open(sys.argv[5], "w"))
        return
    vocab = json.load(open(sys.argv[3]))
    lines = open(sys.argv[4], encoding="utf-8").read().split("\n")[1:]
    ranks = {tuple(line.split(" ")): i for i, line in enumerate(lines) if line}
    chars, known = alphabet(), {}
    for w in words(data):
        if w not in known:
            known[w] = [vocab[t] for t in merge([chars[b] for b in w], ranks)]
        print("\n".join(map(str, known[w])))


main()
