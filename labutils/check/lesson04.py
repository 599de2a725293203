"""Checkers of lesson 04, Chat templates."""

from collections.abc import Callable, Sequence

from labutils.check.core import Wrong, call, exercise, prediction

HEADER, END = "<|im_start|>", "<|im_end|>"


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


CONVERSATIONS = (
    ("one question", [_turn("user", "Hi")]),
    ("a system message and a question", [_turn("system", "Be brief."), _turn("user", "Hi")]),
    ("three turns", [_turn("user", "Hi"), _turn("assistant", "Hello."), _turn("user", "And now?")]),
    ("a question with white space around it", [_turn("user", "  def f(x):\n")]),
    ("an empty question", [_turn("user", "")]),
    ("a system message in second place", [_turn("user", "Hi"), _turn("system", "Be brief.")]),
)


@exercise("4.1")
def chatml(function: Callable, tokenizer) -> str:
    """Check a function (messages, add_generation_prompt) -> text against the tokenizer's own template, six conversations."""
    for shown, messages in CONVERSATIONS:
        for opened in (False, True):
            wanted = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=opened)
            given = [dict(message) for message in messages]
            got = call(function, given, opened, shown=f"{shown}, {opened}")
            if given != messages:
                raise Wrong("Your function changed the messages that it was given. They are the caller's; build a new list.")
            if not isinstance(got, str):
                raise Wrong(f"Return one string; this is a {type(got).__name__}.")
            if got != wanted:
                raise Wrong(_rendering_fault(got, wanted, shown, messages, opened, tokenizer))
    return "Right: six conversations, with and without the generation prompt, equal to the character."


def _rendering_fault(got: str, wanted: str, shown: str, messages: list[dict], opened: bool, tokenizer) -> str:
    """Return what went wrong in a rendered conversation."""
    prompt = f"{HEADER}assistant\n"
    default = tokenizer.apply_chat_template([_turn("user", "")], tokenize=False).split(f"{HEADER}user")[0]
    if got.count(END) < wanted.count(END) and got == wanted.removeprefix(default):
        return (f"{shown[0].upper() + shown[1:]}: your text lacks {default!r}. The checkpoint writes it in front whenever the "
                "first message is not a system message.")
    if got == default + wanted:
        return "A conversation that opens with its own system message gets no second one; the template asks for the first role."
    if opened and got == wanted + END + "\n":
        return "The generation prompt stays open: the model writes what follows. You closed it."
    if opened and got == wanted.removesuffix(prompt):
        return f"add_generation_prompt=True opens the assistant's turn: the text ends in {prompt!r}. Yours does not."
    if not opened and got == wanted + prompt:
        return "add_generation_prompt was False here, and you opened the assistant's turn all the same."
    if got == wanted.replace(f"{END}\n", END):
        return f"A line end follows each {END}; it was in the text on which the model was trained. Yours is missing."
    if got == wanted.removesuffix("\n"):
        return "You joined the turns with line ends, so the last one is missing. Each turn brings its own."
    if any(message["content"] != message["content"].strip() for message in messages) and got.replace("  def", "def").replace(
            "\n", "") == wanted.replace("  def", "def").replace("\n", ""):
        return "You stripped the content. This template does not: the white space belongs to the message."
    at = next((i for i, (a, b) in enumerate(zip(got, wanted, strict=False)) if a != b), min(len(got), len(wanted)))
    start = max(0, at - 12)
    return (f"{shown[0].upper() + shown[1:]}: the texts part at character {at}. The checkpoint has "
            f"{wanted[start:at + 20]!r}, yours has {got[start:at + 20]!r}.")


@prediction("4.1")
def spoken(guess: int, replies: Sequence[str]) -> str:
    """Compare a guess with how many of `replies` hold at least one visible character."""
    measured = sum(bool(reply.strip()) for reply in replies)
    if isinstance(guess, bool) or not isinstance(guess, int) or not 0 <= guess <= len(replies):
        raise Wrong(f"A number from 0 to {len(replies)} was asked for; this is {guess!r}.")
    if guess == measured:
        return f"{measured}, as measured. Why silence, of all things? Read on."
    reason = ("The words of the questions are all there, and the model knows some of the answers. What is missing?"
              if guess > measured else "Some replies do hold words.")
    raise Wrong(f"You said {guess}, measured {measured}. {reason}")


@exercise("4.2")
def extra_bos(function: Callable) -> str:
    """Check a function (ids, mask, bos) -> position of a second BOS at the start of the real tokens, or -1."""
    cases = (
        ([1, 1, 9690, 198, 2], [1, 1, 1, 1, 1], 1, "two BOS in front"),
        ([1, 9690, 198, 2, 198, 1, 4093], [1] * 7, -1, "a chat of two turns, each opened by token 1"),
        ([2, 2, 1, 1, 9690], [0, 0, 1, 1, 1], 3, "padding, then two BOS"),
        ([1, 1, 1, 9690], [0, 0, 1, 1], -1, "a row whose pad is token 1 too"),
        ([1, 9690, 1, 1, 4093], [1] * 5, -1, "two token 1 in the middle"),
        ([1], [1], -1, "a single BOS"),
    )
    for ids, mask, wanted, shown in cases:
        got = call(function, list(ids), list(mask), 1, shown=f"{ids}, {mask}, 1")
        if isinstance(got, bool) or not isinstance(got, int):
            raise Wrong(f"A position was asked for, a whole number; this is {got!r}.")
        if got == wanted:
            continue
        if wanted == -1 and shown.startswith("a chat"):
            raise Wrong("Token 1 opens every turn here, so counting it proves nothing. A double BOS stands at the very start, "
                        "twice in a row.")
        if wanted == -1 and shown.startswith("a row"):
            raise Wrong(f"{ids} with mask {mask} holds one real BOS. The two before it are padding: follow the mask, not "
                        "the ids.")
        if wanted == -1:
            raise Wrong(f"{ids} has {shown}; nothing stands twice at the start: -1, not {got}.")
        if got == -1:
            raise Wrong(f"You found nothing in {ids} with mask {mask}: {shown}. The first real token is where the mask "
                        "turns 1.")
        if got == wanted - 1:
            raise Wrong(f"Position {got} holds the BOS that belongs there. The extra one is the second: {wanted}.")
        if got == wanted - mask.index(1):
            raise Wrong(f"{got} is counted from the first real token. Count from the start of the row: {wanted}.")
        raise Wrong(f"In {ids} the extra BOS is at position {wanted}; you said {got}.")
    return "Right, with padding in front, with a pad that looks like a BOS, and in chats that repeat it lawfully."


@prediction("4.2")
def tool_tokens(guess: int, without: Sequence[int], with_tools: Sequence[int]) -> str:
    """Compare a guess with how many ids a prompt grows by when a list of tools is passed."""
    if isinstance(guess, bool) or not isinstance(guess, int | float):
        raise Wrong(f"A number of tokens was asked for; this is {guess!r}.")
    measured = len(with_tools) - len(without)
    if guess == measured:
        return f"{measured}, as measured. Search the template for the word “tools” and you know why."
    reason = ("The model never hears of your function. The template does not mention tools, and nobody complains."
              if measured == 0 else "The template writes the tools into the prompt.")
    raise Wrong(f"You said {guess:g}, measured {measured}. {reason}")


def _client(ids: list[int], heard: list) -> Callable:
    """Return a client that answers with `ids` and notes in `heard` what it was asked."""
    def client(asked):
        heard.append(asked)
        return list(ids)

    return client


@exercise("4.3")
def first_difference(function: Callable) -> str:
    """Check a function (client_a, client_b, messages) -> first position at which the clients' ids differ, or -1."""
    messages = [_turn("user", "Hi")]
    cases = (
        ([1, 9690, 198, 2], [1, 9690, 5, 7], 2, "differ twice"),
        ([1, 9690, 198, 2], [1, 9690, 198, 2], -1, "are equal"),
        ([1, 9690, 198], [1, 9690, 198, 1, 520], 3, "differ in length only"),
        ([1, 9690, 198, 1, 520], [1, 9690, 198], 3, "differ in length only"),
        ([1, 1, 9690, 198], [1, 9690, 198], 1, "differ by a second BOS"),
        ([5, 6], [7, 6], 0, "differ at once"),
    )
    for ours, theirs, wanted, shown in cases:
        heard: list = []
        got = call(function, _client(ours, heard), _client(theirs, heard), messages,
                   shown=f"clients whose ids are {ours} and {theirs}")
        if isinstance(got, bool) or not isinstance(got, int):
            raise Wrong(f"A position was asked for, a whole number; this is {got!r}.")
        if any(asked != messages for asked in heard):
            raise Wrong(f"Give both clients the messages as they are; one was asked {heard[0]!r}.")
        if got == wanted:
            continue
        pair = f"{ours} and {theirs}"
        if shown == "are equal":
            raise Wrong(f"{pair} are equal: -1. You said {got}.")
        if shown.endswith("length only") and got == -1:
            raise Wrong(f"{pair} are equal as far as the shorter one goes, and zip stops there. The longer one goes on at "
                        f"position {wanted}: a difference.")
        if wanted != -1 and got in (*ours, *theirs) and got > len(ours):
            raise Wrong(f"You returned an id, {got}. Its position was asked for: {wanted}.")
        if shown == "differ twice" and got == 3:
            raise Wrong("That is the last difference. After the first one, everything may differ; only the first is evidence.")
        raise Wrong(f"{pair} {shown}: position {wanted}. You said {got}.")
    return "Right, with clients that are equal, that part early, and that only stop early."
