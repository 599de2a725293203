"""Score what tools for memory sizes say about one set of configs against the tensors of transformers.

    python benchmarks/arithmetic_peers.py                  # makes a venv for the peers, then about five minutes
    python benchmarks/arithmetic_peers.py --venv FOLDER    # takes or makes that venv
    python benchmarks/arithmetic_peers.py --no-peers       # labutils and the formula only

The configs are the default configs of data/arithmetic/truth.csv (batch 1, up to 4,096 tokens, bfloat16); the truth is what
tools/verify_arithmetic.py measured there: every tensor of the cache, every parameter. The peers run in a venv of their
own that sees the packages of this one. Each is called as its own command line calls it, with the look-up on the Hub
replaced by the config: they aim at checkpoints and engines, so read "over" for a hybrid model with that in mind, and
our own rules were made while looking at this truth, theirs were not. The result is kept in
benchmarks/results/arithmetic_peers.md.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "arithmetic_peers.md"
# Name in the table -> package and version, as pip takes it.
PINNED = {"hf-mem": "hf-mem==0.5.6", "ridgepoint": "ridgepoint==0.1.2", "accelerate": "accelerate==1.15.0"}
FORMULA = "the formula everyone quotes"
SECONDS = 40  # of processor time for one answer


def cases() -> list[dict]:
    """Return the configs to score: type, config.json values, tokens, and the bytes that the real model holds."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
    import verify_arithmetic as real

    from labutils.arithmetic import truth

    found = []
    for row in truth.table():
        if row.config.startswith("default") and row.real_bytes is not None:
            with contextlib.suppress(Exception):  # a class that refuses its own defaults has no row here
                config = real.prepare(row.type, real.default_values(row.type))
                values = json.loads(config.to_json_string(use_diff=False))
                values["is_encoder_decoder"] = "cross attention" in row.kinds  # whisper was measured as a decoder
                found.append(
                    {
                        "type": row.type,
                        "config": {**values, "model_type": values.get("model_type") or row.type},
                        "tokens": row.tokens,
                        "encoder": real.ENCODER if values.get("is_encoder_decoder") else None,
                        "cache": row.real_bytes,
                        "weights": row.weight_bytes_bf16,
                    }
                )
    return found


# --- who answers, each as (case) -> bytes
# -----------------------------------------------------------------------------------------------


def ours() -> dict[str, dict[str, Callable[[dict], int]]]:
    """Return labutils and the formula, by quantity."""
    sys.path.insert(0, str(ROOT))
    from labutils import arithmetic
    from labutils.arithmetic.config import resolve

    def config(case: dict):
        return resolve(case["config"]["model_type"], case["config"], strict=False)

    def cache(case: dict) -> int:
        return arithmetic.kv_cache(config(case), 1, case["tokens"], 1, "bfloat16", case["encoder"]).bytes

    def weights(case: dict) -> int:
        found = arithmetic.parameters(config(case))
        if found.not_counted:
            raise ValueError(f"without {found.not_counted}")
        return found.bytes("bfloat16")

    def formula(case: dict) -> int:
        return arithmetic.naive_kv_bytes(config(case), 1, case["tokens"], "bfloat16")

    return {"cache": {"labutils": cache, FORMULA: formula}, "weights": {"labutils": weights}}


def text_of(config: dict) -> dict:
    """Return the dict of the text model, as the peers look for it."""
    return config.get("text_config") or config


def peers() -> tuple[dict[str, dict[str, Callable[[dict], int]]], dict[str, str]]:
    """Return the peers that can be imported, by quantity, and why the others are left out."""
    found: dict[str, dict] = {"cache": {}, "weights": {}}
    missing = {}
    for name, make in (("hf-mem", _hf_mem), ("ridgepoint", _ridgepoint), ("accelerate", _accelerate)):
        try:
            for quantity, answer in make().items():
                found[quantity][name] = answer
        except ImportError as error:
            missing[name] = str(error)
    return found, missing


def _hf_mem() -> dict:
    from hf_mem.safetensors.kv_cache import compute_safetensors_kv_cache_size

    # Its weights come from the files of a checkpoint, which a config has not.
    return {"cache": lambda case: compute_safetensors_kv_cache_size(text_of(case["config"]), "BF16", case["tokens"], 1)}


def _ridgepoint() -> dict:
    from ridgepoint import _core, hf

    def shape(case: dict) -> dict:
        def download(repo: str, filename: str, revision: str) -> dict:
            if filename != "config.json":
                raise FileNotFoundError(filename)  # no checkpoint: it falls back to its estimate
            return case["config"]

        def no_file(*_) -> int:
            raise FileNotFoundError("model.safetensors")

        hf._download_json, hf._safetensors_numel = download, no_file
        return hf.fetch_shape("nobody/nothing")

    def cache(case: dict) -> int:
        s = shape(case)
        sizes = [s["id"], s["layers"], s.get("kv_layers", s["layers"]), s["d_model"], s["n_params"], s["active_params"]]
        sizes += [s["geom"], *(s.get(name, 0) for name in ("head_dim", "n_heads", "n_kv_heads", "d_c", "d_rope"))]
        run = ("a100-80gb", 1, "vllm", "fp16", "fp16", case["tokens"], min(2048, case["tokens"]), True)
        return json.loads(_core.fit_shape(*sizes, *run))["capacity"]["bytes_per_seq"]

    return {"cache": cache, "weights": lambda case: 2 * shape(case)["n_params"]}


def _accelerate() -> dict:
    from accelerate.commands import estimate
    from accelerate.utils import calculate_maximum_sizes
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    def weights(case: dict) -> int:
        values = {name: value for name, value in case["config"].items() if name != "transformers_version"}

        class Local:
            @staticmethod
            def from_pretrained(*_, **__):
                return CONFIG_MAPPING[values["model_type"]].from_dict(values)

        class OnHub:
            library_name, config = "transformers", values

        estimate.AutoConfig, estimate.verify_on_hub = Local, lambda *_: OnHub
        with contextlib.redirect_stdout(sys.stderr):
            model = estimate.create_empty_model(case["type"], "transformers")
        return calculate_maximum_sizes(model)[0] // 2  # its float16 column

    return {"weights": weights}


def plan_times(wanted: list[dict]) -> tuple[float, float]:
    """Return the median and the longest milliseconds of one whole plan with a memory: largest batch, longest context."""
    from labutils import arithmetic
    from labutils.arithmetic.config import resolve

    times = []
    for case in wanted:
        config = resolve(case["config"]["model_type"], case["config"], strict=False)
        started = time.perf_counter()
        with contextlib.suppress(arithmetic.ConfigError):
            arithmetic.plan(config, "80GB", "bfloat16", context=case["tokens"], encoder=case["encoder"])
            times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times), max(times)


# --- scoring
# -----------------------------------------------------------------------------------------------------------


def score(answer: Callable[[dict], int], quantity: str, wanted: list[dict]) -> dict:
    """Ask for every case and count: exact, within 1 %, over, under, errors; with the median ratio and time."""
    sys.path.insert(0, str(ROOT / "tools"))
    from verify_arithmetic import limit

    counts = {"asked": len(wanted), "exact": 0, "within_1": 0, "over": 0, "under": 0, "error": 0}
    ratios, times, worst = [], [], []
    for case in wanted:
        started = time.perf_counter()
        try:
            with limit(SECONDS):
                said = answer(case)
        except Exception:
            counts["error"] += 1
            continue
        times.append(time.perf_counter() - started)
        real = case[quantity]
        ratio = said / real
        ratios.append(ratio)
        worst.append((ratio, case["type"]))
        kind = "exact" if said == real else "within_1" if abs(ratio - 1) < 0.01 else "over" if said > real else "under"
        counts[kind] += 1
    worst.sort()
    return counts | {
        "median": statistics.median(ratios) if ratios else None,
        "milliseconds": 1000 * statistics.median(times) if times else None,
        "lowest": worst[0] if worst else None,
        "highest": worst[-1] if worst else None,
    }


def scores(answers: dict[str, dict], wanted: list[dict]) -> dict:
    return {
        quantity: {
            name: score(answer, quantity, [case for case in wanted if case[quantity]]) for name, answer in group.items()
        }
        for quantity, group in answers.items()
    }


def in_venv(folder: Path, wanted: list[dict]) -> tuple[dict, dict[str, str]]:
    """Make the venv when it is not there, install the pinned peers, and score them in it."""
    python = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    missing = {}
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    # A venv made from a venv does not see its packages; a .pth file lets it, behind its own.
    home = next(folder.glob("lib/python*/site-packages"), folder / "Lib" / "site-packages")
    here = [path for path in sys.path if path.endswith("site-packages")]
    (home / "of_the_course.pth").write_text("\n".join(here) + "\n", encoding="utf-8")
    for name, package in PINNED.items():
        extra = [] if name == "hf-mem" else ["--no-deps"]
        done = subprocess.run(
            [str(python), "-m", "pip", "install", "-q", *extra, package], capture_output=True, text=True
        )
        if done.returncode:
            missing[name] = (done.stderr.strip().splitlines() or ["pip failed"])[-1][:160]
    with tempfile.TemporaryDirectory() as scratch:
        question, answer = Path(scratch) / "cases.json", Path(scratch) / "scores.json"
        question.write_text(json.dumps(wanted), encoding="utf-8")
        subprocess.run([str(python), __file__, "--child", str(question), str(answer)], check=True)
        found = json.loads(answer.read_text(encoding="utf-8"))
    return found["scores"], missing | {name: why for name, why in found["missing"].items() if name not in missing}


def child(question: Path, answer: Path) -> None:
    """Score the peers, in their venv."""
    found, missing = peers()
    wanted = json.loads(question.read_text(encoding="utf-8"))
    answer.write_text(json.dumps({"scores": scores(found, wanted), "missing": missing}), encoding="utf-8")


def report(found: dict, missing: dict[str, str], number: int, plans: tuple[float, float]) -> str:
    """Return the result as Markdown."""
    import transformers

    versions = ", ".join(PINNED.values())
    lines = [
        "# Sizes from a config, against the tensors of transformers",
        "",
        f"Made by `benchmarks/arithmetic_peers.py` from {number} default configs (batch 1, bfloat16; transformers "
        f"{transformers.__version__}; {versions}).",
        "A ratio is what was said over what is. Times are of one answer, median.",
        "",
        "The peers aim at checkpoints and engines: hf-mem reserves whole pages for hybrid models on purpose and reads weights "
        "from files (left out here); ridgepoint reads parameters from files too and shows its fallback. Our rules were "
        "made while looking at this truth.",
    ]
    for quantity, group in found.items():
        lines += [
            "",
            f"## {quantity.capitalize()}",
            "",
            "| who | exact | within 1 % | over | under | error | median ratio | lowest | highest | ms |",
            "|---|---|---|---|---|---|---|---|---|---|",
        ]
        for name, row in group.items():
            ends = [f"{row[end][0]:.3g} ({row[end][1]})" if row[end] else "" for end in ("lowest", "highest")]
            middle = f"{row['median']:.3f}" if row["median"] is not None else ""
            spent = f"{row['milliseconds']:.1f}" if row["milliseconds"] is not None else ""
            lines.append(
                f"| {name} | {row['exact']} of {row['asked']} | {row['within_1']} | {row['over']} | {row['under']} | "
                f"{row['error']} | {middle} | {ends[0]} | {ends[1]} | {spent} |"
            )
    lines += ["", f"One whole plan of labutils, largest batch and longest context searched: {plans[0]:.1f} ms, at most "]
    lines[-1] += f"{plans[1]:.1f} ms."
    lines += ["", *(f"Left out: {name}: {why}" for name, why in missing.items())]
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--venv", type=Path, default=Path(tempfile.gettempdir()) / "arithmetic_peers_venv")
    parser.add_argument("--weights-every", type=int, default=1, help="ask for the weights of every n-th config only")
    parser.add_argument("--no-peers", action="store_true", help="score labutils and the formula only")
    parser.add_argument("--child", nargs=2, type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(*args.child)
        return 0
    wanted = cases()
    for number, case in enumerate(wanted):
        if number % args.weights_every:
            case["weights"] = None  # accelerate builds each model, which takes most of the time
    found, missing = scores(ours(), wanted), dict.fromkeys(PINNED, "not asked for")
    if not args.no_peers:
        theirs, missing = in_venv(args.venv, wanted)
        found = {quantity: group | theirs[quantity] for quantity, group in found.items()}
    text = report(found, missing, len(wanted), plan_times(wanted))
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
