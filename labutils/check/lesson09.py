"""Checkers of lesson 09, Memory and devices."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from labutils.check.core import Wrong, call, exercise, prediction

CARDS = (8, 24, 80)


def _gigabytes(guess: Any) -> float:
    if isinstance(guess, bool) or not isinstance(guess, int | float) or guess <= 0:
        raise Wrong(f"A number of GB, more than 0, was asked for; this is {guess!r}.")
    return float(guess)


def _near(guess: float, measured: float, share: float) -> bool:
    return abs(guess - measured) <= share * measured


@prediction("9.1")
def resident_experts(guess: float, parameters: int, active: float) -> str:
    """Compare a guess in GB with the bfloat16 weights of a mixture of experts; `active` parameters work on a token."""
    guess, measured = _gigabytes(guess), 2 * parameters / 1e9
    if _near(guess, measured, 0.1):
        return f"You said {guess:g}, it is {measured:.1f} GB: all experts, whichever of them is asked."
    if _near(guess, 2 * active / 1e9, 0.2):
        reason = "You counted what works on one token. The next token asks for other experts, and they have to be there."
    elif _near(guess, parameters / 1e9, 0.1):
        reason = "That is the number of parameters in billions. In bfloat16 each takes two bytes."
    elif _near(guess, 2 * measured, 0.1):
        reason = "Four bytes each would be float32."
    else:
        reason = "Parameters times two bytes. Which parameters must be at hand?"
    raise Wrong(f"You said {guess:g}, it is {measured:.1f} GB. {reason}")


@prediction("9.2")
def big_cache(guess: float, cache: int, weights: int) -> str:
    """Compare a guess in GB with the bytes of a cache; `weights` are those of the same model."""
    guess, measured = _gigabytes(guess), cache / 1e9
    if _near(guess, measured, 0.2):
        return (f"You said {guess:g}, it is {measured:.1f} GB: {cache / weights:.1f} times the weights. No percentage covers "
                "that.")
    if _near(guess, measured / 16, 0.3):
        reason = "That is one sequence. Each of the 16 has a cache of its own."
    elif guess <= 0.4 * weights / 1e9:
        reason = "That is what the rule allows for everything else. The cache does not care for the rule."
    elif _near(guess, measured / 2, 0.2):
        reason = "Keys and values: both are kept."
    else:
        reason = "2 (keys, values) × 32 layers × 32 heads × 128 numbers × 2 bytes, for each of 16 × 4,096 tokens."
    raise Wrong(f"You said {guess:g}, it is {measured:.1f} GB. {reason}")


@prediction("9.3")
def fetched(guess: float, total: int, once: int) -> str:
    """Compare a guess in GB with the bytes that hooks fetched for an answer; `once`: the bytes that are offloaded."""
    guess, measured, passes = _gigabytes(guess), total / 1e9, round(total / once)
    if _near(guess, measured, 0.2):
        return f"You said {guess:g}, measured {measured:.2f} GB: {once / 1e9:.2f} GB in each of {passes} passes."
    if _near(guess, once / 1e9, 0.2):
        reason = f"That is fetched once. The hooks drop it after each layer, so it comes again in each of {passes} passes."
    elif guess > 3 * measured:
        reason = "The whole prompt goes through in one pass, and one fetch serves all its tokens."
    else:
        reason = f"What is offloaded, {once / 1e9:.2f} GB, times the passes of the answer, {passes}."
    raise Wrong(f"You said {guess:g}, measured {measured:.2f} GB. {reason}")


def _llama(context: int = 8192) -> tuple[dict[str, int], int]:
    from labutils import arithmetic

    config = arithmetic.known("Llama-3.1-8B")
    plans = {name: arithmetic.plan(config, quantization=scheme, context=context)
             for name, scheme in (("bfloat16", "none"), ("int8", "int8"), ("NF4", "nf4"))}
    plan = plans["bfloat16"]
    return {name: each.weights.total for name, each in plans.items()}, plan.cache.peak + plan.logits


@exercise("9.1")
def three_cards(function: Callable) -> str:
    """Check (card, weights, per_sequence) -> (format, sequences) or None, on toy numbers and on Llama-3.1-8B."""
    toy = {"sixteen": 160, "eight": 90, "four": 60}
    cases = ((200, toy, 10, ("sixteen", 4)), (165, toy, 10, ("eight", 7)), (170, toy, 10, ("sixteen", 1)),
             (99, toy, 10, ("four", 3)), (65, toy, 10, None), (20, toy, 10, None))
    for card, weights, each, wanted in cases:
        got = _chosen(function, card, weights, each)
        if got == wanted:
            continue
        shown = f"With a card of {card}, weights {weights} and {each} a sequence"
        if wanted is None:
            raise Wrong(f"{shown} nothing works, so None was asked for; yours says {got!r}.")
        if got is None:
            raise Wrong(f"{shown}, {wanted[0]!r} leaves room for {wanted[1]}; yours returned None.")
        if got[1] < 1:
            raise Wrong(f"{shown} you chose {got[0]!r} with {got[1]} sequences. It must hold one at least; try "
                        "the next format.")
        if got[0] != wanted[0]:
            raise Wrong(f"{shown} the first format that works is {wanted[0]!r}; yours is {got[0]!r}. The best comes first.")
        if got[1] == card // each:
            raise Wrong(f"{shown} you gave the sequences the whole card. The weights are there, too.")
        if isinstance(got[1], float):
            raise Wrong(f"{shown} {got[1]:g} sequences: there are no parts of a sequence. Divide with //.")
        raise Wrong(f"{shown} there is room for {wanted[1]} sequences; yours says {got[1]}.")
    weights, each = _llama()
    found = []
    for card in CARDS:
        got = _chosen(function, card * 10**9, weights, each)
        found.append(f"{card} GB: {got[0]}, {got[1]} sequence{'s' if got[1] > 1 else ''}" if got else f"{card} GB: nothing")
    return f"Right. Llama-3.1-8B with 8,192 tokens: {'; '.join(found)}."


def _chosen(function: Callable, card: int, weights: Mapping[str, int], each: int) -> tuple | None:
    """Call the learner's function, for which None is an answer; return it as a tuple or None."""
    got = call(function, card, dict(weights), each, optional=True)
    if got is None:
        return None
    if not isinstance(got, tuple | list) or len(got) != 2 or got[0] not in weights:
        raise Wrong(f"Return the format's name and a number, or None; yours returned {got!r}.")
    return tuple(got)


@exercise("9.2")
def bytes_by_device(function: Callable) -> str:
    """Check (device_map, sizes) -> device -> bytes: whole model, layer 1 beside layer 10, nested keys, two devices."""
    sizes = {"model.embed.weight": 100, **{f"model.layers.{n}.mlp.weight": 10 + n for n in range(12)}, "model.norm.weight": 1}
    layers = {f"model.layers.{n}": "cpu" if n == 1 else "disk" if n > 9 else 0 for n in range(12)}
    cases = (
        ("one key for all", {"": 0}, {0: sum(sizes.values())}),
        ("layer 1 on the cpu, layers 10 and 11 on the disk", {"model.embed": 0, **layers, "model.norm": 0},
         {0: 235, "cpu": 11, "disk": 41}),
        ("a key inside another", {"model": "cpu", "model.layers.3": 0, "model.layers.3.mlp": "disk"}, {"cpu": 274, "disk": 13}),
        ("the longest key last, and one for a single tensor", {"": "disk", "model.layers": "cpu", "model.embed.weight": 0},
         {"disk": 1, "cpu": 186, 0: 100}),
    )
    whole = sum(sizes.values())
    for shown, device_map, wanted in cases:
        got = call(function, dict(device_map), dict(sizes), shown=f"a map with {shown}, sizes")
        if not isinstance(got, dict):
            raise Wrong(f"A dictionary, device -> bytes, was asked for; this is a {type(got).__name__}.")
        got = {place: size for place, size in got.items() if size}
        if got == wanted:
            continue
        if set(got) - set(device_map.values()):
            raise Wrong(f"With {shown}: the keys of your result should be devices, {sorted(map(str, wanted))}; "
                        f"yours are {sorted(map(str, got))[:4]}.")
        if sum(got.values()) > whole:
            raise Wrong(f"With {shown}: {sum(got.values())} bytes in all, but the model has {whole}. Some name fits several "
                        "keys; the longest one wins.")
        if sum(got.values()) < whole:
            raise Wrong(f"With {shown}: {sum(got.values())} bytes in all, but the model has {whole}. A key holds for "
                        "everything inside its module, and \"\" for the whole model.")
        if wanted.get("cpu") == 11:
            raise Wrong(f"With {shown}: {got}. \"model.layers.10.mlp\" begins with \"model.layers.1\", but it is not inside. "
                        "Compare with a dot at the end.")
        raise Wrong(f"With {shown}: {got} instead of {wanted}. Of several keys that fit, the longest wins.")
    return "Right: the whole model, layers 1 and 10, a key inside a key, and a single tensor."


REASONS = {
    "a": "the output has a graph, and the graph holds the weights",
    "b": "without a graph an output is numbers only",
    "c": "a state dict holds the tensors themselves, not copies",
    "d": "numbers of elements are numbers",
    "e": "a hook's handle knows the network only weakly",
    "f": "a bound method holds its object",
    "g": "the error holds its traceback, the traceback its frames, and a frame holds the network",
    "h": "a circle is found by gc.collect()",
}


@exercise("9.3")
def who_stays(stay: Sequence[str], scenes: Mapping[str, str]) -> str:
    """Run each scene on a small network, delete it, and compare the letters of the scenes where its weights stay."""
    if isinstance(stay, str) or not isinstance(stay, Sequence | set) or not all(isinstance(each, str) for each in stay):
        raise Wrong(f"A list of letters was asked for; this is {stay!r}.")
    unknown = sorted(set(stay) - set(scenes))
    if unknown:
        raise Wrong(f"There is no scene {unknown[0]!r}; the scenes are {', '.join(scenes)}.")
    measured = [letter for letter, code in scenes.items() if _stays(code)]
    for letter in scenes:
        if (letter in stay) != (letter in measured):
            verdict = "stay" if letter in measured else "are gone"
            reason = REASONS.get(letter, "")
            raise Wrong(f"Scene {letter}, `{scenes[letter].splitlines()[0]}`: the weights {verdict}"
                        f"{f', for {reason}' if reason else ''}.")
    return f"Right: they stay in {', '.join(measured)}, as measured."


def _stays(code: str) -> bool:
    """Return whether the weights of a small network are alive after `code`, `del net` and a collection."""
    import gc
    import weakref

    import torch

    place: dict[str, Any] = {"torch": torch, "net": torch.nn.Linear(4, 4), "x": torch.ones(1, 4)}
    watch = weakref.ref(place["net"].weight.untyped_storage())     # the bytes; tensors are views of them
    exec(code, place)       # the scenes are the lesson's own text
    del place["net"]
    gc.collect()
    return watch() is not None
