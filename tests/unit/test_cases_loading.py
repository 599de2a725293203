"""User reports about loading, run against the real library: the symptom and the cure.

Each docstring names the public report.
"""

import json
import os

import pytest

import labutils  # noqa: F401 - settles the profile before the Hub client is imported
from labutils import environment
from labutils.checkpoints import checkpoint
from labutils.contracts import match

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def encoder_tokenizer():
    return transformers.AutoTokenizer.from_pretrained(checkpoint("encoder"))


def names(found) -> list[str]:
    return [finding.what for finding in found]


def test_missing_head_is_random_at_every_load(encoder_tokenizer):
    """huggingface/transformers#2770, huggingface/transformers#5421: a report is printed, no error is raised."""

    def load():
        return transformers.AutoModelForSequenceClassification.from_pretrained(checkpoint("encoder"),
                                                                               output_loading_info=True)

    (model, info), (again, _) = load(), load()
    assert info["missing_keys"] == {"classifier.weight", "classifier.bias"} and not info["unexpected_keys"]
    assert not torch.equal(model.classifier.weight, again.classifier.weight)
    assert model.config.id2label == {0: "LABEL_0", 1: "LABEL_1"}
    pipe = transformers.pipeline("sentiment-analysis", model=model, tokenizer=encoder_tokenizer, device="cpu")
    assert 0.5 <= pipe("I love this")[0]["score"] < 0.7
    assert names(match(encoder_tokenizer, model, loading_info=info)) == ["head without weights"]
    assert names(match(encoder_tokenizer, model)) == ["head without weights"]


def test_missing_head_repaired_by_a_trained_checkpoint():
    """huggingface/transformers#2770, huggingface/transformers#5421: the cure is a checkpoint saved with the head."""
    folder = checkpoint("sentiment")
    model, info = transformers.AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and model.config.id2label == {0: "NEGATIVE", 1: "POSITIVE"}
    assert not match(transformers.AutoTokenizer.from_pretrained(folder), model).findings


def test_causal_class_on_an_encoder_raises_nothing(encoder_tokenizer, caplog):
    """Family of causal classes on encoders: six missing keys, a line that says corrupted, no exception."""
    logger = transformers.utils.logging.get_logger("transformers")
    logger.addHandler(caplog.handler)
    try:
        model, info = transformers.AutoModelForCausalLM.from_pretrained(checkpoint("encoder"), output_loading_info=True)
    finally:
        logger.removeHandler(caplog.handler)
    assert type(model).__name__ == "BertLMHeadModel" and model.config.is_decoder is False
    assert len(info["missing_keys"]) == 6 and all(key.startswith("cls.") for key in info["missing_keys"])
    assert info["unexpected_keys"] == {"pooler.dense.weight", "pooler.dense.bias"}
    assert "This checkpoint seem corrupted" in caplog.text and "add `is_decoder=True.`" in caplog.text
    found = match(encoder_tokenizer, model, loading_info=info)
    assert not found and {"encoder used as a decoder", "head without weights"} == set(names(found))


@pytest.mark.parametrize("value", ["0", "1"])
def test_offline_setting_is_read_once(monkeypatch, value):
    """huggingface/transformers#42197: changing HF_HUB_OFFLINE after the import of huggingface_hub does nothing."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    assert constants.HF_HUB_OFFLINE is before
    assert not hasattr(transformers.utils, "is_offline_mode")


def test_labutils_sets_offline_before_the_import():
    """huggingface/transformers#42197: the cure is to import labutils first, or to set it for the whole kernel."""
    from huggingface_hub import constants

    if environment.profile() != "bundled":
        pytest.skip("the hub profile is online")
    assert os.environ["HF_HUB_OFFLINE"] == "1" and constants.HF_HUB_OFFLINE is True


@pytest.mark.parametrize(("name", "words"), [
    ("nobody/no-such-model", "We couldn't connect to 'https://huggingface.co' to load the files"),
    ("no-such-model", "We couldn't connect to 'https://huggingface.co' to load the files"),
    ("./models/no/such/folder", "Repo id must be in the form 'repo_name' or 'namespace/repo_name'"),
    ("/models/no/such/folder", "Repo id must be in the form 'repo_name' or 'namespace/repo_name'"),
])
def test_offline_errors_do_not_say_that_the_name_is_wrong(name, words):
    """huggingface/transformers#42197: a missing model reads as no connection, a wrong path as a wrong repository."""
    from huggingface_hub import constants

    if not constants.HF_HUB_OFFLINE:
        pytest.skip("the hub profile is online; this test sends no request")
    with pytest.raises(OSError, match=words):
        transformers.AutoModel.from_pretrained(name)


def test_code_in_a_checkpoint_is_not_run(tmp_path):
    """docling-project/docling#4224, tenstorrent/tt-forge-models#768: refused outright where the answer is given.

    Without the argument the library asks on standard input. That remote code changes under a moving revision is not
    run: it needs the Hub, and the project trusts no remote code anywhere.
    """
    (tmp_path / "code.py").write_text("raise SystemExit('code of the checkpoint was run')\n")
    auto_map = {"AutoConfig": "code.OurConfig", "AutoModel": "code.OurModel"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "our-model", "auto_map": auto_map}))
    with pytest.raises(ValueError, match="contains custom code which must be executed to correctly load the model"):
        transformers.AutoConfig.from_pretrained(tmp_path, trust_remote_code=False)
    # A known model_type needs no code, auto_map or not.
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "auto_map": auto_map}))
    config = transformers.AutoConfig.from_pretrained(tmp_path, trust_remote_code=False)
    assert type(config) is transformers.LlamaConfig


def test_local_folder_has_no_commit(encoder_tokenizer):
    """docling-project/docling#4224, tenstorrent/tt-forge-models#768: nothing to pin, a receipt must hash the files."""
    if environment.profile() != "bundled":
        pytest.skip("a snapshot of the Hub is named by its commit")
    config = transformers.AutoConfig.from_pretrained(checkpoint("encoder"))
    assert getattr(config, "_commit_hash", None) is None
