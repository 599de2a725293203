"""Hold labutils.arithmetic against the real tensors of transformers, model type by model type.

    python tools/verify_arithmetic.py llama gemma3_text     # these types: default config and five random variations
    python tools/verify_arithmetic.py --all                 # every type; writes data/arithmetic/truth.csv (~1 hour)

Each type is built from its default config on the meta device at full size, and from smaller and randomly varied
configs; it reads a prompt and one more token, and every tensor and storage of its cache, every parameter and every
buffer is summed. Where the meta device cannot run the model (masks that ask for values), the small one runs on the CPU.
The arithmetic sees nothing but the config.json.
"""

import argparse
import contextlib
import copy
import csv
import json
import multiprocessing
import os
import random
import re
import signal
import sys
import time
import traceback
import warnings
from dataclasses import dataclass, field, fields
from pathlib import Path

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM  # noqa: E402
from transformers.cache_utils import DynamicCache, EncoderDecoderCache  # noqa: E402
from transformers.initialization import no_init_weights  # noqa: E402
from transformers.modeling_outputs import BaseModelOutput  # noqa: E402
from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: E402
from transformers.models.auto.modeling_auto import (  # noqa: E402
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL,
)
from transformers.models.auto.modeling_auto import (  # noqa: E402
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES as SEQ2SEQ,
)

from labutils import arithmetic  # noqa: E402
from labutils.arithmetic.config import resolve  # noqa: E402
from labutils.arithmetic.truth import fingerprint  # noqa: E402

TYPES = list(dict.fromkeys([*CAUSAL, *SEQ2SEQ]))
TABLE = ROOT / "data" / "arithmetic" / "truth.csv"
PROMPT, BATCH, ENCODER = 40, 2, 24
VARIATIONS = 5
# What a model returns besides its cache.
NOT_CACHE = {
    "logits",
    "loss",
    "hidden_states",
    "attentions",
    "encoder_last_hidden_state",
    "encoder_hidden_states",
    "encoder_attentions",
    "decoder_hidden_states",
    "decoder_attentions",
    "cross_attentions",
    "last_hidden_state",
    "image_hidden_states",
    "aux_loss",
    "router_logits",
    "router_probs",
    "encoder_router_logits",
    "decoder_router_logits",
    "z_loss",
    "audio_hidden_states",
    "per_layer_inputs",
    "logits_ngram",
    "encoder_cache",  # voxtral realtime: the sound encoder's own stream
    "padding_cache",
}
CACHE_NAMES = ("cache", "past_key_values", "cache_params", "state", "mems", "past_buckets_states")
# Counters and constants of cache objects: a few bytes a layer that no formula of the cache counts.
COUNTERS = ("_sliding_window_tensor", "cumulative", "seqlen_offset", "compile", "sliding_window_tensor")


# --- the real thing --------------------------------------------------------------------------------------------------


@dataclass
class Truth:
    """What one model really holds, in bytes; prompt and decode are (tensors, storages) of the cache."""

    parameters: int = 0
    parameter_bytes: int = 0
    buffer_bytes: int = 0
    prompt: tuple[int, int] = (0, 0)
    decode: tuple[int, int] | None = None
    device: str = "meta"
    kinds: list[str] = field(default_factory=list)
    seq2seq: bool = False
    seconds: float = 0.0
    tensors: list = field(default_factory=list)
    decode_error: str = ""
    dtype: str = "bfloat16"


def cache_tensors(output) -> list[tuple[str, torch.Tensor]]:
    """Return every tensor of a model output that belongs to its cache, each once, with its path."""
    found, seen = [], set()

    def walk(value, path: str) -> None:
        if (
            value is None
            or isinstance(value, (int, float, str, bool, torch.dtype, torch.device, type))
            or id(value) in seen
        ):
            return
        seen.add(id(value))
        if torch.is_tensor(value):
            found.append((path, value))
        elif hasattr(value, "items"):
            for name, item in value.items():
                walk(item, f"{path}.{name}")
        elif isinstance(value, (list, tuple)):
            for number, item in enumerate(value):
                walk(item, f"{path}[{number}]")
        elif (
            hasattr(value, "__dict__")
            and not isinstance(value, torch.nn.Module)
            and "Config" not in type(value).__name__
        ):
            for name, item in vars(value).items():
                walk(item, f"{path}.{name}")

    for key in output:
        if key not in NOT_CACHE:
            walk(output[key], key)
    return [(path, tensor) for path, tensor in found if not any(word in path for word in COUNTERS)]


def sizes(tensors) -> tuple[int, int]:
    """Return (bytes of the tensors, bytes of the storages behind them, each storage once)."""
    storages = {}
    for _, tensor in tensors:
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage.nbytes()
    return sum(tensor.numel() * tensor.element_size() for _, tensor in tensors), sum(storages.values())


def model_class(model_type: str, config):
    if model_type in SEQ2SEQ and (getattr(config, "is_encoder_decoder", False) or model_type not in CAUSAL):
        return AutoModelForSeq2SeqLM
    return AutoModelForCausalLM


def prepare(model_type: str, values: dict):
    """Return the config object for a dict; a decoder-only type is told that it is one."""
    values = {name: value for name, value in values.items() if name not in ("transformers_version", "architectures")}
    config = CONFIG_MAPPING[model_type].from_dict(values)
    if model_type in ("musicgen", "musicgen_melody"):  # their causal model is built from the decoder's config
        return config.decoder
    if model_type in CAUSAL and not getattr(config, "is_encoder_decoder", False):
        with contextlib.suppress(Exception):
            config.is_decoder = True
    return config


def build(model_type: str, config, device: str, dtype=torch.bfloat16):
    # On the meta device there is nothing to initialize; a third of the time goes into it otherwise.
    with torch.device(device), no_init_weights() if device == "meta" else contextlib.nullcontext():
        model = make(model_type, config, dtype).eval()
        model.tie_weights()  # a part of the initialization that does matter
    return model


def make(model_type: str, config, dtype):
    """Return the model as its Auto class builds it."""
    if model_type in ("musicgen", "musicgen_melody"):
        import transformers

        name = {"musicgen": "MusicgenForCausalLM", "musicgen_melody": "MusicgenMelodyForCausalLM"}[model_type]
        return getattr(transformers, name)._from_config(config, dtype=dtype)
    return model_class(model_type, config).from_config(config, dtype=dtype)


def more_inputs(model_type: str, model, config, batch: int, tokens: int, dtype) -> dict:
    """Return what a type reads besides tokens: sound of as many frames, or the keys and values of another model."""
    device = next(model.parameters()).device
    if model_type == "voxtral_realtime":
        shape = (batch, tokens * config.downsample_factor, config.audio_config.hidden_size)
        return {"encoder_inputs_embeds": torch.zeros(shape, dtype=dtype, device=device)}
    if model_type.endswith("_assistant"):  # drafts for gemma 4, which read the cache of the model they draft for
        shared = {}
        for kind, layer in zip(model.config.text_config.layer_types, model.model.layers, strict=True):
            attention = layer.self_attn
            heads = attention.q_proj.out_features // attention.head_dim // attention.num_key_value_groups
            shape = (batch, heads, tokens, attention.head_dim)
            shared[kind] = tuple(torch.zeros(shape, dtype=dtype, device=device) for _ in "kv")
        for kind in ("full_attention", "sliding_attention"):
            shared.setdefault(kind, next(iter(shared.values())))
        # They draft one token at a time.
        embeds = torch.zeros((batch, 1, 2 * config.backbone_hidden_size), dtype=dtype, device=device)
        return {"inputs_embeds": embeds, "shared_kv_states": shared}
    return {}


def weights(model, truth: Truth) -> None:
    """Sum parameters and buffers, each storage once."""
    truth.parameters = sum(parameter.numel() for parameter in model.parameters())
    truth.parameter_bytes = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    truth.buffer_bytes = sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())


def run(
    model_type: str,
    config,
    device: str,
    batch: int = BATCH,
    prompt: int = PROMPT,
    dtype=torch.bfloat16,
    decode: bool = True,
) -> Truth:
    """Build the model, read the prompt and one more token, and sum what it holds."""
    started = time.time()
    truth = Truth(device=device, dtype=str(dtype).removeprefix("torch."))
    model = build(model_type, config, device, dtype)
    weights(model, truth)

    # The decoders of musicgen read several code books at once.
    rows = batch * (getattr(config, "num_codebooks", 1) if model_type.startswith("musicgen") else 1)

    def ids(length: int) -> torch.Tensor:
        return (
            (torch.arange(rows * length) % 46 + 3 if device == "cpu" else torch.zeros(rows * length, dtype=torch.long))
            .reshape(rows, length)
            .to(device)
        )

    inputs = (
        {"input_ids": ids(ENCODER), "decoder_input_ids": ids(prompt)}
        if config.is_encoder_decoder
        else {"input_ids": ids(prompt)}
    )
    truth.seq2seq = bool(config.is_encoder_decoder)
    # switch_transformers hands the argument to its encoder, which refuses it; its default is the same.
    caching = {} if model_type == "switch_transformers" else {"use_cache": True}
    # blt asks its config for a layer count that it does not have; with a cache of ours it runs.
    own = {"cache": EncoderDecoderCache(DynamicCache(), DynamicCache())} if model_type == "blt" else {}
    with torch.no_grad():
        output = model(**inputs, **more_inputs(model_type, model, config, batch, prompt, dtype), **own, **caching)
        own.clear()
        tensors = cache_tensors(output)
        truth.prompt = sizes(tensors)
        truth.tensors = [(path, tuple(t.shape), str(t.dtype), t.untyped_storage().nbytes()) for path, t in tensors]
        if decode and tensors:
            name = next(
                (name for name in CACHE_NAMES if name in output), None
            )
            following = (
                {"input_ids": ids(1)}
                if not truth.seq2seq
                else {
                    "decoder_input_ids": ids(1),
                    "encoder_outputs": BaseModelOutput(last_hidden_state=output.encoder_last_hidden_state),
                }
            )
            past = output[name] if name else None
            del output, tensors
            try:
                following |= more_inputs(model_type, model, config, batch, 1, dtype)
                output = model(**following, **{name: past}, **caching)
                del past
                truth.decode = sizes(cache_tensors(output))
            except Exception as error:
                if device == "meta":
                    raise
                truth.decode_error = f"{type(error).__name__}: {str(error)[:120]}"
    truth.seconds = time.time() - started
    return truth


class TimeOut(Exception):
    """The model took too long."""


@contextlib.contextmanager
def limit(seconds: int):
    """Stop what takes more than so many seconds of processor time (a busy machine must not change the result)."""

    def stop(*_):
        raise TimeOut(f"more than {seconds} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def measure(model_type: str, values: dict, seconds: int = 90, cpu: bool = True, **kwargs) -> Truth:
    """Run on the meta device, or on the CPU when the model asks for values (and is small enough)."""
    with limit(seconds):
        try:
            return run(model_type, prepare(model_type, values), "meta", **kwargs)
        except TimeOut:
            raise
        except Exception as error:
            if not cpu:
                raise
            config = prepare(model_type, values)
            size = sum(p.numel() for p in build(model_type, config, "meta").parameters())
            if size > 600e6:
                raise MemoryError(
                    f"{size:,} parameters are too many for the CPU, and on meta: "
                    f"{type(error).__name__}: {str(error)[:150]}"
                ) from error
            try:
                return run(model_type, config, "cpu", **kwargs)
            except RuntimeError as mixed:  # some older models compute in float32 only
                if "dtype" not in str(mixed) and "scalar type" not in str(mixed):
                    raise
                return run(model_type, prepare(model_type, values), "cpu", **{**kwargs, "dtype": torch.float32})


# --- smaller and varied configs
# ----------------------------------------------------------------------------------------

LAYER_COUNTS = (
    "num_hidden_layers",
    "num_layers",
    "n_layer",
    "n_layers",
    "decoder_layers",
    "num_decoder_layers",
    "encoder_layers",
    "num_encoder_layers",
    "depth",
    "num_blocks",
)
WIDTHS = re.compile(r"intermediate_size|ffn_dim|ffn_hidden|d_ff|n_inner|ffn_size")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "kv_n_heads")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "zero_expert_num")
WINDOWS = ("sliding_window", "attention_chunk_size", "attention_window_size", "sliding_window_size")
# What the default config of a type leaves open or what only its checkpoints say, so that it can be built.
_HYBRID = ["linear_attention", "full_attention", "linear_attention", "linear_attention"]
_INDEXER = {
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 256,
    "indexer_budget": 64,
    "indexer_compress_ratio": 4,
}
_DRAFT = {
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0,
    "enable_moe_block": False,
    "use_double_wide_mlp": False,
}
FIXES: dict[str, dict] = {
    "gemma4_assistant": {"text_config": {"model_type": "gemma4_text", **_DRAFT}},
    "gemma4_unified_assistant": {"text_config": {"model_type": "gemma4_unified_text", **_DRAFT}},
    "bamba": {"attn_layer_indices": [1, 4, 9]},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "kv_n_heads": 8, "clip_qkv": 8.0}},
    "deepseek_v2": {"num_experts_per_tok": 6, "n_group": 1, "topk_group": 1},
    "dots1": {"n_shared_experts": 1, "n_routed_experts": 8, "num_experts_per_tok": 2},
    "granitemoehybrid": {"layer_types": _HYBRID * 8},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "ministral": {"head_dim": 128},
    "nemotron": {"head_dim": 128, "num_key_value_heads": 8},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    "xmod": {"default_language": "en_XX"},
    "qwen4_exp_text": _INDEXER,
    "qwen4_exp": {"text_config": _INDEXER},
}


_NARROW = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 112}
# A small config by hand, where shrinking the default is not enough to run it on the CPU.
SMALL: dict[str, dict] = {
    "longcat_flash": {
        "hidden_size": 512,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "q_lora_rank": 64,
        "kv_lora_rank": 48,
        "n_routed_experts": 8,
        "zero_expert_num": 4,
        "expert_ffn_hidden_size": 64,
        "ffn_hidden_size": 128,
        "vocab_size": 1024,
        "num_layers": 3,
        "num_hidden_layers": 6,
        "moe_topk": 2,
    },
    "blt": {
        "encoder_hash_byte_group_vocab": 1000,
        "patcher_config": _NARROW,
        "encoder_config": _NARROW | {"hidden_size_global": 96},
        "decoder_config": _NARROW | {"hidden_size_global": 96},
        "global_config": _NARROW | {"hidden_size": 96},
    },
}


def default_values(model_type: str) -> dict:
    fixed = FIXES.get(model_type, {})
    values = CONFIG_MAPPING[model_type](**copy.deepcopy(fixed)).to_dict()
    return json.loads(json.dumps(values, default=str))


def shrink(values: dict, layers: int = 6, window: int | None = 16, vocabulary: int = 1024, experts: int = 512) -> dict:
    """Return a config with fewer layers, narrower feed-forward blocks and a window that the prompt exceeds."""
    old = next((values[name] for name in LAYER_COUNTS if isinstance(values.get(name), int)), None)
    small = {}
    for name, value in values.items():
        if isinstance(value, dict):
            small[name] = shrink(value, layers, window, vocabulary, experts)
        elif isinstance(value, bool) or value is None:
            small[name] = value
        elif name in LAYER_COUNTS and isinstance(value, int):
            small[name] = min(value, layers)
        elif name == "num_kv_shared_layers" and isinstance(value, int):
            small[name] = min(value, layers if value == old else layers // 3)
        elif isinstance(value, int) and WIDTHS.search(name):
            small[name] = min(value, 32 if "moe" in name or "expert" in name else 256)
        elif isinstance(value, int) and name in EXPERTS:
            small[name] = min(value, experts)
        elif isinstance(value, int) and name == "vocab_size":
            small[name] = min(value, vocabulary)
        elif isinstance(value, int) and name.endswith("_token_id") and value >= vocabulary:
            small[name] = vocabulary - 1
        elif isinstance(value, int) and name in WINDOWS and window:
            small[name] = window
        elif isinstance(value, list) and old and len(value) == old and old > layers:
            small[name] = value[:layers]
        elif name == "per_layer_config":
            small[name] = {index: entry for index, entry in value.items() if int(index) < layers}
        else:
            small[name] = value
    if isinstance(small.get("per_layer_config"), dict):
        small["per_layer_config"] = {k: v for k, v in small["per_layer_config"].items() if int(k) < layers}
    return small


def candidates(model_type: str) -> list[dict]:
    """Return smaller configs, the smallest first; the first that can be built is used."""
    values = default_values(model_type)
    tiny = shrink(values, experts=16)
    for part in _parts(tiny):
        part.update({name: 1 for name in ("n_group", "topk_group") if isinstance(part.get(name), int)})
        part.update(
            {name: 2 for name in ("num_experts_per_tok", "moe_topk", "moe_k") if isinstance(part.get(name), int)}
        )
        _vary_heads(part, random.Random(3))
    by_hand = [_with(tiny if model_type == "blt" else values, SMALL[model_type])] if model_type in SMALL else []
    return [
        *by_hand,
        shrink(values),
        shrink(values, layers=8),
        tiny,
        shrink(values, layers=12, window=None),
        shrink(values, layers=10**6, window=None, vocabulary=10**9),
    ]


def _with(values: dict, changed: dict) -> dict:
    """Return a config with other values, also in its parts; what depends on them is computed anew."""
    result = copy.deepcopy(values)
    for name, value in changed.items():
        if isinstance(value, dict):
            forget_computed(result[name])
            value = {**result[name], **value}
        result[name] = value
    return result


# Switches that change what the model is for, not how large it is.
NOT_VARIED = (
    "is_encoder_decoder",
    "is_decoder",
    "use_cache",
    "return_dict",
    "output_",
    "tie_encoder",
    "torchscript",
    "chunk_size_feed",
    "problem_type",
    "use_mems",
    "untie_r",
    "is_composition",
    "prefix_lm",
    "use_kernels",
    "return_last_states",
    "force_", "bi_data",
    "do_sample",
    "scale_attn",
    "add_cross_attention",
)
LAYER_LISTS = ("layer_types", "mlp_layer_types", "layers_block_type", "block_types", "indexer_types")


def vary(values: dict, rng: random.Random, only: str | None = None) -> dict:
    """Return the config with random layers, heads, widths, windows, patterns and switches (`only`: one group of them).

    The result may be one that transformers refuses; the caller tries again.
    """
    changed = copy.deepcopy(values)
    if rng.random() < 0.5:
        forget_computed(changed)
    groups = ["layers", "heads", "widths", "window", "pattern", "switches"]
    chosen = [only] if only else [group for group in groups if rng.random() < 0.75]
    for part in _parts(changed):
        old = next((part[name] for name in LAYER_COUNTS if isinstance(part.get(name), int)), None)
        if "layers" in chosen and old:
            _vary_layers(part, rng, old)
        if "heads" in chosen:
            _vary_heads(part, rng)
        if "widths" in chosen:
            _vary_widths(part, rng)
        if "window" in chosen:
            for name in WINDOWS:
                if isinstance(part.get(name), int) and not isinstance(part[name], bool):
                    part[name] = rng.choice((4, 8, 16, 32, 64))
        if "pattern" in chosen:
            _vary_pattern(part, rng)
        if "switches" in chosen:
            flags = [
                name
                for name, value in part.items()
                if isinstance(value, bool) and not any(word in name for word in NOT_VARIED)
            ]
            for name in rng.sample(flags, min(len(flags), rng.choice((1, 1, 2, 3)))):
                part[name] = not part[name]
    return changed


def forget_computed(values: dict) -> None:
    """Drop what the config class computes and does not declare, so that it is computed from the varied values.

    Kept, the list of zamba2's hybrid layers, say, would stay that of the default config in every variation.
    """
    config_class = CONFIG_MAPPING[values["model_type"]] if values.get("model_type") in CONFIG_MAPPING else None
    for name, value in list(values.items()):
        if isinstance(value, dict):
            forget_computed(value)
        elif config_class and name not in {
            "model_type",
            "layer_types",
            *config_class.attribute_map,
            *(one.name for one in fields(config_class)),
        }:
            values.pop(name)


def _parts(values: dict) -> list[dict]:
    """Return the dicts of a config that describe text models (the whole, or its parts)."""
    found = [
        values[name]
        for name in ("text_config", "decoder", "encoder", "generator")
        if isinstance(values.get(name), dict)
    ]
    return [deeper for part in found for deeper in _parts(part)] or [values]


def _vary_layers(part: dict, rng: random.Random, old: int) -> None:
    new = rng.choice((3, 5, 7, 9, 11))
    for name in LAYER_COUNTS:
        if isinstance(part.get(name), int):
            part[name] = new if part[name] == old else rng.choice((2, 4, 6))
    if isinstance(part.get("num_kv_shared_layers"), int):
        part["num_kv_shared_layers"] = new if part["num_kv_shared_layers"] == old else rng.choice((0, new // 3))
    for name, value in part.items():
        if isinstance(value, list) and len(value) == old:
            part[name] = (value * (new // old + 1))[:new]
    if isinstance(part.get("per_layer_config"), dict):
        part.pop("per_layer_config")
        if rng.random() < 0.5:
            part["layer_types"] = None


def _vary_heads(part: dict, rng: random.Random) -> None:
    heads = next((name for name in HEADS if isinstance(part.get(name), int)), None)
    hidden = next(
        (name for name in ("hidden_size", "d_model", "n_embd", "emb_dim") if isinstance(part.get(name), int)), None
    )
    if heads is None:
        if hidden:
            part[hidden] = rng.choice((64, 128, 192))
        return
    number, width = rng.choice((4, 6, 8, 12)), rng.choice((8, 16, 32))
    part[heads] = number
    for name in (
        "decoder_attention_heads",
        "encoder_attention_heads",
        "num_decoder_attention_heads",
        "num_encoder_attention_heads",
    ):
        if isinstance(part.get(name), int):
            part[name] = number
    for name in KV_HEADS:
        if isinstance(part.get(name), int):
            latent = isinstance(part.get("kv_lora_rank"), int) and rng.random() < 0.8
            part[name] = number if latent else rng.choice([k for k in (1, 2, 3, 4, 6, 12) if number % k == 0])
    if hidden:
        part[hidden] = number * width
        if isinstance(part.get("embedding_size"), int):
            part["embedding_size"] = number * width
    if "head_dim" not in part and hidden == "hidden_size" and rng.random() < 0.3:  # modeling code may ask for one
        part["head_dim"] = width * 2
    for name in ("head_dim", "d_kv", "attention_head_dim", "kv_channels", "d_head"):
        if isinstance(part.get(name), int):
            part[name] = rng.choice((width, width * 2, 24)) if name in ("head_dim", "d_kv") else width


def _vary_widths(part: dict, rng: random.Random) -> None:
    for name, value in part.items():
        if isinstance(value, bool) or not isinstance(value, int):
            continue
        if WIDTHS.search(name):
            part[name] = rng.choice((48, 80, 112, 144))
        elif name == "vocab_size":
            part[name] = rng.choice((1024, 1088, 1152))
        elif name in ("kv_lora_rank", "q_lora_rank"):
            part[name] = rng.choice((16, 24, 48))
        elif name in (
            "qk_rope_head_dim",
            "qk_nope_head_dim",
            "v_head_dim",
            "index_head_dim",
            "state_size",
            "mamba_d_state",
            "ssm_state_size",
            "linear_key_head_dim",
            "linear_value_head_dim",
        ):
            part[name] = rng.choice((8, 16, 32))
        elif name in ("conv_kernel", "mamba_d_conv", "linear_conv_kernel_dim", "conv_L_cache", "conv_kernel_size"):
            part[name] = rng.choice((2, 3, 4))
        elif name in (
            "num_experts",
            "num_local_experts",
            "n_routed_experts",
            "moe_num_experts",
            "num_experts_per_tok",
            "n_shared_experts",
        ) or (name == "num_kv_shared_layers" and value != part.get("num_hidden_layers")):
            part[name] = max(1, value if rng.random() < 0.5 else value // 2)
        elif (
            value > 0
            and rng.random() < 0.15
            and not name.endswith(("_token_id", "_token_index", "layers"))
            and name not in (*HEADS, *KV_HEADS, *LAYER_COUNTS, *WINDOWS, "hidden_size", "d_model", "n_embd")
        ):
            part[name] = rng.choice((value * 2, max(1, value // 2)))


def _vary_pattern(part: dict, rng: random.Random) -> None:
    for name in LAYER_LISTS:
        kinds = part.get(name)
        if isinstance(kinds, list) and kinds and all(isinstance(kind, str) for kind in kinds):
            if {"full_attention", "sliding_attention"} & set(kinds) and isinstance(part.get("sliding_window"), int):
                kinds = [*kinds, "full_attention", "sliding_attention"]
            part[name] = [rng.choice(kinds) for _ in part[name]]
            part.pop("per_layer_config", None)
    for name in (
        "first_k_dense_replace",
        "decoder_sparse_step",
        "moe_layer_freq",
        "interleave_moe_layer_step",
        "attn_layer_period",
        "expert_layer_period",
        "max_window_layers",
        "cross_attention_interval",
    ):
        if isinstance(part.get(name), int):
            part[name] = rng.choice((1, 2, 3))
    if isinstance(part.get("mlp_only_layers"), list):
        part["mlp_only_layers"] = rng.choice(([], [0], [1, 2]))


# --- the comparison
# ----------------------------------------------------------------------------------------------------


@dataclass
class Comparison:
    """One config: what is, what the arithmetic says, and where the two differ (nowhere, when all is well)."""

    truth: Truth
    cache: object = None
    cache_wrong: list[str] = field(default_factory=list)
    weights_wrong: list[str] = field(default_factory=list)
    naive: int | None = None


def as_file(model_type: str, values: dict, truth: Truth) -> dict:
    """Return the config as its config.json would hold it; the arithmetic sees nothing else."""
    raw = json.loads(prepare(model_type, values).to_json_string(use_diff=False))
    raw["model_type"] = raw.get("model_type") or model_type
    raw["is_encoder_decoder"] = truth.seq2seq
    return raw


def compare(model_type: str, values: dict, truth: Truth, batch: int = BATCH, prompt: int = PROMPT) -> Comparison:
    """Compare everything that was measured with the arithmetic."""
    result = Comparison(truth)
    raw = as_file(model_type, values, truth)
    encoder = ENCODER if truth.seq2seq else None
    try:
        config = resolve(raw["model_type"], raw, strict=False)
        result.cache = arithmetic.kv_cache(config, batch, prompt, 1, truth.dtype, encoder)
        decoded = arithmetic.kv_cache(config, batch, prompt, 2, truth.dtype, encoder)
        checks = [
            ("cache tensors", result.cache.bytes, truth.prompt[0]),
            ("held after the prompt", result.cache.held_after_prefill, truth.prompt[1]),
        ]
        if truth.decode:
            checks += [
                ("cache tensors after a token", decoded.bytes, truth.decode[0]),
                ("held after a token", decoded.held, truth.decode[1]),
            ]
        result.cache_wrong = differences(checks)
    except arithmetic.ConfigError as error:
        result.cache_wrong = [f"refused: {error}"]
    with contextlib.suppress(arithmetic.ConfigError, ZeroDivisionError, UnboundLocalError):
        result.naive = arithmetic.naive_kv_bytes(config, batch, prompt, truth.dtype)
    try:
        found = arithmetic.parameters(config)
        if found.not_counted:
            result.weights_wrong = [f"only the text model is counted, without {', '.join(found.not_counted)}"]
        else:
            result.weights_wrong = differences(
                [
                    ("parameters", found.total, truth.parameters),
                    ("bytes of parameters", found.bytes(truth.dtype), truth.parameter_bytes),
                    ("bytes of buffers", found.buffer_bytes(truth.dtype), truth.buffer_bytes),
                ]
            )
    except (arithmetic.ConfigError, UnboundLocalError) as error:
        result.weights_wrong = [f"refused: {error}"]
    return result


def differences(checks: list[tuple[str, int, int]]) -> list[str]:
    return [f"{what}: {ours:,} computed, {real:,} real" for what, ours, real in checks if ours != real]


def small_model(model_type: str) -> tuple[dict, Truth]:
    """Return the smallest config of a type that can be built and run, and what it holds."""
    errors = []
    for values in candidates(model_type):
        try:
            return values, measure(model_type, values)
        except TimeOut as error:
            errors.append(str(error))
            break
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            errors.append(
                f"{type(error).__name__}: {' '.join(str(error).split())[:200]} "
                f"({Path(last.filename).name}:{last.lineno})"
            )
    raise RuntimeError(" | ".join(dict.fromkeys(errors)))


def variations(model_type: str, values: dict, device: str, wanted: int = VARIATIONS, seconds: int = 60):
    """Yield (config, batch, prompt, truth) for random variations that transformers can build and run on `device`."""
    rng, started, found, tries = random.Random(f"verify {model_type}"), time.process_time(), 0, 0
    groups = ("layers", "heads", "widths", "window", "pattern", "switches")
    while found < wanted and tries < 120 and time.process_time() - started < seconds:
        tries += 1
        changed = vary(values, rng, None if tries < 20 else rng.choice(groups))  # fewer changes when many are refused
        batch, prompt = rng.choice((1, 2, 3)), rng.randint(5, 70)
        dtype = rng.choice((torch.bfloat16, torch.float16, torch.float32))
        try:
            truth = measure(model_type, changed, 30, device == "cpu", batch=batch, prompt=prompt, dtype=dtype)
        except Exception:
            continue
        found += 1
        yield changed, batch, prompt, truth


def full_size(model_type: str) -> tuple[dict, Truth, int]:
    """Return the default config, what it holds on the meta device at full size, and the tokens it read."""
    values = default_values(model_type)
    try:
        return values, measure(model_type, values, 40, cpu=False, batch=1, prompt=4096), 4096
    except Exception:
        return values, measure(model_type, values, 60, cpu=False, batch=1, prompt=PROMPT), PROMPT


@dataclass
class Result:
    """One line of the table."""

    type: str
    family: str = ""
    kinds: str = ""
    tokens: int = 0
    naive_bytes: int | None = None
    exact_bytes: int | None = None
    real_bytes: int | None = None
    ratio: str = ""
    parameters: int | None = None
    weight_bytes_bf16: int | None = None
    config: str = ""
    cache_exact: int = 0
    weights_exact: int = 0
    configs: int = 0
    rules: str = ""
    error: str = ""


def verify(model_type: str) -> Result:
    """Check one type: default config at full size, a small one, and random variations."""
    result = Result(model_type, rules=fingerprint(model_type))
    done: list[Comparison] = []
    with contextlib.suppress(Exception):
        values, truth, tokens = full_size(model_type)
        done.append(compare(model_type, values, truth, 1, tokens))
        fill(result, done[0], tokens, "default" + (", completed" if model_type in FIXES else ""))
    try:
        values, truth = small_model(model_type)
    except Exception as error:
        result.error = f"cannot be run: {error}"
        return result
    done.append(compare(model_type, values, truth))
    if not result.tokens:
        fill(result, done[0], PROMPT, "small, " + truth.device)
    for changed, batch, prompt, found in variations(model_type, values, truth.device):
        done.append(compare(model_type, changed, found, batch, prompt))
    result.configs = len(done)
    result.cache_exact = sum(not one.cache_wrong for one in done)
    result.weights_exact = sum(not one.weights_wrong for one in done)
    wrong = [text for one in done for text in (*one.cache_wrong, *one.weights_wrong)]
    result.error = " | ".join(dict.fromkeys(text[:160] for text in wrong))[:600]
    return result


def fill(result: Result, first: Comparison, tokens: int, config: str) -> None:
    result.tokens, result.config, result.naive_bytes = tokens, config, first.naive
    result.real_bytes = first.truth.prompt[0]
    result.parameters, result.weight_bytes_bf16 = first.truth.parameters, first.truth.parameter_bytes
    if first.cache:
        result.family, result.exact_bytes = first.cache.family, first.cache.bytes
        result.kinds = ", ".join(f"{number} {kind}" for kind, number in first.cache.kinds().items())
        if first.naive is not None and first.cache.bytes:
            result.ratio = f"{first.naive / first.cache.bytes:.3f}"


# --- the table
# -----------------------------------------------------------------------------------------------------------


def write_table(results: list[Result]) -> None:
    """Write truth.csv, one line a type, and truth.json, what it was made with."""
    import transformers

    names = [entry.name for entry in fields(Result)]
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(
            [[getattr(result, name) for name in names] for result in sorted(results, key=lambda r: r.type)]
        )
    ran = [result for result in results if result.configs]
    about = {
        "transformers": transformers.__version__,
        "torch": torch.__version__.split("+")[0],
        "types": len(results),
        "types_run": len(ran),
        "cache_exact_types": sum(r.cache_exact == r.configs for r in ran),
        "weights_exact_types": sum(r.weights_exact == r.configs for r in ran),
        "configs": sum(r.configs for r in ran),
        "cache_exact_configs": sum(r.cache_exact for r in ran),
        "weights_exact_configs": sum(r.weights_exact for r in ran),
        "naive_exact_types": sum(r.naive_bytes == r.exact_bytes for r in ran),
    }
    TABLE.with_suffix(".json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


def stored() -> dict[str, Result]:
    """Return the results of an earlier or broken-off run that were made with the rules as they are now."""
    found = []
    if TABLE.exists():
        with TABLE.open(encoding="utf-8", newline="") as file:
            found = [
                Result(**{name: _typed(name, text) for name, text in line.items()}) for line in csv.DictReader(file)
            ]
    partial = TABLE.with_suffix(".partial.jsonl")
    if partial.exists():
        found += [Result(**json.loads(line)) for line in partial.read_text(encoding="utf-8").splitlines()]
    return {result.type: result for result in found if result.rules == fingerprint(result.type)}


def _typed(name: str, text: str):
    if Result.__annotations__[name] is str:
        return text
    return int(text) if text else None


def in_turn(function, items: list, jobs: int):
    """Yield function(item) for all items, computed in `jobs` processes."""
    if jobs == 1:
        yield from map(function, items)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=20) as pool:
        yield from pool.imap_unordered(function, items)


def _timed(model_type: str) -> tuple[Result, float]:
    torch.set_num_threads(1)
    started = time.time()
    return verify(model_type), time.time() - started


def main(arguments: list[str] | None = None) -> int:
    """Check types, print what differs, and with --all write the table. The exit code is 1 when something differs."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("types", nargs="*", help="model types (default: with --all every one)")
    parser.add_argument("--all", action="store_true", help="check every type and write data/arithmetic/truth.csv")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once (default: 1)")
    args = parser.parse_args(arguments)
    if not args.types and not args.all:
        parser.error("name model types, or give --all")
    results = stored() if args.all else {}
    wanted = [name for name in args.types or TYPES if name not in results or not results[name].configs]
    for result, seconds in in_turn(_timed, wanted, args.jobs):
        results[result.type] = result
        print(
            f"{result.type}: cache {result.cache_exact} of {result.configs}, weights {result.weights_exact} of "
            f"{result.configs}, {seconds:.0f} s {result.error}",
            flush=True,
        )
        if args.all:
            with TABLE.with_suffix(".partial.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(vars(result)) + "\n")
    if args.all:
        write_table(list(results.values()))
        TABLE.with_suffix(".partial.jsonl").unlink(missing_ok=True)
    good = [r for r in results.values() if r.configs and r.cache_exact == r.configs]
    whole = [r for r in good if r.weights_exact == r.configs]
    print(f"cache exact in all configs: {len(good)} of {len(results)} types; weights too: {len(whole)}")
    return 0 if len(whole) == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
