"""BANKING77 through the product's own commands: any labelled CSV is a router data set.

    python -m benchmarks.banking77 [--json FILE] [--quick]

Runs `agentops train --own-labels --data CSV` and `agentops evaluate CSV` on all training rows and on the first ten of
each label, with state of its own, and prints accuracy with its interval, fit seconds and latency. The data set (CC BY
4.0, PolyAI-LDN/task-specific-datasets) is not part of this repository: put train.csv and test.csv (text,category) into
$AGENTOPS_DATA/banking77.
"""

import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks import report

REPO = Path(__file__).resolve().parent.parent


def command(home: Path, *arguments: str) -> dict[str, Any]:
    """Run an agentops command with --json; its value. A gate that fails (exit 1) is a result, not an error."""
    environment = {**os.environ, "AGENTOPS_HOME": str(home)}
    line = [sys.executable, "-m", "agentops.cli", *arguments, "--json", "--project", str(REPO)]
    done = subprocess.run(line, capture_output=True, text=True, env=environment)
    if done.returncode not in (0, 1):
        raise SystemExit(done.stderr.strip())
    return json.loads(done.stdout)


def first(rows: list[tuple[str, str]], count: int) -> list[tuple[str, str]]:
    """The first `count` rows of each label, in file order."""
    seen: Counter[str] = Counter()
    kept = []
    for text, label in rows:
        seen[label] += 1
        if seen[label] <= count:
            kept.append((text, label))
    return kept


def read(path: Path) -> list[tuple[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return [(row["text"], row["category"]) for row in csv.DictReader(file)]


def write(path: Path, rows: list[tuple[str, str]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return path


def measure(folder: Path, name: str, train: list[tuple[str, str]], test: list[tuple[str, str]]) -> dict[str, Any]:
    """Fit on `train`, evaluate on `test`."""
    data = write(folder / f"{name}.csv", train)
    suite = write(folder / f"{name}-test.csv", test)
    home = folder / "home"
    started = time.perf_counter()
    made = command(home, "train", "--own-labels", "--data", str(data))
    fitted = time.perf_counter() - started
    found = command(home, "evaluate", str(suite), "--candidate", made["digest"], "--baseline", made["digest"])
    metrics = found["metrics"]
    row = {
        "rows": len(train),
        "labels": len({label for _, label in train}),
        "train_command_s": round(fitted, 1),
        "accuracy": metrics["accuracy"],
        "ece": metrics["ece"],
        "latency_p50_ms": 1000 * metrics["latency_p50_s"]["value"],
    }
    interval = row["accuracy"]
    print(
        f"{name:<8} {len(train):>6} rows  accuracy {100 * interval['value']:.1f} % "
        f"[{100 * interval['low']:.1f}, {100 * interval['high']:.1f}] on {interval['n']}, "
        f"ECE {row['ece']['value']:.3f}, p50 {row['latency_p50_ms']:.1f} ms, train command {fitted:.0f} s",
        flush=True,
    )
    return row


def run(options: Any) -> None:
    folder = Path(os.environ.get("AGENTOPS_DATA") or REPO.parent / "shared" / "data") / "banking77"
    if not (folder / "train.csv").is_file():
        raise SystemExit(f"no data at {folder}: {(__doc__ or '').split('The data set', 1)[1].strip()}")
    train, test = read(folder / "train.csv"), read(folder / "test.csv")
    if options.quick:
        train, test = first(train, 20), first(test, 5)
    with tempfile.TemporaryDirectory() as scratch:
        few = measure(Path(scratch), "10shot", first(train, 10), test)
        full = measure(Path(scratch), "full", train, test)
    values = {"banking_10shot": 100 * few["accuracy"]["value"], "banking_full": 100 * full["accuracy"]["value"]}
    report.publish("routers", values, {"few": few, "full": full}, options, part=True)


if __name__ == "__main__":
    run(report.arguments("BANKING77 through the product's own commands"))
