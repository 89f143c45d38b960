"""llama.cpp's samplers by their definitions, over lists of (token, logit) pairs, without any state kept for speed.

See llama_sampler_*_apply in src/llama-sampler.cpp of llama.cpp.
"""

from __future__ import annotations

import math
from itertools import pairwise

INF = math.inf


def softmax(pairs):
    most = max(logit for _, logit in pairs)
    weights = [math.exp(logit - most) for _, logit in pairs]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def ranked(pairs):
    return sorted(pairs, key=lambda pair: -pair[1])


def entropy(found):
    return -math.fsum(p * math.log(p) for p in found if p > 0)


def until(pairs, found, mass, least, *, above=False):
    """Returns the first pairs whose probabilities reach the mass, or exceed it, at least so many of them."""
    total = 0.0
    for place, p in enumerate(found):
        total += p
        if (total > mass if above else total >= mass) and place + 1 >= least:
            return pairs[: place + 1]
    return pairs


def top_k(pairs, most):
    return ranked(pairs)[:most]


def top_p(pairs, mass, least):
    pairs = ranked(pairs)
    return until(pairs, softmax(pairs), mass, least)


def min_p(pairs, fraction, least):
    pairs = ranked(pairs)
    floor = pairs[0][1] + math.log(fraction)
    return [pair for place, pair in enumerate(pairs) if pair[1] >= floor or place < least]


def typical_p(pairs, mass, least):
    found = softmax(pairs)
    mean = entropy(found)
    distance = [abs(-math.log(p) - mean) if p > 0 else INF for p in found]
    order = sorted(range(len(pairs)), key=distance.__getitem__)
    return until([pairs[i] for i in order], [found[i] for i in order], mass, least, above=True)


def top_n_sigma(pairs, sigmas):
    allowed = [logit for _, logit in pairs if logit > -INF]
    mean = math.fsum(allowed) / len(allowed)
    deviation = math.sqrt(math.fsum((logit - mean) ** 2 for logit in allowed) / len(allowed))
    floor = max(allowed) - sigmas * deviation
    return [(token, logit if logit >= floor else -INF) for token, logit in pairs]


def xtc(pairs, threshold, least):
    pairs = ranked(pairs)
    last = sum(p >= threshold and p > 0 for p in softmax(pairs)) - 1
    return pairs[last:] if last > 0 and len(pairs) - last >= least else pairs


def temperature(pairs, value):
    return [(token, logit / value) for token, logit in pairs] if value > 0 else ranked(pairs)[:1]


def dynamic_temperature(pairs, value, distance, exponent):
    part = entropy(softmax(pairs)) / math.log(len(pairs))
    least, most = max(0.0, value - distance), value + distance
    return temperature(pairs, least + (most - least) * part**exponent)


def penalties(pairs, latest, repetition, presence, frequency):
    changed = []
    for token, logit in pairs:
        if (times := latest.count(token)) > 0:
            logit = logit * repetition if logit <= 0 else logit / repetition
            logit -= times * frequency + presence
        changed.append((token, logit))
    return changed


def mirostat_count(pairs, limit, vocab):
    """Returns how many tokens the first Mirostat keeps."""
    likeliest = [logit for _, logit in ranked(pairs) if logit > -INF][:100]
    if len(likeliest) < 2:
        return 1
    steps = [math.log((i + 2) / (i + 1)) for i in range(len(likeliest) - 1)]
    falls = [a - b for a, b in pairwise(likeliest)]
    exponent = math.fsum(t * b for t, b in zip(steps, falls, strict=True)) / math.fsum(t * t for t in steps)
    excess = exponent - 1
    return max(1, int((excess * 2**limit / (1 - vocab**-excess)) ** (1 / exponent)))


def repeated(text, breakers, window):
    """Returns the length of the longest repetition that each token would continue, by DRY's definition.

    Args:
        text: The tokens.
        breakers: The sequence breakers as lists of tokens.
        window: The number of latest tokens that count.
    """
    text = text[max(0, len(text) - window) :]
    limit = len(text)
    for start in range(len(text) - 1, -1, -1):
        matching = [len(one) for one in breakers if text[start : start + len(one)] == list(one)]
        if matching:
            limit = len(text) - start - max(matching)
            break
    found = {}
    for end in range(1, len(text)):
        size = 0
        while size < end and text[end - 1 - size] == text[len(text) - 1 - size]:
            size += 1
        token = text[end]
        found[token] = max(found.get(token, 0), min(size, limit))
    return found, limit
