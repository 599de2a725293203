"""labutils.trace against the run itself: the peak on the meta device is that with real values."""

import csv

import pytest

from labutils import arithmetic, data

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from labutils import trace  # noqa: E402

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
}


def make(name: str, **values):
    return getattr(transformers, name)(**{**SMALL, **values})


@pytest.mark.parametrize(
    "config",
    [
        make("LlamaConfig"),
        make("Qwen3Config", head_dim=16),
        make("MistralConfig", sliding_window=8),
        make("Gemma3TextConfig", head_dim=16, sliding_window=8),
        make("Olmo2Config"),
    ],
    ids=lambda config: config.model_type,
)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_the_peak_is_that_of_a_real_run(config, attention):
    if config.model_type == "gemma2" and attention == "sdpa":
        with pytest.raises(trace.TraceError, match="does not support an attention implementation"):
            trace.trace(config, 2, 48, torch.float32, attention)
        return
    traced = trace.trace(config, 2, 48, torch.float32, attention)
    run = trace.trace(config, 2, 48, torch.float32, attention, device="cpu")
    assert traced.weights == run.weights and traced.held == run.held
    assert traced.prefill == pytest.approx(run.prefill, rel=0.05) and traced.decode == pytest.approx(
        run.decode, rel=0.05
    )


def test_what_the_config_tells_is_in_the_trace():
    config = make("LlamaConfig")
    found = trace.trace(config, 2, 48, torch.bfloat16)
    parameters = arithmetic.parameters(config)
    assert found.weights == parameters.bytes("bfloat16") + parameters.buffer_bytes("bfloat16")
    assert found.held == arithmetic.kv_cache(config, 2, 48, 0, "bfloat16").held_after_prefill
    assert found.logits == arithmetic.logits(config, 2, 48, "bfloat16", keep=1)
    assert found.total >= found.weights + found.held


def test_score_matrices_and_whole_logits_cost_memory():
    config = make("LlamaConfig")
    fused, eager = (trace.trace(config, 1, 256, torch.float32, attention).prefill for attention in ("sdpa", "eager"))
    assert eager - fused > 4 * 256 * 256 * 4  # at least one score matrix of four heads
    kept, whole = (trace.trace(config, 1, 256, torch.float32, logits_to_keep=keep) for keep in (1, None))
    assert whole.logits == 256 * kept.logits


def test_what_cannot_be_traced_is_said():
    with pytest.raises(trace.TraceError, match="jetmoe cannot be traced"):
        trace.trace(transformers.JetMoeConfig(num_hidden_layers=1, hidden_size=64, intermediate_size=64), 1, 8)


LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "first_k_dense_replace": 3,
}


@pytest.mark.parametrize(
    "config, attention",
    [
        (make("FalconConfig", multi_query=True, alibi=False), "sdpa"),
        (make("FalconConfig", multi_query=True, alibi=True), "sdpa"),
        (make("DeepseekV3Config", **LATENT), "sdpa"),
    ],
    ids=["one head for all", "and alibi", "values narrower than keys"],
)
def test_where_no_kernel_is_fused_the_scores_are_counted(config, attention):
    traced, run = (trace.trace(config, 2, 48, torch.float32, attention, device=device) for device in ("meta", "cpu"))
    assert traced.prefill >= 4 * 2 * config.num_attention_heads * 48 * 48  # at least one score matrix
    assert traced.prefill == pytest.approx(run.prefill, rel=0.05)


def test_which_shapes_have_a_kernel():
    query, one, narrow = torch.empty(2, 4, 8, 16), torch.empty(2, 1, 8, 16), torch.empty(2, 4, 8, 12)
    assert trace.fused(query, query, query) and not trace.fused(query, one, one)
    assert trace.fused(query, one, one, gqa=True)
    assert not trace.fused(query, query, narrow, on="cpu") and trace.fused(query, query, narrow, on="cuda")
    assert not trace.fused(query[0], query[0], query[0])


def test_an_encoder_reads_its_prompt_only():
    config = transformers.BertConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128)
    peaks = []
    for device in ("meta", "cpu"):
        with torch.device(device):
            model = transformers.BertForSequenceClassification(config).eval()
        peaks.append(trace.trace_model(model, 2, 48))
    assert peaks[0].decode == peaks[0].held == 0 and peaks[0].logits == 2 * 2 * 4
    assert peaks[0].prefill == pytest.approx(peaks[1].prefill, rel=0.05)


def test_the_table_is_within_five_per_cent():
    with data.path("arithmetic/trace.csv").open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    far = {
        (line["type"], line["attention"]) for line in lines if abs(int(line["traced"]) / int(line["real"]) - 1) > 0.05
    }
    assert not far
    assert len({line["type"] for line in lines}) >= 30
