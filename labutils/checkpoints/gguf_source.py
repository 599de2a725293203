"""Read a Llama-type GGUF file into what transformers expects: weights, config, generation config, tokenizer.

transformers can load such a file itself, but it needs torch, half a minute and 1.2 GB for it, cannot save what it
loaded, and leaves out the rule that digits are cut out before anything else. The weights here equal its weights bit for
bit (tests/unit/test_checkpoints.py compares them).
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from labutils.checkpoints.tensors import PIECE, Tensor
from labutils.errors import CheckpointError

GLOBAL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL = 3  # the token type of special tokens in a GGUF vocabulary


class GGUFSource:
    """One GGUF file. Raises CheckpointError for an architecture or a tokenizer that is not handled here."""

    def __init__(self, path: Path):
        import gguf

        self.path, self.reader = path, gguf.GGUFReader(path)
        kind = tuple(map(self.field, ("general.architecture", "tokenizer.ggml.model", "tokenizer.ggml.pre")))
        if kind != ("llama", "gpt2", "smollm"):
            raise CheckpointError(f"{path} holds {kind}; only a Llama-type model with SmolLM's tokenizer is handled.")

    def field(self, name: str):
        """Return a metadata value of the file."""
        if name not in self.reader.fields:
            raise CheckpointError(f"{self.path} has no {name}.")
        return self.reader.fields[name].contents()

    def tensors(self) -> Iterator[Tensor]:
        """Yield the weights as F32 tensors under transformers' names."""
        for each in self.reader.tensors:
            shape = tuple(int(size) for size in reversed(each.shape))
            yield Tensor(self._name(each.name), "F32", shape, lambda each=each, shape=shape: self._pieces(each, shape))

    def _name(self, name: str) -> str:
        if name in GLOBAL:
            return GLOBAL[name]
        match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
        if not match or match[2] not in LAYER:
            raise CheckpointError(f"{self.path} has a tensor {name} that a Llama-type model does not have.")
        return f"model.layers.{match[1]}.{LAYER[match[2]]}.weight"

    def _pieces(self, tensor, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
        import gguf

        heads = {"attn_q": "llama.attention.head_count", "attn_k": "llama.attention.head_count_kv"}
        count = next((self.field(key) for part, key in heads.items() if f".{part}." in tensor.name), 0)
        if count:
            # GGUF keeps the two numbers that a rotation pairs side by side; transformers keeps them half a head apart.
            whole = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(count, shape[0] // count // 2, 2, shape[1])
            yield whole.swapaxes(1, 2).reshape(-1)
            return
        # Blocks of the quantisation lie within a row, so rows can be restored a few at a time.
        rows = max(1, PIECE // shape[-1])
        for start in range(0, len(tensor.data), rows if len(shape) > 1 else len(tensor.data)):
            data = tensor.data[start : start + rows] if len(shape) > 1 else tensor.data
            yield gguf.dequantize(data, tensor.tensor_type).reshape(-1)

    def config(self, dtype: str) -> dict:
        """Return config.json."""
        heads, width = self.field("llama.attention.head_count"), self.field("llama.embedding_length")
        return {
            "architectures": ["LlamaForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": self.field("tokenizer.ggml.bos_token_id"),
            "dtype": dtype,
            "eos_token_id": self.field("tokenizer.ggml.eos_token_id"),
            "head_dim": width // heads,
            "hidden_act": "silu",
            "hidden_size": width,
            "intermediate_size": self.field("llama.feed_forward_length"),
            "max_position_embeddings": self.field("llama.context_length"),
            "mlp_bias": False,
            "model_type": "llama",
            "num_attention_heads": heads,
            "num_hidden_layers": self.field("llama.block_count"),
            "num_key_value_heads": self.field("llama.attention.head_count_kv"),
            "pad_token_id": self.field("tokenizer.ggml.padding_token_id"),
            # the file has the nearest float32; its shortest decimal is the number that was meant
            "rms_norm_eps": float(str(np.float32(self.field("llama.attention.layer_norm_rms_epsilon")))),
            "rope_parameters": {"rope_theta": self.field("llama.rope.freq_base"), "rope_type": "default"},
            "tie_word_embeddings": all(tensor.name != "output.weight" for tensor in self.reader.tensors),
            "use_cache": True,
            "vocab_size": len(self.reader.fields["tokenizer.ggml.tokens"].data),
        }

    def generation_config(self) -> dict:
        """Return generation_config.json."""
        return {f"{name}_token_id": self.field(f"tokenizer.ggml.{full}_token_id")
                for name, full in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))}

    def tokenizer_config(self) -> dict:
        """Return tokenizer_config.json, chat template included."""
        tokens = self.field("tokenizer.ggml.tokens")
        special = {f"{name}_token": tokens[self.field(f"tokenizer.ggml.{full}_token_id")]
                   for name, full in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown"))}
        return {
            **special,
            "add_prefix_space": False,
            "chat_template": self.field("tokenizer.chat_template"),
            "clean_up_tokenization_spaces": False,
            "model_max_length": self.field("llama.context_length"),
            "tokenizer_class": "PreTrainedTokenizerFast",
        }

    def tokenizer(self) -> dict:
        """Return tokenizer.json: byte-level BPE in which every digit is cut out first (GGUF's name for it: smollm)."""
        tokens, kinds = self.field("tokenizer.ggml.tokens"), self.field("tokenizer.ggml.token_type")
        added = [{"id": number, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
                  "normalized": False, "special": True}
                 for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind == CONTROL]
        bytes_level = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Digits", "individual_digits": True}, {**bytes_level, "add_prefix_space": False}]},
            "post_processor": None,
            "decoder": {**bytes_level, "add_prefix_space": True},
            "model": {
                "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                "vocab": {token: number for number, token in enumerate(tokens)},
                "merges": [merge.split(" ") for merge in self.field("tokenizer.ggml.merges")],
            },
        }
