"""Write data/arithmetic/configs.jsonl: what each config class of transformers fills in, one model type a line.

    python tools/arithmetic_configs.py            # needs torch and the pinned transformers

A config.json leaves out what equals the default, and the config class computes more from it in `__post_init__`
(head_dim, layer_types, ...). labutils.arithmetic reads the JSON without transformers, so these defaults and
computations travel as data. The computations are translated from the class's own source, statement by statement, into
the expressions of labutils.arithmetic.expressions; the few that are loops stand in BY_HAND, each as one expression.
`tools/verify_arithmetic.py` holds the result against the real config objects.
"""

import ast
import inspect
import json
import os
import textwrap
import warnings
from pathlib import Path

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")
warnings.filterwarnings("ignore")

from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: E402
from transformers.models.auto.modeling_auto import (  # noqa: E402
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

from labutils.arithmetic import expressions  # noqa: E402

OUT = Path(__file__).resolve().parent.parent / "data" / "arithmetic" / "configs.jsonl"
TYPES = list(dict.fromkeys([*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES]))
# Nothing in the arithmetic depends on these.
IRRELEVANT = (
    "dropout",
    "_token_id",
    "_eps",
    "epsilon",
    "initializer",
    "rope_param",
    "rope_scaling",
    "rope_interleave",
    "_pdrop",
    "_scale",
    "_multiplier",
    "_theta",
    "time_step_m",
    "time_step_floor",
    "time_step_limit",
    "_coef",
    "label",
    "_act",
    "act_fn",
    "summary_",
    "softcap",
    "activation",
    "transformers_version",
    "architectures",
    "problem_type",
    "output_",
    "use_cache",
    "return_dict",
    "_std",
    "_factor",
    "task_specific",
    "_idx",
    "decoder_start",
    "_token_index",
    "apply_",
)
KEEP = (
    "mamba_dt_rank",
    "time_step_rank",
    "activation_function",
    "full_attn_idxs",
    "output_vocab_size",
    "partial_rotary_factor",
    "rope_theta",
    "n_output_layers",
    "output_embedding_size",
    "block_ffn_dim_multiplier",
    "ffn_proj_factor",
    "_remove_final_layer_norm",
    "do_layer_norm_before",
    "qk_dim_factor",
    "v_dim_factor",
    "downsample_factor",
    "adapter_reduction_factor",
    "output_router_logits",
)

GEMMA4_OVERRIDES = (
    "per_layer_config if per_layer_config is not None else {i: ({'head_dim': global_head_dim, 'num_key_value_heads': "
    "num_global_key_value_heads} if num_global_key_value_heads is not None and attention_k_eq_v else "
    "{'head_dim': global_head_dim}) for i, kind in enumerate(layer_types) if kind == 'full_attention'}"
)
GEMMA4 = {
    "fields": {"global_head_dim": 512, "num_global_key_value_heads": None, "per_layer_config": None},
    "derive": [
        [
            "layer_types",
            "layer_types if layer_types is not None else ['sliding_attention' if (i + 1) % 6 else "
            "'full_attention' for i in range(num_hidden_layers)]",
        ],
        ["layer_types", "layer_types[:-1] + ['full_attention']"],
        ["per_layer_config", GEMMA4_OVERRIDES],
    ],
}
SHARED_TAIL = [
    [
        "kv_sharing_modes",
        "['reuse' if i >= num_hidden_layers - num_kv_shared_layers else None for i in range(num_hidden_layers)]",
    ]
]
BY_HAND: dict[str, dict] = {
    "reformer": {
        "derive": [
            ["num_hidden_layers", "len(attn_layers)"],
            ["axial_pos_shape", "list(axial_pos_shape)"],
            ["axial_pos_embds_dim", "list(axial_pos_embds_dim)"],
            ["_local", "local_attn_chunk_length if 'local' in attn_layers else lsh_attn_chunk_length"],
            ["_lsh", "lsh_attn_chunk_length if 'lsh' in attn_layers else local_attn_chunk_length"],
            ["smallest_chunk", "min(_local, _lsh)"],
            ["whole_chunks", "lcm(_local, _lsh)"],
        ]
    },
    "smollm3": {
        "derive": [
            ["num_key_value_heads", "num_attention_heads if num_key_value_heads is None else num_key_value_heads"],
            [
                "no_rope_layers",
                "[int((i + 1) % no_rope_layer_interval != 0) for i in range(num_hidden_layers)] "
                "if no_rope_layers is None else no_rope_layers",
            ],
            [
                "layer_types",
                "['sliding_attention' if use_sliding_window and sliding_window is not None and not rope else "
                "'full_attention' for rope in no_rope_layers] if layer_types is None else layer_types",
            ],
        ]
    },
    "olmo_hybrid": {
        "derive": [
            [
                "layer_types",
                "['full_attention' if i % 4 == 3 or (i == num_hidden_layers - 1 and num_hidden_layers < 4) "
                "else 'linear_attention' for i in range(num_hidden_layers)] "
                "if layer_types is None else layer_types",
            ],
            ["linear_num_key_heads", "num_attention_heads if linear_num_key_heads is None else linear_num_key_heads"],
            [
                "linear_num_value_heads",
                "num_attention_heads if linear_num_value_heads is None else linear_num_value_heads",
            ],
            [
                "linear_key_head_dim",
                "int(0.75 * hidden_size / linear_num_key_heads) if linear_key_head_dim is None "
                "else linear_key_head_dim",
            ],
            [
                "linear_value_head_dim",
                "2 * linear_key_head_dim if linear_value_head_dim is None else linear_value_head_dim",
            ],
            ["num_key_value_heads", "num_attention_heads if num_key_value_heads is None else num_key_value_heads"],
        ]
    },
    "kimi_linear": {
        "fields": {"linear_attn_config": None, "first_k_dense_replace": 1},
        "derive": [
            ["num_key_value_heads", "num_attention_heads if num_key_value_heads is None else num_key_value_heads"],
            ["qk_head_dim", "qk_nope_head_dim + qk_rope_head_dim"],
            ["head_dim", "qk_rope_head_dim"],
            ["linear_head_dim", "get(linear_attn_config, 'head_dim', linear_head_dim)"],
            ["linear_num_heads", "get(linear_attn_config, 'num_heads', linear_num_heads)"],
            ["linear_conv_kernel_dim", "get(linear_attn_config, 'short_conv_kernel_size', linear_conv_kernel_dim)"],
            [
                "layer_types",
                "layer_types if layer_types is not None else ['full_attention' if i + 1 in "
                "linear_attn_config['full_attn_layers'] else 'linear_attention' for i in "
                "range(num_hidden_layers)] if get(linear_attn_config, 'full_attn_layers') is not None and "
                "get(linear_attn_config, 'kda_layers') is not None else ['full_attention' if i and i % 4 == 0 "
                "else 'linear_attention' for i in range(num_hidden_layers)]",
            ],
            [
                "mlp_layer_types",
                "['dense' if i < first_k_dense_replace else 'sparse' for i in range(num_hidden_layers)] "
                "if mlp_layer_types is None else mlp_layer_types",
            ],
        ],
    },
    "deepseek_v4": {
        "fields": {
            "compress_ratios": None,
            "compress_rate_csa": None,
            "compress_rate_hca": None,
            "num_hash_layers": None,
            "qk_rope_head_dim": None,
        },
        "derive": [
            [
                "compress_rates",
                "{'compressed_sparse_attention': compress_rate_csa if compress_rate_csa is not None else "
                "get(compress_rates, 'compressed_sparse_attention', 4), 'heavily_compressed_attention': "
                "compress_rate_hca if compress_rate_hca is not None else "
                "get(compress_rates, 'heavily_compressed_attention', 128)}",
            ],
            [
                "layer_types",
                "layer_types if layer_types is not None else [{0: 'sliding_attention', 4: "
                "'compressed_sparse_attention', 128: 'heavily_compressed_attention'}[rate] for rate in "
                "compress_ratios] if compress_ratios is not None else ['heavily_compressed_attention' "
                "if i < 2 or not i % 2 else 'compressed_sparse_attention' for i in range(num_hidden_layers)]",
            ],
            ["layer_types", "layer_types[:num_hidden_layers]"],
            [
                "mlp_layer_types",
                "mlp_layer_types if mlp_layer_types is not None else ['hash_moe' if i < (3 if "
                "num_hash_layers is None else num_hash_layers) else 'moe' "
                "for i in range(num_hidden_layers)]",
            ],
            ["mlp_layer_types", "mlp_layer_types[:num_hidden_layers]"],
            [
                "partial_rotary_factor",
                "partial_rotary_factor if partial_rotary_factor is not None else (qk_rope_head_dim "
                "/ head_dim if qk_rope_head_dim is not None else 64 / 512)",
            ],
            ["qk_rope_head_dim", "int(head_dim * partial_rotary_factor)"],
        ],
    },
    "dots3_note_text": {
        "fields": {
            "first_k_dense_replace": 1,
            "moe_layer_freq": 1,
            "use_dsa": None,
            "use_sliding_window": True,
            "moe_shared_expert_intermediate_size": None,
            "sliding_window_size": 512,
            "per_layer_config": None,
            "swa_num_attention_heads": 64,
            "swa_num_key_value_heads": 64,
            "swa_q_lora_rank": 1024,
            "swa_kv_lora_rank": 1024,
            "swa_head_dim": 256,
            "swa_qk_nope_head_dim": 192,
            "swa_v_head_dim": 128,
            "swa_qk_rope_head_dim": None,
        },
        "derive": [
            ["use_dsa", "True if use_dsa is None and per_layer_config is None else use_dsa"],
            [
                "mlp_layer_types",
                "mlp_layer_types if mlp_layer_types is not None else ['sparse' if i >= "
                "first_k_dense_replace and (bool(moe_layer_freq[i]) if isinstance_list(moe_layer_freq) "
                "else i % moe_layer_freq == 0) else 'dense' for i in range(num_hidden_layers)]",
            ],
            [
                "shared_experts_intermediate_size",
                "shared_experts_intermediate_size if "
                "moe_shared_expert_intermediate_size is None else "
                "moe_shared_expert_intermediate_size",
            ],
            ["num_key_value_heads", "num_attention_heads if num_key_value_heads is None else num_key_value_heads"],
            ["sliding_window", "sliding_window_size if sliding_window is None else sliding_window"],
            [
                "layer_types",
                "layer_types if layer_types is not None else [('full_attention' if use_dsa is False else "
                "'indexed_attention') if not use_sliding_window or i < 2 or i % 4 == 1 else "
                "'sliding_attention' for i in range(num_hidden_layers)]",
            ],
            [
                "layer_types",
                "layer_types if use_dsa is None else ['indexed_attention' if kind == 'full_attention' and "
                "use_dsa else 'full_attention' if kind == 'indexed_attention' and not use_dsa else kind "
                "for kind in layer_types]",
            ],
            [
                "per_layer_config",
                "per_layer_config if per_layer_config is not None else {i: {'num_attention_heads': "
                "swa_num_attention_heads, 'num_key_value_heads': swa_num_key_value_heads, 'q_lora_rank': "
                "swa_q_lora_rank, 'kv_lora_rank': swa_kv_lora_rank, 'head_dim': swa_head_dim, "
                "'qk_nope_head_dim': swa_qk_nope_head_dim, 'v_head_dim': swa_v_head_dim, "
                "'qk_rope_head_dim': swa_head_dim - swa_qk_nope_head_dim if swa_qk_rope_head_dim is None "
                "else swa_qk_rope_head_dim} for i, kind in enumerate(layer_types) "
                "if kind == 'sliding_attention'}",
            ],
        ],
    },
    "gemma4_text": GEMMA4 | {"derive": GEMMA4["derive"] + SHARED_TAIL},
    "gemma4_unified_text": GEMMA4 | {"derive": GEMMA4["derive"] + SHARED_TAIL},
    "gemma3n_text": {
        "derive": [
            [
                "intermediate_size",
                "intermediate_size if isinstance_list(intermediate_size) else [intermediate_size] * num_hidden_layers",
            ],
            [
                "layer_types",
                "layer_types if layer_types is not None else ['full_attention' if (i + 1) % 5 == 0 else "
                "'sliding_attention' for i in range(num_hidden_layers)]",
            ],
            *SHARED_TAIL,
        ]
    },
    "gpt_neo": {
        "derive": [
            ["attention_types", "[[['global', 'local'], 12]] if attention_types is None else attention_types"],
        ]
    },
    "nemotron_h": {
        "fields": {"hybrid_override_pattern": None},
        "derive": [
            [
                "layers_block_type",
                "[{'M': 'linear_attention', 'E': 'moe', '*': 'full_attention', '-': 'mlp'}[kind] for "
                "kind in list(hybrid_override_pattern)] if layers_block_type is None and "
                "hybrid_override_pattern is not None else ['linear_attention', 'moe', 'full_attention', "
                "'mlp'] if layers_block_type is None else layers_block_type",
            ],
            ["num_hidden_layers", "len(layers_block_type)"],
            ["num_key_value_heads", "num_attention_heads if num_key_value_heads is None else num_key_value_heads"],
        ],
    },
    "inkling_text": {
        "fields": {"dense_mlp_idx": 0, "dense_intermediate_size": None},
        "derive": [
            [
                "layer_types",
                "layer_types if layer_types is not None else ['hybrid_sliding' if i in local_layer_ids else "
                "'hybrid' for i in range(num_hidden_layers)] if local_layer_ids is not None else "
                "['hybrid_sliding' if (i + 1) % 6 else 'hybrid' for i in range(num_hidden_layers)]",
            ],
            [
                "mlp_layer_types",
                "['dense' if i < dense_mlp_idx else 'sparse' for i in range(num_hidden_layers)] "
                "if mlp_layer_types is None else mlp_layer_types",
            ],
            [
                "moe_intermediate_size",
                "intermediate_size if dense_intermediate_size is not None else moe_intermediate_size",
            ],
            [
                "intermediate_size",
                "dense_intermediate_size if dense_intermediate_size is not None else intermediate_size",
            ],
            ["number_of_conv_states", "4"],
        ],
    },
    **{
        name: {
            "derive": [
                ["num_decoder_layers", "num_layers if num_decoder_layers is None else num_decoder_layers"],
                ["is_gated_act", "startswith(feed_forward_proj, 'gated')"],
                ["tie_word_embeddings", "True"],
            ]
        }
        for name in ("t5", "mt5", "umt5", "longt5")
    },
    "dbrx": {
        "fields": {"kv_n_heads": 1, "moe_num_experts": 4, "ffn_hidden_size": 3584},
        "derive": [
            ["num_key_value_heads", "get(attn_config, 'kv_n_heads', 1)"],
            ["ffn_hidden_size", "get(ffn_config, 'ffn_hidden_size', 3584)"],
            ["moe_num_experts", "get(ffn_config, 'moe_num_experts', 4)"],
            ["attn_config__kv_n_heads", "get(attn_config, 'kv_n_heads', 1)"],
            ["ffn_config__ffn_hidden_size", "ffn_hidden_size"],
            ["ffn_config__moe_num_experts", "moe_num_experts"],
        ],
    },
    "mpt": {"derive": [["no_bias", "True if no_bias is None else no_bias"]]},
    "modernbert-decoder": {
        "fields": {"global_attn_every_n_layers": 3},
        "derive": [
            [
                "layer_types",
                "['sliding_attention' if i % global_attn_every_n_layers else 'full_attention' for i in "
                "range(num_hidden_layers)] if layer_types is None else layer_types",
            ],
            ["sliding_window", "local_attention // 2 if local_attention else None"],
        ],
    },
    "sarvam_mla": {
        "derive": [
            ["num_key_value_heads", "num_attention_heads if num_key_value_heads is None else num_key_value_heads"],
            ["qk_head_dim", "qk_nope_head_dim + qk_rope_head_dim"],
            ["head_dim", "qk_rope_head_dim"],
        ]
    },
    "longcat_flash": {
        "fields": {"num_hidden_layers": None},
        "derive": [
            ["num_layers", "num_hidden_layers // 2 if num_hidden_layers is not None else num_layers"],
            ["num_hidden_layers", "2 * num_layers"],
            ["num_key_value_heads", "num_attention_heads if num_key_value_heads is None else num_key_value_heads"],
            ["qk_head_dim", "qk_nope_head_dim + qk_rope_head_dim if qk_head_dim is None else qk_head_dim"],
        ],
    },
    "xlnet": {"derive": [["d_head", "d_head or d_model // n_head"]]},
    "musicflamingo": {"derive": []},
    "xlstm": {
        "derive": [
            ["hidden_size", "embedding_dim if hidden_size is None else hidden_size"],
            ["embedding_dim", "hidden_size if embedding_dim is None else embedding_dim"],
            ["num_hidden_layers", "num_blocks if num_hidden_layers is None else num_hidden_layers"],
            ["num_blocks", "num_hidden_layers if num_blocks is None else num_blocks"],
            ["qk_dim", "ceil(hidden_size * qk_dim_factor / 64) * 64"],
            ["v_dim", "ceil(hidden_size * v_dim_factor / 64) * 64"],
            ["qk_head_dim", "qk_dim // num_heads"],
            ["v_head_dim", "v_dim // num_heads"],
        ]
    },
    "recurrent_gemma": {
        "derive": [
            ["lru_width", "hidden_size if lru_width is None else lru_width"],
            ["head_dim", "hidden_size // num_attention_heads"],
            ["num_key_value_heads", "num_attention_heads if num_key_value_heads is None else num_key_value_heads"],
            [
                "layers_block_type",
                "['linear_attention' if kind == 'recurrent' else 'sliding_attention' for kind in "
                "(block_types * 100)[:num_hidden_layers]]",
            ],
        ]
    },
    "glm_moe_dsa": {
        "fields": {"index_topk_pattern": None, "index_topk_freq": 1, "index_skip_topk_offset": 2, "num_experts": None},
        "derive": [
            [
                "indexer_types",
                "indexer_types if indexer_types is not None else [{'F': 'full', 'S': 'shared'}[c] for c in "
                "list(index_topk_pattern)] if isinstance_str(index_topk_pattern) else index_topk_pattern "
                "if index_topk_pattern is not None else ['full' if max(i - index_skip_topk_offset + 1, 0) % "
                "max(index_topk_freq, 1) == 0 else 'shared' for i in range(num_hidden_layers)]",
            ],
            ["qk_head_dim", "qk_nope_head_dim + qk_rope_head_dim"],
            ["head_dim", "qk_rope_head_dim"],
            [
                "mlp_layer_types",
                "['dense' if i < first_k_dense_replace else 'sparse' for i in range(num_hidden_layers)] "
                "if mlp_layer_types is None else mlp_layer_types",
            ],
            ["layer_types", "['indexed_attention'] * num_hidden_layers if layer_types is None else layer_types"],
            ["n_routed_experts", "n_routed_experts if num_experts is None else num_experts"],
        ],
    },
    "minimax_m3_vl_text": {
        "fields": {"sparse_attention_config": None, "moe_layer_freq": None},
        "derive": [
            *[
                [flat, f"get(sparse_attention_config, '{legacy}', {flat})"]
                for flat, legacy in (
                    ("index_n_heads", "sparse_num_index_heads"),
                    ("index_head_dim", "sparse_index_dim"),
                    ("index_block_size", "sparse_block_size"),
                    ("index_topk_blocks", "sparse_topk_blocks"),
                    ("index_local_blocks", "sparse_local_block"),
                )
            ],
            [
                "layer_types",
                "layer_types if layer_types is not None else ['minimax_m3_sparse' if on else 'full_attention' "
                "for on in get(sparse_attention_config, 'sparse_attention_freq')] if "
                "get(sparse_attention_config, 'sparse_attention_freq') is not None else "
                "['full_attention'] * num_hidden_layers",
            ],
            [
                "mlp_layer_types",
                "mlp_layer_types if mlp_layer_types is not None else ['sparse' if on else 'dense' for on "
                "in moe_layer_freq] if moe_layer_freq is not None else ['sparse'] * num_hidden_layers",
            ],
        ],
    },
}


# The parts of a composite config that hold its text model (as get_text_config of transformers reads them).
TEXT_PARTS = (
    "text_config",
    "decoder",
    "encoder",
    "generator",
    "thinker_config",
    "text_encoder",
    "patcher_config",
    "encoder_config",
    "decoder_config",
    "global_config",
)


class NotTranslatable(Exception):
    """A statement that is no plain computation."""


class Translator:
    """Turns the statements of `__post_init__` into [name, expression] pairs."""

    def __init__(self, field_names: set[str], aliases: dict[str, str]):
        self.fields = field_names
        self.aliases = aliases
        self.given: dict[str, object] = {}
        self.locals: dict[str, str] = {}
        self.derive: list[list[str]] = []
        self.skipped: list[str] = []
        self.tests = 0
        self.properties: list[str] = []

    def statement(self, node: ast.stmt, condition: str | None = None) -> None:
        try:
            self._statement(node, condition)
        except NotTranslatable as reason:
            self.skipped.append(f"{ast.unparse(node)[:90]!r} ({reason})")

    def _statement(self, node: ast.stmt, condition: str | None) -> None:
        if isinstance(node, ast.If):
            test = self.text(node.test)
            if len(node.body) + len(node.orelse) > 1:  # a branch may change what the test reads: test once
                self.tests += 1
                self.derive.append([f"_if{self.tests}", test])
                test = f"_if{self.tests}"
            for part in node.body:
                self.statement(part, f"({condition}) and ({test})" if condition else test)
            for part in node.orelse:
                other = f"not ({test})"
                self.statement(part, f"({condition}) and ({other})" if condition else other)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            self.assign(node.targets[0], self.text(node.value), condition)
        elif isinstance(node, ast.AugAssign):
            target = ast.unparse(node.target).replace("self.", "")
            self.assign(
                node.target,
                f"{target} {'//' if isinstance(node.op, ast.FloorDiv) else '?'} {self.text(node.value)}",
                condition,
            )
        elif isinstance(node, (ast.Raise, ast.AnnAssign, ast.Return)):
            return
        elif isinstance(node, ast.Expr):
            text = ast.unparse(node)
            if text.startswith("kwargs.setdefault"):
                name, value = node.value.args[0].value, node.value.args[1]
                if isinstance(value, ast.Constant):
                    self.given.setdefault(name, value.value)
            elif not text.startswith(("super()", "logger", "self.validate", "self.standardize", "kwargs.pop")):
                raise NotTranslatable("expression")
        else:
            raise NotTranslatable(type(node).__name__)

    def assign(self, target: ast.expr, value: str, condition: str | None) -> None:
        if ast.unparse(target) == "self.layer_types[-1]":
            name, value = "layer_types", f"layer_types[:-1] + [{value}]"
        elif isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
            name = self.aliases.get(target.attr, target.attr)
        elif isinstance(target, ast.Name):
            name = self.locals.setdefault(target.id, "_" + target.id.lstrip("_"))
        else:
            raise NotTranslatable("target")
        if irrelevant(name):
            return
        self.fields.add(name)
        before = "None" if isinstance(target, ast.Name) and name not in {known for known, _ in self.derive} else name
        self.derive.append([name, f"({value}) if {condition} else {before}" if condition else value])

    def text(self, node: ast.expr) -> str:
        """Return the expression, with `self.x` as `x` and `kwargs.pop("x", d)` as a field with default d."""
        node = _Names(self).visit(node)
        text = ast.unparse(ast.fix_missing_locations(node))
        for part in ast.walk(ast.parse(text, mode="eval")):
            if (
                isinstance(part, (ast.expr))
                and type(part) not in expressions._NODES
                and not isinstance(part, (ast.Slice, ast.Starred))
            ):
                raise NotTranslatable(type(part).__name__)
            if isinstance(part, ast.Call) and (
                not isinstance(part.func, ast.Name) or part.func.id not in expressions._FUNCTIONS
            ):
                raise NotTranslatable(ast.unparse(part)[:50])
        return text


class _Names(ast.NodeTransformer):
    def __init__(self, translator: Translator):
        self.to = translator

    def visit_Subscript(self, node):
        if ast.unparse(node.value) == "kwargs" and isinstance(node.slice, ast.Constant):
            self.to.given.setdefault(node.slice.value, None)
            return ast.Name(id=node.slice.value, ctx=ast.Load())
        return self.generic_visit(node)

    def visit_Attribute(self, node):
        if ast.unparse(node.value) == "self":
            name = self.to.aliases.get(node.attr, node.attr)
            return ast.Name(id=name, ctx=ast.Load())
        return self.generic_visit(node)

    def visit_Name(self, node):
        if node.id in self.to.locals:
            return ast.Name(id=self.to.locals[node.id], ctx=ast.Load())
        return node

    def visit_NamedExpr(self, node):
        self.to.assign(node.target, self.to.text(node.value), None)
        return ast.Name(id=self.to.locals[node.target.id], ctx=ast.Load())

    def visit_Compare(self, node):
        if isinstance(node.ops[0], ast.In) and ast.unparse(node.comparators[0]) == "kwargs":
            self.to.given.setdefault(node.left.value, None)
            return ast.parse(f"{node.left.value} is not None", mode="eval").body
        return self.generic_visit(node)

    def visit_Call(self, node):
        function = ast.unparse(node.func)
        if function in ("kwargs.pop", "kwargs.get"):
            if not isinstance(node.args[0], ast.Constant):
                raise NotTranslatable("computed name")
            name = node.args[0].value
            name = self.to.aliases.get(name, name)
            if len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
                if name not in self.to.fields:
                    self.to.given.setdefault(name, node.args[1].value)
                return ast.Name(id=name, ctx=ast.Load())
            self.to.given.setdefault(name, None)
            if len(node.args) > 1:
                default = ast.unparse(self.visit(node.args[1]))
                return ast.parse(f"({default} if {name} is None else {name})", mode="eval").body
            return ast.Name(id=name, ctx=ast.Load())
        node = self.generic_visit(node)
        function = ast.unparse(node.func)
        if function == "getattr" and ast.unparse(node.args[0]) == "self":
            return node.args[2] if node.args[1].value not in self.to.fields else ast.Name(id=node.args[1].value)
        if function in ("math.ceil", "tuple", "remap_legacy_layer_types"):
            renamed = {"math.ceil": "ceil", "tuple": "list"}.get(function)
            return ast.Call(func=ast.Name(id=renamed), args=node.args, keywords=[]) if renamed else node.args[0]
        if function == "isinstance":
            kind = "list" if "list" in ast.unparse(node.args[1]) else ast.unparse(node.args[1])
            return ast.Call(func=ast.Name(id=f"isinstance_{kind}"), args=node.args[:1], keywords=[])
        if isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            return ast.Call(func=ast.Name(id="get"), args=[node.func.value, *node.args], keywords=[])
        return node


def relevant(name: str, value: object) -> bool:
    """Say whether the arithmetic can depend on a field."""
    plain = value is None or isinstance(value, (bool, int, str, float, list, tuple, dict))
    return plain and (not name.startswith("_") or name in KEEP) and not irrelevant(name)


def irrelevant(name: str) -> bool:
    return name not in KEEP and any(word in name for word in IRRELEVANT)


def plain(value):
    """Return a default as JSON would hold it."""
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return {str(key): plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def post_init_source(config_class) -> tuple[str, type] | None:
    for parent in config_class.__mro__:
        if parent.__module__.startswith("transformers.models.") and "__post_init__" in vars(parent):
            function = inspect.unwrap(vars(parent)["__post_init__"])
            return textwrap.dedent(inspect.getsource(function)), parent
    return None


def properties(config_class, translator: Translator) -> None:
    """Translate properties that are one `return`, base classes first."""
    for parent in reversed(config_class.__mro__):
        if not parent.__module__.startswith("transformers.models."):
            continue
        for name, value in vars(parent).items():
            if isinstance(value, property) and value.fget:
                body = ast.parse(textwrap.dedent(inspect.getsource(value.fget))).body[0].body
                if body and isinstance(body[-1], ast.Return) and not any(w in name for w in ("rope", "attn_impl")):
                    for statement in body[:-1]:
                        translator.statement(statement)
                    try:
                        expression = translator.text(body[-1].value)
                        translator.assign(ast.parse(f"self.{name}").body[0].value, expression, None)
                        translator.properties.append(translator.aliases.get(name, name))
                    except NotTranslatable as reason:
                        translator.skipped.append(f"property {name} ({reason})")


def prune(translator: Translator, fields: dict) -> None:
    """Leave out computations that read what the file does not hold (rope parameters and other irrelevant fields)."""
    kept, known = [], set(fields) | {name for name, _ in translator.derive if not name.startswith("_")}
    for name, expression in translator.derive:
        unknown = expressions.names(expression) - known
        if unknown:
            translator.skipped.append(f"{name} = {expression[:60]} (reads {', '.join(sorted(unknown))})")
        else:
            kept.append([name, expression])
            known.add(name)
    translator.derive = kept


def rotary_parts(config_class) -> dict | None:
    """Return the share of a head that the default config rotates, by layer kind where kinds differ."""
    try:
        rope = config_class().rope_parameters or {}
    except Exception:
        return None
    if "partial_rotary_factor" in rope:
        return {"partial_rotary_factor": rope["partial_rotary_factor"]}
    kinds = {
        kind: {"partial_rotary_factor": value["partial_rotary_factor"]}
        for kind, value in sorted(rope.items(), key=str)
        if isinstance(value, dict) and "partial_rotary_factor" in value
    }
    return kinds or None


def row(model_type: str) -> tuple[dict, list[str]]:
    """Return one line of the file and the statements that were left out."""
    config_class = CONFIG_MAPPING[model_type]
    import dataclasses

    fields, aliases = {}, dict(config_class.attribute_map)
    for field in dataclasses.fields(config_class):
        default = field.default if field.default is not dataclasses.MISSING else None
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if relevant(field.name, default):
            fields[aliases.get(field.name, field.name)] = plain(default)
    translator = Translator(set(fields), aliases)
    by_hand = BY_HAND.get(model_type)
    if by_hand:
        fields.update(by_hand.get("fields", {}))
        translator.derive = by_hand["derive"]
    else:
        found = post_init_source(config_class)
        if found:
            for statement in ast.parse(found[0]).body[0].body:
                translator.statement(statement)
        properties(config_class, translator)
    for name, default in translator.given.items():
        if relevant(name, default):
            fields.setdefault(name, plain(default))
    prune(translator, fields)
    for name in translator.properties:
        fields.setdefault(name, None)
    source = Path(inspect.getsourcefile(config_class)).as_posix().split("/transformers/")[-1]
    fields["rope_parameters"] = rotary_parts(config_class)
    line = {"type": model_type, "source": source, "fields": fields}
    if aliases:
        line["aliases"] = aliases
    if translator.derive:
        line["derive"] = translator.derive
    parts = {}
    for key, specs in (config_class.sub_configs_defaults or {}).items():
        kind = specs.model_type
        if not key.startswith("audio_encoder"):
            parts[key] = {
                "type": kind,
                "fields": {name: value for name, value in (specs.init_kwargs or {}).items() if relevant(name, value)},
            }
    if parts:
        line["parts"] = parts
    return line, translator.skipped


if __name__ == "__main__":
    wanted, done = list(TYPES), {}
    while wanted:
        model_type = wanted.pop(0)
        if model_type in done or model_type not in CONFIG_MAPPING:
            continue
        done[model_type], skipped = row(model_type)
        for statement in skipped:
            print(f"{model_type}: left out {statement}")
        wanted += [part["type"] for part in done[model_type].get("parts", {}).values() if part["type"]]
    OUT.write_text(
        "".join(json.dumps(done[name], separators=(", ", ": ")) + "\n" for name in sorted(done)), encoding="utf-8"
    )
    print(f"{len(done)} model types, {OUT.stat().st_size:,} bytes")
