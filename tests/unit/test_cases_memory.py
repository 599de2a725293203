"""User reports about caches and memory, against the arithmetic and against the real library.

Each docstring names the public report. Reports whose numbers test_arithmetic.py already holds are not repeated:
jranaraki/vllm-fit#2, LMCache/LMCache#688, lablup/mlxcel#927, LMCache/LMCache PR#694, jundot/omlx#2626,
alvarobartt/hf-mem#26, llm-d/llm-d-benchmark#345.
"""

import pytest

import labutils  # noqa: F401 - settles the profile before the Hub client is imported
from labutils import arithmetic
from labutils.arithmetic import examples

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from labutils import trace  # noqa: E402

TINY = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}


def build(model_type, **fields):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(model_type, **fields)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()


def prefill(model, tokens):
    with torch.inference_mode():
        return model(torch.arange(tokens)[None] % 64, use_cache=True).cache


# --- what a layer keeps -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(examples.small()))
def test_every_kind_of_cache_is_computed_to_the_byte(name):
    """The small models of lesson 08, at two lengths, tensors and storages."""
    model = build(**examples.small()[name])
    for tokens in (5, 40):
        found = arithmetic.kv_cache(model.config, prompt=tokens, new=0, dtype="float32")
        assert (found.bytes, found.held_after_prefill) == trace.held(prefill(model, tokens))


def test_public_reports_of_wrong_estimates():
    """LMCache/LMCache#688, alvarobartt/hf-mem#60, lablup/mlxcel#172, unslothai/unsloth#4757: said and exact."""
    public = examples.public()
    exact = {}
    for report in examples.reports():
        found = arithmetic.kv_cache(public[report["model"]], prompt=report["tokens"]).bytes
        exact[report["where"]] = found
        assert abs(found / examples.UNITS[report["unit"]] / report["said"] - 1) > 0.3
    assert exact == {"LMCache#688": 147_456, "hf-mem#60": 73_728, "mlxcel#172": (4 * 32_768 + 22 * 511) * 1024,
                     "unsloth#4757": 61 * 576 * 2 * 163_840}


def test_bytes_per_token_are_no_constant():
    """alvarobartt/hf-mem#60, ai-dynamo/aiconfigurator#1201: sliding layers stop growing; capacity is found by search."""
    config = examples.public("gpt-oss-120b")["gpt-oss-120b"]

    def total(tokens):
        return arithmetic.kv_cache(config, prompt=tokens).bytes

    assert total(2) - total(1) == 73_728 and total(8193) - total(8192) == 36_864
    found = arithmetic.plan(config, memory="300GB", context=8192)
    assert found.fits and arithmetic.plan(config, memory="300GB", context=found.longest_context).fits
    assert not arithmetic.plan(config, memory="300GB", context=found.longest_context + 1).fits


def test_mistral_slides_in_every_layer_without_layer_types():
    """alvarobartt/hf-mem#60: MistralConfig names no layer types, yet all of its layers slide."""
    assert arithmetic.layer_kinds(examples.public("Mistral-7B")["Mistral-7B"]) == ["sliding_attention"] * 32


def test_the_whole_prompt_is_held_until_the_next_token():
    """sgl-project/sglang#30091: window 8, prompt of 200: a view of 7 positions over a storage of 200, later of 8."""
    model = build("mistral", **{**TINY, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 8})
    cache = prefill(model, 200)
    keys = cache.layers[0].keys
    assert (keys.nbytes, keys.untyped_storage().nbytes()) == (896, 25_600)
    with torch.inference_mode():
        model(torch.tensor([[1]]), cache=cache, use_cache=True)
    assert cache.layers[0].keys.untyped_storage().nbytes() == 1_024
    found = arithmetic.kv_cache(model.config, prompt=200, new=2, dtype="float32")
    assert (found.held_after_prefill, found.held) == (4 * 25_600, 4 * 1_024)


@pytest.mark.parametrize("fields, heads", [({}, 1), ({"new_decoder_architecture": True, "num_kv_heads": 2}, 4)])
def test_falcon_keeps_other_heads_than_its_config_says(fields, heads):
    """huggingface/transformers PR#24523: one head by default, and expanded heads in the new architecture."""
    config = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64, **fields}
    model = build("falcon", **config)
    cache = prefill(model, 20)
    assert cache.layers[0].keys.shape == (1, heads, 20, 8)
    assert trace.held(cache)[0] == arithmetic.kv_cache({"model_type": "falcon", **config}, 1, 20, 0, "float32").bytes


def test_only_full_layers_of_a_hybrid_grow():
    """gpustack/gguf-parser-go#28, AlexsJones/llmfit#951, LMCache/LMCache PR#3080: 8 of 32 layers, 32,768 bytes a token."""
    config = {"model_type": "qwen3_5_text", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 16,
              "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 248_320, "dtype": "bfloat16"}
    one, more, most = (arithmetic.kv_cache(config, prompt=tokens, new=0) for tokens in (1, 2, 4001))
    assert one.kinds() == {"state space": 24, "full": 8}
    assert (more.bytes - one.bytes, most.bytes - one.bytes) == (32_768, 4000 * 32_768)
    model = build(**examples.small()["both (Qwen3-Next)"])
    short, long = prefill(model, 20), prefill(model, 40)
    for before, after in zip(short.layers[:3], long.layers[:3], strict=True):
        assert trace.held(before) == trace.held(after) and not hasattr(before, "keys")


def test_gemma4_has_two_head_sizes():
    """vllm-project/vllm-metal#277, vllm-project/tpu-inference#2329: full layers have wider heads, layer by layer."""
    config = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "head_dim": 16,
              "num_key_value_heads": 2, "global_head_dim": 32, "vocab_size": 64, "vocab_size_per_layer_input": 64,
              "hidden_size_per_layer_input": 4, "sliding_window": 64, "pad_token_id": 0}
    model = build("gemma4_text", **config)
    cache = prefill(model, 20)
    assert [layer.keys.shape[-1] for layer in cache.layers] == [16] * 5 + [32]
    found = arithmetic.kv_cache({"model_type": "gemma4_text", **config}, 1, 20, 0, "float32")
    assert [layer.bytes for layer in found.layers] == [trace.held(layer)[0] for layer in cache.layers]


# --- what else takes memory ---------------------------------------------------------------------------------------------


def test_every_expert_counts():
    """AlexsJones/llmfit#230, jranaraki/vllm-fit#27: gpt-oss-20b holds all its experts, active or not."""
    config = {"model_type": "gpt_oss", "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8,
              "head_dim": 64, "hidden_size": 2880, "intermediate_size": 2880, "num_local_experts": 32, "vocab_size": 201_088}
    assert arithmetic.parameters(config).total == 20_914_757_184


def test_a_plan_says_each_part_and_what_it_leaves_out():
    """huggingface/accelerate#3297, redhat-performance/configiq#112: weights, cache and logits apart; an engine reserves more."""
    found = arithmetic.plan(examples.public("Llama-3.1-8B")["Llama-3.1-8B"] | {"intermediate_size": 14_336}, context=4096)
    assert (found.weights.total, found.cache.bytes) == (pytest.approx(16.06e9, rel=1e-3), 536_870_912)
    assert found.total == found.weights.total + found.cache.peak + found.logits
    assert any("engine reserves" in each for each in found.not_counted)


def test_longest_context_is_what_the_memory_leaves():
    """vllm-project/vllm#33263, #2418, #16118: room for 3,664 tokens is a context of 3,664, and 4,096 do not fit."""
    config = examples.public("Llama-3.1-8B")["Llama-3.1-8B"] | {"intermediate_size": 14_336}
    fixed = arithmetic.plan(config, context=1)
    memory = fixed.weights.total + fixed.logits + 3664 * 131_072 + 131_071
    found = arithmetic.plan(config, memory=memory, context=4096)
    assert (found.fits, found.longest_context) == (False, 3664)


def test_logits_of_a_hand_called_forward():
    """huggingface/transformers#30860, Blaizzy/mlx-vlm#1732: all positions' logits, unless logits_to_keep says otherwise."""
    model = build("llama", **TINY)
    ids = torch.zeros(1, 50, dtype=torch.long)
    for keep, positions in ((0, 50), (1, 1)):
        with torch.inference_mode():
            logits = model(ids, logits_to_keep=keep).logits
        assert logits.nbytes == arithmetic.logits(model.config, 1, positions, "float32") == positions * 64 * 4


def test_outputs_keep_the_graph_of_their_pass():
    """allenai/longformer#36: memory grows with every step of a loop that keeps its outputs; inference_mode ends it."""
    model = build("llama", **TINY)
    ids = torch.tensor([[1, 7, 9, 4, 2]])
    kept: list = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each.nbytes) or each, lambda each: each):
        output = model(ids, use_cache=True)
    assert output.logits.requires_grad and output.cache.layers[0].keys.requires_grad
    assert sum(kept) > 10 * trace.held(output.cache)[0]
    with torch.inference_mode():
        output = model(ids, use_cache=True)
    assert not output.logits.requires_grad and not output.cache.layers[0].keys.requires_grad


# --- an article's lab: every assertion of its listings, in our own words -----------------------------------------------------


@pytest.fixture(scope="module")
def lab():
    return build("llama", **TINY, tie_word_embeddings=True)


IDS = torch.tensor([[1, 7, 9, 4, 2]])


def test_article_sizes():
    """Claim C01: 16,384 bytes a token, 8 MiB at 512, 64 MiB at 4,096; sizes have to be positive whole numbers."""
    config = examples.public("article")["article"]
    sizes = [arithmetic.kv_cache(config, prompt=tokens).bytes for tokens in (1, 512, 4096)]
    assert sizes == [16_384, 8 * 2**20, 64 * 2**20]
    for wrong in (0, -1, 2.0, True):
        with pytest.raises(arithmetic.ConfigError):
            arithmetic.kv_cache(config, prompt=wrong)


def test_article_loss_and_reload(lab, tmp_path):
    """The loss leaves out a masked target, gradients reach the tied embedding, and safetensors give the model back."""
    labels = IDS.clone()
    labels[0, 3] = -100
    output = lab(IDS, labels=labels, use_cache=False)
    scored = [position for position in range(4) if labels[0, position + 1] != -100]
    shares = output.logits[0].log_softmax(-1)
    by_hand = -torch.stack([shares[position, labels[0, position + 1]] for position in scored]).mean()
    torch.testing.assert_close(output.loss, by_hand)
    output.loss.backward()
    assert lab.get_input_embeddings().weight.grad.abs().sum() > 0
    assert lab.get_input_embeddings().weight is lab.get_output_embeddings().weight
    lab.zero_grad()
    lab.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager")
    assert not again.training
    with torch.no_grad():
        torch.testing.assert_close(again(IDS).logits, output.logits)


def test_article_a_later_token_changes_no_earlier_logits(lab):
    changed = IDS.clone()
    changed[0, -1] = 3
    with torch.inference_mode():
        before, after = lab(IDS).logits, lab(changed).logits
    torch.testing.assert_close(before[:, :-1], after[:, :-1])
    assert not torch.allclose(before[:, -1], after[:, -1])


@pytest.mark.parametrize("kv_heads, dynamic, static", [(2, 1_280, 4_096), (4, 2_560, 8_192)])
def test_article_cached_logits_and_bytes(kv_heads, dynamic, static):
    """Claim C02, with the full forward as the measure."""
    model = build("llama", **TINY | {"num_key_value_heads": kv_heads})
    caches = ((transformers.DynamicCache(config=model.config), dynamic),
              (transformers.StaticCache(config=model.config, max_cache_len=16), static))
    with torch.inference_mode():
        full = model(IDS, use_cache=False).logits[:, -1:]
        for cache, size in caches:
            model(IDS[:, :-1], cache=cache, use_cache=True)
            tail = model(IDS[:, -1:], attention_mask=torch.ones_like(IDS), cache=cache, use_cache=True).logits
            torch.testing.assert_close(tail, full, atol=1e-6, rtol=1e-5)
            assert (int(cache.get_seq_length()), trace.held(cache)[0]) == (5, size)


def test_article_stale_prefix_and_greedy(lab):
    """Claims C03 and C06: an equally long other prefix gives other logits; eight positions leave seven in the cache."""
    stale, different = transformers.DynamicCache(config=lab.config), IDS.clone()
    different[0, 1] = 6
    with torch.inference_mode():
        lab(IDS[:, :-1], cache=stale, use_cache=True)
        wrong = lab(different[:, -1:], cache=stale, use_cache=True).logits
        right = lab(different, use_cache=False).logits[:, -1:]
        assert wrong.shape == right.shape and not torch.allclose(wrong, right, atol=1e-6, rtol=1e-5)
        ids = IDS
        for _ in range(3):
            ids = torch.cat([ids, lab(ids, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    cache = transformers.DynamicCache(config=lab.config)
    output = lab.generate(IDS, max_new_tokens=3, do_sample=False, num_beams=1, cache=cache)
    assert torch.equal(output, ids) and output.shape[1] == 8
    assert cache.get_seq_length() == 7 == arithmetic.kv_cache(lab.config, prompt=5, new=3).tokens


# --- pictures ------------------------------------------------------------------------------------------------------------


def test_cache_timeline_of_a_sliding_model_falls_after_the_prompt():
    from labutils.widgets.cache import against, timeline

    points = timeline(examples.public("Mistral-7B")["Mistral-7B"], 1, 16_384, 512, "bfloat16")
    assert points[0] == (16_384, 2**31) and points[1] == (16_385, 2**29) and points[-1] == (16_895, 2**29)
    full = timeline(examples.public("Llama-3.1-8B")["Llama-3.1-8B"], 16, 4096, 1024, "bfloat16", kv_heads=32)
    assert full[0] == (4096, 32 * 2**30) and full[-1] == (5119, 16 * 5119 * 524_288)
    picture = against(points, 2**30, 2**31, "Mistral")
    assert picture.description.startswith("Mistral: 2.0 GiB at the peak, 200% of 1.0 GiB (does not fit, weights not counted)")
    assert picture.png.startswith(b"\x89PNG")


def test_ratio_picture_says_its_rows():
    from labutils import views

    picture = views.ratios({"a": ("32 full", 1.0), "b": ("3 full", 2.0), "c": ("4 latent", 28.44), "d": ("2 indexed", 0.5),
                            "e": ("9 state space", 3.0), "f": ("1 cross attention, 1 full", 0.5), "g": ("1 sliding", 4.0)})
    assert "full attention only 2 types, 1 exact" in picture.description and "latent 1 types, 0 exact" in picture.description


def test_the_examples_and_the_known_models_agree():
    public = examples.public()
    shared = [name for name in arithmetic.known_names() if name in public]
    assert shared
    for name in shared:
        known = arithmetic.known(name)
        assert {field: known[field] for field in public[name]} == public[name], name
