"""One model type of every family against the real tensors; tools/verify_arithmetic.py --all checks all of them."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from labutils.arithmetic import cache  # noqa: E402
from tools import verify_arithmetic as real  # noqa: E402

# A quicker type of the same family, or none where a model takes long (the tool checks these).
SLOW = (
    "deepseek_v4",
    "xlstm",
    "xlnet",
    "rwkv",
    "zamba",
    "zamba2",
    "jetmoe",
    "hrm_text",
    "prophetnet",
    "qwen4_exp_text",
    "dory",
)
QUICKER = {"bert": "gpt_neox", "longt5": "t5", "bamba": "granitemoehybrid", **dict.fromkeys(SLOW)}


def sample(types: list[str]) -> str | None:
    known = [name for name in types if name in real.TYPES]
    return QUICKER.get(known[0], known[0]) if known else None


@pytest.mark.parametrize(
    "model_type", sorted(filter(None, {sample(row["types"]) for row in cache.families().values()}))
)
def test_cache_and_weights_are_those_of_a_real_model(model_type):
    real.torch.set_num_threads(1)
    values, truth = real.small_model(model_type)
    found = real.compare(model_type, values, truth)
    assert found.cache_wrong == [] and found.weights_wrong == []
