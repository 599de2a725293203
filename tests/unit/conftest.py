"""The chat checkpoint, loaded once for each module that asks for it. Nothing heavy is imported before one does."""

import pytest


@pytest.fixture(scope="module")
def chat():
    import torch
    from transformers import AutoModelForCausalLM

    from labutils.checkpoints import checkpoint

    return AutoModelForCausalLM.from_pretrained(checkpoint("chat"), dtype=torch.float32)


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    from labutils.checkpoints import checkpoint

    return AutoTokenizer.from_pretrained(checkpoint("chat"))
