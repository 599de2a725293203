"""labutils.arithmetic: published numbers, real config.json variants, and every family against transformers' tensors."""

import json
import math
import subprocess
import sys
import time
from pathlib import Path

import pytest

from labutils import arithmetic, data
from labutils.arithmetic import cache, config, expressions, truth

ROOT = Path(__file__).resolve().parents[2]

SMOLLM2 = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
LLAMA_2_7B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "torch_dtype": "float16",
}
LLAMA_31_8B = LLAMA_2_7B | {"num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256}
MISTRAL_7B = LLAMA_31_8B | {"model_type": "mistral", "vocab_size": 32000, "sliding_window": 4096}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "vocab_size": 129280,
    "torch_dtype": "bfloat16",
}
GPT_OSS_120B = {
    "model_type": "gpt_oss",
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "hidden_size": 2880,
    "sliding_window": 128,
    "vocab_size": 201088,
    "torch_dtype": "bfloat16",
}


# --- published numbers -----------------------------------------------------------------------------------------------


def test_kv_cache_of_the_sources():
    """Claims A11, A12, C01 and D02, to the byte."""
    assert arithmetic.kv_cache(LLAMA_2_7B, 1, 4096).bytes == 2_147_483_648 == 2 * 2**30
    assert arithmetic.kv_cache(LLAMA_2_7B, 16, 4096).bytes == 34_359_738_368
    eight = arithmetic.kv_cache(LLAMA_2_7B | {"num_key_value_heads": 8}, 1, 4096).bytes
    assert arithmetic.kv_cache(LLAMA_2_7B, 1, 4096).bytes == 4 * eight
    small = {
        "model_type": "llama",
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "num_hidden_layers": 16,
        "vocab_size": 100,
    }
    assert arithmetic.kv_cache(small, 1, 1, dtype="bfloat16").bytes == 16_384
    assert arithmetic.kv_cache(small, 1, 512, dtype="bf16").bytes == 8 * 2**20
    assert arithmetic.kv_cache(LLAMA_31_8B, 1, 1).bytes == 131_072


def test_two_layer_lab_of_the_source():
    """Claims C02 and C03: 1,280 bytes for 5 tokens, 4,096 in a static cache of 16; twice with twice the heads."""
    lab = {
        "model_type": "llama",
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "num_hidden_layers": 2,
        "vocab_size": 64,
        "intermediate_size": 64,
    }
    assert arithmetic.kv_cache(lab, 1, 5, 0, "float32").bytes == 1_280
    assert arithmetic.static_capacity(lab, 1, 16, "float32").bytes == 4_096
    double = lab | {"num_key_value_heads": 4}
    assert arithmetic.kv_cache(double, 1, 5, 0, "float32").bytes == 2_560
    assert arithmetic.static_capacity(double, 1, 16, "float32").bytes == 8_192
    assert arithmetic.kv_cache(lab, 1, 5, 3).tokens == 7  # eight positions were generated, seven are cached


@pytest.mark.parametrize(
    "values, batch, tokens, expected",
    [
        (SMOLLM2, 1, 1, 23_040),  # jranaraki/vllm-fit#2
        (
            {
                "model_type": "qwen3",
                "num_hidden_layers": 36,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "hidden_size": 2560,
                "vocab_size": 151936,
                "torch_dtype": "bfloat16",
            },
            1,
            1,
            147_456,
        ),  # LMCache#688
        (
            {
                "model_type": "gpt2",
                "n_layer": 12,
                "n_head": 12,
                "n_embd": 768,
                "vocab_size": 50257,
                "torch_dtype": "float16",
            },
            1,
            8192,
            301_989_888,
        ),  # mlxcel#927
        (
            {
                "model_type": "gpt_bigcode",
                "n_layer": 24,
                "n_head": 16,
                "n_embd": 2048,
                "multi_query": True,
                "vocab_size": 49280,
                "torch_dtype": "float16",
            },
            1,
            8192,
            100_663_296,
        ),
        (DEEPSEEK_V3, 1, 1, 70_272),  # LMCache PR#694
        (DEEPSEEK_V3 | {"torch_dtype": "bfloat16"}, 1, 163_840, 70_272 * 163_840),  # unsloth#4757
        (GPT_OSS_120B, 1, 127, 73_728 * 127),  # hf-mem#60
        (GPT_OSS_120B, 1, 8192, 18 * 2048 * 8192 + 18 * 2048 * 127),
    ],
)
def test_public_reports(values, batch, tokens, expected):
    assert arithmetic.kv_cache(values, batch, tokens).bytes == expected


def test_a_sliding_layer_holds_the_whole_prompt_until_the_next_token():
    long = arithmetic.kv_cache(MISTRAL_7B, 1, 16_384, 0)
    assert (long.bytes, long.held_after_prefill) == (536_739_840, 2_147_483_648)
    later = arithmetic.kv_cache(MISTRAL_7B, 1, 16_384, 2)
    assert later.held == 32 * 2 * 1024 * 4096 * 2 and later.peak == long.held_after_prefill
    assert long.kinds() == {"sliding": 32}
    assert arithmetic.kv_cache(MISTRAL_7B | {"sliding_window": None}, 1, 16_384).kinds() == {"full": 32}


def test_parameters_of_known_models():
    assert arithmetic.parameters(SMOLLM2).total == 134_515_008
    assert arithmetic.parameters(LLAMA_31_8B).total == 8_030_261_248
    mixtral = {
        "model_type": "mixtral",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "vocab_size": 32000,
    }
    assert arithmetic.parameters(mixtral).total == 46_702_792_704
    qwen3_30b = {
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "vocab_size": 151936,
    }
    assert arithmetic.parameters(qwen3_30b).total == 30_532_122_624
    tied = arithmetic.parameters(SMOLLM2 | {"tie_word_embeddings": False})
    assert tied.total - 134_515_008 == 49152 * 576 == tied.parts["head"]
    assert sum(tied.parts.values()) == tied.total


@pytest.mark.parametrize(
    "dtype, scheme, expected",
    [
        ("float32", "none", 538_060_288),
        ("bfloat16", "none", 269_030_272),
        ("bfloat16", "int8", 163_484_032),
        ("float32", "int8", 220_177_408),
        ("bfloat16", "nf4", 116_426_752),
        ("bfloat16", "nf4-double", 111_692_152),
        ("float32", "nf4", 173_120_128),
    ],
)
def test_weight_bytes_are_what_bitsandbytes_holds(dtype, scheme, expected):
    """Measured with bitsandbytes 0.50 on SmolLM2-135M, rotary buffers included."""
    assert arithmetic.weight_bytes(arithmetic.parameters(SMOLLM2), dtype, scheme).total == expected


def test_fp8_cache():
    assert arithmetic.fp8_bytes(SMOLLM2, 1, 192) == 2_212_080
    assert arithmetic.fp8_bytes(SMOLLM2, 1, 326) == 3_755_760
    with pytest.raises(arithmetic.UnknownArchitecture, match="full attention only"):
        arithmetic.fp8_bytes(MISTRAL_7B, 1, 10)


def test_static_cache():
    assert arithmetic.static_capacity(SMOLLM2, 1, 330, "float32").bytes == 15_206_400
    assert arithmetic.static_capacity(MISTRAL_7B, 1, 8192).bytes == 32 * 2 * 1024 * 4096 * 2


def test_logits():
    assert arithmetic.logits(SMOLLM2, 1, 128, "float32") == 25_165_824
    assert arithmetic.logits(SMOLLM2, 1, 128, "float32", keep=1) == 196_608


# --- what config.json files look like --------------------------------------------------------------------------------


def test_variants_of_one_config():
    whole = arithmetic.kv_cache(LLAMA_2_7B, 1, 100)
    for changed in (
        {"num_key_value_heads": None},
        {"num_key_value_heads": 32},
        {"head_dim": 128},
        {"head_dim": None},
        {"torch_dtype": None, "dtype": "float16"},
        {"torch_dtype": "float32", "dtype": "float16"},
        {"architectures": ["LlamaForCausalLM"], "rope_scaling": None},
    ):
        assert arithmetic.kv_cache(LLAMA_2_7B | changed, 1, 100).bytes == whole.bytes, changed
    assert arithmetic.kv_cache(LLAMA_2_7B | {"head_dim": 64}, 1, 100).bytes * 2 == whole.bytes


def test_sliding_window_of_qwen_needs_its_switch():
    values = {
        "model_type": "qwen2",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 4,
        "vocab_size": 100,
        "num_key_value_heads": 2,
        "sliding_window": 8,
        "use_sliding_window": False,
        "max_window_layers": 2,
    }
    assert arithmetic.kv_cache(values, 1, 20).kinds() == {"full": 4}
    assert arithmetic.kv_cache(values | {"use_sliding_window": True}, 1, 20).kinds() == {"full": 2, "sliding": 2}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda text: {"model_type": "llava", "text_config": text, "vision_config": {"model_type": "clip_vision_model"}},
        lambda text: {"model_type": "some_new_vl", "language_config": text},
        lambda text: {"model_type": "an_omni", "thinker_config": {"text_config": text, "audio_config": {}}},
    ],
)
def test_nested_text_models(wrap):
    nested = wrap(SMOLLM2)
    assert arithmetic.kv_cache(nested, 1, 100, dtype="bfloat16").bytes == 23_040 * 100
    found = arithmetic.parameters(nested)
    assert found.total == 134_515_008 and found.not_counted


def test_legacy_and_computed_fields():
    bamba = {
        "model_type": "granitemoehybrid",
        "layer_types": ["mamba", "attention"],
        "num_hidden_layers": 2,
        "vocab_size": 100,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_expand": 2,
    }
    assert arithmetic.kv_cache(bamba, 1, 10).kinds() == {"state space": 1, "full": 1}
    gemma = {
        "model_type": "gemma3_text",
        "num_hidden_layers": 12,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "vocab_size": 100,
    }
    assert arithmetic.layer_kinds(gemma).count("full_attention") == 2
    assert arithmetic.layer_kinds(gemma | {"sliding_window_pattern": 3}).count("full_attention") == 4


def test_encoder_decoder_counts_both_caches():
    t5 = {
        "model_type": "t5",
        "d_model": 64,
        "num_heads": 4,
        "d_kv": 16,
        "num_layers": 3,
        "vocab_size": 100,
        "d_ff": 128,
        "is_encoder_decoder": True,
    }
    found = arithmetic.kv_cache(t5, 2, 5, 1, "float32", encoder=7)
    assert found.bytes == 3 * 2 * 2 * 64 * 4 * (5 + 7) and found.kinds() == {"full": 3, "cross attention": 3}
    with pytest.raises(arithmetic.ConfigError, match="encoder-decoder"):
        arithmetic.kv_cache(t5, 2, 5)


def test_a_config_object_is_welcome():
    transformers = pytest.importorskip("transformers")
    made = transformers.LlamaConfig(
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        vocab_size=49152,
        tie_word_embeddings=True,
    )
    assert arithmetic.kv_cache(made, 1, 10, dtype="bfloat16").bytes == 230_400
    assert arithmetic.parameters(made).total == 134_515_008


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values, words",
    [
        ({}, "model_type"),
        ({"model_type": 7}, "model_type"),
        ({"model_type": "lama", **{k: v for k, v in SMOLLM2.items() if k != "model_type"}}, "'lama'.*nearest.*llama"),
        ({"model_type": "llama"}, "does not say hidden_size"),
        ({k: v for k, v in SMOLLM2.items() if k != "num_hidden_layers"}, "num_hidden_layers"),
        (SMOLLM2 | {"num_hidden_layers": "30"}, "num_hidden_layers is '30'"),
        (SMOLLM2 | {"num_hidden_layers": -1}, "num_hidden_layers is -1"),
        (SMOLLM2 | {"num_hidden_layers": 2.5}, "num_hidden_layers"),
        (SMOLLM2 | {"num_hidden_layers": True}, "num_hidden_layers is True"),
        (SMOLLM2 | {"num_hidden_layers": 10**9}, "num_hidden_layers"),
        (SMOLLM2 | {"hidden_size": 0}, "hidden_size is 0"),
        (SMOLLM2 | {"num_attention_heads": [9]}, "num_attention_heads"),
        (SMOLLM2 | {"layer_types": ["full_attention"] * 29 + ["quantum_attention"]}, "layer 29 .*quantum_attention"),
        (SMOLLM2 | {"layer_types": ["full_attention"]}, "layer_types names 1"),
        (SMOLLM2 | {"layer_types": "full"}, "layer_types"),
        (SMOLLM2 | {"torch_dtype": "int7"}, "dtype is 'int7'"),
        ({"model_type": "new_mla", "q_lora_rank": 8, "compress_ratios": [4]}, "new_mla"),
        ({"model_type": "llava", "text_config": {"hidden_size": 4}}, "names no model_type"),
    ],
)
def test_refusals_name_what_is_wrong(values, words):
    with pytest.raises(arithmetic.ConfigError, match=words):
        arithmetic.kv_cache(values, 1, 10)


@pytest.mark.parametrize("method", ["gptq", "awq", "fp8", "mxfp4", "compressed-tensors", None, 5])
def test_checkpoints_quantized_otherwise_are_refused_by_name(method):
    with pytest.raises(arithmetic.UnknownArchitecture, match=str(method)):
        arithmetic.plan(SMOLLM2 | {"quantization_config": {"quant_method": method, "bits": 4}})


def test_bitsandbytes_and_gguf_configs():
    four_bits = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    assert arithmetic.plan(SMOLLM2 | {"quantization_config": four_bits}).weights.total == 116_426_752
    double = four_bits | {"bnb_4bit_use_double_quant": True}
    assert arithmetic.plan(SMOLLM2 | {"quantization_config": double}).weights.total == 111_692_152
    # A model loaded from GGUF names gguf, but its weights are plain tensors.
    gguf = arithmetic.plan(SMOLLM2 | {"quantization_config": {"quant_method": "gguf"}, "torch_dtype": "float32"})
    assert gguf.weights.total == 538_060_288


def test_arguments_are_checked():
    for batch, prompt, new in ((0, 1, 1), (1, 0, 1), (1, 1, -1), (True, 1, 1), (1.5, 1, 1), ("1", 1, 1), (1, 2**60, 1)):
        with pytest.raises(arithmetic.ConfigError):
            arithmetic.kv_cache(SMOLLM2, batch, prompt, new)


# --- the plan --------------------------------------------------------------------------------------------------------


def test_plan_finds_the_largest_batch_and_the_longest_context():
    found = arithmetic.plan(MISTRAL_7B, "24GB", batch=2, context=8000)
    for name, number in (("batch", found.largest_batch), ("context", found.longest_context)):
        assert arithmetic.plan(MISTRAL_7B, "24GB", **{"batch": 2, "context": 8000, name: number}).fits
        assert not arithmetic.plan(MISTRAL_7B, "24GB", **{"batch": 2, "context": 8000, name: number + 1}).fits
    assert found.total == found.weights.total + found.cache.peak + found.logits
    assert any("activations" in text for text in found.not_counted)
    none = arithmetic.plan(MISTRAL_7B, "1GB")
    assert (none.fits, none.largest_batch, none.longest_context) == (False, 0, 0)


@pytest.mark.parametrize(
    "text, expected", [("24GB", 24 * 10**9), ("24 GiB", 24 * 2**30), ("1.5gb", 1_500_000_000), (7, 7)]
)
def test_memory_units(text, expected):
    assert arithmetic.memory_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "24G", "-1GB", "0GB", "lots", "1e9GB", 0, -3, True, None, "9999999999999TB"])
def test_memory_that_is_none(text):
    with pytest.raises(arithmetic.ConfigError, match="memory"):
        arithmetic.memory_bytes(text)


# --- the rules -------------------------------------------------------------------------------------------------------


def test_only_the_standard_library_is_imported():
    code = (
        "import sys; from labutils import arithmetic; arithmetic.plan("
        f"{SMOLLM2!r}, '1GB'); heavy = [name for name in ('torch', 'transformers', 'numpy') if name in sys.modules]; "
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_one_plan_takes_little_time():
    arithmetic.plan(DEEPSEEK_V3, "80GB")
    started = time.perf_counter()
    arithmetic.plan(DEEPSEEK_V3, "80GB")
    assert time.perf_counter() - started < 0.5


def test_every_row_can_be_read():
    rows = {json.loads(line)["type"] for line in data.path("arithmetic/configs.jsonl").read_text().splitlines()}
    assert rows == set(config.model_types())
    families = cache.families()
    assert set(families) <= rows
    for family in families.values():
        assert family["source"].startswith("models/") and family["name"]
        for rule in family.get("attention", []):
            expressions.names(rule)


def test_the_table_is_made_with_these_rules():
    """A row of truth.csv is stale when a rule behind it changed: run tools/verify_arithmetic.py --all."""
    stale = [row.type for row in truth.table() if row.rules != truth.fingerprint(row.type)]
    assert not stale, f"verified with other rules: {', '.join(stale)}"


def test_the_table_says_what_it_says():
    rows = truth.table()
    assert len(rows) >= 223
    exact = [row for row in rows if row.configs and row.cache_exact == row.configs]
    assert len(exact) >= 215
    for row in exact:
        assert row.exact_bytes == row.real_bytes, row.type
        if row.ratio is not None:
            assert math.isclose(row.ratio, row.naive_bytes / row.exact_bytes, abs_tol=1e-3)


@pytest.mark.parametrize(
    "expression, fields, expected",
    [
        ("a * b + 1", {"a": 2, "b": 3}, 7),
        ("a or b // 2", {"a": None, "b": 9}, 4),
        ("[i for i in range(n) if i % 2]", {"n": 5}, [1, 3]),
        ("x if y is None else y", {"x": 1, "y": 0}, 0),
        ("kinds[:2] * 2", {"kinds": ["a", "b", "c"]}, ["a", "b"] * 2),
        ("get(d, 'k', 3)", {"d": None}, 3),
        ("{i: i * 2 for i in range(2)}", {}, {0: 0, 1: 2}),
        ("not a and b", {"a": False, "b": 4}, 4),
        ("a * 2 ** (i + 1)", {"a": 3, "i": 4}, 96),
        ("lcm(a, b)", {"a": 4, "b": 6}, 12),
    ],
)
def test_expressions(expression, fields, expected):
    assert expressions.evaluate(expression, fields) == expected


@pytest.mark.parametrize(
    "expression, fields",
    [
        ("a * b", {"a": 1}),
        ("a // b", {"a": 1, "b": 0}),
        ("a + b", {"a": "x", "b": "y"}),
        ("range(n)", {"n": 10**9}),
        ("[0] * n", {"n": 10**9}),
        ("a * a", {"a": 2**60}),
        ("open", {}),
        ("open('/etc/passwd')", {}),
        ("a.b", {"a": 1}),
        ("__import__('os')", {}),
        ("lambda: 1", {}),
        ("[0] * a", {"a": "x"}),
        ("a['k']", {"a": {}}),
        ("a < b", {"a": 1, "b": None}),
        ("2 ** a", {"a": 10**9}),
        ("2 ** a", {"a": -1}),
        ("a ** 9", {"a": 2**70}),
        ("lcm(a, 2)", {"a": None}),
    ],
)
def test_expressions_do_no_harm(expression, fields):
    with pytest.raises(arithmetic.ConfigError):
        expressions.evaluate(expression, fields)
