"""What a config cannot tell, for `plan`: a run of the model on the meta device (labutils.trace), built once.

Needs torch and transformers, which are imported when a run is asked for and not before.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any

from labutils.arithmetic.cache import KVCache, LayerCache
from labutils.arithmetic.config import Config, load
from labutils.arithmetic.errors import ConfigError, UnknownArchitecture
from labutils.arithmetic.expressions import shown
from labutils.arithmetic.quantized import WeightBytes

ATTENTION = ("sdpa", "eager")
PARTS = ("activations and score matrices at prefill", "activations and score matrices at decode")


class Run:
    """A model on the meta device whose peaks `plan` asks for, at any batch and number of tokens.

    Raises ConfigError when torch is missing or transformers cannot make a config object of the source, and TraceError
    (labutils.trace) when the model cannot be built or asks for values.
    """

    def __init__(self, source: Any, dtype: str | None, attention: str):
        if attention not in ATTENTION:
            raise ConfigError(f"attention is {shown(attention)}; it can be {' or '.join(ATTENTION)}")
        try:
            from labutils import trace
        except ImportError as error:
            raise ConfigError(f"a trace needs torch and transformers ({error}); without them, plan without it") from None
        self._trace, self.attention = trace, attention
        config, said = _config_object(source)
        self.model_type = config.model_type
        self.quantized = bool(said.get("quantization_config"))
        self.dtype = dtype or _dtype_of(config)
        self.config = config
        self.model = trace.build(config, self.dtype, attention)
        self.peak = lru_cache(maxsize=None)(self._peak)

    def _peak(self, batch: int, tokens: int):
        """Return the Peak of a prompt of so many tokens and one more."""
        return self._trace.peak_of(self.model, batch, tokens, self.attention)

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def weights(self) -> WeightBytes:
        """Return what the built model's parameters and buffers take, unquantized."""
        buffers = sum(tensor.numel() * tensor.element_size() for tensor in self.model.buffers())
        rest = sum(tensor.numel() * tensor.element_size() for tensor in self.model.parameters())
        return WeightBytes("none", 0, 0, rest, buffers)

    def cache(self, batch: int, tokens: int) -> KVCache:
        """Return what stayed alive after the prompt, as one entry: a trace does not tell layers apart."""
        held = self.peak(batch, tokens).held
        layer = LayerCache(0, "traced", held, held, held, 0)
        return KVCache((layer,), batch, tokens, tokens, self.dtype, "no rule: a run on the meta device", "labutils/trace.py")


def _config_object(source: Any) -> tuple[Any, dict]:
    """Return transformers' config object for what `plan` was given, and the values it said."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if hasattr(source, "to_dict"):
        return source, source.to_dict()
    if isinstance(source, Config):
        raise ConfigError("a trace needs the config itself: give the dict, the file or the PreTrainedConfig")
    values = load(Path(source)) if isinstance(source, (str, Path)) else source
    kind = values.get("model_type") if isinstance(values, dict) else None
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise UnknownArchitecture(f"transformers has no model type {shown(kind)}, so it cannot be traced either")
    plain = {name: value for name, value in values.items() if name not in ("quantization_config", "architectures")}
    try:
        return CONFIG_MAPPING[kind].from_dict(plain), values
    except Exception as error:  # config classes raise many types; each has its reason in the text
        raise ConfigError(
            f"transformers cannot read the config of type {kind!r}: {' '.join(str(error).split())[:200]}"
        ) from None


def _dtype_of(config: Any) -> str:
    said = config.dtype if config.dtype is not None else getattr(config.get_text_config(), "dtype", None)
    return str(said or "float32").removeprefix("torch.")
