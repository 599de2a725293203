"""Checkers of lesson 03, Tokenization."""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, pairwise

from labutils.check.core import Wrong, call, exercise, prediction


@exercise("3.1")
def count_pairs(function: Callable) -> str:
    """Check counting of neighbouring symbols in words with their counts: {("t", "o"): 4} -> {("t", "o"): 4}."""
    words = {tuple("boat"): 3, tuple("boats"): 2, tuple("toto"): 4, ("a",): 7, ("bo", "a"): 1}
    copy = dict(words)
    got = call(function, words, shown="five words with their counts")
    if not isinstance(got, Mapping):
        raise Wrong(f"A dictionary from pair to count was asked for; this is a {type(got).__name__}.")
    if words != copy:
        raise Wrong("Your function changed the words it was given.")
    got = {pair: count for pair, count in got.items() if count}
    if any(isinstance(pair, str) for pair in got):
        raise Wrong("Your keys are strings. Keep the two symbols apart, ('b', 'o'): once joined, nobody knows where to split.")
    wanted, once, single, any_two, crossing = {}, {}, {}, {}, {}
    for word, count in words.items():
        for pair in pairwise(word):
            wanted[pair] = wanted.get(pair, 0) + count
            once[pair] = once.get(pair, 0) + 1
        for pair in set(pairwise(word)):
            single[pair] = single.get(pair, 0) + count
        for pair in combinations(word, 2):
            any_two[pair] = any_two.get(pair, 0) + count
    for pair in pairwise([symbol for word, count in words.items() for symbol in word * count]):
        crossing[pair] = crossing.get(pair, 0) + 1
    if got == wanted:
        return "Right. ('t', 'o') leads with 8: it stands twice in toto, and toto was read four times."
    if got == once:
        raise Wrong("You counted every word once. boat was read three times, so each of its pairs counts three times.")
    if got == single:
        raise Wrong("('t', 'o') stands twice in toto. Count each place, not each word that has it.")
    if got == any_two:
        raise Wrong("You counted any two symbols of a word. Only neighbours can be merged.")
    if got == crossing:
        raise Wrong("You counted pairs that cross from one word into the next. A merge never crosses the border of a word.")
    if {frozenset(pair) for pair in got} == {frozenset(pair) for pair in wanted} and len(got) < len(wanted):
        raise Wrong("The order within a pair counts: ('t', 'o') and ('o', 't') are two pairs.")
    if ("bo", "a") not in got and ("b", "o") in got:
        raise Wrong("The word ('bo', 'a') has two symbols, 'bo' and 'a'. Go through symbols, not through letters.")
    pair = next((pair for pair in wanted if got.get(pair) != wanted[pair]), None) or next(iter(set(got) - set(wanted)))
    raise Wrong(f"{pair} should count {wanted.get(pair, 0)}; yours counts {got.get(pair, 0)}.")


@exercise("3.2")
def merge(function: Callable) -> str:
    """Check one BPE merge, on words that tempt to cut corners, then twelve steps on the lesson's text."""
    words = {("t", "h", "e"): 5, ("sh", "e"): 2, ("h", "e", "h", "e"): 1, ("l", "l", "l"): 1, ("e", "h"): 1}
    copy = dict(words)
    got = call(function, words, ("h", "e"), shown="five words, ('h', 'e')")
    if words != copy:
        raise Wrong("Your function changed the words it was given. Build a new dictionary.")
    if not isinstance(got, Mapping) or not all(isinstance(word, tuple) for word in got):
        raise Wrong("A dictionary was asked for whose keys are tuples of symbols, as in the words you were given.")
    wanted = _merge(words, ("h", "e"))
    if ("she",) in got or ("s", "he") in got:
        raise Wrong("('sh', 'e') became 'she', but 'sh' is one symbol and the pair is ('h', 'e'). Compare symbols, not text.")
    if ("he", "h", "e") in got:
        raise Wrong("In ('h', 'e', 'h', 'e') only the first place was merged. Merge every place.")
    if ("t", "he", "e") in got or ("he", "e", "he", "e") in got:
        raise Wrong("After a merge go on behind both symbols: the 'e' is in 'he' now and must not stand there again.")
    if ("eh",) in got:
        raise Wrong("('e', 'h') is another pair than ('h', 'e'). The order counts.")
    if set(got) == set(wanted) and got != wanted:
        raise Wrong("The words are right, their counts are not. A merge changes how a word is cut, not how often it was read.")
    if got != wanted:
        missing = next((word for word in wanted if word not in got), None)
        raise Wrong(f"{missing} is missing: merging ('h', 'e') in five words should give {sorted(wanted)}.")
    triple = call(function, {("l", "l", "l"): 1}, ("l", "l"), shown="('l', 'l', 'l'), ('l', 'l')")
    if triple != {("ll", "l"): 1}:
        raise Wrong(f"('l', 'l', 'l') becomes ('ll', 'l'), from the left; yours became {next(iter(triple), None)}.")
    return _twelve_steps(function)


def _merge(words: Mapping, pair: Sequence[str]) -> dict:
    merged = {}
    for word, count in words.items():
        symbols, at = [], 0
        while at < len(word):
            step = 2 if word[at:at + 2] == tuple(pair) else 1
            symbols.append("".join(word[at:at + step]))
            at += step
        merged[tuple(symbols)] = count
    return merged


def _twelve_steps(function: Callable) -> str:
    """Let the learner's merge run on the course's English text and compare with the library's own trainer."""
    from collections import Counter

    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    from labutils import data

    text = data.path("parallel/en.txt").read_text(encoding="utf-8")
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.train_from_iterator(text.splitlines(), trainers.BpeTrainer(vocab_size=200, show_progress=False))
    words = {tuple(word): count for word, count in Counter(
        word for word, _ in pre_tokenizers.Whitespace().pre_tokenize_str(text)).items()}
    for number, wanted in enumerate(json.loads(library.to_str())["model"]["merges"][:12], 1):
        counts: Counter = Counter()
        for word, count in words.items():
            for pair in pairwise(word):
                counts[pair] += count
        pair = tuple(wanted)
        if counts[pair] != max(counts.values()):    # several pairs may share the first place; the library takes one of them
            raise Wrong(f"Right on small words, but on the lesson's text step {number} should merge {pair}, and after your "
                        f"steps it counts only {counts[pair]}. Is every place merged, and every word kept?")
        words = call(function, words, pair, shown=f"the lesson's text, {pair}")
    return "Right. Twelve steps on the lesson's text, and each makes the same merge as the library's trainer."


@exercise("3.3")
def token_span(function: Callable) -> str:
    """Check the tokens that cover text[start:end], from offsets: special tokens, halves of words, one character in three."""
    # "Marta sees two boats." for an encoder: a special token at each end, boats in two pieces.
    offsets = [(0, 0), (0, 5), (6, 10), (11, 14), (15, 19), (19, 20), (20, 21), (0, 0)]
    asked = (("sees two", 6, 14, (2, 4)), ("boats", 15, 20, (4, 6)), ("Marta", 0, 5, (1, 2)))
    for words, start, end, wanted in asked:
        got = call(function, offsets, start, end, shown=f"offsets, {start}, {end}")
        if not isinstance(got, tuple | list) or len(got) != 2:
            raise Wrong(f"Return two whole numbers, (first, behind the last); this is {got!r}.")
        got = tuple(got)
        if got == wanted:
            continue
        if got == (wanted[0], wanted[1] - 1):
            raise Wrong(f"{words!r} ends in token {wanted[1] - 1}, so the span is {wanted}: "
                        "tokens[first:last] leaves out its end.")
        if start == 0 and (got[0] == 0 or got[1] == len(offsets)):
            raise Wrong("A special token has the offsets (0, 0) and covers no text. Yours counts it as the start of 'Marta'.")
        if got[0] == wanted[0] - 1 or got[1] == wanted[1] + 1:
            raise Wrong(f"{words!r} is in tokens {wanted}; yours, {got}, takes a neighbour too that only touches it.")
        raise Wrong(f"{words!r} is in tokens {wanted}; you returned {got}.")
    inside = tuple(_attempt(function, offsets, 16, 18, "a part of a token"))
    if inside != (4, 5):
        raise Wrong(f"'oa' lies inside the token 'boat', number 4, so the span is (4, 5); yours is {inside}. "
                    "A token counts as soon as it covers one of the characters.")
    # " boats" keeps its space in a byte-level vocabulary; the moon is three tokens with the same offsets.
    spaced = [(0, 3), (3, 9), (9, 10), (10, 11), (10, 11), (10, 11)]
    word = tuple(_attempt(function, spaced, 4, 9, "a token that keeps its space"))
    if word != (1, 2):
        raise Wrong("In a byte-level vocabulary the token ' boats' starts at its space, 3, and covers text[4:9]: (1, 2); "
                    f"yours is {word}.")
    moon = tuple(_attempt(function, spaced, 10, 11, "a character spread over three tokens"))
    if moon != (3, 6):
        raise Wrong(f"The character at 10 is spread over three tokens with the same offsets: (3, 6); yours is {moon}.")
    return "Right: special tokens, parts of a token, spaces, and a character in three pieces."


def _attempt(function: Callable, offsets, start: int, end: int, what: str):
    try:
        return call(function, offsets, start, end, shown=f"offsets, {start}, {end}")
    except Wrong as wrong:
        raise Wrong(f"{wrong} The span was {what}: compare with < and >, not with ==.") from None


@prediction("3.1")
def three_languages(english: int, russian: int, tamil: int, counts: Mapping[str, int]) -> str:
    """Compare three guesses with the tokens of one sentence in three languages; within a third counts."""
    guesses = dict(zip(counts, (english, russian, tamil), strict=True))
    for name, guess in guesses.items():
        if isinstance(guess, bool) or not isinstance(guess, int | float):
            raise Wrong(f"Three numbers were asked for; for {name} you gave {guess!r}.")
    seen = ", ".join(f"{name} {guesses[name]:g} (measured {counts[name]})" for name in counts)
    off = [name for name in counts if abs(guesses[name] - counts[name]) > counts[name] / 3]
    if not off:
        return f"You said {seen}. Close enough, and rare."
    first, *_, last = counts
    if guesses[last] <= 1.5 * guesses[first]:
        reason = ("The sentences say the same, but this vocabulary was learned from English: "
                  "it has few pieces for other scripts.")
    elif guesses[last] > counts[last]:
        reason = f"More than it is for {off[-1]}: a token is never less than one byte."
    else:
        reason = ("Right that it rises. It rises more: where the vocabulary has no piece, it pays by the byte "
                  f"({', '.join(off)}).")
    raise Wrong(f"You said {seen}. {reason}")


@prediction("3.2")
def fewest_tokens(guess: str, costs: Mapping[str, tuple[int, float]]) -> str:
    """Compare the name of a tokenizer with the one that needs the fewest tokens; costs: name -> (tokens, share lost)."""
    name = str(guess).strip().lower().removeprefix("tokenizer-")
    if name not in costs:
        raise Wrong(f"Name one of the tokenizers: {', '.join(costs)}. This is {guess!r}.")
    best = min(costs, key=lambda each: costs[each][0])
    tokens, lost = costs[best]
    seen = f"{best} makes {tokens:,} tokens, and {lost:.0%} of the characters are gone."
    if name == best:
        return f"{best}, as measured. {seen} Cheap, because most of it was thrown away."
    raise Wrong(f"You said {name} ({costs[name][0]:,} tokens), measured {best}. {seen} "
                "Nothing is cheaper than a text that is lost.")


@exercise("3.4")
def fits(function: Callable, tokenizer, model) -> str:
    """Check a function that says whether a tokenizer belongs to a model, on `tokenizer` and four variants of it."""
    text = "The children walked to school in the morning and came home in the afternoon."
    rows = model.get_input_embeddings().weight.shape[0]

    def ask(given, to, shown: str) -> bool:
        verdict = call(function, given, to, text, shown=shown)
        if hasattr(verdict, "item"):
            verdict = verdict.item()
        if not isinstance(verdict, bool):
            raise Wrong(f"Answer True or False; for {shown} you returned {verdict!r}.")
        return verdict

    if not ask(tokenizer, model, "its own tokenizer, model"):
        raise Wrong("You refused the model's own tokenizer. With the right ids its surprise is far below that of a blind "
                    "guess, ln(rows).")
    other = _variant(tokenizer, lambda ids: ids[5000:] + ids[:5000])
    if ask(other, model, "a tokenizer of the same size with other ids, model"):
        raise Wrong(f"You accepted a tokenizer with the same tokens and the same size, {len(other):,}, whose ids are other ids. "
                    "Size, special tokens and a round trip all look right. Only the model can tell: how surprised is it?")
    shorter = _variant(tokenizer, lambda ids: ids[:-1000])
    if not ask(shorter, model, "its own tokenizer without its last 1,000 tokens, model"):
        raise Wrong(f"You refused the right tokenizer because it has {len(shorter):,} tokens and the table {rows:,} rows. "
                    "Spare rows are legal; many models pad their tables.")
    try:
        beyond = ask(tokenizer, _small(), "a tokenizer whose ids lie beyond the model's table, model")
    except Wrong as wrong:
        if "IndexError" in str(wrong):
            raise Wrong("Some ids lie beyond the table, and your function stopped with an IndexError. "
                        "Compare the highest id with the rows before you run the model.") from None
        raise
    if beyond:
        raise Wrong("You accepted ids that lie beyond the model's table: they have no row.")
    return "Right: its own, one of the same size with other ids, one with spare rows, one with ids beyond the table."


def _variant(tokenizer, change: Callable[[list[int]], list[int]]):
    """Return the tokenizer with the ids of its ordinary tokens changed; ids that `change` drops go with their tokens."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    facts = json.loads(tokenizer.backend_tokenizer.to_str())
    special = {entry["content"] for entry in facts["added_tokens"]}
    vocabulary = facts["model"]["vocab"]
    ordinary = sorted((number, token) for token, number in vocabulary.items() if token not in special)
    ids = change([number for number, _ in ordinary])
    vocabulary = {**{token: vocabulary[token] for token in special if token in vocabulary},
                  **{token: number for (_, token), number in zip(ordinary, ids, strict=False)}}
    facts["model"]["vocab"] = vocabulary
    facts["model"]["merges"] = [pair for pair in facts["model"]["merges"]
                                if pair[0] in vocabulary and pair[1] in vocabulary and "".join(pair) in vocabulary]
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(facts)))


def _small():
    """Return a model with 64 rows on the CPU, where an id beyond them is an IndexError on every machine."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                                        num_attention_heads=1, num_key_value_heads=1)).eval()
