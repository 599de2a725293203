"""A cache of slots, and steps without a pad token.

A step is one forward pass over tokens of many prompts in one row, `[1, tokens]`: first one token of each row that
decodes, then pieces of prompts that are still being read. Every matrix product sees useful tokens only. Attention is ours:
each row looks at its own slot, `[heads, positions, head size]`, which was set aside at the start and is written in place.
The model's own forward does all the rest, so this fits every architecture that lets its attention be exchanged
(`AttentionInterface`) and that caches plain keys and values.
"""

import inspect
import math
import threading
from contextlib import contextmanager
from dataclasses import dataclass

import numpy
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, DynamicCache
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer

NAME = "labutils_slots"
CHUNK = 16  # decoding rows whose attention is computed together, each padded to the longest of them
_now = threading.local()


class NotPlain(Exception):
    """This model's cache or attention is none that slots can hold. The message says what."""


@dataclass(frozen=True)
class Piece:
    """`tokens` tokens of one prompt, from position `start` on, for the slot `slot`."""

    slot: int
    start: int
    tokens: int


class Slots(Cache):
    """Keys and values of `rows` prompts, up to `positions` each, one tensor of keys and one of values a layer."""

    def __init__(self, model, rows: int, positions: int):
        windows = plain_windows(model)
        super().__init__(layers=[DynamicLayer() for _ in windows])
        self.windows, self.rows, self.positions = windows, rows, positions
        self.eager = _attention(model) == "eager"
        self.keys: dict[int, torch.Tensor] = {}
        self.values: dict[int, torch.Tensor] = {}
        self.calls = 0

    def plan(self, lengths: list[int], pieces: list[Piece], device) -> None:
        """Set up the next step: row r of the first len(lengths) slots adds its token at position lengths[r]."""
        self.pieces, self.decoding, self.device = pieces, len(lengths), device
        self.at = torch.tensor(lengths, device=device)
        self.chunks = [(first, min(first + CHUNK, len(lengths))) for first in range(0, len(lengths), CHUNK)]
        if device.type != "cpu" and lengths:
            self.chunks = [(0, len(lengths))]
        self.longest = [max(lengths[first:last]) + 1 for first, last in self.chunks]
        self.masks: dict = {}

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        """Write this step's keys and values, both [1, heads, tokens, size], to their places in the slots."""
        if layer_idx not in self.keys:
            self.keys[layer_idx] = _zeros(self.rows, self.positions, key_states)
            self.values[layer_idx] = _zeros(self.rows, self.positions, value_states)
        self.layer = layer_idx
        for store, new in ((self.keys[layer_idx], key_states), (self.values[layer_idx], value_states)):
            if self.decoding:
                rows = torch.arange(self.decoding, device=new.device)
                store[rows, :, self.at] = new[0, :, : self.decoding].transpose(0, 1)
            at = self.decoding
            for piece in self.pieces:
                store[piece.slot, :, piece.start : piece.start + piece.tokens] = new[0, :, at : at + piece.tokens]
                at += piece.tokens
        return key_states, value_states

    def attend(self, query, scale, window, softcap) -> torch.Tensor:
        """Return the attention of this step's queries [1, heads, tokens, size] as [1, tokens, heads, size]."""
        self.calls += 1
        keys, values = self.keys[self.layer], self.values[self.layer]
        window = window or self.windows[self.layer]
        outputs = []
        for number, (first, last) in enumerate(self.chunks):
            longest = self.longest[number]
            one = query[0, :, first:last].transpose(0, 1)  # [rows, heads, size]
            grouped = one.reshape(last - first, keys.shape[1], -1, one.shape[-1])  # heads that share keys become queries
            found = _attention_of(grouped, keys[first:last, :, :longest], values[first:last, :, :longest],
                                  self._row_mask(number, window), scale, softcap)
            outputs.append(found.reshape(last - first, -1, found.shape[-1]))
        at = self.decoding
        for number, piece in enumerate(self.pieces):
            end = piece.start + piece.tokens
            part = query[0, :, at : at + piece.tokens]
            grouped = part.reshape(keys.shape[1], -1, *part.shape[1:])  # [key heads, queries a key head, tokens, size]
            ours = [_spread(store[piece.slot, :, :end], grouped) for store in (keys, values)]
            found = _attention_of(grouped, *ours, self._piece_mask(number, window), scale, softcap)
            outputs.append(found.reshape(-1, *found.shape[2:]).transpose(0, 1))
            at += piece.tokens
        return torch.cat(outputs)[None]

    def _row_mask(self, number: int, window: int | None) -> torch.Tensor:
        """Return which positions each decoding row of a chunk sees, [rows, 1, 1, positions]."""
        if (number, window, "row") not in self.masks:
            first, last = self.chunks[number]
            places, here = torch.arange(self.longest[number], device=self.device), self.at[first:last, None]
            seen = places <= here
            if window:
                seen &= places > here - window
            self.masks[number, window, "row"] = seen[:, None, None]
        return self.masks[number, window, "row"]

    def _piece_mask(self, number: int, window: int | None) -> torch.Tensor | None:
        """Return which positions each token of a piece sees, [tokens, positions]; None for plain causal attention."""
        piece = self.pieces[number]
        end = piece.start + piece.tokens
        if piece.start == 0 and not (window and window < end):
            return None
        if (number, window, "piece") not in self.masks:
            places, here = torch.arange(end, device=self.device), torch.arange(piece.start, end, device=self.device)[:, None]
            seen = places <= here
            if window:
                seen &= places > here - window
            self.masks[number, window, "piece"] = seen
        return self.masks[number, window, "piece"]

    def move(self, source: int, target: int, positions: int) -> None:
        """Copy the first `positions` positions of one slot into another."""
        for store in (*self.keys.values(), *self.values.values()):
            store[target, :, :positions] = store[source, :, :positions]

    def resize(self, rows: int, positions: int) -> None:
        """Change the number and the size of the slots, layer by layer; what fits in both is kept."""
        keep, length = min(rows, self.rows), min(positions, self.positions)
        self.rows, self.positions = rows, positions
        for stores in (self.keys, self.values):
            for layer, old in stores.items():
                stores[layer] = _zeros(rows, positions, old)
                stores[layer][:keep, :, :length] = old[:keep, :, :length]

    def bytes(self) -> int:
        """Bytes set aside for keys and values."""
        return sum(store.nbytes for store in (*self.keys.values(), *self.values.values()))

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions are given with every step, so nothing may be derived from here."""
        return 0


def _zeros(rows: int, positions: int, like: torch.Tensor) -> torch.Tensor:
    """Return zeros [rows, heads, positions, size]. On the CPU memory is taken only where it is written to."""
    shape = (rows, like.shape[1], positions, like.shape[-1])
    if like.device.type != "cpu":
        return torch.zeros(shape, dtype=like.dtype, device=like.device)
    raw = numpy.zeros(math.prod(shape) * like.element_size(), dtype=numpy.uint8)
    return torch.from_numpy(raw).view(like.dtype).view(shape)


def _spread(stored: torch.Tensor, grouped: torch.Tensor) -> torch.Tensor:
    """Return [heads, positions, size] as [heads, queries a key head, positions, size], without a copy."""
    return stored[:, None].expand(-1, grouped.shape[1], -1, -1)


def _attention_of(query, keys, values, mask, scale, softcap) -> torch.Tensor:
    if softcap is None:
        return scaled_dot_product_attention(query, keys, values, attn_mask=mask, is_causal=mask is None, scale=scale)
    scores = query @ keys.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    scores = softcap * torch.tanh(scores / softcap)
    if mask is None:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    return torch.softmax(scores.masked_fill(~mask, float("-inf")).float(), -1).to(query.dtype) @ values


def _forward(module, query, key, value, attention_mask, scaling=None, sliding_window=None, softcap=None, **kwargs):
    """The attention that the model calls in place of its own while a step runs."""
    for name in ("s_aux", "position_bias", "head_mask", "cu_seq_lens_q"):
        if kwargs.get(name) is not None:
            raise NotPlain(f"its attention uses {name}")
    slots = _now.slots
    return slots.attend(query, scaling, sliding_window, softcap if slots.eager else None), None


AttentionInterface.register(NAME, _forward)


def _attention(model) -> str:
    return getattr(_now, "replaced", None) or model.config._attn_implementation


def plain_windows(model) -> list[int | None]:
    """Return the sliding window of every layer, None for full attention. Raises NotPlain for any other cache."""
    config = model.config.get_text_config(decoder=True)
    if model.config.is_encoder_decoder:
        raise NotPlain("it has an encoder")
    if getattr(model, "_is_stateful", False):
        raise NotPlain("it keeps a state instead of keys and values")
    rope = str(getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or "")
    if "longrope" in rope or "'dynamic'" in rope:
        raise NotPlain("its rotary angles depend on the length of the prompt")
    if "chunked_attention" in (getattr(config, "layer_types", None) or []):
        raise NotPlain("its attention is cut in chunks")
    layers = DynamicCache(config=model.config).layers
    other = {type(layer).__name__ for layer in layers if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer)}
    if other:
        raise NotPlain(f"its cache has layers of type {', '.join(sorted(other))}")
    return [getattr(layer, "sliding_window", None) for layer in layers]


def names_of(model) -> dict[str, str]:
    """Return how this model's forward calls the cache, positions and the choice of logits. Raises NotPlain."""
    known = inspect.signature(inspect.unwrap(type(model).forward)).parameters
    cache = next((name for name in ("cache", "past_key_values") if name in known), None)
    if cache is None or "position_ids" not in known:
        raise NotPlain("its forward takes no positions or no cache")
    return {"cache": cache, "keep": "logits_to_keep" if "logits_to_keep" in known else ""}


@contextmanager
def exchanged_attention(model):
    """Let the model call our attention; put everything back afterwards."""
    configs = list({id(m.config): m.config for m in model.modules() if hasattr(m, "config")}.values())
    before = [config.__dict__.get("_attn_implementation_internal") for config in configs]
    _now.replaced = model.config._attn_implementation
    try:
        for config in configs:
            config._attn_implementation_internal = NAME
        yield
    finally:
        _now.replaced = None
        for config, old in zip(configs, before, strict=True):
            config._attn_implementation_internal = old


def step(model, slots: Slots, tokens: list[int], positions: list[int], keep: list[int], names: dict) -> torch.Tensor:
    """Run one step and return the logits after the tokens numbered in `keep`, [len(keep), vocabulary], as float32."""
    device = slots.device
    where = torch.tensor(keep, device=device)
    wanted = {names["keep"]: where} if names["keep"] else {}
    _now.slots = slots
    try:
        logits = model(input_ids=torch.tensor([tokens], device=device), position_ids=torch.tensor([positions], device=device),
                       use_cache=True, return_dict=True, **{names["cache"]: slots}, **wanted).logits[0]
    finally:
        _now.slots = None
    return (logits if names["keep"] else logits[where]).float()
