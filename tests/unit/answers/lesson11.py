"""Lesson 11, Batched generation on GPU."""

CONTEXT = {
    "Prediction 11.1": lambda: ([0.75 * n for n in range(1, 9)], [2.0] * 8),    # three times as fast
    "Prediction 11.2": lambda: (1000, 400),
}


def answers():
    import torch

    yield "Prediction 11.1", 2.2, [(8, "8 rows would be 8 times"), (1, "Above 1"), (7, "Part of the work is not shared"),
                                   (1.1, "More work is shared"), ("much", "a number"), (True, "a number")]
    yield "Prediction 11.2", 0.55, [(0.4, "the useful share"), (60, "did you mean 0.6"), (0.1, "One long prompt"),
                                    (0.9, "not that unlike"), (-1, "from 0 to 1"), ("half", "A share")]

    def buckets(lengths, budget, key=lambda length: -length, width=max):
        batches = []
        for n in sorted(range(len(lengths)), key=lambda n: key(lengths[n])):
            if not batches or width([lengths[k] for k in [*batches[-1], n]]) * (len(batches[-1]) + 1) > budget:
                batches.append([])
            batches[-1].append(n)
        return batches

    def by_sum(lengths, budget):
        batches = [[]]
        for n in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
            if batches[-1] and sum(lengths[k] for k in batches[-1]) + lengths[n] > budget:
                batches.append([])
            batches[-1].append(n)
        return batches

    def unsorted(lengths, budget):
        return buckets(lengths, budget, key=lambda length: 0)

    def last_lost(lengths, budget):
        return buckets(lengths, budget)[:-1]

    def as_lengths(lengths, budget):
        return [[lengths[n] for n in batch] for batch in buckets(lengths, budget)]

    def in_place(lengths, budget):
        found = buckets(lengths, budget)
        lengths.sort()
        return found

    yield "Exercise 11.1", buckets, [
        (by_sum, "Their sum fits"), (unsorted, "Longest first"), (last_lost, "Is the last batch kept"),
        (as_lengths, "Those are lengths"), (in_place, "changed the list"),
        (lambda lengths, budget: buckets(lengths, budget, key=lambda length: length), "Longest first"),
        (lambda lengths, budget: buckets(lengths, budget // 2), "are enough"),
        (lambda lengths, budget: [[], *buckets(lengths, budget)], "is empty"),
        (lambda lengths, budget: [n for batch in buckets(lengths, budget) for n in batch], "list of lists"),
        (lambda lengths, budget: buckets(lengths, budget * 2), "positions"),
        (lambda lengths, budget: sorted(unsorted(lengths, budget), key=lambda batch: -max(lengths[n] for n in batch)),
         "are enough"),
    ]

    def restore(batches, answers):
        placed = {n: answer for batch, found in zip(batches, answers, strict=True)
                  for n, answer in zip(batch, found, strict=True)}
        return [placed[n] for n in range(len(placed))]

    def flat(batches, answers):
        return [answer for found in answers for answer in found]

    def taken(batches, answers):
        return [flat(batches, answers)[n] for batch in batches for n in batch]

    yield "Exercise 11.2", restore, [
        (flat, "still in the order of the batches"), (taken, "the inverse"),
        (lambda batches, answers: sorted(flat(batches, answers), reverse=True), "the inverse"),
        (lambda batches, answers: restore(batches, answers)[1:] + restore(batches, answers)[:1], "should be"),
        (lambda batches, answers: list(dict.fromkeys(restore(batches, answers))), "key by the number"),
        (lambda batches, answers: answers, "still holds batches"),
        (lambda batches, answers: " ".join(restore(batches, answers)), "A list of answers"),
        (lambda batches, answers: sorted(flat(batches, answers)), "You sorted the texts"),
    ]

    def best(points, budget):
        in_time = [point for point in points if point[1] <= budget]
        return max(in_time, key=lambda point: point[2])[0] if in_time else None

    def whole(points, budget):
        in_time = [point for point in points if point[1] <= budget]
        return max(in_time, key=lambda point: point[2]) if in_time else None

    def largest(points, budget):
        return max((point[0] for point in points if point[1] <= budget), default=None)

    def quickest(points, budget):
        return min(points, key=lambda point: point[1])[0]

    def strict(points, budget):
        return best(points, budget - 1e-9)

    def strictest(points, budget):
        return best([point for point in points if point[1] < budget / 2], budget)

    def second(points, budget):
        in_time = sorted((point for point in points if point[1] <= budget), key=lambda point: -point[2])
        return in_time[1][0] if len(in_time) > 1 else best(points, budget)

    def always(points, budget):
        return best(points, max(budget, 3.8))

    yield "Exercise 11.3", best, [
        (whole, "the batch alone"), (largest, "the largest batch in time"), (quickest, "the quickest answer"),
        (strict, "the quickest answer"), (strictest, "met exactly"), (always, "Return None"), (second, "the best batch"),
        (lambda points, budget: max(points, key=lambda point: point[2])[0], "too late"),
    ]

    def answer_all(work, prompts, size, catch=torch.OutOfMemoryError, forget=False, keep=True, alone=MemoryError):
        found, start = [], size
        while len(found) < len(prompts):
            batch = prompts[len(found):len(found) + size]
            try:
                found += work(batch)
                size = start if forget else size
                continue
            except catch:
                pass
            if len(batch) == 1:
                if alone is None:
                    return found
                raise alone("does not fit even alone")
            size = len(batch) // 2
            if not keep:
                found = []
        return found

    def inside(work, prompts, size):
        if not prompts:
            return []
        try:
            return work(prompts[:size]) + inside(work, prompts[size:], size)
        except torch.OutOfMemoryError:
            if size == 1:
                raise MemoryError("alone") from None
            return inside(work, prompts, size // 2)

    def kept_error(work, prompts, size):
        found, last = [], None
        while len(found) < len(prompts):
            batch = prompts[len(found):len(found) + size]
            try:
                found += work(batch)
            except torch.OutOfMemoryError as error:
                last = error
                if len(batch) == 1:
                    raise MemoryError("alone") from last
                size = len(batch) // 2
        return found

    def gives_up(work, prompts, size):
        try:
            return [answer for at in range(0, len(prompts), size) for answer in work(prompts[at:at + size])]
        except torch.OutOfMemoryError:
            return []

    def one_by_one(work, prompts, size):
        return answer_all(work, prompts, 1)

    def for_ever(work, prompts, size):
        while True:
            try:
                return [answer for at in range(0, len(prompts), size) for answer in work(prompts[at:at + size])]
            except torch.OutOfMemoryError:
                pass

    yield "Exercise 11.4", answer_all, [
        (inside, "still"), (kept_error, "keep no error in a variable"), (gives_up, "All 11 answers"),
        (one_by_one, "halving a batch"), (for_ever, "for ever"),
        (lambda w, p, s: answer_all(w, p, s, forget=True), "after 8 had failed"),
        (lambda w, p, s: answer_all(w, p, s, catch=RuntimeError), "another fault"),
        (lambda w, p, s: answer_all(w, p, s, alone=ValueError), "not ValueError"),
        (lambda w, p, s: answer_all(w, p, s, alone=None), "even alone, yet"),
        (lambda w, p, s: [answer for at in range(0, len(p), s) for answer in w(p[at:at + s])], "OutOfMemoryError"),
    ]
