"""`labutils generate`: answers to a file of prompts, and how to go on after a kill."""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

from labutils.jobs.errors import InputError, JobError

DESCRIPTION = """\
Answer every line of a JSON Lines file, in order. A line holds {"prompt": "..."} or {"messages": [...]} and may hold
"id", which its answer repeats, and "max_tokens". Killed, interrupted or out of disk, the same command goes on where it
stopped and ends with the same file. Lines that cannot be answered go to OUTPUT.rejects.jsonl with their number and the
reason; the journal is in the folder OUTPUT.jsonl.job beside the output."""

EXAMPLES = """\
examples:
  labutils generate prompts.jsonl -o answers.jsonl
  labutils generate prompts.jsonl -o answers.jsonl --model my/folder --dtype bfloat16 --max-tokens 256 --stop "Question:"
  labutils generate prompts.jsonl -o answers.jsonl --workers 2
  labutils generate prompts.jsonl -o answers.jsonl --workers 8 --ray auto --engine vllm

exit codes: 0 every line answered, 3 done but some lines rejected, 1 stopped (run it again to go on), 2 refused, 130 Ctrl-C"""

EVERY = 5.0     # seconds between two lines of progress


def add(commands: argparse._SubParsersAction) -> None:
    """Add `generate` to the subcommands of `labutils`."""
    command = commands.add_parser("generate", help="answer a file of prompts; goes on where it was stopped",
                                  description=DESCRIPTION, epilog=EXAMPLES,
                                  formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("prompts", help="a JSON Lines file (not standard input: going on needs to read it again)")
    command.add_argument("-o", "--output", required=True, help="where the answers go, as JSON Lines")
    command.add_argument("--model", default="chat", help="a role, a folder, or with LAB_PROFILE=hub a Hub id (default: chat)")
    command.add_argument("--dtype", default="float32", help="float32 (default), bfloat16, float16")
    command.add_argument("--engine", default="transformers", choices=("transformers", "vllm"))
    command.add_argument("--max-tokens", type=int, default=128, help="new tokens where a line sets none (default: 128)")
    command.add_argument("--stop", action="append", default=[], help="a text that ends an answer; may be given again")
    command.add_argument("--temperature", type=float, help="draw; default is greedy")
    command.add_argument("--top-p", type=float, help="draw from the likeliest tokens that add up to this")
    command.add_argument("--seed", type=int, default=0, help="line n draws with seed + n (default: 0)")
    command.add_argument("--raw", action="store_true", help="continue prompts as they are, without the chat template")
    command.add_argument("--batch-size", type=int, help="prompts that are worked on at once (default: what fits)")
    command.add_argument("--chunk", type=int, default=128, help="lines between commits, what a kill costs (default: 128)")
    command.add_argument("--workers", type=int, default=1, help="processes, each with its own model (default: 1)")
    command.add_argument("--ray", metavar="ADDRESS", nargs="?", const="here",
                         help="have workers run on Ray: 'auto' or an address joins a cluster, nothing starts one here")
    command.add_argument("--quiet", action="store_true", help="no progress")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the job; see EXAMPLES for the exit codes."""
    from labutils import jobs

    if args.prompts == "-":
        print("labutils: error: standard input cannot be read again after a kill. Save the prompts to a file first.",
              file=sys.stderr)
        return 2
    try:
        kind = {"transformers": jobs.TransformersEngine, "vllm": jobs.VllmEngine}[args.engine]
        engine = kind(args.model, args.dtype, args.max_tokens, tuple(args.stop), args.temperature, args.top_p, args.seed,
                      args.raw, args.batch_size)
        found = jobs.run(args.prompts, args.output, engine, chunk=args.chunk, workers=args.workers, pool=_pool(args),
                         progress=None if args.quiet else _teller())
    except InputError as error:
        print(f"labutils: error: {error}", file=sys.stderr)
        return 2
    except JobError as error:
        print(f"labutils: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("labutils: interrupted; the same command goes on from the last commit", file=sys.stderr)
        return 130
    print(_told(found))
    return 3 if found.rejected else 0


def _pool(args: argparse.Namespace):
    if not args.ray:
        return None
    from labutils.jobs.on_ray import Ray

    return Ray(args.workers, None if args.ray == "here" else args.ray)


def _teller() -> Callable:
    """Return a progress function that says on stderr, every few seconds, how far the job is."""
    last = time.monotonic()

    def tell(summary) -> None:
        nonlocal last
        if time.monotonic() - last >= EVERY:
            last = time.monotonic()
            print(f"{summary.lines:,} lines, {summary.new_tokens / summary.seconds:,.0f} tokens/s", file=sys.stderr, flush=True)

    return tell


def _told(found) -> str:
    parts = [f"{Path(found.output)}: {found.answers:,} answers to {found.lines:,} lines"]
    if found.before:
        parts.append("there was nothing left to do" if found.before == found.lines else
                     f"the first {found.before:,} lines were done before")
    if found.new_tokens:
        parts.append(f"{found.new_tokens:,} new tokens in {found.seconds:,.1f} s")
    if found.rejected:
        parts.append(f"{found.rejected:,} rejected, see {found.rejects}")
    return "; ".join(parts)
