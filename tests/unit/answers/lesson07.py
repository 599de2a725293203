"""Lesson 07, Decoding."""


def spread():
    import torch

    return torch.tensor([[0.4, 0.2, 0.1, 0.1, 0.1, 0.05, 0.05]]).log(), 0.75      # top-p keeps four


CONTEXT = {
    "Prediction 7.1": lambda: ([37, 1, 1, 1, 1, 1, 1, 1],),
    "Prediction 7.2": spread,
}


def answers():
    import torch

    yield "Prediction 7.1", 44, [(45, "never read"), (324, "the first loop"), (8, "number of passes"),
                                 (37, "is read once, too"), (100, "Is the last token read"), ("many", "A number of positions")]

    def loop(next_logits, ids, limit, ends, keep=True, extra=0, count=0):
        new = []
        while len(new) + count < limit + extra:
            token = int(next_logits(ids + new).argmax())
            if token in ends and not keep:
                break
            new.append(token)
            if token in ends:
                break
        return new

    def in_place(next_logits, ids, limit, ends):
        new = loop(next_logits, list(ids), limit, ends)
        ids += new
        return new

    def any_end(next_logits, ids, limit, ends):
        new = []
        while len(new) < limit and not set(ids + new) & set(ends):
            new.append(int(next_logits(ids + new).argmax()))
        return new

    def stuck(next_logits, ids, limit, ends):
        return [int(next_logits(ids).argmax()) for _ in range(limit)]

    def asks_first(next_logits, ids, limit, ends):
        new = []
        while True:
            token = int(next_logits(ids + new).argmax())
            if len(new) == limit:
                return new
            new.append(token)
            if token in ends:
                return new

    def at_least_one(next_logits, ids, limit, ends):
        return loop(next_logits, ids, max(limit, 1), ends)

    yield "Exercise 7.1", loop, [
        (lambda n, i, m, e: i + loop(n, i, m, e), "begins with the prompt"),
        (lambda n, i, m, e: loop(n, i, m, e, keep=False), "belongs to the result"),
        (lambda n, i, m, e: loop(n, i, m, e[-1:]), "Stop at any token"),
        (lambda n, i, m, e: loop(n, i, m, []), "you went on"),
        (lambda n, i, m, e: loop(n, i, m, e, extra=1), "you wrote 5"),
        (lambda n, i, m, e: loop(n, i, m, e, count=len(i)), "Only new tokens count"),
        (in_place, "changed the list"), (any_end, "an end of an earlier turn"), (stuck, "same thing twice"),
        (asks_first, "for nothing"), (at_least_one, "allows nothing"),
        (lambda n, i, m, e: torch.tensor(loop(n, i, m, e)), "A list of ids"),
        (lambda n, i, m, e: loop(lambda ids: n(torch.tensor(ids)), i, m, e), "takes a list"),
        (lambda n, i, m, e: loop(n, i[1:], m, e), "should be the prompt"),
    ]
    yield "Prediction 7.2", 4, [(1, "Many small ones"), (50, "heavier than that"), (0, "1 or more"),
                                ("all", "A number of tokens")]

    def nucleus(logits, p, late=False, sorted_order=False, fill=-torch.inf):
        shares, order = logits.softmax(-1).sort(descending=True)
        tail = (shares.cumsum(-1) - (0 if late else shares)) >= p
        return logits.masked_fill(tail if sorted_order else tail.scatter(-1, order, tail), fill)

    yield "Exercise 7.2", nucleus, [
        (lambda logits, p: nucleus(logits, p, late=True), "lost all its tokens"),
        (lambda logits, p: logits.masked_fill(nucleus(logits, p - 0.06).isinf(), -torch.inf), "short of 0.8"),
        (lambda logits, p: nucleus(logits, p, sorted_order=True), "wrong ones"),
        (lambda logits, p: nucleus(logits, p).softmax(-1), "Those are probabilities"),
        (lambda logits, p: nucleus(logits, p, fill=0.0), "Nothing is cut"),
        (lambda logits, p: logits.masked_fill(logits.softmax(-1) < 1 - p, -torch.inf), "single probabilities"),
        (lambda logits, p: nucleus(logits, p) - 3, "have changed"),
        (lambda logits, p: nucleus(logits, 0.95), "should keep tokens"),
        (lambda logits, p: nucleus(logits, 0.8), "On 4 rows of 500"),
        (lambda logits, p: logits.masked_fill_(nucleus(logits, p).isinf(), -torch.inf), "changed the logits"),
        (lambda logits, p: nucleus(logits, p)[0], "of the shape"),
    ]

    def room(window, prompt, wanted):
        if prompt >= window:
            raise ValueError("no room")
        return min(wanted, window - prompt)

    def wrong_error(window, prompt, wanted):
        if prompt >= window:
            raise KeyError("no room")
        return min(wanted, window - prompt)

    yield "Exercise 7.3", room, [
        (lambda w, p, n: w - p, "Return the smaller"),
        (lambda w, p, n: n, "The prompt counts"),
        (lambda w, p, n: room(w, p, n) - (n > w - p), "one position back"),
        (lambda w, p, n: min(n, w - p), "Raise a ValueError"),
        (lambda w, p, n: max(min(n, w - p), 0), "Raise a ValueError"),
        (wrong_error, "not KeyError"),
        (lambda w, p, n: float(room(w, p, n)), "A whole number"),
        (lambda w, p, n: 7, "should be 1192"),
    ]
