"""Prompts, in whatever form they come, as token ids: each is encoded as it would be alone, or refused by its index."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from labutils.errors import LabError, SettingError


class PromptError(LabError, ValueError):
    """One prompt cannot be used. The message names its index and the cure."""


@dataclass(frozen=True)
class Encoded:
    """A prompt as the model reads it: its ids, or the error that it has instead."""

    index: int
    ids: list[int]
    error: str | None = None


def encode_all(tokenizer, prompts, *, vocabulary: int, window: int | None, chat: bool) -> list[Encoded]:
    """Return every prompt as ids, in order; a prompt that cannot be used keeps its place and carries its error.

    vocabulary: number of rows of the model's embedding. window: positions of the model, None without a limit.
    Raises SettingError when `prompts` is not a list of prompts at all.
    """
    return [_encode_one(tokenizer, prompt, index, vocabulary, window, chat) for index, prompt in enumerate(as_list(prompts))]


def as_list(prompts) -> list:
    """Return prompts as a list. Raises SettingError for a single text, conversation or prompt of ids."""
    if isinstance(prompts, (str, bytes)):
        raise SettingError("prompts is one text. Pass a list of prompts: [text].")
    if isinstance(prompts, Mapping):
        raise SettingError("prompts is a dictionary. Pass a list of texts, of conversations or of lists of ids.")
    if not isinstance(prompts, Iterable):
        raise SettingError(f"prompts is {type(prompts).__name__}. Pass a list of texts, of conversations or of lists of ids.")
    found = list(prompts)
    if found and all(isinstance(one, Mapping) and "role" in one for one in found):
        raise SettingError("prompts is one conversation. Pass a list of conversations: [messages].")
    if found and all(isinstance(one, int) for one in found):
        raise SettingError("prompts is one prompt of ids. Pass a list of prompts: [ids].")
    return found


def _encode_one(tokenizer, prompt, index: int, vocabulary: int, window: int | None, chat: bool) -> Encoded:
    try:
        ids = _ids(tokenizer, prompt, chat)
        _check(ids, vocabulary, window)
    except PromptError as error:
        return Encoded(index, [], f"Prompt {index}: {error}")
    return Encoded(index, ids)


def _ids(tokenizer, prompt, chat: bool) -> list[int]:
    if isinstance(prompt, str):
        return _text_ids(tokenizer, prompt, chat)
    if hasattr(prompt, "tolist"):  # a tensor or an array, of one row or flat
        prompt = prompt.tolist()
        prompt = prompt[0] if len(prompt) == 1 and isinstance(prompt[0], list) else prompt
    if isinstance(prompt, Sequence) and not isinstance(prompt, (bytes, bytearray)):
        if not prompt:
            raise PromptError("it is empty, so there is nothing to continue. Give it at least one token.")
        if all(isinstance(one, Mapping) for one in prompt):
            return _message_ids(tokenizer, prompt)
        if all(isinstance(one, int) and not isinstance(one, bool) for one in prompt):
            return list(prompt)
    raise PromptError(f"{type(prompt).__name__} is not a prompt. Give a text, a list of messages or a list of ids.")


def _text_ids(tokenizer, text: str, chat: bool) -> list[int]:
    _check_text(text)
    if chat and not (getattr(tokenizer, "chat_template", None) and _is_rendered(tokenizer, text)):
        return _message_ids(tokenizer, [{"role": "user", "content": text}])
    # A rendered template opens with its own BOS: the tokenizer must not add a second.
    bos = tokenizer.bos_token
    return list(tokenizer(text, add_special_tokens=not (bos and text.startswith(bos)))["input_ids"])


def _is_rendered(tokenizer, text: str) -> bool:
    """Does this text hold the marks that the chat template sets around a turn?"""
    marks = [token for token in tokenizer.all_special_tokens if token and token in _probe(tokenizer)]
    return any(mark in text for mark in marks)


def _probe(tokenizer) -> str:
    return tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False, add_generation_prompt=True)


def _message_ids(tokenizer, messages) -> list[int]:
    if not getattr(tokenizer, "chat_template", None):
        raise PromptError("it is a conversation, and this tokenizer has no chat template. Give a text.")
    turns = [_turn(message, at) for at, message in enumerate(messages)]
    goes_on = turns[-1]["role"] == "assistant"  # the last turn is to be continued
    try:
        found = tokenizer.apply_chat_template(turns, tokenize=True, return_dict=True, add_generation_prompt=not goes_on,
                                              continue_final_message=goes_on)
    except Exception as error:  # a template raises whatever its author chose
        raise PromptError(f"the chat template refused it ({type(error).__name__}: {error}).") from error
    return list(found["input_ids"])


def _turn(message: Mapping, at: int) -> dict:
    """Return one message with its content as text. Raises PromptError for what a text model cannot read."""
    if "role" not in message or "content" not in message:
        raise PromptError(f"message {at} has no {'role' if 'role' not in message else 'content'}.")
    content = message["content"]
    if isinstance(content, list):
        other = [part.get("type", "?") if isinstance(part, Mapping) else type(part).__name__ for part in content
                 if not (isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str))]
        if other:
            raise PromptError(f"message {at} has a part of type {other[0]!r}. This model reads text parts only.")
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise PromptError(f"message {at} has content of type {type(content).__name__}. Give a text.")
    _check_text(content)
    return {**message, "content": content}


def _check_text(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PromptError(f"character {error.start} is half of a surrogate pair (U+{ord(text[error.start]):04X}), which is "
                          "not text. Decode the source as UTF-8 with errors='replace'.") from error


def _check(ids: list[int], vocabulary: int, window: int | None) -> None:
    if not ids:
        raise PromptError("it is empty, so there is nothing to continue. Give it at least one token.")
    wrong = next((one for one in ids if not 0 <= one < vocabulary), None)
    if wrong is not None:
        raise PromptError(f"it holds the id {wrong}, and the model's vocabulary is 0 to {vocabulary - 1}. "
                          "The tokenizer and the model do not belong together.")
    if window is not None and len(ids) >= window:
        raise PromptError(f"its {len(ids):,} tokens leave no position for an answer: the model has {window:,}. Shorten it.")
