"""Predicted bytes minus held bytes is 0: bitsandbytes' real layers for each format, GGUF headers against the gguf library."""

import json
import struct

import numpy as np
import pytest

from labutils import arithmetic
from labutils.__main__ import main
from labutils.checkpoints import checkpoint

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("bitsandbytes")
gguf = pytest.importorskip("gguf")

SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128}
CONFIGS = {
    "llama, tied": transformers.LlamaConfig(**SMALL, num_key_value_heads=2, tie_word_embeddings=True),
    "llama, untied": transformers.LlamaConfig(**SMALL, num_key_value_heads=2, tie_word_embeddings=False),
    "odd sizes": transformers.LlamaConfig(**SMALL | {"intermediate_size": 100, "hidden_size": 60, "num_attention_heads": 3}),
    "biases": transformers.Qwen2Config(**SMALL, num_key_value_heads=2),
    "conv1d": transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=128, n_positions=32),
}
SETTINGS = {
    "int8": {"load_in_8bit": True},
    "fp4": {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
    "fp4-double": {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4", "bnb_4bit_use_double_quant": True},
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "nf4-double": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
}
schemes = pytest.mark.parametrize("scheme", SETTINGS)


def load(folder, scheme, dtype=torch.bfloat16):
    settings = transformers.BitsAndBytesConfig(**SETTINGS[scheme])
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, quantization_config=settings,
                                                             device_map={"": "cpu"})


def held(model) -> int:
    """Return the bytes of every storage that the weights and their quantization states hold."""
    found = {}

    def look(thing):
        if isinstance(thing, torch.Tensor):
            storage = thing.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
            look(getattr(thing, "quant_state", None))
            look(getattr(thing, "SCB", None))
        elif type(thing).__name__ == "QuantState":
            for part in vars(thing).values():
                look(part)

    for tensor in (*model.parameters(), *model.buffers()):
        look(tensor)
    return sum(found.values())


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}
    for name, config in CONFIGS.items():
        torch.manual_seed(0)
        made[name] = tmp_path_factory.mktemp("model")
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(made[name])
    return made


@schemes
@pytest.mark.parametrize("name", CONFIGS)
def test_predicted_minus_held_is_nothing(folders, name, scheme):
    model = load(folders[name], scheme)
    predicted = arithmetic.weight_bytes(arithmetic.parameters(folders[name]), "bfloat16", scheme)
    assert predicted.total - held(model) == 0
    saved = arithmetic.plan(model.config.to_dict())
    assert saved.scheme == scheme and saved.weights.quantized == predicted.quantized


@schemes
def test_the_chat_model_to_the_byte(scheme):
    right = {"int8": 163_484_032, "fp4": 116_426_752, "fp4-double": 111_692_152, "nf4": 116_426_752, "nf4-double": 111_692_152}
    model = load(checkpoint("chat"), scheme)
    predicted = arithmetic.weight_bytes(arithmetic.parameters(checkpoint("chat")), "bfloat16", scheme)
    assert predicted.total == held(model) == right[scheme]
    # What the library's own function says leaves the scales out.
    assert model.get_memory_footprint() == predicted.total - predicted.scales


@pytest.mark.parametrize("scheme", ("nf4", "nf4-double"))
def test_what_a_first_pass_makes_of_it(scheme):
    """A CPU with AVX512-BF16 repacks each layer: 16-bit scales, double quantization undone."""
    from bitsandbytes.functional import has_avx512bf16

    if not has_avx512bf16():
        pytest.skip("this processor has no AVX512-BF16")
    model = load(checkpoint("chat"), scheme)
    with torch.inference_mode():
        model(torch.tensor([[1, 2, 3]]))
    parameters = arithmetic.parameters(checkpoint("chat"))
    assert held(model) == arithmetic.weight_bytes(parameters, "bfloat16", scheme, repacked=True).total


def test_block_types_are_those_of_the_library():
    from labutils.arithmetic.gguf_file import BLOCK_TYPES

    for kind, sizes in gguf.GGML_QUANT_SIZES.items():
        assert BLOCK_TYPES[int(kind)] == (kind.name, *sizes)


def test_bits_per_weight_of_each_format():
    bits = {each.name: each.bits_per_weight for each in arithmetic.format_table()}
    assert bits["NF4"] == bits["FP4"] == bits["Q4_0"] == bits["Q4_K"] == 4.5
    assert bits["NF4, double"] == 4 + 8 / 64 + 32 / (64 * 256)
    assert (bits["Q4_1"], bits["Q8_0"], bits["Q6_K"], bits["IQ4_XS"], bits["F16"]) == (5.0, 8.5, 6.5625, 4.25, 16)
    assert "I32" not in bits
    assert {each.name: each.bits_per_weight for each in arithmetic.format_table(512)}["LLM.int8"] == 8 + 32 / 512
    with pytest.raises(arithmetic.ConfigError, match="columns"):
        arithmetic.format_table(0)


@pytest.fixture(scope="module")
def chat_file():
    return checkpoint("chat-gguf") / "model.gguf"


def test_a_real_file_says_the_same_to_us_and_to_the_library(chat_file):
    ours, theirs = arithmetic.read_gguf(chat_file), gguf.GGUFReader(chat_file)
    assert [(t.name, t.shape, t.type, t.bytes, t.offset) for t in ours.tensors] == [
        (t.name, tuple(int(n) for n in reversed(t.shape)), t.tensor_type.name, t.n_bytes, t.data_offset)
        for t in theirs.tensors]
    assert ours.data_start == theirs.data_offset and ours.version == 3
    assert ours.lengths["tokenizer.ggml.tokens"] == 49_152
    for name, value in ours.metadata.items():
        if not str(value).endswith(" entries"):
            assert theirs.fields[name].contents() == value, name


def test_its_config_is_the_checkpoints(chat_file):
    ours = arithmetic.read_gguf(chat_file).config()
    theirs = json.loads((checkpoint("chat") / "config.json").read_text())
    assert {name: theirs[name] for name in ours if name in theirs and name != "dtype"} == {
        name: ours[name] for name in ours if name in theirs and name != "dtype"}
    assert arithmetic.parameters(chat_file).total == arithmetic.read_gguf(chat_file).parameters == 134_515_008


def test_plan_of_a_file(chat_file, capsys):
    assert main(["plan", str(chat_file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["quantization"], found["weights"]["total"]) == ("gguf", 96_576_768)
    assert main(["plan", str(chat_file), "--quantization", "none", "--dtype", "float32"]) == 0
    assert "538,060,288" in capsys.readouterr().out
    assert main(["plan", str(chat_file)]) == 0
    assert "as llama.cpp holds them" in capsys.readouterr().out


@pytest.mark.parametrize("architecture", ("llama", "qwen2", "qwen3"))
def test_a_file_gives_the_parameters_of_its_model(tmp_path, architecture):
    """Written with the gguf library from a real tiny model's tensors, one block type for each third of them."""
    config = transformers.AutoConfig.for_model(architecture, **SMALL, num_key_value_heads=2, head_dim=16,
                                               tie_word_embeddings=architecture == "qwen3")
    model = transformers.AutoModelForCausalLM.from_config(config)
    out = gguf.GGUFWriter(tmp_path / "m.gguf", architecture)
    out.add_block_count(2), out.add_embedding_length(64), out.add_feed_forward_length(96)
    out.add_head_count(4), out.add_head_count_kv(2), out.add_context_length(2048), out.add_key_length(16)
    written = 0
    for number, (name, tensor) in enumerate(model.named_parameters()):
        name = {"model.embed_tokens.weight": "token_embd.weight", "lm_head.weight": "output.weight"}.get(name, name)
        kind = [gguf.GGMLQuantizationType[each] for each in ("F32", "Q8_0", "Q4_0")][number % 3]
        kind = kind if tensor.ndim > 1 else gguf.GGMLQuantizationType.F32
        out.add_tensor(name, gguf.quants.quantize(tensor.detach().numpy().astype(np.float32), kind), raw_dtype=kind)
        written += tensor.numel()
    out.write_header_to_file(), out.write_kv_data_to_file(), out.write_tensors_to_file(), out.close()
    found = arithmetic.plan(tmp_path / "m.gguf")
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    assert found.parameters == written and found.model_type == architecture
    assert found.weights.total == sum(tensor.n_bytes for tensor in reader.tensors)


@pytest.mark.parametrize("damage, words", [
    (lambda data: b"GGML" + data[4:], "does not begin with GGUF"),
    (lambda data: data[:3000], "ends inside its header"),
    (lambda data: data[:20_000_000], "not complete"),
    (lambda data: data[:4] + struct.pack("<I", 9) + data[8:], "version 9"),
    (lambda data: data[:8] + struct.pack("<Q", 2**60) + data[16:], "more than fit"),
    (lambda data: data[:24] + struct.pack("<Q", 2**50) + data[32:], "ends inside its header"),
    (lambda data: data.replace(b"llama.block_count", b"plama.block_count").replace(
        struct.pack("<Q", 5) + b"llama", struct.pack("<Q", 5) + b"mamba", 1), "architecture 'mamba'"),
    (lambda data: b"", "does not begin with GGUF"),
])
def test_a_damaged_file_is_explained(tmp_path, chat_file, damage, words, capsys):
    path = tmp_path / "damaged.gguf"
    path.write_bytes(damage(chat_file.read_bytes()))
    assert main(["plan", str(path)]) == 2
    assert words in capsys.readouterr().err
