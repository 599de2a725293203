"""Lesson 05, Padding and attention masks."""


def two_rows():
    import torch

    alone, together = torch.zeros(1, 2, 2), torch.zeros(2, 4, 2)
    alone[0], together[0, :2], together[0, 2:] = torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    return alone, together      # cosine of the plain means: 0.71


CONTEXT = {
    "Prediction 5.1": two_rows,
    "Prediction 5.2": lambda: (["a", "b", "c", "d"], ["", "", "", "d"]),
}


def answers():
    import torch

    inf = torch.inf

    def mean(hidden, mask):
        weights = mask[..., None].to(hidden.dtype)
        return (hidden * weights).sum(1) / weights.sum(1)

    def softmax(scores, mask):
        return scores.masked_fill(mask == 0, -inf).softmax(-1).masked_fill(mask == 0, 0)

    def naive(scores, mask):
        powers = scores.exp() * mask
        return powers / powers.sum(-1, keepdim=True)

    yield "Exercise 5.1", softmax, [
        (lambda s, m: s.softmax(-1), "no effect"),
        (lambda s, m: s.softmax(-1) * m, "after the softmax"),
        (lambda s, m: (s * m).softmax(-1), "multiplied the scores"),
        (lambda s, m: s.masked_fill(m == 1, -inf).softmax(-1).nan_to_num(), "wrong way round"),
        (lambda s, m: s.masked_fill(m == 0, -inf).softmax(0).nan_to_num(), "over the batch"),
        (lambda s, m: s.masked_fill(m == 0, -inf).softmax(-1), "gives nan"),
        (lambda s, m: s.masked_fill(m == 0, -1e9).softmax(-1), "large negative number"),
        (naive, "overflows"),
        (lambda s, m: softmax(s, m).tolist(), "should be a tensor"),
        (lambda s, m: s.masked_fill_(m == 0, -inf).softmax(-1), "changed the scores"),
    ]
    yield "Prediction 5.1", 0.7, [(1.0, "Which positions"), (0.2, "Lower than it is"), ("high", "A number")]
    yield "Exercise 5.2", mean, [
        (lambda h, m: h.mean(1), "no effect"),
        (lambda h, m: (h * m[..., None]).mean(1), "length of the rectangle"),
        (lambda h, m: (h * m[..., None]).sum(1), "the sum"),
        (lambda h, m: (h * m[..., None]).sum(1) / m.sum(), "whole batch"),
        (lambda h, m: torch.stack([row[: int(n)].mean(0) for row, n in zip(h, m.sum(1), strict=True)]), "padding is on the left"),
        (lambda h, m: mean(h.float(), m), "came back as"),
        (lambda h, m: mean(h, m)[0], "shape"),
    ]
    yield "Prediction 5.2", 1, [(4, "never looked at a pad"), (0, "no padding at all"), (2, "end in a pad"), (7, "from 0 to 4")]

    def left(rows, pad, mask_of=None):
        longest = max(map(len, rows))
        ids = torch.tensor([[pad] * (longest - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
        return ids, mask if mask_of is None else mask_of(ids, mask)

    def on_the_right(rows, pad):
        longest = max(map(len, rows))
        return (torch.tensor([row + [pad] * (longest - len(row)) for row in rows]),
                torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows]))

    def in_place(rows, pad):
        for row in rows:
            while len(row) < max(map(len, rows)):
                row.insert(0, pad)
        return torch.tensor(rows), torch.ones(len(rows), len(rows[0]))

    yield "Exercise 5.3", left, [
        (on_the_right, "row 0 ends in a pad"),
        (lambda rows, pad: left(rows, pad, lambda ids, mask: (ids != pad).long()), "Your mask hides it"),
        (lambda rows, pad: left(rows, pad, lambda ids, mask: 1 - mask), "wrong way round"),
        (lambda rows, pad: left(rows, pad, lambda ids, mask: mask.flip(-1)), "marks the padding on the right"),
        (lambda rows, pad: left(rows, 0), "Row 0 of input_ids"),
        (lambda rows, pad: left(rows, pad)[0], "Return two tensors"),
        (lambda rows, pad: tuple(each.tolist() for each in left(rows, pad)), "should be a tensor"),
        (in_place, "changed the rows"),
    ]

    def windows(ids, size, overlap):
        if not 0 <= overlap < size:
            raise ValueError(overlap)
        return [ids[start:start + size] for start in range(0, max(len(ids) - overlap, 1), size - overlap)]

    yield "Exercise 5.4", windows, [
        (lambda ids, size, overlap: [ids[s:s + size] for s in range(0, len(ids), size - overlap)], "adds nothing"),
        (lambda ids, size, overlap: [ids[s:s + size] for s in range(0, len(ids), size)], "do not overlap"),
        (lambda ids, size, overlap: [ids[:size]], "in no window"),
        (lambda ids, size, overlap: [ids[s:s + size] for s in range(len(ids) - size + 1)], "step by one"),
        (lambda ids, size, overlap: windows(ids, size, min(overlap, size - 1)), "Raise a ValueError"),
        (lambda ids, size, overlap: [ids[s:s + size] for s in range(0, len(ids) - overlap, size - overlap)]
            if len(ids) > 2 else [], "fits in one window"),
        (lambda ids, size, overlap: [ids], "longer than size"),
    ]
