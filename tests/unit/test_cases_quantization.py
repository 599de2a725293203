"""User reports about quantization, run against the real libraries: the symptom and the cure.

Each docstring names the public report.
"""

import logging

import pytest

import labutils  # noqa: F401 - settles the profile before the Hub client is imported
from labutils import arithmetic
from labutils.checkpoints import checkpoint

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("bitsandbytes")

CPU = {"": "cpu"}
LAYERS = 2 * 7      # quantized layers of the tiny model


def four_bits(double=False):
    return transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=double)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=2, vocab_size=128)
    folder = tmp_path_factory.mktemp("tiny")
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def test_double_quantization_shows_no_saving_in_the_footprint():
    """Family of "double quant does nothing": the footprint function counts neither set of scales."""
    scales, footprints, totals = [], [], []
    for double in (False, True):
        model = transformers.AutoModelForCausalLM.from_pretrained(
            checkpoint("chat"), dtype=torch.float32, quantization_config=four_bits(double), device_map=CPU)
        states = [each.quant_state for each in model.parameters() if hasattr(each, "quant_state")]
        scales.append(sum(state.absmax.nbytes + (state.state2.absmax.nbytes if double else 0) for state in states))
        footprints.append(model.get_memory_footprint())
        scheme = "nf4-double" if double else "nf4"
        totals.append(arithmetic.weight_bytes(arithmetic.parameters(checkpoint("chat")), "float32", scheme).total)
    assert scales == [6_635_520, 1_685_040]
    assert footprints == [166_471_168, 166_471_168]
    assert totals == [173_120_128, 168_385_528]     # the planner adds the scales


def test_a_quantized_folder_keeps_its_own_configuration(tiny, tmp_path):
    """bitsandbytes-foundation/bitsandbytes#831: None does not mean "dequantize", and a cast is refused."""
    load = transformers.AutoModelForCausalLM.from_pretrained
    load(tiny, quantization_config=four_bits(), device_map=CPU).save_pretrained(tmp_path)
    again = load(tmp_path, device_map=CPU)
    assert again.is_quantized and type(again.model.layers[0].mlp.up_proj).__name__ == "Linear4bit"
    with pytest.raises((RuntimeError, ValueError)):
        load(tmp_path, quantization_config=None, device_map=CPU)
    with pytest.raises(ValueError, match="cast"):
        again.to(torch.float16)
    # The cure: take the numbers out.
    plain = again.dequantize()
    assert type(plain.model.layers[0].mlp.up_proj) is torch.nn.Linear


@pytest.mark.parametrize("dtype, lines", [("float32", LAYERS), ("float16", 0)])
def test_a_flood_of_cast_warnings(tiny, caplog, dtype, lines):
    """huggingface/peft#2424: a line for each layer and pass, unless the model is loaded in float16."""
    settings = transformers.BitsAndBytesConfig(load_in_8bit=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tiny, dtype=getattr(torch, dtype), quantization_config=settings, device_map=CPU)
    with caplog.at_level(logging.WARNING), torch.inference_mode():
        model(torch.tensor([[1, 2, 3]]))
    assert sum("inputs will be cast" in record.getMessage() for record in caplog.records) == lines


def test_the_old_keyword_is_gone(tiny):
    """Family of load_in_4bit=True: a keyword that version 5 does not know."""
    with pytest.raises(TypeError, match="load_in_4bit"):
        transformers.AutoModelForCausalLM.from_pretrained(tiny, load_in_4bit=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny, quantization_config=four_bits(), device_map=CPU)
    assert model.is_loaded_in_4bit


@pytest.fixture(scope="module")
def from_gguf():
    return transformers.AutoModelForCausalLM.from_pretrained(checkpoint("chat-gguf"), gguf_file="model.gguf",
                                                             dtype=torch.float32)


def test_a_gguf_file_is_expanded_in_memory(from_gguf):
    """huggingface/transformers#34417, huggingface/transformers#40070: 98 MB on disk, 538 MB in memory."""
    path = checkpoint("chat-gguf") / "model.gguf"
    assert path.stat().st_size == 98_362_432
    held = sum(each.nbytes for each in (*from_gguf.parameters(), *from_gguf.buffers()))
    assert held == 538_060_288 and {each.dtype for each in from_gguf.parameters()} == {torch.float32}
    assert from_gguf.config.quantization_config.to_dict()["quant_method"] == "gguf"
    # The planner does not call it 4-bit: huggingface/huggingface.js#2323 and its family.
    expanded = arithmetic.plan(path, quantization="none", dtype="float32")
    assert expanded.weights.total == held
    assert arithmetic.plan(from_gguf.config, dtype="float32").weights.total == held


def test_a_model_from_gguf_cannot_be_saved_until_it_forgets_where_it_came_from(from_gguf, tmp_path):
    """Family of saving after gguf_file=: not serializable, although its weights are plain float32."""
    one = {"model.norm.weight": from_gguf.model.norm.weight.detach().clone()}
    with pytest.raises(ValueError, match="not serializable"):
        from_gguf.save_pretrained(tmp_path, state_dict=one)
    kept = from_gguf.hf_quantizer, from_gguf.config.quantization_config
    from_gguf.hf_quantizer, from_gguf.is_quantized = None, False
    del from_gguf.config.quantization_config
    try:
        from_gguf.save_pretrained(tmp_path, state_dict=one)
        assert (tmp_path / "model.safetensors").is_file()
    finally:
        from_gguf.hf_quantizer, from_gguf.config.quantization_config = kept
        from_gguf.is_quantized = True


def test_q4_is_not_four_bits():
    """ggml-org/llama.cpp#16379, UbiquitousLearning/mllm#271: scales, and a better type for the embeddings."""
    file = arithmetic.read_gguf(checkpoint("chat-gguf") / "model.gguf")
    assert file.types() == {"Q4_1": (210, 106_168_320, 66_355_200), "Q8_0": (1, 28_311_552, 30_081_024),
                            "F32": (61, 35_136, 140_544)}
    assert file.tensor_bytes == 96_576_768 and file.size == 98_362_432
    assert round(file.bits_per_weight, 2) == 5.74 and round(file.size * 8 / file.parameters, 2) == 5.85


@pytest.mark.parametrize("scheme, bits", [("nf4", 4.5), ("nf4-double", 4.127)])
def test_bits_include_the_scales(scheme, bits):
    """llm-d/llm-d-benchmark#345 and its family: scales are part of the size, skipped modules stay in 16 bit."""
    found = arithmetic.parameters(checkpoint("chat"))
    linear = sum(tensor.total for tensor in found.tensors if tensor.linear)
    weights = arithmetic.weight_bytes(found, "bfloat16", scheme)
    books = 210 * (64 + (1028 if scheme == "nf4-double" else 0))
    assert round((weights.quantized + weights.scales - books) * 8 / linear, 3) == bits
    assert weights.rest == (found.total - linear) * 2
