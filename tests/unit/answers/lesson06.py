"""Lesson 06, Logits and hidden states."""

CONTEXT = {
    "Prediction 6.1": lambda: ({" a": 0.1, " b": 0.6, " c": 0.3},),
    "Prediction 6.2": lambda: ({"English": 97.0, "Japanese": 18.0, "German": 202.0},),
}


def answers():
    import torch
    from torch.nn.functional import cross_entropy

    yield "Prediction 6.1", [" b", " c", " a"], [
        ([" b", " a", " c"], "The first is right"), ([" c", " b", " a"], "ranks what texts say next"),
        ([" b", " c"], "was asked for"), ("b", "was asked for"),
    ]

    def each(logits, ids):
        return logits[:-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]

    yield "Exercise 6.1", lambda z, i, s: each(z, i)[s - 1:].sum().item(), [
        (lambda z, i, s: z.log_softmax(-1).gather(1, i[:, None])[s:].sum(), "one position too late"),
        (lambda z, i, s: each(z, i)[s - 1:].mean(), "divided by the number"),
        (lambda z, i, s: each(z, i)[s - 1:].exp().prod(), "the probability"),
        (lambda z, i, s: each(z, i).sum(), "holds the prompt"),
        (lambda z, i, s: each(z, i)[s:].sum(), "first token of the continuation"),
        (lambda z, i, s: z[:-1].gather(1, i[1:, None])[s - 1:].sum(), "raw logits"),
        (lambda z, i, s: -each(z, i)[s - 1:].sum(), "sign is wrong"),
        (lambda z, i, s: each(z, i)[s - 1:], "one number"),
        (lambda z, i, s: each(z, i)[-3:].sum(), "last token alone"),
    ]

    def loss(logits, labels, **options):
        return cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), **options)

    def in_place(logits, labels):
        labels[labels == -100] = 0
        return loss(logits[:, :-1], labels[:, 1:])

    yield "Exercise 6.2", lambda z, y: loss(z[:, :-1], y[:, 1:]), [
        (loss, "did not shift"),
        (lambda z, y: loss(z[:, 1:], y[:, :-1]), "wrong way"),
        (lambda z, y: loss(z[:, :-1], y[:, 1:], reduction="sum"), "sum of the losses"),
        (lambda z, y: loss(z[:, :-1], y[:, 1:], reduction="sum") / y[:, 1:].numel(), "all positions"),
        (lambda z, y: sum(loss(a[:-1], b[1:]) for a, b in zip(z, y, strict=True)) / len(z), "row by row"),
        (lambda z, y: loss(z[:, :-1], y[:, 1:].clamp(min=0)), "with id 0"),
        (lambda z, y: loss(z[:, :-1].softmax(-1), y[:, 1:]), "probabilities"),
        (lambda z, y: -loss(z[:, :-1], y[:, 1:]), "sign is wrong"),
        (lambda z, y: loss(z[:, :-1], y[:, 1:], reduction="none"), "one number"),
        (in_place, "changed the labels"),
        (lambda z, y: loss(z[:, :-1], y[:, 1:]) * float("nan"), "left its range"),
    ]
    yield "Prediction 6.2", "Japanese", [
        ("English", "What is one token"), ("German", "the lowest is Japanese"), ("Latin", "was asked for"),
    ]

    def bins_of(stated, labels, bins, place=lambda p, bins: min(int(p * bins), bins - 1), row=None, empty=False):
        filled = {}
        for p, label in zip(stated, labels, strict=True):
            filled.setdefault(place(p, bins), []).append((p, label))
        row = row or (lambda at, pairs: (len(pairs), mean(pairs), sum(y for _, y in pairs) / len(pairs)))
        return [row(at, filled[at]) if at in filled else (0, 0.0, 0.0)
                for at in (range(bins) if empty else sorted(filled))]

    def right_share(at, pairs):
        return len(pairs), sum(p for p, _ in pairs) / len(pairs), sum((p > 0.5) == bool(y) for p, y in pairs) / len(pairs)

    def mean(pairs):
        return sum(p for p, _ in pairs) / len(pairs)

    yield "Exercise 6.3", bins_of, [
        (lambda p, y, n: bins_of(p, y, n, lambda one, bins: int(one * bins)), "return five"),
        (lambda p, y, n: bins_of(*zip(*[(a, b) for a, b in zip(p, y, strict=True) if a < 1], strict=True), n), "is missing"),
        (lambda p, y, n: bins_of(p, y, n, lambda one, bins: max(-int(-one * bins // 1) - 1, 0)), "lower edge"),
        (lambda p, y, n: bins_of(p, y, n,
            row=lambda at, pairs: (len(pairs), (at + 0.5) / n, sum(y for _, y in pairs) / len(pairs))),
         "middle of each bin"),
        (lambda p, y, n: bins_of(p, y, n, row=right_share), "share of right answers"),
        (lambda p, y, n: bins_of(p, y, n, row=lambda at, pairs: (len(pairs), mean(pairs), sum(y for _, y in pairs))),
         "size of the bin"),
        (lambda p, y, n: bins_of(p, y, n, empty=True), "Leave empty bins out"),
        (lambda p, y, n: [len(p)], "Return a list of"),
        (lambda p, y, n: bins_of(p, y, 2), "should hold 2, 1, 3 and 2"),
    ]

    def cosines(first, second, i, j):
        return [torch.cosine_similarity(a[0, i], b[0, j], dim=-1).item() for a, b in zip(first, second, strict=True)]

    yield "Exercise 6.4", cosines, [
        (lambda a, b, i, j: cosines(a, b, i, i), "first position in both"),
        (lambda a, b, i, j: [(x[0, i] @ y[0, j]).item() for x, y in zip(a, b, strict=True)], "dot product"),
        (lambda a, b, i, j: cosines([x.mean(1, keepdim=True) for x in a], [y.mean(1, keepdim=True) for y in b], 0, 0),
         "means of the two texts"),
        (lambda a, b, i, j: cosines(a, b, i, j)[1:], "embeddings included"),
        (lambda a, b, i, j: cosines(a, b, j, i), "swapped"),
        (lambda a, b, i, j: cosines(a, b, i, j)[-1], "as a list"),
        (lambda a, b, i, j: [1.0] * 3, "The cosines should be"),
    ]
