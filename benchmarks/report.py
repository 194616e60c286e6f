"""Prints a benchmark's measures against the goals of measures.toml and writes them as JSON.

Invariant: every measure of the section is reported; one that was not measured is null with its reason. Goals are only
read here.
"""

import argparse
import datetime
import json
import os
import platform
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

MEASURES = Path(__file__).with_name("measures.toml")


def arguments(description: str, seed: int = 0) -> argparse.Namespace:
    """The command line every benchmark shares: --json FILE, --quick, --seed N."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, help="write the measures here")
    parser.add_argument(
        "--quick", action="store_true", help="a smaller run of the same code; its values are not compared"
    )
    parser.add_argument("--seed", type=int, default=seed)
    return parser.parse_args()


def publish(
    section: str,
    values: Mapping[str, float | None],
    details: Mapping[str, Any],
    options: argparse.Namespace,
    part: bool = False,
) -> bool:
    """Print the table, write the JSON file when one was asked for.

    Args:
        section: table of measures.toml.
        values: measure id -> value, None when it could not be measured (then `details[id]` says why).
        details: anything else worth keeping.
        options: as `arguments` returns.
        part: the benchmark measures only these values of the section; the others are another's.

    Returns:
        Whether every goal is met (always True for a quick run).

    Raises:
        KeyError: a value that is not a measure of the section.
    """
    goals = tomllib.loads(MEASURES.read_text(encoding="utf-8"))[section]
    unknown = sorted(set(values) - set(goals))
    if unknown:
        raise KeyError(f"{unknown[0]!r} is not a measure of [{section}] in measures.toml")
    print(f"\n{section}{' (quick: not compared)' if options.quick else ''}")
    print(f"{'measure':<28}{'value':>12}{'goal':>12}  met   what")
    met = True
    goals = {name: goal for name, goal in goals.items() if not part or name in values}
    for name, goal in goals.items():
        value = values.get(name)
        good = None if value is None else value <= goal["goal"] if goal["better"] == "low" else value >= goal["goal"]
        met = met and good is True
        mark = "" if options.quick else {True: "yes", False: "NO", None: "?"}[good]
        shown = "-" if value is None else f"{value:.4g}"
        print(f"{name:<28}{shown:>12}{goal['goal']:>12g}  {mark:<5} {goal['what']}")
    if options.json is not None:
        table = {
            "benchmark": section,
            "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}",
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "seed": options.seed,
            "quick": options.quick,
            "measures": {name: values.get(name) for name in goals},
            "details": details,
        }
        options.json.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
        print(f"written to {options.json}")
    return met or options.quick


def main(run: Callable[[argparse.Namespace], bool], description: str) -> None:
    """Run a benchmark as a command: exit 1 when a goal is missed."""
    raise SystemExit(0 if run(arguments(description)) else 1)
