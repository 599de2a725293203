"""Checkers of lesson 08, KV cache."""

from collections.abc import Callable, Mapping, Sequence

from labutils.check.core import Wrong, call, exercise, prediction


def _number(guess, what: str) -> None:
    if isinstance(guess, bool) or not isinstance(guess, int | float):
        raise Wrong(f"{what} was asked for; this is {guess!r}.")


@prediction("8.1")
def bytes_per_token(guess: Sequence[int], configs: Mapping[str, dict]) -> str:
    """Compare guesses with the cache's bytes per token of each config, in their order."""
    from labutils import arithmetic

    right = {name: arithmetic.kv_cache(config).bytes for name, config in configs.items()}
    if isinstance(guess, Mapping):
        guess = list(guess.values())
    if not isinstance(guess, Sequence) or isinstance(guess, str) or len(guess) != len(right):
        raise Wrong(f"A list of {len(right)} numbers was asked for, in the order of the table; this is {guess!r}.")
    if any(each is ... for each in guess):
        raise Wrong("One is still missing. Guess all of them.")
    for said, (name, exact) in zip(guess, right.items(), strict=True):
        _number(said, f"A number of bytes for {name}")
        if said != exact:
            raise Wrong(f"{name}: you said {said:,g}, it is {exact:,}. {_reason(said, exact, configs[name])}")
    return "All five. Formula, config and tensors agree: nothing about a cache has to be guessed."


def _reason(said: float, exact: int, config: dict) -> str:
    heads, layers = config["num_attention_heads"], config["num_hidden_layers"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim")
    if said * 2 == exact:
        return "Keys and values: twice. Or a number of two bytes (of four, in float32) was taken for half as many."
    if said == exact * 2:
        return "Half of that. Two bytes a number in float16 and bfloat16, four in float32; and keys and values are two, not four."
    if said * layers == exact:
        return "That is one layer. Every layer has its own."
    if said * kv_heads == exact * heads:
        return "You counted query heads. The cache stores key/value heads."
    if head_dim and said * head_dim == exact * (config["hidden_size"] // heads):
        return "This config says its head_dim. Do not divide the hidden size."
    if said in (exact / 1000, exact / 1024):
        return "Bytes were asked for."
    return "2 × layers × KV heads × head_dim × bytes of a number."


_CASES = (
    ("our chat model", {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576},
     5, 44, 4, 10_137_600),
    ("Llama-2-7B, which has no num_key_value_heads",
     {"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096}, 1, 4096, 2, 2_147_483_648),
    ("a config with head_dim: null",
     {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096, "head_dim": None},
     1, 4000, 2, 524_288_000),
    ("Qwen3-4B, which says head_dim: 128",
     {"num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 2560, "head_dim": 128},
     1, 1, 2, 147_456),
    ("a config with num_key_value_heads: null",
     {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": None, "hidden_size": 32}, 3, 5, 4, 7_680),
)


@exercise("8.1")
def kv_bytes(function: Callable) -> str:
    """Check (config, batch, tokens, number_bytes) -> bytes on grouped heads, missing fields and an explicit head_dim."""
    for shown, config, batch, tokens, size, right in _CASES:
        try:
            got = call(function, dict(config), batch, tokens, size, shown=f"{shown}, {batch}, {tokens}, {size}")
        except Wrong as fault:
            if "KeyError" in str(fault) or "TypeError" in str(fault):
                raise Wrong(f"{fault} Two fields may be missing or null: num_key_value_heads and head_dim.") from None
            raise
        if isinstance(got, float) and got == int(got):
            raise Wrong(f"{got:,} is a float. Bytes are whole: divide with //.")
        if isinstance(got, bool) or not isinstance(got, int):
            raise Wrong(f"A number of bytes was asked for; this is {got!r}.")
        if got != right:
            raise Wrong(f"{shown}, batch {batch}, {tokens} tokens: {right:,} bytes; yours says {got:,}. "
                        f"{_diagnosis(got, right, config, batch, tokens, size)}")
    return "Right: grouped heads, two ways to say nothing, and a head_dim that is not the hidden size divided."


def _diagnosis(got: int, right: int, config: dict, batch: int, tokens: int, size: int) -> str:
    heads, layers = config["num_attention_heads"], config["num_hidden_layers"]
    kv_heads = config.get("num_key_value_heads") or heads
    divided = config["hidden_size"] // heads
    head_dim = config.get("head_dim") or divided
    if heads != kv_heads and got * kv_heads == right * heads:
        return "You counted query heads; the cache stores key/value heads."
    if head_dim != divided and got * head_dim == right * divided:
        return "You divided the hidden size, but this config says its head_dim."
    if got * 2 == right:
        return "Half: keys and values are two tensors."
    if batch > 1 and got * batch == right:
        return "The batch is missing: each sequence has its own keys and values."
    if got * layers == right:
        return "That is one layer; each has its own cache."
    if got * size == right:
        return "Those are numbers, not bytes: each takes number_bytes."
    if got * tokens == right:
        return "That is one token."
    return "2 × layers × batch × tokens × KV heads × head_dim × bytes of a number."


@exercise("8.2")
def positions_kept(function: Callable) -> str:
    """Check (config, tokens) -> positions for each layer: full, sliding, linear and shared layers, short and long texts."""
    full, slides, linear = "full_attention", "sliding_attention", "linear_attention"
    mixed = {"layer_types": [slides, slides, full], "sliding_window": 8}
    shares = {"layer_types": [slides, full, slides, full, full], "sliding_window": 8, "num_kv_shared_layers": 2}
    hybrid = {"layer_types": [linear, linear, full]}
    plain = {"layer_types": [full, full], "sliding_window": None, "num_kv_shared_layers": 0}
    cases = (
        (mixed, 40, [7, 7, 40]), (mixed, 5, [5, 5, 5]), (mixed, 7, [7, 7, 7]), (hybrid, 40, [0, 0, 40]),
        (shares, 40, [7, 40, 7, 0, 0]), (shares, 3, [3, 3, 3, 0, 0]), (plain, 9, [9, 9]),
    )
    for config, tokens, right in cases:
        got = call(function, {**config, "layer_types": list(config["layer_types"])}, tokens)
        if isinstance(got, int | float) and not isinstance(got, bool):
            raise Wrong("One number for each layer was asked for, as a list; this is a single number.")
        if not isinstance(got, list | tuple):
            raise Wrong(f"A list was asked for; this is a {type(got).__name__}.")
        got = list(got)
        if got == right:
            continue
        kinds = ", ".join(each.removesuffix("_attention") for each in config["layer_types"])
        where = f"{kinds}, {tokens} tokens"
        if len(got) != len(right):
            raise Wrong(f"{where}: {len(right)} layers, so {len(right)} numbers; yours has {len(got)}. A layer that keeps "
                        "nothing is a 0.")
        window = config.get("sliding_window")
        shared = config.get("num_kv_shared_layers") or 0
        if shared and got[-shared:] != right[-shared:]:
            raise Wrong(f"{where}, the last {shared} of them shared: these keep nothing, {right}; yours says {got}.")
        for kind, mine, true in zip(config["layer_types"], got, right, strict=True):
            if mine == true:
                continue
            if kind == linear:
                raise Wrong(f"{where}: a linear layer keeps a state of fixed size and no positions, so 0; yours says {mine}.")
            if kind == full:
                raise Wrong(f"{where}: a full layer keeps all {tokens}; yours says {mine}.")
            if mine == window and tokens > window:
                raise Wrong(f"{where}, window {window}: {true}. The new token brings its own key, so one fewer is kept.")
            if mine > tokens:
                raise Wrong(f"{where}, window {window}: there are only {tokens} tokens to keep; yours says {mine}.")
            if mine == tokens:
                raise Wrong(f"{where}, window {window}: a sliding layer forgets, it keeps {true}; yours keeps all {tokens}.")
            raise Wrong(f"{where}, window {window}: a sliding layer keeps {true}; yours says {mine}.")
    return "Right for full, sliding, linear and shared layers, in texts shorter and longer than the window."


@prediction("8.2")
def still_there(guess: int, measured: int) -> str:
    """Compare a guess with the positions whose bytes a sliding layer holds right after its prompt."""
    _number(guess, "A number of positions")
    if guess == measured:
        return f"{measured}, as measured: the tensor is a view, and a view keeps its whole storage alive."
    if guess == 7:
        reason = "That is what the tensor shows. What does it point into?"
    elif guess == 8:
        reason = "That comes true one token later. The window says what is looked at, not what is freed."
    else:
        reason = "The prompt was read at once, so its keys were computed at once."
    raise Wrong(f"You said {guess:g}, measured {measured}. {reason}")


@prediction("8.3")
def stale(choice: str, mixed: str) -> str:
    """Judge what comes of a stale cache; `mixed`: the best next token and its probability, as measured."""
    options = {
        "a": "Nothing raises: four positions are four positions, and the cache does not know its text.",
        "b": "Only the last token, \" is\", went through the model. \"Japan\" was never read.",
        "d": "It is not noise: a perfectly good continuation, of the other text.",
    }
    letter = choice.strip().lower().strip(".)") if isinstance(choice, str) else None
    if letter == "c":
        return f"{mixed.strip()}: a good answer to a question that nobody asked. Errors and noise would be found; this is not."
    if letter in options:
        raise Wrong(f"Measured: {mixed.strip()}. {options[letter]}")
    raise Wrong(f"One of \"a\", \"b\", \"c\" and \"d\" was asked for; this is {choice!r}.")


@exercise("8.3")
def reusable(function: Callable) -> str:
    """Check (cached_ids, new_ids) -> how many leading positions may be kept."""
    cases = (
        ([1, 7, 9, 4], [1, 7, 9, 4, 2], 4, "the text goes on"),
        ([1, 7, 9, 4], [1, 6, 9, 4, 2], 1, "the second token differs"),
        ([1, 7, 9, 4], [5, 7, 9, 4, 2], 0, "the first token differs"),
        ([1, 7, 9, 4], [1, 7, 9, 4], 3, "the same text again"),
        ([1, 7, 9, 4, 2, 8], [1, 7, 9], 2, "the cache is longer than the text"),
        ([1, 7, 9, 4, 2, 8], [1, 7, 3, 4], 2, "the cache is longer, and the third token differs"),
        ([], [1, 7], 0, "an empty cache"),
        ([1], [1], 0, "one token, which has to be read"),
    )
    for cached, new, right, shown in cases:
        got = call(function, list(cached), list(new))
        if isinstance(got, bool):
            raise Wrong("A number of positions was asked for, not yes or no: part of a cache may be right.")
        if not isinstance(got, int):
            raise Wrong(f"A whole number was asked for; this is {got!r}.")
        if got == right:
            continue
        where = f"reusable({cached}, {new}): {shown}, so {right}; yours says {got}."
        equal = sum(kept == wanted for kept, wanted in zip(cached, new, strict=False))
        if got < 0:
            raise Wrong(f"{where} A number of positions is never negative.")
        if got == len(new) and right == len(new) - 1:
            raise Wrong(f"{where} If every position is kept, nothing is read and there are no logits. Leave one.")
        if got == len(cached) and right < len(cached) and len(cached) > len(new):
            raise Wrong(f"{where} The cache goes beyond the text; what stands behind its end must go.")
        if got == len(cached) and right < len(cached):
            raise Wrong(f"{where} Equal length is not equal text: compare the ids.")
        if got == equal != right:
            raise Wrong(f"{where} You counted every equal token. After the first difference none is right: each key and value "
                        "knows what stands before it.")
        if got == 0:
            raise Wrong(f"{where} The positions before the first difference are as good as new. Keep them.")
        raise Wrong(where)
    return "Right: the common beginning, and always one token left to read."
