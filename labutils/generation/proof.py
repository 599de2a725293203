"""Is the packed step right for this model? Tried once a model, on two short prompts, against its plain forward."""

import weakref
from dataclasses import dataclass

import torch

from labutils.generation.slots import NotPlain, Piece, Slots, exchanged_attention, names_of, plain_windows, step

TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}  # of the largest logit; half precision gets HALF
HALF = 5e-2
_tried: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Trust:
    """`reason` is empty when the packed step is right, else it says why not. token_bytes: cache of one position."""

    reason: str
    token_bytes: int = 0


def trust(model) -> Trust:
    """Return whether slots give this model's own logits. The first call runs four short forward passes."""
    key = (model.dtype, model.device, model.config._attn_implementation)
    kept = _tried.get(model)
    if kept is None or kept[0] != key:
        kept = (key, _try(model))
        _tried[model] = kept
    return kept[1]


def _try(model) -> Trust:
    try:
        names, windows = names_of(model), plain_windows(model)
        short = min((window for window in windows if window), default=64)
        length = 7 if short > 64 else short + 3
        prompts = [_some_ids(model, length, 3), _some_ids(model, 4, 5)]
        found, token_bytes = _packed(model, prompts, names)
        wanted = [_alone(model, prompt) for prompt in prompts]
    except NotPlain as error:
        return Trust(f"{type(model).__name__}: {error}")
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # any failure inside somebody's modelling code means the same: not with this step
        return Trust(f"{type(model).__name__}: the packed step failed ({type(error).__name__}: {str(error)[:120]})")
    gap = max((a - b).abs().max().item() for a, b in zip(found, wanted, strict=True))
    scale = max(1.0, max(one.abs().max().item() for one in wanted))
    limit = TOLERANCE.get(model.dtype, HALF) * scale
    if not gap <= limit:
        return Trust(f"{type(model).__name__}: the packed step's logits are off by {gap:.2g}")
    return Trust("", token_bytes)


def _some_ids(model, count: int, stride: int) -> list[int]:
    rows = model.get_input_embeddings().weight.shape[0]
    return [(7 + stride * (at + 1) * max(1, rows // 64)) % rows for at in range(count)]


def _alone(model, ids: list[int]) -> torch.Tensor:
    """Return the logits after the last two tokens, [2, vocabulary]."""
    return model(input_ids=torch.tensor([ids], device=model.device), use_cache=False).logits[0, -2:].float()


def _packed(model, prompts: list[list[int]], names: dict) -> tuple[list[torch.Tensor], int]:
    """Read all but the last token of both prompts in one step, then decode the last ones together."""
    slots = Slots(model, rows=len(prompts), positions=max(map(len, prompts)))
    with exchanged_attention(model):
        heads = [prompt[:-1] for prompt in prompts]
        slots.plan([], [Piece(slot, 0, len(head)) for slot, head in enumerate(heads)], model.device)
        ends = [sum(map(len, heads[: at + 1])) - 1 for at in range(len(heads))]
        first = step(model, slots, sum(heads, []), [p for head in heads for p in range(len(head))], ends, names)
        slots.plan([len(head) for head in heads], [], model.device)
        second = step(model, slots, [p[-1] for p in prompts], [len(h) for h in heads], list(range(len(prompts))), names)
    if slots.calls != 2 * len(slots.windows):
        raise NotPlain(f"{slots.calls} of its {2 * len(slots.windows)} attention calls came through")
    return [torch.stack([a, b]) for a, b in zip(first, second, strict=True)], slots.bytes() // (slots.rows * slots.positions)
