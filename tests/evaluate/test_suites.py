"""Suites: content digests, and every mistake with its line."""

import json

import pytest

from agentops.errors import EvaluateError
from agentops.evaluate import load_suite
from agentops.types import OUT_OF_SCOPE

ROW = {"id": "a", "text": "where is it", "labels": ["track"], "user": "C-1"}


def write(tmp_path, name, *lines):
    file = tmp_path / name
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def test_the_digest_is_of_the_content_not_of_the_file(tmp_path):
    one = load_suite(write(tmp_path, "a.jsonl", json.dumps(ROW), json.dumps({**ROW, "id": "b"})))
    two = load_suite(
        write(
            tmp_path,
            "b.jsonl",
            "",
            json.dumps(dict(reversed(ROW.items())), indent=None),
            json.dumps({**ROW, "id": "b"}),
        )
    )
    three = load_suite(write(tmp_path, "c.jsonl", json.dumps(ROW), json.dumps({**ROW, "id": "b", "must_pass": True})))
    assert one.digest == two.digest != three.digest
    assert one.tasks[0].labels == ("track",)
    assert one.labels == ("track",)


def test_any_labelled_csv_is_a_suite(tmp_path):
    suite = load_suite(
        write(
            tmp_path,
            "s.csv",
            "text,category,must_pass",
            '"Hi, where?",track,yes',
            "what and where,track|stock,",
            f"hm,{OUT_OF_SCOPE},",
        )
    )
    assert [task.labels for task in suite.tasks] == [("track",), ("track", "stock"), (OUT_OF_SCOPE,)]
    assert suite.tasks[0].must_pass
    assert suite.tasks[0].text == "Hi, where?"


@pytest.mark.parametrize(
    ("name", "lines", "says"),
    [
        ("s.jsonl", [json.dumps(ROW), "{"], r"s\.jsonl:2: not JSON"),
        ("s.jsonl", ["[1]"], "a task is a JSON object"),
        ("s.jsonl", [json.dumps({**ROW, "lable": 1})], "'lable' is not a field of a task"),
        ("s.jsonl", [json.dumps({"id": "a"})], "'labels' is missing"),
        ("s.jsonl", [json.dumps({**ROW, "labels": "track"})], "labels must be a list of texts"),
        ("s.jsonl", [json.dumps({**ROW, "changes": ["x"]})], "changes must be a list of objects"),
        ("s.jsonl", [json.dumps({**ROW, "split": "test"})], "split = 'test' must be one of"),
        ("s.jsonl", [json.dumps({**ROW, "must_pass": "yes"})], "must_pass = 'yes' must be of type bool"),
        ("s.jsonl", [json.dumps({**ROW, "text": " "})], "text is empty"),
        ("s.jsonl", [json.dumps({**ROW, "labels": []})], "no label"),
        ("s.jsonl", [json.dumps({**ROW, "labels": ["track", OUT_OF_SCOPE]})], "cannot stand beside"),
        ("s.jsonl", [json.dumps(ROW), json.dumps(ROW)], r"s\.jsonl:2: id 'a' is already that of line 1"),
        ("s.jsonl", ["", ""], "has no task"),
        ("s.jsonl", ['"' + "x" * 300_000 + '"'], "at most"),
        ("s.jsonl", ["[" * 100_000], "not JSON"),
        ("s.csv", ["text,intent", "a,b"], "needs the columns text and label"),
        ("s.csv", ["text,label,colour", "a,b,c"], "column 'colour' is not known"),
        ("s.csv", ["text,label", "a"], r"s\.csv:2: the row does not have 2 columns"),
        ("s.csv", ["text,label", "a,b,c"], r"s\.csv:2: the row does not have 2 columns"),
        ("s.csv", ["text,label,must_pass", "a,b,maybe"], "must_pass = 'maybe'"),
        ("s.csv", [""], "needs the columns"),
        ("s.txt", ["a"], "is not a suite"),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path, name, lines, says):
    with pytest.raises(EvaluateError, match=says):
        load_suite(write(tmp_path, name, *lines))


def test_an_unknown_label_is_refused_with_the_nearest_one(tmp_path):
    file = write(tmp_path, "s.csv", "text,label", "a,track", "b,trak")
    with pytest.raises(EvaluateError, match=r"s\.csv:3: label 'trak' is not one of the router's: did you mean 'track'"):
        load_suite(file, labels={"track", "stock"})
    assert len(load_suite(file).tasks) == 2


def test_what_is_not_there_or_not_text_says_so(tmp_path):
    with pytest.raises(EvaluateError, match="cannot be read: No such file"):
        load_suite(tmp_path / "none.jsonl")
    (tmp_path / "b.csv").write_bytes(b"text,label\n\xff\xfe,x\n")
    with pytest.raises(EvaluateError, match="not UTF-8"):
        load_suite(tmp_path / "b.csv")


def test_the_reference_suites_load(repo):
    folder = repo / "pipelines" / "support" / "suites"
    for file in sorted(folder.glob("*.jsonl")):
        assert len(load_suite(file).tasks) >= 1000


@pytest.mark.data
def test_banking77_is_a_suite(data_dir):
    suite = load_suite(data_dir / "banking77" / "test.csv")
    assert len(suite.tasks) == 3080
    assert len(suite.labels) == 77
