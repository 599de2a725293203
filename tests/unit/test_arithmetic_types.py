"""One model type of every family against the real tensors; tools/verify_arithmetic.py --all checks all of them."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from labutils import arithmetic  # noqa: E402
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


REPEATED = {
    "model_type": "zamba2",
    "hidden_size": 64,
    "num_hidden_layers": 8,
    "layers_block_type": ["linear_attention", "hybrid"] * 4,
    "num_attention_heads": 4,
    "n_mamba_heads": 4,
    "mamba_d_state": 16,
    "vocab_size": 256,
    "adapter_rank": 8,
    "add_bias_linear": True,
    "use_shared_attention_adapter": True,
    "num_mem_blocks": 2,
}


@pytest.mark.parametrize("blocks, parameters", [(1, 409_024), (2, 516_288)])
def test_repeated_blocks_count_once_with_the_adapters_of_their_own_turns(blocks, parameters):
    """Zamba 2.7B and 7B take turns between two blocks: their biases are shared too, their adapters are not."""
    values = REPEATED | {"num_mem_blocks": blocks}
    truth = real.measure("zamba2", values, batch=1, prompt=5)
    found = real.compare("zamba2", values, truth, 1, 5)
    assert found.cache_wrong == [] and found.weights_wrong == []
    assert arithmetic.parameters(values).total == truth.parameters == parameters


def test_computed_fields_follow_a_variation():
    values = real.default_values("zamba2") | {"layers_block_type": ["hybrid"] * 3, "num_hidden_layers": 3}
    assert len(real.prepare("zamba2", values).hybrid_layer_ids) == 9  # what the file says stays
    real.forget_computed(values)
    assert real.prepare("zamba2", values).hybrid_layer_ids == [0, 1, 2]
    assert values["layers_block_type"] == ["hybrid"] * 3
