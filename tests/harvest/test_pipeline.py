"""The whole harvest: order of filters, leaks, personal data, reproducibility, what is on disk."""

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentops.errors import HarvestError
from agentops.harvest import KINDS, Exclusion, harvest
from agentops.harvest.similar import jaccard, normal, shingles
from agentops.harvest.write import write_rows
from agentops.redact import Redactor
from agentops.types import Feedback, Outcome, Route, Trajectory

Make = Callable[..., Trajectory]
BAD, UNKNOWN = Outcome(0, "verdict:test"), Outcome(None)
WORDS = "order parcel refund broken late invoice address card shop jacket colour size voucher courier street Monday"
NONE = Exclusion({})


def sentence(rng: random.Random, low: int = 6, high: int = 14) -> str:
    return " ".join(rng.choices(WORDS.split(), k=rng.randint(low, high)))


def read(out: Path, name: str = "rows.jsonl") -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in (out / name).read_bytes().splitlines()]


def everyday(make: Make, seed: int, count: int) -> list[Trajectory]:
    """Mixed episodes: repeated and edited wordings, sessions, outcomes, routes, corrections."""
    rng = random.Random(seed)
    wordings = [sentence(rng) for _ in range(max(2, count // 3))]
    found = []
    for number in range(count):
        words = rng.choice(wordings).split()
        if rng.random() < 0.3:
            words[rng.randrange(len(words))] = rng.choice(WORDS.split())
        label = rng.choice(["status", "refund", "delay"])
        trace = f"{seed}-{number:05}"
        found.append(
            make(
                trace,
                " ".join(words) + f" SO-{rng.randrange(2)}",
                ("get_order", {"order_id": f"SO-{number}"}, {"state": rng.choice(WORDS.split())}),
                answer=sentence(rng, 3, 30),
                outcome=rng.choice([Outcome(1, "feedback"), BAD, UNKNOWN]),
                session=f"s{rng.randrange(count)}",
                routes=(Route(label, rng.random(), "encoder"),),
                feedback=(Feedback(trace, -1, float(number), corrected_labels=("status",)),) if number % 5 == 0 else (),
            )
        )
    return found


def test_every_filter_adds_up(tmp_path: Path, episode: Make, redactor: Redactor) -> None:
    for kind in KINDS:
        made = harvest(kind, everyday(episode, 1, 120), tmp_path / kind, exclude=NONE, redactor=redactor)
        funnel = made.manifest["funnel"]
        names = [stage["filter"] for stage in funnel]
        pairing = "pair" if kind == "dpo" else "merge"
        assert names == [
            *("decidable", "outcome", "denied", "inaction", "consent", "rows", pairing),
            *("personal data", "duplicates", "contamination", "split"),
        ]
        assert funnel[0]["in"] == 120
        for before, after in itertools.pairwise(funnel):
            assert after["in"] == before["out"]
            if "makes" not in before:
                assert before["in"] - before["out"] == sum(before["dropped"].values())
        rows = made.manifest["rows"]
        assert funnel[-1]["out"] == rows["train"] + rows["validation"]
        assert (made.rows, made.kind) == (rows["train"], kind)
        assert len(read(made.path)) == rows["train"]
        assert len(read(made.path, "validation.jsonl")) == rows["validation"]


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10**6), count=st.integers(20, 60), kind=st.sampled_from(["router", "sft", "grpo", "distill"])
)
def test_nothing_of_validation_is_in_training(
    tmp_path_factory: pytest.TempPathFactory, episode: Make, redactor: Redactor, seed: int, count: int, kind: str
) -> None:
    out = tmp_path_factory.mktemp("split") / "out"
    given_episodes = everyday(episode, seed, count)
    try:
        made = harvest(
            kind,
            given_episodes,
            out,
            exclude=NONE,
            redactor=redactor,
            options={"validation": 0.4, "min_confidence": 0.1},
        )
    except HarvestError:
        return  # nothing was left, which the error says
    texts = KINDS[kind].texts
    train = {normal(text, mask=True) for row in read(out) for text in texts(row)}
    validation = {normal(text, mask=True) for row in read(out, "validation.jsonl") for text in texts(row)}
    assert train.isdisjoint(validation)
    assert all(jaccard(shingles(one), shingles(other)) < 0.8 for one in train for other in validation)
    if KINDS[kind].by_session:
        session = {one.trace_id: one.session for one in given_episodes}
        sides = [{session[row["trace_id"]] for row in read(out, name)} for name in ("rows.jsonl", "validation.jsonl")]
        assert sides[0].isdisjoint(sides[1])
    assert made.manifest["rows"]["train"] > 0


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), kind=st.sampled_from(sorted(KINDS)))
def test_no_copy_of_a_protected_text_passes(
    tmp_path_factory: pytest.TempPathFactory, episode: Make, redactor: Redactor, seed: int, kind: str
) -> None:
    rng = random.Random(seed)
    protected = [sentence(rng, 12, 20) for _ in range(5)]
    planted = []
    for number, text in enumerate(protected):
        words = text.split()
        words[0] = words[0].upper()
        extra = rng.choice(["", " please", " SO-12345"])
        for side in (Outcome(1, "feedback"), Outcome(0, "feedback")):
            planted.append(
                episode(
                    f"planted-{number}-{side.success}",
                    " ".join(words) + extra,
                    answer=f"answer {side.success}",
                    outcome=side,
                    routes=(Route("status", 0.99, "encoder"),),
                )
            )
    out = tmp_path_factory.mktemp("leak") / "out"
    exclude = Exclusion({"frozen": protected[:3], "sealed": protected[3:]})
    clean = [replace(one, outcome=Outcome(1, "feedback")) for one in everyday(episode, seed, 30)]
    clean += [replace(one, outcome=BAD, trace_id=one.trace_id + "b", answer="no") for one in clean]
    given_options = {"min_confidence": 0.0}
    made = harvest(kind, [*clean, *planted], out, exclude=exclude, redactor=redactor, options=given_options)
    everything = (out / "rows.jsonl").read_text() + (out / "validation.jsonl").read_text()
    assert "planted" not in everything
    assert not any("planted" in trace for trace in made.manifest["sources"])
    stage = next(one for one in made.manifest["funnel"] if one["filter"] == "contamination")
    assert set(stage["dropped"]) == {"in the protected set 'frozen'", "in the protected set 'sealed'"}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_harvest_reproduces_byte_for_byte_in_any_order(
    tmp_path: Path, episode: Make, redactor: Redactor, kind: str
) -> None:
    given_episodes = everyday(episode, 3, 150)
    made = [harvest(kind, given_episodes, tmp_path / "one", exclude=NONE, redactor=redactor)]
    random.Random(1).shuffle(given_episodes)
    made.append(harvest(kind, iter(given_episodes), tmp_path / "two", exclude=NONE, redactor=redactor))
    for name in ("rows.jsonl", "validation.jsonl", "manifest.json", "card.md"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert made[0].digest == made[1].digest
    assert str(tmp_path) not in (tmp_path / "one" / "manifest.json").read_text()


def test_personal_data_that_got_past_the_first_redaction_is_replaced_and_reported(
    tmp_path: Path, episode: Make, redactor: Redactor
) -> None:
    leak = episode("a", "mail jo.doe@mail.example", ("get", {"email": "jo.doe@mail.example"}, "jo.doe@mail.example"))
    made = harvest("sft", [leak, episode("b", "all is well")], tmp_path / "out", exclude=NONE, redactor=redactor)
    assert "jo.doe" not in (tmp_path / "out" / "rows.jsonl").read_text()
    redaction = made.manifest["redaction"]
    assert (redaction["version"], redaction["rows_changed"]) == (redactor.version, 1)
    assert sum(redaction["findings"].values()) == 3
    assert "a defect" in (tmp_path / "out" / "card.md").read_text()
    clean = harvest("sft", [episode("b", "all is well")], tmp_path / "clean", exclude=NONE, redactor=redactor)
    assert clean.manifest["redaction"]["findings"] == {}


def test_consent_and_tenants_are_kept(tmp_path: Path, episode: Make, redactor: Redactor) -> None:
    given_episodes = [
        episode("a", "first thing"),
        episode("b", "second thing", tenant="umbrella"),
        episode("c", "third thing", user="withdrew"),
        episode("d", "fourth thing"),
        episode("e", "fifth thing", source="simulated"),
    ]
    choices = {
        "tenants": ["acme"],
        "exclude_users": ["withdrew"],
        "exclude_traces": ["d"],
        "sources": ["live"],
        "validation": 0.0,
    }
    made = harvest("sft", given_episodes, tmp_path / "out", exclude=NONE, redactor=redactor, options=choices)
    assert made.manifest["sources"] == ["a"]
    stage = next(one for one in made.manifest["funnel"] if one["filter"] == "consent")
    assert stage["dropped"] == {
        "episode withdrawn": 1,
        "source not selected": 1,
        "tenant not selected": 1,
        "user withdrew": 1,
    }
    assert "withdrew'" not in str(made.manifest["options"])


def test_copies_are_dropped_once(tmp_path: Path, episode: Make, redactor: Redactor) -> None:
    long = (
        "the courier left my parcel in the rain and now the jacket inside is wet and the colour has run all over "
        "the other things that were in the same box so I would like to have my money back as soon as you can"
    )
    given_episodes = [
        episode("a", long),
        episode("b", long.upper()),
        episode("c", long.replace("rain", "snow")),
        episode("d", "something else"),
    ]
    made = harvest("sft", given_episodes, tmp_path / "out", exclude=NONE, redactor=redactor, options={"validation": 0})
    assert len(read(tmp_path / "out")) == 2
    stage = next(one for one in made.manifest["funnel"] if one["filter"] == "duplicates")
    assert stage["dropped"] == {"near copy (Jaccard >= .8)": 1, "same text": 1}


def test_a_folder_appears_complete_or_not_at_all(tmp_path: Path, episode: Make, redactor: Redactor) -> None:
    def broken() -> Any:
        yield episode("a")
        raise RuntimeError("the lake went away")

    with pytest.raises(RuntimeError, match="lake went away"):
        harvest("sft", broken(), tmp_path / "out", exclude=NONE, redactor=redactor)
    with pytest.raises(HarvestError, match=r"no sft rows are left .* outcome: 1 failed"):
        harvest("sft", [episode("a", outcome=BAD)], tmp_path / "out", exclude=NONE, redactor=redactor)
    with pytest.raises(HarvestError, match="no episode came in"):
        harvest("sft", [], tmp_path / "out", exclude=NONE, redactor=redactor)
    assert list(tmp_path.iterdir()) == []


def test_another_data_set_is_never_overwritten(tmp_path: Path, episode: Make, redactor: Redactor) -> None:
    out = tmp_path / "deep" / "out"
    first = harvest("sft", [episode("a")], out, exclude=NONE, redactor=redactor)
    again = harvest("sft", [episode("a")], out, exclude=NONE, redactor=redactor)
    assert again == first
    with pytest.raises(HarvestError, match=r"already holds a different sft data set \(sha256:.*nothing was changed"):
        harvest("sft", [episode("b", "other")], out, exclude=NONE, redactor=redactor)
    assert read(out)[0]["trace_id"] == "a"
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("keep")
    with pytest.raises(HarvestError, match="files that are not this data set"):
        harvest("sft", [episode("a")], tmp_path / "notes", exclude=NONE, redactor=redactor)
    with pytest.raises(HarvestError, match="is a file"):
        harvest("sft", [episode("a")], tmp_path / "notes" / "mine.txt", exclude=NONE, redactor=redactor)
    (tmp_path / "empty").mkdir()
    assert harvest("sft", [episode("a")], tmp_path / "empty", exclude=NONE, redactor=redactor).rows == 1
    assert sorted(one.name for one in tmp_path.iterdir()) == ["deep", "empty", "notes"]


@pytest.mark.parametrize(
    ("kind", "choices", "message"),
    [
        ("stf", {}, r"kind 'stf' is not known; kinds: distill, dpo, grpo, router, sft"),
        ("sft", {"valdation": 0.1}, r"option 'valdation' is not known; options: effects, exclude_traces"),
        ("sft", {"validation": 0.9}, r"validation = 0.9 is not allowed: give a number from 0.0 to 0.5"),
        ("sft", {"validation": float("nan")}, "validation = nan is not allowed"),
        ("dpo", {"max_pairs": 0}, "max_pairs = 0 is not allowed"),
        ("dpo", {"max_pairs": 2.5}, r"max_pairs = 2.5 is not allowed"),
        ("router", {"labels": "status"}, "labels = 'status' is not allowed: give a list"),
        ("router", {"labels": 3}, "labels = 3 is not allowed: give a list"),
        ("sft", {"effects": {"get": "look"}}, "effects: 'get' = 'look' is not one of"),
        ("sft", {"effects": ["get"]}, "effects = .* is not allowed: give a table"),
        ("sft", {"include_inaction": "yes"}, "include_inaction = 'yes' is not allowed: give true or false"),
    ],
)
def test_wrong_choices_are_named(
    tmp_path: Path, episode: Make, redactor: Redactor, kind: str, choices: dict[str, Any], message: str
) -> None:
    with pytest.raises(HarvestError, match=message):
        harvest(kind, [episode("a")], tmp_path / "out", exclude=NONE, redactor=redactor, options=choices)


def test_rows_that_show_a_new_shape_come_first(tmp_path: Path) -> None:
    """`datasets` takes the columns' types from the first 10 MB."""
    plain = [{"prompt": [{"role": "user", "content": str(number)}], "tools": []} for number in range(5)]
    rare = {"prompt": [{"role": "user", "content": "x", "name": "y"}], "tools": [{"type": "function"}]}
    write_rows(tmp_path / "rows.jsonl", map(orjson.dumps, [*plain, rare]))
    assert read(tmp_path) == [plain[0], rare, *plain[1:]]
    assert [one.name for one in tmp_path.iterdir()] == ["rows.jsonl"]


def test_the_card_shows_the_funnel(tmp_path: Path, episode: Make, redactor: Redactor) -> None:
    given_episodes = [episode("a", "one thing"), episode("b", "other thing", outcome=BAD)]
    harvest("sft", given_episodes, tmp_path / "out", exclude=Exclusion({"frozen": ["x"]}), redactor=redactor)
    card = (tmp_path / "out" / "card.md").read_text()
    assert "| outcome (episodes) | 2 | 1 | 1 failed |" in card
    assert "| split (rows) | 1 | 1 |  |" in card
    assert "- frozen: 1 texts" in card


def test_thousands_of_episodes_take_seconds(tmp_path: Path, episode: Make, redactor: Redactor) -> None:
    import time

    given_episodes = everyday(episode, 7, 1_000)
    for kind in KINDS:
        began = time.process_time()
        harvest(kind, given_episodes, tmp_path / kind, exclude=NONE, redactor=redactor, options={"min_confidence": 0.0})
        assert time.process_time() - began < 10, kind  # a few tenths of a second here; quadratic work would show
