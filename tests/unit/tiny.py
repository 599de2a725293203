"""Tiny random models of many architectures, and a tokenizer for them: seconds instead of minutes."""

import torch
import transformers as T
from tokenizers import Tokenizer, models, pre_tokenizers

BASE = {
    "vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 96, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0,
}
OLD = {"vocab_size": 99, "bos_token_id": 1, "eos_token_id": None}  # families with names of their own
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}

# name -> configuration, for models whose cache slots can hold
PLAIN = {
    "llama": lambda: T.LlamaConfig(**BASE),
    "qwen2": lambda: T.Qwen2Config(**BASE),
    "qwen3": lambda: T.Qwen3Config(**BASE, head_dim=16),
    "mistral, window 8": lambda: T.MistralConfig(**BASE, sliding_window=8),
    "gpt2": lambda: T.GPT2Config(**OLD, n_embd=32, n_layer=2, n_head=4, n_positions=96),
    "gemma2, window 8": lambda: T.Gemma2Config(**BASE, head_dim=16, sliding_window=8),
    "gemma2, eager, capped": lambda: T.Gemma2Config(**BASE, head_dim=16, sliding_window=8, attn_logit_softcapping=2.0,
                                                    attn_implementation="eager"),
    "gemma3, window 8": lambda: T.Gemma3TextConfig(**BASE, head_dim=16, sliding_window=8,
                                                   layer_types=["sliding_attention", "full_attention"]),
    "mixtral": lambda: T.MixtralConfig(**BASE, num_local_experts=4),
    "qwen3_moe": lambda: T.Qwen3MoeConfig(**BASE, head_dim=16, num_experts=4, **EXPERTS),
    "opt": lambda: T.OPTConfig(vocab_size=99, hidden_size=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4,
                               max_position_embeddings=96, word_embed_proj_dim=32, eos_token_id=None, pad_token_id=1),
    "gpt_neox": lambda: T.GPTNeoXConfig(**OLD, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                                        num_attention_heads=4, max_position_embeddings=96),
    "gptj": lambda: T.GPTJConfig(**OLD, n_embd=32, n_layer=2, n_head=4, n_positions=96, rotary_dim=4),
    "phi3": lambda: T.Phi3Config(**BASE),
    "olmo2": lambda: T.Olmo2Config(**BASE),
    "cohere": lambda: T.CohereConfig(**BASE),
    "starcoder2, window 8": lambda: T.Starcoder2Config(**BASE, sliding_window=8),
}
# name -> configuration, and a word of why slots do not fit
OTHER = {
    "mamba": (lambda: T.MambaConfig(**OLD, hidden_size=32, num_hidden_layers=2, state_size=8), "no positions or no cache"),
    "mamba2": (lambda: T.Mamba2Config(**OLD, hidden_size=32, num_hidden_layers=2, state_size=8, head_dim=16, num_heads=4,
                                      n_groups=1), "no positions or no cache"),
    "bloom": (lambda: T.BloomConfig(**OLD, hidden_size=32, n_layer=2, n_head=4), "no positions or no cache"),
    "gpt_neo": (lambda: T.GPTNeoConfig(**OLD, hidden_size=32, num_layers=2, num_heads=4, window_size=8,
                                       attention_types=[[["global", "local"], 1]], max_position_embeddings=96),
                "attention calls"),
    "gpt_oss": (lambda: T.GptOssConfig(**BASE, head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=8),
                "s_aux"),
    "lfm2": (lambda: T.Lfm2Config(**BASE, layer_types=["conv", "full_attention"]), "LinearAttentionLayer"),
    "deepseek_v3": (lambda: T.DeepseekV3Config(
        **{**BASE, "num_key_value_heads": 4}, q_lora_rank=8, kv_lora_rank=8, qk_rope_head_dim=8, qk_nope_head_dim=8,
        v_head_dim=8, n_routed_experts=4, n_group=1, topk_group=1, first_k_dense_replace=1, **EXPERTS),
        "the packed step failed"),
    "llama, dynamic angles": (lambda: T.LlamaConfig(**BASE, rope_parameters={
        "rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}), "rotary angles"),
}


def model(config):
    """Return a random model of `config` in fp32, with weights large enough that its tokens differ."""
    torch.manual_seed(0)
    config = config()
    found = T.AutoModelForCausalLM.from_config(config, attn_implementation=config._attn_implementation).eval()
    with torch.no_grad():
        for weight in found.parameters():
            if weight.dim() > 1:
                weight.mul_(3)
    found.generation_config.eos_token_id = None
    return found


def tokenizer():
    """Return a tokenizer of 99 words, w0 to w98, without pad, BOS or end token."""
    words = Tokenizer(models.WordLevel({f"w{at}": at for at in range(99)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return T.PreTrainedTokenizerFast(tokenizer_object=words)


def alone(model, ids, new, **settings):
    """Return the new tokens of model.generate for one prompt of ids, without a batch."""
    prompt = torch.tensor([ids], device=model.device)
    with torch.no_grad():
        made = model.generate(input_ids=prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=new, pad_token_id=0,
                              **settings)
    return made[0, len(ids):].tolist()
