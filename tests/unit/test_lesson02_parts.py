"""What lesson 02 stands on: the broken folders, the stand-in's one-shot download, the file table, the parameter explorer."""

import json
import shutil
import subprocess

import pytest

from labutils import faults, hub_standin, views

transformers = pytest.importorskip("transformers")


@pytest.fixture
def healthy(tmp_path):
    """A tiny BERT with a classifier, saved without a tokenizer."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
                        max_position_embeddings=16)
    BertForSequenceClassification(config).save_pretrained(tmp_path / "healthy")
    return tmp_path / "healthy"


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_each_patient_has_its_fault_and_the_healthy_folder_none(healthy, tmp_path):
    before = content(healthy)
    other = tmp_path / "other"
    other.mkdir()
    (other / "tokenizer.json").write_text("{}")
    for _ in range(2):      # a second time in the same place, as a cell that is run again
        patients = faults.seed(healthy, other, tmp_path / "patients")
    assert content(healthy) == before
    assert [patient.name for patient in patients] == list("ABCDEF")
    a, b, *others = patients
    assert (a.folder / "tokenizer.json").read_text() == "{}"
    assert (b.folder / "model.safetensors").stat().st_size == len(before["model.safetensors"]) // 2
    changed = [{key: value for key, value in json.loads((each.folder / "config.json").read_text()).items()
                if json.loads(before["config.json"]).get(key) != value} for each in others]
    assert changed[:2] == [{"model_type": "roberta"}, {"model_type": "bert-next"}]
    assert changed[3] == {"max_position_embeddings": 32}


def test_the_renamed_head_is_whole_but_for_its_names(healthy, tmp_path):
    import torch
    from safetensors.torch import load_file

    damaged = faults.renamed_head(healthy, tmp_path)
    before, after = load_file(healthy / "model.safetensors"), load_file(damaged / "model.safetensors")
    assert set(before) ^ set(after) == {"classifier.weight", "classifier.bias", "score.weight", "score.bias"}
    assert all(torch.equal(tensor, after[name.replace("classifier", "score")]) for name, tensor in before.items())


def test_the_strangers_code_is_not_run(tmp_path):
    with pytest.raises(ValueError, match="contains custom code"):
        transformers.AutoConfig.from_pretrained(faults.stranger(tmp_path), trust_remote_code=False)


def test_the_type_is_the_configs_and_without_one_that_of_the_weights(healthy):
    import torch

    folder = healthy.parent / "half"
    load = transformers.AutoModel.from_pretrained
    load(healthy, dtype=torch.bfloat16).save_pretrained(folder)
    assert load(folder).dtype == torch.bfloat16 and load(folder, dtype=torch.float32).dtype == torch.float32
    config = json.loads((folder / "config.json").read_text())
    assert config.pop("dtype") == "bfloat16"
    (folder / "config.json").write_text(json.dumps(config))
    assert load(folder).dtype == torch.bfloat16


def test_a_commit_in_the_cache_needs_no_server(tmp_path):
    pytest.importorskip("huggingface_hub")
    repository, cache = tmp_path / "repository", tmp_path / "cache"
    repository.mkdir()
    (repository / "config.json").write_text("{}")
    first, asked = hub_standin.serve_and_download(repository, "main", cache)
    assert asked and len(first) == 40
    assert hub_standin.serve_and_download(repository, first, cache) == (first, False)
    table = views.files(cache / "models--org--tiny", parts=("refs", "blobs", "snapshots"))
    assert table.rows[-1][0].text == f"snapshots/{first[:7]}/config.json"
    assert [row[2].text for row in table.rows if row[0].text == "refs/main"] == [first[:7]]
    shutil.rmtree(cache)
    with pytest.raises(subprocess.CalledProcessError) as error:
        hub_standin.serve_and_download(repository, "f" * 40, cache)
    assert "Revision Not Found" in error.value.stderr


def test_the_explorer_counts_as_the_library_and_refuses_what_does_not_divide():
    pytest.importorskip("ipywidgets")
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, MixtralConfig

    from labutils import widgets

    config = LlamaConfig(vocab_size=2048, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, tie_word_embeddings=True)
    explorer = widgets.parameter_map(config)
    with torch.device("meta"):
        wanted = AutoModelForCausalLM.from_config(config).num_parameters()
        expert = AutoModelForCausalLM.from_config(MixtralConfig(**{
            name: getattr(config, name) for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                                                     "num_attention_heads", "num_key_value_heads")},
            num_local_experts=4, tie_word_embeddings=True)).num_parameters()
    assert explorer.view.caption.startswith(f"{wanted:,} parameters")
    assert sum(int(row[3].text.replace(",", "")) for row in explorer.view.rows) == wanted
    explorer.controls["experts"].value = 4
    assert explorer.view.caption.startswith(f"{expert:,} parameters")
    explorer.controls["groups"].value = 3
    assert "Take a number that divides 4" in explorer.screen.value
