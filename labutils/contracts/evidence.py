"""What trained weights say about a tokenizer, without any file to compare with.

Each function returns a verdict (True: they know its ids, False: they do not, None: cannot tell) and the evidence in
words. The limits lie far from both sides on the course's checkpoints: 23 and 24 of 25 pairs with the right tokenizer,
0 to 2 with wrong ones; 2.7 nats a token where the model expects 2.9 with the right one, 11 and more where it expects 7
with wrong ones (tests/unit/test_contracts.py measures it).
"""

import math

ORDINARY = (
    "The children walked to school in the morning and came home in the afternoon. Their mother had made soup, and they "
    "ate it at the table near the window. After dinner they read a book and went to bed early."
)
PARTNERS = (
    ("cat", "dog"), ("two", "three"), ("Monday", "Tuesday"), ("red", "blue"), ("king", "queen"), ("man", "woman"),
    ("brother", "sister"), ("France", "Germany"), ("summer", "winter"), ("January", "March"), ("north", "south"),
    ("good", "bad"), ("big", "small"), ("doctor", "nurse"), ("eat", "drink"), ("walk", "run"), ("he", "she"),
    ("him", "her"), ("car", "truck"), ("happy", "sad"), ("river", "lake"), ("left", "right"), ("six", "seven"),
    ("could", "would"), ("house", "home"),
)


def partners(tokenizer, embedding) -> tuple[bool | None, str]:
    """Look whether words of one kind are neighbours in the embedding: no other ids could make them so.

    For each pair (Monday, Tuesday) of single tokens: is the partner the nearest of all second words? By chance that is
    so for one pair. An embedding in which all directions are alike was never trained. embedding: [rows, hidden].
    """
    import torch
    from torch.nn.functional import normalize

    rows = embedding.shape[0]
    candidates = [[_one_token(tokenizer, word, rows) for word in pair] for pair in PARTNERS]
    found = [ids for ids in candidates if None not in ids]
    if len(found) < 12:
        return None, f"cannot tell: only {len(found)} of {len(PARTNERS)} pairs of common words are single tokens"
    with torch.no_grad():
        sample = embedding[torch.linspace(0, rows - 1, min(rows, 512)).long()].float()
        center = sample.mean(0)
        first, second = (normalize(embedding[list(ids)].float() - center, dim=-1) for ids in zip(*found, strict=True))
        right = int(((first @ second.T).argmax(dim=1).cpu() == torch.arange(len(found))).sum())
        sample = normalize(sample - center, dim=-1)
        # Cosines of independent directions spread by 1/sqrt(hidden), so this is 1 for random rows.
        spread = _off_diagonal(sample @ sample.T).std() * math.sqrt(sample.shape[1])
    words = (f"in the embedding {right} of {len(found)} words (Monday, cat) are next to their partner (Tuesday, dog); "
             "chance gives 1")
    if right >= 0.4 * len(found):
        return True, words
    if spread < 1.3:
        return None, "cannot tell: the embedding looks untrained (all directions alike)"
    return (False if right <= 0.15 * len(found) else None), words


def _off_diagonal(square):
    import torch

    return square[~torch.eye(len(square), dtype=torch.bool, device=square.device)]


def _one_token(tokenizer, word: str, rows: int) -> int | None:
    """Return the id of `word` in a sentence (byte-level ones keep the space) or alone, None if it is split."""
    for text in (f" {word}", word):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(ids) == 1 and ids[0] != tokenizer.unk_token_id and ids[0] < rows:
            return ids[0]
    return None


def likelihood(tokenizer, model) -> tuple[bool | None, str]:
    """Compare the surprise of ordinary text with the surprise that the model itself expects (its entropy).

    They are about equal for a trained decoder on ids that it knows. A model that is sure of itself and wrong by several
    nats a token reads ids of another tokenizer; one that is sure of nothing was never trained. One forward pass.
    """
    import torch

    embedding = model.get_input_embeddings().weight
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    ids = tokenizer(ORDINARY, return_tensors="pt", verbose=False)["input_ids"][:, :limit].to(embedding.device)
    if int(ids.max()) >= embedding.shape[0]:
        return None, "cannot tell: ordinary text has ids beyond the embedding"
    try:
        with torch.no_grad():
            scores = model(input_ids=ids).logits[0, :-1].float().log_softmax(-1)
    except Exception as error:  # whatever keeps a model from one forward pass, other evidence still counts
        return None, f"cannot tell: one forward pass raised {type(error).__name__}: {error}"
    targets = ids[0, 1:]
    text = ~torch.isin(targets, torch.tensor(tokenizer.all_special_ids, device=ids.device))
    surprise = float(-scores.gather(1, targets[:, None])[text].mean())
    expected = float(-(scores.exp() * scores.clamp(min=-1e4)).sum(-1)[text].mean())
    if not math.isfinite(surprise) or expected > math.log(scores.shape[1]) - 1:
        return None, "cannot tell: the predictions look untrained (nearly all tokens alike)"
    words = f"ordinary text surprises the model by {surprise:.1f} nats a token where it expects {expected:.1f}"
    gap = surprise - expected
    return (True if gap < 1.5 else False if gap > 2.5 else None), words
