"""User reports about tokenizers and special tokens, run against the real library: the symptom and the cure.

Each docstring names the public report. What a report asks of a receipt (class and hash of the tokenizer, truncation
length) is tested with the receipt.
"""

import copy
import json

import pytest

import labutils  # noqa: F401 - settles the profile before the Hub client is imported
from labutils.checkpoints import checkpoint
from labutils.contracts import match

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

CHAT, ENCODER = "chat", "encoder"


@pytest.fixture(scope="module")
def chat():
    return transformers.AutoModelForCausalLM.from_pretrained(checkpoint(CHAT))


@pytest.fixture(scope="module")
def encoder():
    return transformers.AutoModel.from_pretrained(checkpoint(ENCODER))


@pytest.fixture(scope="module")
def chat_tokenizer():
    """Return the tokenizer for tests that leave it as it is; the others load their own."""
    return transformers.AutoTokenizer.from_pretrained(checkpoint(CHAT))


@pytest.fixture
def own_chat_tokenizer():
    return transformers.AutoTokenizer.from_pretrained(checkpoint(CHAT))


@pytest.fixture
def encoder_tokenizer():
    return transformers.AutoTokenizer.from_pretrained(checkpoint(ENCODER))


def names(found) -> list[str]:
    return [finding.what for finding in found]


def test_assigning_add_bos_token_drops_cls_and_sep(encoder, encoder_tokenizer, own_chat_tokenizer):
    """urchade/GLiNER#373: a helpful-looking assignment rebuilds the post-processor, scores go flat."""
    assert encoder_tokenizer("hello")["input_ids"] == [101, 7592, 102]
    encoder_tokenizer.add_bos_token = encoder_tokenizer.bos_token_id is not None  # False, and still:
    assert encoder_tokenizer("hello")["input_ids"] == [7592]
    assert "special tokens are no longer added" in names(match(encoder_tokenizer, encoder))

    assert own_chat_tokenizer("Hi")["input_ids"] == [26843]
    own_chat_tokenizer.add_bos_token = True
    assert own_chat_tokenizer("Hi")["input_ids"] == [1, 26843]
    # The cure: say it where the tokenizer is called.
    fresh = transformers.AutoTokenizer.from_pretrained(checkpoint(ENCODER))
    assert fresh("hello", add_special_tokens=False)["input_ids"] == [7592]
    assert fresh("hello")["input_ids"] == [101, 7592, 102]


@pytest.mark.parametrize("role", [CHAT, ENCODER])
def test_auto_class_gives_the_ids_of_tokenizer_json(role):
    """generative-computing/mellea#947, embeddings-benchmark/mteb#5377: same repository, other ids in v5. Not here."""
    from tokenizers import Tokenizer

    raw = Tokenizer.from_file(str(checkpoint(role) / "tokenizer.json"))
    raw.no_truncation()
    raw.no_padding()
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint(role))
    for text in ("In 2026, 1,234.5 + 42?", "naïve café Ångström", "    def f(x):\n\treturn x", "👩‍🚀 日本語"):
        assert tokenizer(text)["input_ids"] == raw.encode(text).ids


def test_auto_class_that_ignores_the_stated_class(chat_tokenizer, tmp_path):
    """generative-computing/mellea#947, embeddings-benchmark/mteb#5377: model_type decides, not tokenizer_class.

    The same three tokenizer files give other ids once config.json says qwen2: AutoTokenizer then builds Qwen2Tokenizer
    from the vocabulary and merges, with Qwen's own rules for line ends and accents.
    """
    chat_tokenizer.save_pretrained(tmp_path)
    torch.manual_seed(0)
    config = transformers.Qwen2Config(vocab_size=49152, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                                      num_attention_heads=1, num_key_value_heads=1, bos_token_id=1, eos_token_id=2)
    transformers.Qwen2ForCausalLM(config).save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    other = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["tokenizer_class"] == "TokenizersBackend"
    assert type(other).__name__ == "Qwen2Tokenizer"
    text = "cafe\u0301\n\n\nopen"
    same = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)  # the cure
    assert same(text)["input_ids"] == chat_tokenizer(text)["input_ids"] != other(text)["input_ids"]
    assert "tokenizer differs from its file" in names(match(other, model))
    assert match(same, model).ok


def test_no_pad_token_fails_in_a_batch_and_is_set_on_a_copy(chat, own_chat_tokenizer):
    """huggingface/transformers#22312, huggingface/transformers#19853, langchain-ai/langchain#26207,
    huggingface/trl#422: the message proposes eos; <|endoftext|> never ends an answer, so it is the better pad.
    """
    own_chat_tokenizer.pad_token = None
    with pytest.raises(ValueError, match="Asking to pad but the tokenizer does not have a padding token"):
        own_chat_tokenizer(["one", "one two"], padding=True)
    pipe = transformers.pipeline("text-generation", model=chat, tokenizer=own_chat_tokenizer, device="cpu")
    with pytest.raises(ValueError, match=r"pipe\.tokenizer\.pad_token_id = model\.config\.eos_token_id"):
        pipe(["one", "one two"], batch_size=2, max_new_tokens=1)
    assert names(match(own_chat_tokenizer, chat)) == ["tokenizer has no pad token"]

    # The cure: a pad token that is not eos, on a copy, padded on the left.
    padded = copy.deepcopy(own_chat_tokenizer)
    padded.pad_token, padded.padding_side = "<|endoftext|>", "left"
    assert padded.pad_token_id == 0 == padded.unk_token_id != padded.eos_token_id
    pipe = transformers.pipeline("text-generation", model=chat, tokenizer=padded, device="cpu")
    assert len(pipe(["one", "one two"], batch_size=2, max_new_tokens=1)) == 2
    assert own_chat_tokenizer.pad_token is None


def test_resizing_to_the_tokenizer_shrinks_a_padded_embedding():
    """unslothai/unsloth-zoo#923, QwenLM/Qwen#553: spare rows are legal, and resizing cuts them without a word."""
    config = transformers.LlamaConfig(vocab_size=128, hidden_size=64, intermediate_size=64, num_hidden_layers=1,
                                      num_attention_heads=2, num_key_value_heads=2)
    model = transformers.LlamaForCausalLM(config)
    assert model.resize_token_embeddings(100).weight.shape == (100, 64)
    assert model.config.vocab_size == 100
    assert model.resize_token_embeddings(101, pad_to_multiple_of=64).weight.shape == (128, 64)


def test_padded_vocabulary_is_no_fault_and_too_few_rows_are(chat_tokenizer):
    """unslothai/unsloth-zoo#923, QwenLM/Qwen#553: an error only when an id has no row."""
    sizes = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1,
                 bos_token_id=1, eos_token_id=2, pad_token_id=2)
    for rows, expected in ((49152 + 128, []), (49152, []), (49151, ["ids beyond the embedding"])):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=rows, **sizes))
        assert names(match(chat_tokenizer, model)) == expected


def test_ids_of_another_tokenizer_in_range_raise_nothing(chat, chat_tokenizer, encoder_tokenizer):
    """BlinkDL/RWKV-LM#346, sillsdev/silnlp#1033: nonsense without an error."""
    ids = encoder_tokenizer("What is the capital of France?", return_tensors="pt")["input_ids"]
    assert chat_tokenizer.decode(ids[0]) == "uibr likely prim input sens week lifev"
    answer = chat.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, do_sample=False)
    assert "Paris" not in chat_tokenizer.decode(answer[0])
    assert "another tokenizer" in names(match(encoder_tokenizer, chat))


def test_ids_of_another_tokenizer_out_of_range_raise_an_index_error(encoder, chat_tokenizer):
    """BlinkDL/RWKV-LM#346, sillsdev/silnlp#1033: on a GPU the same is a device-side assert."""
    with pytest.raises(IndexError, match="index out of range in self"):
        encoder(torch.tensor([[40000]]))
    assert {"ids beyond the embedding", "another tokenizer"} <= set(names(match(chat_tokenizer, encoder)))


def test_generate_refuses_token_type_ids(chat, encoder_tokenizer):
    """run-llama/llama_index#13708, huggingface/peft#506: often a symptom of the wrong tokenizer."""
    encoding = encoder_tokenizer("What is the capital of France?", return_tensors="pt")
    with pytest.raises(ValueError, match=r"`model_kwargs` are not used by the model: \['token_type_ids'\]"):
        chat.generate(**encoding, max_new_tokens=1)
    found = match(encoder_tokenizer, chat)
    assert {"inputs the model does not take", "another tokenizer"} <= set(names(found))
    wanted = {name: encoding[name] for name in ("input_ids", "attention_mask")}
    assert chat.generate(**wanted, max_new_tokens=1, do_sample=False).shape[1] == encoding["input_ids"].shape[1] + 1


def test_three_length_limits_in_one_checkpoint_give_other_embeddings(encoder, encoder_tokenizer):
    """huggingface/text-embeddings-inference#146, huggingface/transformers#15179: 512, 256 or 128 tokens.

    That 256 equals sentence-transformers (cosine 1.0000) is not run: it is no dependency of the course. The number is
    the one that it reads, from sentence_bert_config.json.
    """
    folder = checkpoint(ENCODER)
    stated = json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"]
    raw = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["truncation"]["max_length"]
    assert (encoder_tokenizer.model_max_length, stated, raw) == (512, 256, 128)
    text = ("The ferry leaves the harbour at noon and returns before dark. " * 20
            + "Interest rates rose again, so banks lend less money to firms. " * 20)

    def embed(limit):
        encoding = encoder_tokenizer(text, truncation=True, max_length=limit, return_tensors="pt")
        with torch.no_grad():
            return torch.nn.functional.normalize(encoder(**encoding).last_hidden_state.mean(dim=1), dim=-1)[0]

    assert float(embed(256) @ embed(256)) == pytest.approx(1)
    assert float(embed(256) @ embed(512)) < 0.9
    assert float(embed(256) @ embed(128)) < 0.98


def test_truncation_from_the_right_removes_question_and_header(own_chat_tokenizer):
    """EleutherAI/lm-evaluation-harness#2961 and its family: truncation_side is right by default."""
    messages = [{"role": "system", "content": "You are terse."},
                {"role": "user", "content": "Once there was a river. " * 8 + "What is the capital of France?"}]
    prompt = own_chat_tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    header = "<|im_start|>assistant\n"

    def cut(side):
        own_chat_tokenizer.truncation_side = side
        return own_chat_tokenizer.decode(own_chat_tokenizer(prompt, truncation=True, max_length=20)["input_ids"])

    assert cut("right").startswith("<|im_start|>system") and "France" not in cut("right")
    assert cut("left").endswith("France?<|im_end|>\n" + header) and "<|im_start|>system" not in cut("left")


def test_truncation_does_nothing_without_a_limit(chat, chat_tokenizer):
    """EleutherAI/lm-evaluation-harness#2961 and its family: a limit of 1e30 is how "none stated" reads."""
    text = "word " * 9000
    free = transformers.AutoTokenizer.from_pretrained(checkpoint(CHAT), model_max_length=int(1e30))
    assert len(free(text, truncation=True)["input_ids"]) == 9001
    assert "truncation=True cuts nothing" in dict(match(free, chat).checks)["length"]
    limit = chat.config.max_position_embeddings  # the cure
    assert len(free(text, truncation=True, max_length=limit)["input_ids"]) == limit == 8192
    # The bundled checkpoint states its limit.
    assert len(chat_tokenizer(text, truncation=True)["input_ids"]) == 8192


def test_characters_split_over_tokens_cannot_be_decoded_alone(chat_tokenizer):
    """exo-explore/exo#1691, replicate/cog-llama-template#75: U+FFFD in streamed text; hold back until it is whole."""
    text = "naïve 🤗 日本語 👩‍🚀"
    ids = chat_tokenizer(text)["input_ids"]
    assert len(ids) == 20
    alone = "".join(chat_tokenizer.decode([number]) for number in ids)
    assert "\ufffd" in alone and alone != text
    assert chat_tokenizer.decode(ids) == text

    pieces = []

    class Collected(transformers.TextStreamer):
        def on_finalized_text(self, text, stream_end=False):
            pieces.append(text)

    streamer = Collected(chat_tokenizer)
    for number in ids:
        streamer.put(torch.tensor([number]))
    streamer.end()
    assert "".join(pieces) == text and not any("\ufffd" in piece for piece in pieces)


def test_composed_and_decomposed_letters_have_other_ids(chat_tokenizer):
    """exo-explore/exo#1691, replicate/cog-llama-template#75: equal on the screen, unequal in bytes."""
    assert chat_tokenizer("é")["input_ids"] == [2756]
    assert chat_tokenizer("e\u0301")["input_ids"] == [85, 151, 219]


def test_methods_that_v5_removed(chat_tokenizer):
    """Family of v5 tokenizer removals: what replaced them works."""
    for name in ("encode_plus", "batch_encode_plus", "prepare_for_model", "as_target_tokenizer",
                 "additional_special_tokens", "build_inputs_with_special_tokens"):
        with pytest.raises(AttributeError, match=f"TokenizersBackend has no attribute {name}"):
            getattr(chat_tokenizer, name)
    assert chat_tokenizer.extra_special_tokens == []
    assert chat_tokenizer.decode([[1, 2], [3]]) == chat_tokenizer.batch_decode([[1, 2], [3]]) == [
        "<|im_start|><|im_end|>", "<repo_name>"]
