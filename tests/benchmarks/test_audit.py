"""The benchmark's attacks and kills, a few of each: what it measures must hold, and an attack must be one."""

import random
from pathlib import Path

from benchmarks import audit, audit_attacks


def test_random_attacks_are_caught_with_an_anchor(tmp_path: Path) -> None:
    missed, kinds = audit_attacks.run(tmp_path, 60, random.Random(11))
    assert missed == 0
    assert sum(kinds.values()) == 60
    assert len(kinds) > 8


def test_kill_9_of_four_writers_over_shared_tenants_loses_nothing_acknowledged(tmp_path: Path) -> None:
    lost, acknowledged = audit.killed(tmp_path, 2, random.Random(11))
    assert lost == 0
    assert acknowledged >= 800
