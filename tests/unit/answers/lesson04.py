"""Lesson 04, Chat templates."""

import functools

from labutils.checkpoints import checkpoint


@functools.cache
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(checkpoint("chat"))


CONTEXT = {
    "Exercise 4.1": lambda: (tokenizer(),),
    "Prediction 4.1": lambda: (["", "\n", "", "four", ""],),
    "Prediction 4.2": lambda: ([1, 2, 3], [1, 2, 3]),
}


def answers():
    default = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    header, end = "<|im_start|>", "<|im_end|>"

    def chatml(messages, opened=False, own=default, line="\n", prompt=f"{header}assistant\n", always=False, strip=False):
        if own and (always or messages[0]["role"] != "system"):
            messages = [{"role": "system", "content": own}, *messages]
        texts = [(m["role"], m["content"].strip() if strip else m["content"]) for m in messages]
        return "".join(f"{header}{role}\n{text}{end}{line}" for role, text in texts) + prompt * opened

    def in_place(messages, opened=False):
        if messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": default})
        return chatml(messages, opened)

    def forgets(messages, opened=False):
        chatml(messages, opened)

    yield "Exercise 4.1", chatml, [
        (lambda m, o=False: chatml(m, o, own=""), "whenever the first message"),
        (lambda m, o=False: chatml(m, o, always=True), "gets no second one"),
        (lambda m, o=False: chatml(m, o, line=""), "A line end follows"),
        (lambda m, o=False: chatml(m, o, prompt=""), "opens the assistant's turn"),
        (lambda m, o=False: chatml(m, o, prompt=f"{header}assistant\n{end}\n"), "You closed it"),
        (lambda m, o=False: chatml(m, True), "was False here"),
        (lambda m, o=False: chatml(m, o, strip=True), "You stripped the content"),
        (lambda m, o=False: chatml(m, o)[:-1] if not o else chatml(m, o), "Each turn brings its own"),
        (lambda m, o=False: chatml(m, o, own="You are a helpful assistant"), "part at character 37"),
        (lambda m, o=False: tokenizer().apply_chat_template(m)["input_ids"], "one string"),
        (in_place, "changed the messages"), (forgets, "returned None"),
    ]
    yield "Prediction 4.1", 1, [(5, "What is missing"), (0, "do hold words"), (9, "from 0 to 5"), ("all", "A number from")]

    def extra(ids, mask, bos):
        first = mask.index(1)
        return first + 1 if ids[first:first + 2] == [bos, bos] else -1

    yield "Exercise 4.2", extra, [
        (lambda ids, mask, bos: 1 if ids.count(bos) > 1 else -1, "counting it proves nothing"),
        (lambda ids, mask, bos: 1 if ids[:2] == [bos, bos] else -1, "where the mask turns 1"),
        (lambda ids, mask, bos: next((n for n in range(1, len(ids)) if ids[n - 1:n + 1] == [bos, bos]), -1),
         "follow the mask"),
        (lambda ids, mask, bos: max(extra(ids, mask, bos) - 1, -1), "belongs there"),
        (lambda ids, mask, bos: extra(ids, mask, bos) - mask.index(1) if extra(ids, mask, bos) > 0 else -1, "counted from"),
        (lambda ids, mask, bos: extra(ids, mask, bos) > 0, "A position"),
        (lambda ids, mask, bos: 1 if ids[1] == bos and ids[0] == bos else -1, "where the mask turns 1"),
        (lambda ids, mask, bos: next((n for n in range(1, len(ids)) if mask[n - 1] and ids[n - 1:n + 1] == [bos, bos]), -1),
         "in the middle"),
    ]
    yield "Prediction 4.2", 0, [(90, "never hears of your function"), (-5, "measured 0"), ("many", "number of tokens")]

    def first(client_a, client_b, messages):
        ours, theirs = client_a(messages), client_b(messages)
        for at, (a, b) in enumerate(zip(ours, theirs, strict=False)):
            if a != b:
                return at
        return -1 if len(ours) == len(theirs) else min(len(ours), len(theirs))

    def zipped(client_a, client_b, messages):
        pairs = zip(client_a(messages), client_b(messages), strict=False)
        return next((at for at, (a, b) in enumerate(pairs) if a != b), -1)

    def length(client_a, client_b, messages):
        at = first(client_a, client_b, messages)
        return len(client_a(messages)) if at == -1 else at

    def last(client_a, client_b, messages):
        pairs = zip(client_a(messages), client_b(messages), strict=False)
        return max((at for at, (a, b) in enumerate(pairs) if a != b), default=-1)

    yield "Exercise 4.3", first, [
        (zipped, "zip stops there"),
        (length, "are equal: -1"),
        (last, "the last difference"),
        (lambda a, b, m: a(m)[first(a, b, m)], "You returned an id"),
        (lambda a, b, m: first(a, b, m) >= 0, "A position"),
        (lambda a, b, m: first(a, b, m[0]["content"]), "messages as they are"),
        (lambda a, b, m: max(first(a, b, m) - 1, -1), "You said 1"),
        (lambda a, b, m: len(a), "TypeError"),
    ]
