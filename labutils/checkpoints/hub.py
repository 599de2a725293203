"""The hub profile: a pinned commit of a Hub repository in the Hub client's own cache, from disk when it is there."""

import re
from pathlib import Path

from labutils.checkpoints import store
from labutils.checkpoints.progress import say
from labutils.checkpoints.recipes import Hub, Recipe
from labutils.errors import CheckpointError

# Without these no checkpoint of the course loads; the other files are taken where a repository has them.
NEEDED = ("config.json", "model.safetensors", "tokenizer_config.json")
NEEDED_BY_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json")


def _client():
    """Return huggingface_hub, which reads HF_ENDPOINT, HF_HOME and HF_HUB_OFFLINE when it is first imported."""
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
    except ImportError as error:
        raise CheckpointError("LAB_PROFILE is 'hub', but huggingface_hub is not installed. "
                              "Run `pip install huggingface_hub`, or unset LAB_PROFILE.") from error
    return huggingface_hub


def _twin(recipe: Recipe) -> Hub:
    if recipe.hub:
        return recipe.hub
    carrier = f" from {recipe.bundled[0].pin}" if recipe.bundled else ""
    raise CheckpointError(f"The checkpoint {recipe.role!r} ({recipe.title}) has no pinned repository on the Hub, so "
                          f"LAB_PROFILE=hub cannot give it. Unset LAB_PROFILE to take it{carrier}.")


def snapshot_folder(recipe: Recipe) -> Path:
    """Return where the Hub client keeps the pinned commit, whether it is there or not."""
    hub = _twin(recipe)
    name = "models--" + hub.repo.replace("/", "--")
    return Path(_client().constants.HF_HUB_CACHE) / name / "snapshots" / hub.commit


def local_snapshot(recipe: Recipe) -> Path | None:
    """Return the folder of the pinned commit when it is complete on disk, else None. No network."""
    try:
        folder = Path(_download(recipe, local_files_only=True))
    except _client().errors.LocalEntryNotFoundError:  # also what an incomplete snapshot raises
        return None
    return None if _missing(recipe, folder) else folder


def snapshot(recipe: Recipe) -> Path:
    """Return the folder of the pinned commit; download what is missing. Raises CheckpointError with the cause."""
    folder = local_snapshot(recipe)
    if folder:
        return folder
    hub, client = recipe.hub, _client()
    say(f"Preparing {recipe.role} ({recipe.title} from the Hub: {hub.repo} at {hub.commit[:7]}): "
        f"downloading up to {hub.download_mb:,.0f} MB once.")
    place = Path(client.constants.HF_HUB_CACHE)
    store.check_space(hub.download_mb, place, f"Downloading the checkpoint {recipe.role!r}", variable="HF_HOME")
    if client.constants.HF_HUB_OFFLINE:
        raise CheckpointError(f"{hub.repo} is not complete in {place} and HF_HUB_OFFLINE is set, so nothing may be "
                              "downloaded. Unset HF_HUB_OFFLINE and start again, or unset LAB_PROFILE.")
    try:
        # One plain question first: without a network it fails at once; the download would try for half a minute.
        client.HfApi().model_info(hub.repo, revision=hub.commit, timeout=20)
        folder = Path(_download(recipe))
    except Exception as error:  # the client's HTTP library differs between its versions; every cause is passed on
        raise CheckpointError(_sentence(recipe, error)) from error
    missing = _missing(recipe, folder)
    if missing:
        raise CheckpointError(f"{hub.repo} at commit {hub.commit} has no {', '.join(missing)}.")
    say(f"  ready: {folder}")
    return folder


def _download(recipe: Recipe, **options) -> str:
    hub = _twin(recipe)
    return _client().snapshot_download(hub.repo, revision=hub.commit, allow_patterns=list(hub.files), **options)


def _missing(recipe: Recipe, folder: Path) -> list[str]:
    needed = NEEDED if recipe.has_weights else NEEDED_BY_TOKENIZERS
    return [name for name in needed if not (folder / name).is_file()]


def _sentence(recipe: Recipe, error: Exception) -> str:
    errors, hub = _client().errors, recipe.hub
    endpoint = _client().constants.ENDPOINT
    if isinstance(error, errors.RevisionNotFoundError):
        return (f"{endpoint} has {hub.repo}, but not its commit {hub.commit}. The commit stands in {recipe.source}; "
                "a newer labutils may pin another.")
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{endpoint} has no repository {hub.repo}, or it needs a login (`hf auth login`)."
    first = str(error).strip().splitlines() or [""]
    cause = error.__cause__ or error.__context__
    detail = f"{type(cause).__name__}: {cause}" if cause and not first[0] else f"{type(error).__name__}: {first[0]}"
    return (f"{hub.repo} could not be downloaded from {endpoint} ({detail[:300]}). What came in is kept: run it again "
            "when the network is back, or unset LAB_PROFILE to use the bundled checkpoints.")


def problems(recipe: Recipe, folder: Path) -> list[str]:
    """Return what is wrong with a snapshot. Large files are compared with their sha256, which is their blob's name."""
    found = [f"{name} is missing" for name in _missing(recipe, folder)]
    for name in recipe.hub.files:
        blob = (folder / name).resolve()
        if blob.is_file() and re.fullmatch("[0-9a-f]{64}", blob.name) and store.sha256_of(blob) != blob.name:
            found.append(f"{name} has other content than its name says")
    return found
