"""Lesson 08, KV cache."""


def configs():
    llama = {"model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096,
             "vocab_size": 32000, "dtype": "float16"}
    return {
        "an article's": {"model_type": "llama", "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 4,
                         "hidden_size": 1024, "vocab_size": 32000, "dtype": "bfloat16"},
        "Llama-2-7B": llama,
        "Llama-3.1-8B": llama | {"num_key_value_heads": 8, "dtype": "bfloat16"},
        "Qwen3-4B": {"model_type": "qwen3", "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
                     "head_dim": 128, "hidden_size": 2560, "vocab_size": 151936, "dtype": "bfloat16"},
        "our chat model": {"model_type": "llama", "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
                           "hidden_size": 576, "vocab_size": 49152, "dtype": "float32"},
    }


CONTEXT = {
    "Prediction 8.1": lambda: (configs(),),
    "Prediction 8.2": lambda: (40,),
    "Prediction 8.3": lambda: (" Paris 0.77",),
}


def answers():
    right = [16_384, 524_288, 131_072, 147_456, 46_080]

    def instead(place, number):
        return [number if at == place else each for at, each in enumerate(right)]

    yield "Prediction 8.1", right, [
        (instead(0, 8_192), "Keys and values: twice"), (instead(0, 65_536), "query heads"), (instead(0, 1_024), "one layer"),
        (instead(4, 138_240), "query heads"), (instead(3, 92_160), "says its head_dim"), (instead(1, 1_048_576), "Half of that"),
        (instead(2, 128), "Bytes were asked"), (instead(2, 7), "2 × layers"), (right[:4], "A list of 5"),
        (16_384, "A list of 5"), (instead(2, "much"), "A number of bytes"), (instead(4, ...), "still missing"),
    ]

    def kv_bytes(config, batch, tokens, size, kv=True, own=True, two=2, layers=True):
        heads = config["num_attention_heads"]
        kv_heads = config.get("num_key_value_heads") if kv else None
        head_dim = config.get("head_dim") if own else None
        return (two * (config["num_hidden_layers"] if layers else 1) * batch * tokens * (kv_heads or heads)
                * (head_dim or config["hidden_size"] // heads) * size)

    yield "Exercise 8.1", kv_bytes, [
        (lambda c, b, t, s: kv_bytes(c, b, t, s, kv=False), "query heads"),
        (lambda c, b, t, s: kv_bytes(c, b, t, s, own=False), "divided the hidden size"),
        (lambda c, b, t, s: kv_bytes(c, b, t, s, two=1), "Half"),
        (lambda c, b, t, s: kv_bytes(c, 1, t, s), "batch is missing"),
        (lambda c, b, t, s: kv_bytes(c, b, t, s, layers=False), "one layer"),
        (lambda c, b, t, s: kv_bytes(c, b, t, 1), "not bytes"),
        (lambda c, b, t, s: kv_bytes(c, b, 1, s), "one token"),
        (lambda c, b, t, s: float(kv_bytes(c, b, t, s)), "is a float"),
        (lambda c, b, t, s: c["num_key_value_heads"] * kv_bytes(c, b, t, s) // c["num_key_value_heads"], "may be missing"),
        (lambda c, b, t, s: str(kv_bytes(c, b, t, s)), "A number of bytes"),
        (lambda c, b, t, s: 5, "2 × layers"),
    ]

    def kept(config, tokens, less=1, short=True, share=True, linear=0, full=None):
        window = (config.get("sliding_window") or 0) - less
        each = {"full_attention": tokens if full is None else full, "linear_attention": linear,
                "sliding_attention": min(tokens, window) if short else window}
        found = [each[kind] for kind in config["layer_types"]]
        owners = len(found) - (config.get("num_kv_shared_layers", 0) if share else 0)
        return found[:owners] + [0] * (len(found) - owners)

    yield "Exercise 8.2", kept, [
        (lambda c, t: kept(c, t, less=0), "one fewer is kept"),
        (lambda c, t: kept(c, t, short=False), "only 5 tokens"),
        (lambda c, t: kept(c, t, share=False), "keep nothing"),
        (lambda c, t: kept(c, t, linear=t), "state of fixed size"),
        (lambda c, t: [t] * len(c["layer_types"]), "a sliding layer forgets"),
        (lambda c, t: kept(c, t, full=7), "a full layer keeps all"),
        (lambda c, t: [each for each in kept(c, t) if each], "is a 0"),
        (lambda c, t: kept(c, t, less=3), "a sliding layer keeps 7"),
        (lambda c, t: sum(kept(c, t)), "One number for each layer"),
        (lambda c, t: "7", "A list was asked"),
    ]
    yield "Prediction 8.2", 40, [(7, "point into"), (8, "one token later"), (39, "computed at once"),
                                 ("all", "A number of positions")]
    yield "Prediction 8.3", "c", [("a", "Nothing raises"), ("b", "never read"), ("d", "not noise"), ("Tokyo", "One of"),
                                  (3, "One of")]

    def reusable(cached, new, leave=1):
        same = 0
        for one, other in zip(cached, new, strict=False):
            if one != other:
                break
            same += 1
        return min(same, len(new) - leave)

    yield "Exercise 8.3", reusable, [
        (lambda a, b: reusable(a, b, leave=0), "Leave one"),
        (lambda a, b: len(a) if len(a) < len(b) else reusable(a, b), "Equal length is not equal text"),
        (lambda a, b: sum(x == y for x, y in zip(a, b, strict=False)), "every equal token"),
        (lambda a, b: len(a) if a[:len(b)] == b[:len(a)] and len(a) != len(b) else reusable(a, b), "beyond the text"),
        (lambda a, b: len(a) if reusable(a, b) == len(a) else 0, "as good as new"),
        (lambda a, b: a == b[:len(a)], "yes or no"),
        (lambda a, b: float(reusable(a, b)), "A whole number"),
        (lambda a, b: reusable(a, b) - 1, "goes on, so 4"),
        (lambda a, b: reusable(a, b) or -1, "never negative"),
    ]
