"""labutils.contracts: `match` names what does not fit and is silent on what does; `first_divergence` finds the place.

Mismatches are made by code on the real checkpoints and on tiny random models; the tiny ones follow the library's own
configurations, so that every architecture is built and saved as its authors do.
"""

import json
import random
import re
import shutil

import pytest

import labutils  # noqa: F401 - settles the profile before the Hub client is imported
from labutils.checkpoints import checkpoint
from labutils.contracts import InputError, Match, evidence, first_divergence, match

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

WORDS = ["hello", "world", "the", "a", "one", "two", "what", "colour", "is", "sky", "blue", "of", "course", ".", "?"]
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "<cls>", "<sep>", "<mask>"]
SIZES = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2)
IDS = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
ROWS = 64  # more than the tokenizer has tokens: padded vocabularies are legal


def tiny_tokenizer(**settings):
    """Return a word tokenizer with the special tokens of SPECIAL at ids 0 to 6."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: number for number, word in enumerate(SPECIAL + WORDS)}
    raw = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(**{
        "tokenizer_object": raw, "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
        "cls_token": "<cls>", "sep_token": "<sep>", "mask_token": "<mask>", "model_max_length": 32, **settings})


def tiny(name: str, cls: str, rows: int = ROWS, **settings):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(vocab_size=rows, **settings)
    return getattr(transformers, f"{name}{cls}")(config).eval()


def llama(rows: int = ROWS, **settings):
    return tiny("Llama", "ForCausalLM", rows, **{**SIZES, **IDS, **settings})


def gemma3_with_images():
    """Return a model whose text part is a nested config."""
    torch.manual_seed(0)
    text = dict(vocab_size=ROWS, head_dim=8, num_key_value_heads=2, **SIZES, **IDS)
    vision = dict(image_size=8, patch_size=4, **SIZES)
    config = transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4,
                                       boi_token_index=60, eoi_token_index=61, image_token_index=62, **IDS)
    return transformers.Gemma3ForConditionalGeneration(config).eval()


GPT = dict(n_embd=16, n_layer=2, n_head=2, n_positions=32, **IDS)
SEQ2SEQ = dict(d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
               encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=32, decoder_start_token_id=0, **IDS)
EXPERTS = dict(moe_intermediate_size=8, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1,
               first_k_dense_replace=1, kv_lora_rank=8, q_lora_rank=8, qk_nope_head_dim=8, qk_rope_head_dim=8,
               v_head_dim=8)
ARCHITECTURES = {
    "llama": llama,
    "llama, no spare row": lambda: llama(len(SPECIAL + WORDS)),
    "llama, tied head": lambda: llama(tie_word_embeddings=True),
    "mistral": lambda: tiny("Mistral", "ForCausalLM", num_key_value_heads=1, head_dim=8, **SIZES, **IDS),
    "mixtral": lambda: tiny("Mixtral", "ForCausalLM", num_local_experts=4, num_key_value_heads=2, **SIZES, **IDS),
    "deepseek_v3": lambda: tiny("DeepseekV3", "ForCausalLM", num_key_value_heads=2, **EXPERTS, **SIZES, **IDS),
    "qwen2": lambda: tiny("Qwen2", "ForCausalLM", num_key_value_heads=2, **SIZES, **IDS),
    "qwen3": lambda: tiny("Qwen3", "ForCausalLM", num_key_value_heads=2, head_dim=8, **SIZES, **IDS),
    "gemma": lambda: tiny("Gemma", "ForCausalLM", num_key_value_heads=1, head_dim=8, **SIZES, **IDS),
    "gemma3 with images": gemma3_with_images,
    "phi3": lambda: tiny("Phi3", "ForCausalLM", num_key_value_heads=2, **SIZES, **IDS),
    "gpt2": lambda: tiny("GPT2", "LMHeadModel", **GPT),
    "gpt_neox": lambda: tiny("GPTNeoX", "ForCausalLM", **SIZES, **IDS),
    "opt": lambda: tiny("OPT", "ForCausalLM", hidden_size=16, ffn_dim=24, num_hidden_layers=2, num_attention_heads=2,
                        word_embed_proj_dim=16, max_position_embeddings=32, **IDS),
    "mamba": lambda: tiny("Mamba", "ForCausalLM", hidden_size=16, state_size=4, num_hidden_layers=2, **IDS),
    "bert": lambda: tiny("Bert", "Model", max_position_embeddings=32, pad_token_id=0, **SIZES),
    "bert for masked words": lambda: tiny("Bert", "ForMaskedLM", max_position_embeddings=32, pad_token_id=0, **SIZES),
    "bert classifier": lambda: tiny("Bert", "ForSequenceClassification", max_position_embeddings=32, **SIZES),
    "distilbert": lambda: tiny("DistilBert", "ForSequenceClassification", dim=16, hidden_dim=24, n_layers=2, n_heads=2,
                               max_position_embeddings=32),
    "roberta": lambda: tiny("Roberta", "Model", max_position_embeddings=34, **SIZES, **IDS),
    "t5": lambda: tiny("T5", "ForConditionalGeneration", d_model=16, d_ff=24, d_kv=8, num_layers=2, num_heads=2,
                       decoder_start_token_id=0, pad_token_id=0, eos_token_id=2),
    "bart": lambda: tiny("Bart", "ForConditionalGeneration", forced_eos_token_id=2, **SEQ2SEQ),
    "marian": lambda: tiny("Marian", "MTModel", **{**SEQ2SEQ, "forced_eos_token_id": 2}),
}


@pytest.fixture(scope="module")
def chat():
    return transformers.AutoModelForCausalLM.from_pretrained(checkpoint("chat"))


@pytest.fixture(scope="module")
def encoder():
    return transformers.AutoModel.from_pretrained(checkpoint("encoder"))


@pytest.fixture
def chat_tokenizer():
    return transformers.AutoTokenizer.from_pretrained(checkpoint("chat"))


@pytest.fixture
def encoder_tokenizer():
    return transformers.AutoTokenizer.from_pretrained(checkpoint("encoder"))


def fault(found: Match, what: str, severity: str = "error"):
    """Return the finding named `what`; both forms must show it whole."""
    names = [finding.what for finding in found]
    assert what in names, f"{names} in {found!r}"
    finding = found[names.index(what)]
    assert finding.severity == severity
    assert finding.evidence and finding.cure
    assert what in repr(found) and finding.evidence in repr(found)
    assert "<table" in found._repr_html_() and what in found._repr_html_()
    return finding


# --- silence on what fits -------------------------------------------------------------------------------------------


def silent(found: Match) -> None:
    assert found.ok and bool(found) and list(found) == [], repr(found)
    assert "nothing found" in repr(found) and "<table" in found._repr_html_()


def test_silent_on_the_chat_checkpoint(chat, chat_tokenizer):
    found = match(chat_tokenizer, chat)
    silent(found)
    assert dict(found.checks)["weights"] == "0 missing, 0 unexpected, 0 of another shape, in the model's folder"
    assert "23 of 25 words" in dict(found.checks)["tokenizer of this model"]


def test_silent_on_the_encoder_checkpoint(encoder, encoder_tokenizer):
    silent(match(encoder_tokenizer, encoder))


def test_silent_on_the_sentiment_checkpoint():
    folder = checkpoint("sentiment")
    model, info = transformers.AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    silent(match(transformers.AutoTokenizer.from_pretrained(folder), model, loading_info=info))
    silent(match(transformers.AutoTokenizer.from_pretrained(folder), model))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_silent_on_a_tiny_random_pair_in_memory_and_after_saving(name, tmp_path):
    model, tokenizer = ARCHITECTURES[name](), tiny_tokenizer()
    found = match(tokenizer, model)
    silent(found)
    assert "not loaded from a local folder" in dict(found.checks)["weights"]
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    # Not AutoTokenizer: for some model types (qwen2) it ignores the class that save_pretrained wrote, see below.
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    again = match(tokenizer, type(model).from_pretrained(tmp_path))
    silent(again)
    assert dict(again.checks)["weights"].startswith("0 missing, 0 unexpected")


def test_silent_on_a_relative_with_the_same_vocabulary(encoder_tokenizer):
    """DistilBERT takes no token types, but its vocabulary is BERT's."""
    sizes = dict(dim=16, hidden_dim=24, n_layers=1, n_heads=2)
    found = match(encoder_tokenizer, tiny("DistilBert", "ForSequenceClassification", rows=30522, **sizes))
    silent(found)
    assert "token_type_ids" in dict(found.checks)["inputs"]


def test_silent_about_added_tokens_with_rows(chat_tokenizer):
    """Adding tokens and resizing is legal; the file on disk then has fewer rows than the model."""
    config = transformers.AutoConfig.from_pretrained(checkpoint("chat"), num_hidden_layers=1)
    model = transformers.LlamaForCausalLM.from_pretrained(checkpoint("chat"), config=config)
    chat_tokenizer.add_tokens(["<|search|>"])
    model.resize_token_embeddings(len(chat_tokenizer), mean_resizing=False)
    found = match(chat_tokenizer, model)
    assert [finding.what for finding in found] == ["weights left out"]  # the 29 layers that the test saves
    assert any("resized after loading" in outcome for _, outcome in found.checks)


def test_leaves_both_as_they_were(chat, chat_tokenizer):
    from transformers.utils import logging

    def state():
        return (chat.training, chat.config.to_dict(), chat_tokenizer.backend_tokenizer.to_str(),
                logging.get_verbosity(), torch.get_rng_state().tolist())

    before = state()
    match(chat_tokenizer, chat)
    assert state() == before


# --- seeded mismatches: the tokenizer -------------------------------------------------------------------------------


def shuffled(tokenizer):
    """Return a tokenizer with the same tokens, size and special ids, whose other ids are dealt anew."""
    from tokenizers import Tokenizer

    content = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary = content["model"]["vocab"]
    special = {entry["id"] for entry in content["added_tokens"]}
    free = [number for number in vocabulary.values() if number not in special]
    dealt = dict(zip(free, random.Random(0).sample(free, len(free)), strict=True))
    content["model"]["vocab"] = {token: dealt.get(number, number) for token, number in vocabulary.items()}
    roles = ("bos_token", "eos_token", "pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    names = {role: getattr(tokenizer, role) for role in roles if getattr(tokenizer, role)}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(content)), chat_template=tokenizer.chat_template,
        model_max_length=tokenizer.model_max_length, **names)


def test_tokenizer_of_another_model_in_range(chat, encoder_tokenizer):
    """All 30,522 ids are in range of 49,152 rows: nothing raises an error."""
    found = match(encoder_tokenizer, chat)
    evidence = fault(found, "another tokenizer").evidence
    assert "beside the model's weights" in evidence and "nats a token" in evidence
    fault(found, "inputs the model does not take", "warning")
    assert not found.ok and not found


def test_tokenizer_of_another_model_out_of_range(encoder, chat_tokenizer):
    found = match(chat_tokenizer, encoder)
    assert "49151" in fault(found, "ids beyond the embedding").evidence
    fault(found, "another tokenizer")


def test_equal_vocabulary_sizes_prove_nothing_decoder(chat, chat_tokenizer):
    other = shuffled(chat_tokenizer)
    assert len(other) == len(chat_tokenizer) and other.eos_token_id == chat_tokenizer.eos_token_id
    assert "nats a token" in fault(match(other, chat), "another tokenizer").evidence


def test_equal_vocabulary_sizes_prove_nothing_encoder(encoder, encoder_tokenizer):
    """No language-model head: the embedding alone has to tell, also where the folder cannot."""
    other = shuffled(encoder_tokenizer)
    alone = transformers.BertModel(encoder.config)
    alone.load_state_dict(encoder.state_dict())
    alone.name_or_path = ""
    assert "of 25 words" in fault(match(other, alone), "another tokenizer").evidence
    silent(match(encoder_tokenizer, alone))


def test_evidence_of_the_weights_is_clear_cut(chat, encoder, chat_tokenizer, encoder_tokenizer):
    """The verdicts' limits lie at 15 % and 40 % of the pairs, and at 1.5 and 2.5 nats of needless surprise."""

    def numbers(outcome):
        verdict, words = outcome
        return verdict, [float(number) for number in re.findall(r"\d+(?:\.\d+)?", words)]

    rows = {"chat": chat.get_input_embeddings().weight, "encoder": encoder.get_input_embeddings().weight}
    for tokenizer, right in ((chat_tokenizer, "chat"), (encoder_tokenizer, "encoder")):
        for other in (tokenizer, shuffled(tokenizer)):
            for name, embedding in rows.items():
                verdict, (found, of, _) = numbers(evidence.partners(other, embedding))
                fits = name == right and other is tokenizer
                assert verdict is fits and (found >= 23 if fits else found <= 2) and of >= 16
    assert numbers(evidence.likelihood(chat_tokenizer, chat)) == (True, [2.7, 2.9])
    for wrong in (encoder_tokenizer, shuffled(chat_tokenizer)):
        verdict, (surprise, expected) = numbers(evidence.likelihood(wrong, chat))
        assert verdict is False and surprise >= 11 and expected < 7.5


def test_known_ids_speak_where_weights_cannot(encoder, encoder_tokenizer):
    untrained = transformers.BertModel(encoder.config)
    untrained.name_or_path = ""
    silent(match(encoder_tokenizer, untrained))
    assert "all-MiniLM-L6-v2" in fault(match(shuffled(encoder_tokenizer), untrained), "another tokenizer",
                                       "warning").evidence


def test_probes_of_the_caller_are_compared_exactly():
    tokenizer = tiny_tokenizer()
    probes = {"hello world": tokenizer("hello world", add_special_tokens=False)["input_ids"]}
    silent(match(tokenizer, llama(), probes=probes))
    assert "'hello world'" in fault(match(shuffled(tokenizer), llama(), probes=probes), "another tokenizer").evidence


def test_added_tokens_without_rows():
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["<new>"])
    evidence = fault(match(tokenizer, llama(len(SPECIAL + WORDS))), "added tokens without rows").evidence
    assert "'<new>'" in evidence


def test_special_tokens_no_longer_added(encoder, encoder_tokenizer):
    encoder_tokenizer.add_bos_token = False
    assert "[101, 2028, 102]" in fault(match(encoder_tokenizer, encoder), "special tokens are no longer added").evidence


def test_tokenizer_that_differs_from_its_file(encoder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint("encoder"))
    tokenizer.backend_tokenizer.normalizer = None  # capitals and accents become [UNK]
    assert "BertTokenizer" in fault(match(tokenizer, encoder), "tokenizer differs from its file").evidence


def test_tokenizer_class_that_the_library_puts_first(tmp_path):
    """AutoTokenizer takes Qwen2Tokenizer for every qwen2 folder and rebuilds it from the vocabulary: other ids."""
    ARCHITECTURES["qwen2"]().save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    evidence = fault(match(tokenizer, model), "tokenizer differs from its file").evidence
    assert "class Qwen2Tokenizer, tokenizer_config.json names TokenizersBackend" in evidence


def test_tokenizer_json_alone(chat, tmp_path):
    shutil.copy(checkpoint("chat") / "tokenizer.json", tmp_path)
    found = match(transformers.AutoTokenizer.from_pretrained(tmp_path), chat)
    fault(found, "tokenizer settings missing", "warning")
    fault(found, "tokenizer has no eos token", "warning")
    fault(found, "no chat template")


# --- seeded mismatches: special ids, inputs, length -----------------------------------------------------------------


def test_eos_of_the_tokenizer_is_not_where_generation_stops():
    model = llama()
    model.generation_config.eos_token_id = [5, 6]
    found = match(tiny_tokenizer(), model)
    assert "generation stops only at 5 ('<sep>'), 6 ('<mask>')" in fault(found, "eos id differs").evidence
    fault(found, "config and generation config disagree on eos", "warning")


def test_eos_list_that_holds_the_tokenizers_eos_is_fine():
    model = llama()
    model.generation_config.eos_token_id = [2, 5]
    silent(match(tiny_tokenizer(), model))


def test_bos_differs_in_a_nested_config():
    model = gemma3_with_images()
    model.config.text_config.bos_token_id = 5
    assert "config.text_config.bos_token_id is 5" in fault(match(tiny_tokenizer(), model), "bos id differs").evidence


def test_pad_differs():
    evidence = fault(match(tiny_tokenizer(pad_token="<unk>"), llama()), "pad id differs", "warning").evidence
    assert "config.pad_token_id is 0" in evidence and "generation_config.pad_token_id is 0" in evidence


def test_no_pad_token(chat, chat_tokenizer):
    chat_tokenizer.pad_token = None
    found = match(chat_tokenizer, chat)
    fault(found, "tokenizer has no pad token", "warning")
    assert found.ok and len(found) == 1


def test_mask_token_differs():
    model = tiny("Bert", "ForMaskedLM", mask_token_id=5, max_position_embeddings=32, **SIZES)
    fault(match(tiny_tokenizer(), model), "mask id differs")


def test_default_ids_of_a_larger_vocabulary():
    """GPT2Config states 50256 for bos and eos, whatever vocab_size is."""
    sizes = {name: value for name, value in GPT.items() if name not in IDS}
    found = match(tiny_tokenizer(), tiny("GPT2", "LMHeadModel", **sizes))
    assert "50256" in fault(found, "special id outside the embedding").evidence


def test_special_token_without_an_id(chat, chat_tokenizer):
    chat_tokenizer._special_tokens_map["sep_token"] = "[SEP]"
    fault(match(chat_tokenizer, chat), "sep token is not in the vocabulary")


def test_config_out_of_step_with_the_embedding():
    model = llama()
    model.config.vocab_size = 32
    fault(match(tiny_tokenizer(), model), "config.vocab_size differs from the embedding", "warning")


def test_token_types_beyond_the_embedding(encoder_tokenizer):
    """RoBERTa-like models have one row of token types; BERT's tokenizer marks the second text with 1."""
    model = tiny("Roberta", "Model", rows=30522, type_vocab_size=1, max_position_embeddings=514, hidden_size=16,
                 intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, pad_token_id=0)
    fault(match(encoder_tokenizer, model), "token types beyond the embedding")


def test_length_limit_beyond_the_positions(encoder, encoder_tokenizer):
    encoder_tokenizer.model_max_length = 1024
    assert "512" in fault(match(encoder_tokenizer, encoder), "length limit beyond the positions").evidence


def test_no_length_limit_is_said_but_no_fault(chat, chat_tokenizer):
    chat_tokenizer.model_max_length = int(1e30)
    found = match(chat_tokenizer, chat)
    silent(found)
    assert "truncation=True cuts nothing" in dict(found.checks)["length"]


# --- seeded mismatches: weights and class ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def classifier_folder(tmp_path_factory):
    """Return a tiny classifier with two labels, saved."""
    folder = tmp_path_factory.mktemp("classifier")
    ARCHITECTURES["bert classifier"]().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("informed", [True, False])
def test_head_without_weights(encoder_tokenizer, informed):
    load = transformers.AutoModelForSequenceClassification.from_pretrained
    model, info = load(checkpoint("encoder"), output_loading_info=True)
    found = match(encoder_tokenizer, model, loading_info=info if informed else None)
    evidence = fault(found, "head without weights").evidence
    assert evidence.startswith(f"classifier.bias, classifier.weight not found "
                               f"{'at load time' if informed else 'in the model'}")
    assert len(found) == 1


def test_causal_class_on_an_encoder(encoder_tokenizer):
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint("encoder"))
    found = match(encoder_tokenizer, model)
    fault(found, "encoder used as a decoder")
    assert "and 2 more" in fault(found, "head without weights").evidence


def test_body_without_its_head(chat_tokenizer):
    config = transformers.AutoConfig.from_pretrained(checkpoint("chat"))
    model = transformers.AutoModel.from_pretrained(checkpoint("chat"), config=config)
    assert "LlamaForCausalLM" in fault(match(chat_tokenizer, model), "head left out", "warning").evidence


def test_a_class_of_another_family(tmp_path, encoder_tokenizer):
    """The names and shapes of BERT and RoBERTa are the same; only the config contradicts itself."""
    folder = tmp_path / "copy"
    shutil.copytree(checkpoint("encoder"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "roberta"}))
    model, info = transformers.AutoModel.from_pretrained(folder, output_loading_info=True)
    assert type(model).__name__ == "RobertaModel" and not any(info.values())
    found = match(encoder_tokenizer, model, loading_info=info)
    assert "'bert'" in fault(found, "class of another family", "error").cure and not found


def test_other_class_with_fitting_shapes(classifier_folder):
    """classifier.weight is [labels, hidden] for whole texts and for tokens: no key is missing."""
    model, info = transformers.BertForTokenClassification.from_pretrained(classifier_folder, output_loading_info=True)
    assert not info["missing_keys"]
    evidence = fault(match(tiny_tokenizer(), model), "other class than it was saved with", "warning").evidence
    assert "BertForSequenceClassification" in evidence


@pytest.mark.parametrize("informed", [True, False])
def test_weights_of_another_shape(classifier_folder, informed):
    load = transformers.BertForSequenceClassification.from_pretrained
    model, info = load(classifier_folder, num_labels=3, ignore_mismatched_sizes=True, output_loading_info=True)
    found = match(tiny_tokenizer(), model, loading_info=info if informed else None)
    assert "classifier.bias: [2] in the file, [3] in the model" in fault(found, "weights of another shape").evidence


@pytest.mark.parametrize("informed", [True, False])
def test_embedding_replaced_at_load_time(tmp_path, informed):
    """As many rows more as after a resize, but all of them random."""
    llama().save_pretrained(tmp_path)
    load = transformers.LlamaForCausalLM.from_pretrained
    model, info = load(tmp_path, vocab_size=96, ignore_mismatched_sizes=True, output_loading_info=True)
    found = match(tiny_tokenizer(), model, loading_info=info if informed else None)
    assert "[64, 16] in the file, [96, 16] in the model" in fault(found, "weights of another shape").evidence


def test_layers_left_out(tmp_path):
    llama().save_pretrained(tmp_path)
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path, num_hidden_layers=1)
    assert "model.layers.1." in fault(match(tiny_tokenizer(), model), "weights left out", "warning").evidence


def test_layers_missing(tmp_path):
    llama().save_pretrained(tmp_path)
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path, num_hidden_layers=3)
    assert "model.layers.2." in fault(match(tiny_tokenizer(), model), "weights missing").evidence


def test_errors_of_the_load_are_passed_on():
    info = dict.fromkeys(("missing_keys", "unexpected_keys", "mismatched_keys"), ()) | {"error_msgs": ["size mismatch"]}
    found = match(tiny_tokenizer(), llama(), loading_info=info)
    assert "size mismatch" in fault(found, "loading reported errors").evidence


def test_folder_that_no_longer_loads_is_said(tmp_path):
    llama().save_pretrained(tmp_path)
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    found = match(tiny_tokenizer(), model)
    assert "does not load again (SafetensorError" in dict(found.checks)["weights"]


# --- seeded mismatches: the template --------------------------------------------------------------------------------

LLAMA3 = ("{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n{{ m['content'] }}<|eot_id|>"
          "{% endfor %}")


def test_template_lost(chat, chat_tokenizer):
    chat_tokenizer.chat_template = None
    evidence = fault(match(chat_tokenizer, chat), "no chat template").evidence
    assert "beside the model's weights" in evidence and "'<|im_end|>'" in evidence


def test_template_of_another_family(chat, chat_tokenizer):
    chat_tokenizer.chat_template = LLAMA3
    evidence = fault(match(chat_tokenizer, chat), "template and stop token disagree").evidence
    assert "<|eot_id|>" in evidence and "2 ('<|im_end|>')" in evidence


def test_template_that_drops_the_answer(chat, chat_tokenizer):
    chat_tokenizer.chat_template = "{% for m in messages if m['role'] == 'user' %}{{ m['content'] }}{% endfor %}"
    fault(match(chat_tokenizer, chat), "template drops the answer")


def test_template_that_refuses_is_said(chat, chat_tokenizer):
    chat_tokenizer.chat_template = "{{ raise_exception('system message needed') }}"
    found = match(chat_tokenizer, chat)
    assert found.ok and "system message needed" in dict(found.checks)["template"]


# --- arguments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("arguments", "words"), [
    (lambda: ("chat", llama()), "'chat' is a name. Pass AutoTokenizer"),
    (lambda: (tiny_tokenizer(), "chat"), "'chat' is a name. Pass a loaded model"),
    (lambda: (llama(), tiny_tokenizer()), "match(tokenizer, model)"),
    (lambda: (tiny_tokenizer(), tiny_tokenizer()), "second argument is a tokenizer"),
    (lambda: (tiny_tokenizer(), transformers.LlamaForCausalLM), "is a class. Pass a loaded model"),
    (lambda: (tiny_tokenizer().backend_tokenizer, llama()), "Wrap it: PreTrainedTokenizerFast"),
    (lambda: (None, llama()), "is not a transformers tokenizer"),
    (lambda: (tiny_tokenizer(), torch.nn.Linear(2, 2)), "is not a transformers model"),
    (lambda: (tiny_tokenizer(), tiny_vision()), "has no token embedding"),
])
def test_what_is_no_pair_is_refused(arguments, words):
    with pytest.raises(InputError) as raised:
        match(*arguments())
    assert words in str(raised.value)


def tiny_vision():
    return transformers.ViTModel(transformers.ViTConfig(image_size=8, patch_size=4, **SIZES))


def test_a_pipeline_is_refused_with_the_way_out(encoder, encoder_tokenizer):
    pipe = transformers.pipeline("feature-extraction", model=encoder, tokenizer=encoder_tokenizer, device="cpu")
    with pytest.raises(InputError, match="Pass its .model"):
        match(encoder_tokenizer, pipe)
    with pytest.raises(InputError, match="Pass its .tokenizer"):
        match(pipe, encoder)


@pytest.mark.parametrize("wrong", [{"probes": ["hello"]}, {"probes": {"hello": "7"}}, {"loading_info": "none"},
                                   {"loading_info": {"missing_keys": set()}}])
def test_wrong_evidence_is_refused(wrong):
    with pytest.raises(InputError, match="; this is "):
        match(tiny_tokenizer(), llama(), **wrong)


# --- two clients ----------------------------------------------------------------------------------------------------

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]


def client(tokenizer, template=None, generation_prompt=True, add_special_tokens=False, **how):
    """Return a client that renders, then tokenizes, as most servers do."""

    def send(messages):
        text = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False,
                                             add_generation_prompt=generation_prompt)
        return {"text": text, **tokenizer(text, add_special_tokens=add_special_tokens, return_tensors="pt", **how)}

    return send


def both_forms(found) -> str:
    html, plain = found._repr_html_(), repr(found)
    assert found.stage is None or (found.stage in html and found.stage in plain and str(found.a) in plain)
    return plain


@pytest.fixture(scope="module")
def reader():
    """Return the chat tokenizer for tests that leave it as it is."""
    return transformers.AutoTokenizer.from_pretrained(checkpoint("chat"))


@pytest.fixture(scope="module")
def usual(reader):
    return client(reader)


def test_equal_clients_have_no_divergence(usual, chat):
    found = first_divergence(usual, usual, MESSAGES, chat)
    assert not found and found.stage is None
    assert [stage for stage, _ in found.checks] == ["rendered text", "input_ids", "attention_mask", "first-step logits"]
    assert all(outcome.startswith("equal") for _, outcome in found.checks)
    assert "no difference found" in both_forms(found)


def test_double_bos(usual, chat_tokenizer):
    chat_tokenizer.backend_tokenizer.post_processor = bos_processor()
    found = first_divergence(usual, client(chat_tokenizer, add_special_tokens=True), MESSAGES, tokenizer=chat_tokenizer)
    assert (found.stage, found.position) == ("input_ids", 1)
    assert found.a == "9690 'system'" and found.b == "1 '<|im_start|>'"
    assert "stands twice" in both_forms(found)


def bos_processor():
    from tokenizers.processors import TemplateProcessing

    return TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])


def test_missing_generation_prompt(usual, reader):
    found = first_divergence(usual, client(reader, generation_prompt=False), MESSAGES)
    without = client(reader, generation_prompt=False)(MESSAGES)["text"]
    assert (found.stage, found.position) == ("rendered text", len(without))
    assert "<|im_start|>assistant" in found.a and found.b.endswith("(end)")
    both_forms(found)


def test_missing_generation_prompt_seen_in_ids(usual, reader):
    """Clients that render and tokenize in one call give no text."""

    def one_call(messages):
        return reader.apply_chat_template(messages)

    found = first_divergence(usual, one_call, MESSAGES)
    assert found.stage == "input_ids" and found.b == "end" and "no generation prompt" in found.why
    assert found.checks == (("rendered text", "not given by both"),)


def test_other_template(usual, reader):
    found = first_divergence(usual, client(reader, template=LLAMA3), MESSAGES)
    assert (found.stage, found.position) == ("rendered text", 2)
    assert found.a.startswith("<|im_start|>") and found.b.startswith("<|start_header_id|>"), both_forms(found)


def test_other_system_message(usual):
    messages = [{"role": "system", "content": "Be brief."}, *MESSAGES]
    found = first_divergence(usual, lambda _: usual(messages), MESSAGES)
    assert found.stage == "rendered text" and "You are a" in found.a and "Be brief" in found.b


def test_special_tokens_read_as_plain_text(usual, reader):
    plain = client(reader, split_special_tokens=True)
    found = first_divergence(usual, plain, MESSAGES, tokenizer=reader)
    assert (found.stage, found.position) == ("input_ids", 0)
    assert found.a == "1 '<|im_start|>'" and found.b != found.a


def test_truncation_from_the_right(usual, reader):
    found = first_divergence(usual, client(reader, truncation=True, max_length=20), MESSAGES)
    assert (found.stage, found.position, found.b) == ("input_ids", 20, "end")
    assert "truncation" in found.why


def test_truncation_from_the_left(usual):
    def cut(messages):
        return {"input_ids": usual(messages)["input_ids"][:, 5:]}

    found = first_divergence({"input_ids": usual(MESSAGES)["input_ids"]}, cut, MESSAGES)
    assert (found.stage, found.position) == ("input_ids", 0) and "5 tokens later" in found.why


def test_mask_dropped(reader):
    padded = client(reader, padding="max_length", max_length=60, padding_side="left")

    def dropped(messages):
        return {name: value for name, value in padded(messages).items() if name != "attention_mask"}

    found = first_divergence(padded, dropped, MESSAGES)
    assert found.stage == "attention_mask" and found.b == "not given"
    assert int(found.a.split()[1]) == 60 - len(client(reader)(MESSAGES)["input_ids"][0])
    both_forms(found)


def test_mask_dropped_without_padding_changes_nothing(usual, chat):
    found = first_divergence(usual, lambda m: {"input_ids": usual(m)["input_ids"]}, MESSAGES, chat)
    assert not found
    assert dict(found.checks)["attention_mask"].startswith("equal in effect")


def test_mask_with_a_hole(usual):
    def hole(messages):
        request = usual(messages)
        request["attention_mask"] = request["attention_mask"].clone()
        request["attention_mask"][0, 3] = 0
        return request

    found = first_divergence(usual, hole, MESSAGES)
    assert (found.stage, found.position, found.a, found.b) == ("attention_mask", 3, "1", "0")


def test_batch_names_the_row(reader):
    def batch(texts):
        return dict(reader(texts, padding=True))

    found = first_divergence(batch(["one two", "one two"]), batch(["one two", "one six"]), None)
    assert (found.stage, found.row, found.position) == ("input_ids", 1, 1)
    assert "of row 1" in both_forms(found)


def with_logits(send, model, dtype=None, mask=True):
    def sent(messages):
        request = dict(send(messages))
        inputs = {name: request[name] for name in ("input_ids", "attention_mask") if mask or name == "input_ids"}
        with torch.no_grad():
            request["logits"] = model(**inputs).logits.to(dtype)
        return request

    return sent


def test_dtype_of_logits(usual, chat):
    found = first_divergence(with_logits(usual, chat), with_logits(usual, chat, torch.bfloat16), MESSAGES)
    assert (found.stage, found.a, found.b) == ("first-step logits", "torch.float32", "torch.bfloat16")
    assert "both choose" in found.why
    both_forms(found)


def test_other_weights(usual, chat, reader):
    config = transformers.AutoConfig.from_pretrained(checkpoint("chat"), num_hidden_layers=2)
    shallow = transformers.LlamaForCausalLM.from_pretrained(checkpoint("chat"), config=config)
    found = first_divergence(with_logits(usual, chat), with_logits(usual, shallow), MESSAGES, tokenizer=reader)
    assert found.stage == "first-step logits" and found.position is not None
    assert "greedy choice" in found.why and [outcome[:5] for _, outcome in found.checks] == ["equal"] * 3


def test_not_a_number_is_a_difference():
    found = first_divergence({"logits": [1.0, float("nan")]}, {"logits": [1.0, 2.0]}, None)
    assert (found.stage, found.position, found.a) == ("first-step logits", 1, "nan")


def test_left_padding_gives_the_logits_of_the_text_alone(usual, chat, reader):
    """The model's logits are computed as generate() would: padding hidden, positions counted from the mask."""
    padded = client(reader, padding="max_length", max_length=60, padding_side="left")
    assert first_divergence(usual, padded, MESSAGES, chat).stage == "input_ids"
    both = [{"logits": with_positions(request, chat)} for request in (usual(MESSAGES), padded(MESSAGES))]
    assert not first_divergence(*both, MESSAGES)


def with_positions(request, model):
    mask = request["attention_mask"]
    with torch.no_grad():
        return model(input_ids=request["input_ids"], attention_mask=mask,
                     position_ids=(mask.cumsum(-1) - 1).clamp(min=0)).logits


def test_clients_can_be_objects_or_strings():
    from types import SimpleNamespace

    assert not first_divergence("one", SimpleNamespace(text="one"), None)
    assert first_divergence("one two", "one ten", None).position == 5


@pytest.mark.parametrize(("a", "b", "words"), [
    ({"text": "x"}, {"input_ids": [1]}, "nothing in common"),
    (lambda m: None, {"text": "x"}, "client_a gives builtins.NoneType"),
    ({"text": "x"}, {"text": ["x"]}, "client_b gives builtins.list as text"),
    ({"input_ids": [0.5]}, {"input_ids": [1]}, "integers"),
])
def test_clients_that_give_nothing_comparable_are_refused(a, b, words):
    with pytest.raises(InputError, match=words):
        first_divergence(a, b, MESSAGES)
