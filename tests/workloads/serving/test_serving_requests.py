"""Requests of a load: lengths, a shared prefix and datasets."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import pytest

from benchmarker.core.errors import ModelError, SpecError
from benchmarker.schema.registry import workload_of
from benchmarker.workloads.serving.serving_requests import LINE_FORMAT, Dataset, longest_request, make_requests
from benchmarker.workloads.serving.spec import ServingPoint
from tests.jobs import read_job

POINT = ServingPoint(16, 4, 0.0, 0, "", concurrency=2, rate=0.0)


def requests_of(point, count=50, *, seed=0, is_timed=True, prompts=()):
    return make_requests(point, count, vocabulary=1000, seed=seed, is_timed=is_timed, prompts=prompts)


def test_prompts_differ_within_a_load_and_are_reproducible():
    requests = requests_of(POINT)
    assert {(len(request.prompt), request.new_tokens) for request in requests} == {(16, 4)}
    assert len({tuple(request.prompt) for request in requests}) == 50
    assert max(max(request.prompt) for request in requests) < 1000
    assert requests == requests_of(POINT)
    assert requests != requests_of(POINT, seed=1)


def test_length_spread_draws_both_lengths_uniformly():
    point = POINT._replace(prompt_tokens=100, new_tokens=10, length_spread=0.3)
    requests = requests_of(point, 2000)
    prompts, new_tokens = ([len(request.prompt) for request in requests], [request.new_tokens for request in requests])
    assert (min(prompts), max(prompts)) == (70, 130)
    assert sorted(set(new_tokens)) == list(range(7, 14))
    assert sum(prompts) / 2000 == pytest.approx(100, abs=2)
    assert requests == requests_of(point, 2000)
    assert longest_request([POINT, point], []) == (130, 13)


def test_length_spread_leaves_at_least_two_new_tokens():
    requests = requests_of(POINT._replace(prompt_tokens=1, new_tokens=2, length_spread=0.9))
    assert {(len(request.prompt), request.new_tokens) for request in requests} == {(1, 2), (1, 3)}


def test_shared_prefix_precedes_all_prompts_of_all_cells():
    point = POINT._replace(shared_prefix=8)
    loads = [requests_of(point), requests_of(point, is_timed=False), requests_of(point._replace(concurrency=4))]
    prompts = [request.prompt for load in loads for request in load]
    assert {len(prompt) for prompt in prompts} == {24}
    assert len({tuple(prompt[:8]) for prompt in prompts}) == 1
    assert len({tuple(prompt[8:]) for prompt in prompts}) == 150


def write(tmp_path, *lines):
    path = tmp_path / "chat.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def turn(role, content):
    return {"role": role, "content": content}


TOKENIZER = SimpleNamespace(
    encode=lambda text, add_special_tokens: ([1] if add_special_tokens else []) + [ord(letter) for letter in text]
)


def test_dataset_has_prompts_and_conversations_without_the_last_answer(tmp_path):
    chat = [turn("user", "a"), turn("assistant", "b"), turn("user", "c"), turn("assistant", "d")]
    dataset = Dataset(write(tmp_path, {"prompt": "ab", "id": 7}, "", {"messages": chat}))
    assert dataset.prompts(TOKENIZER) == [[1, 97, 98], [1, *map(ord, "a\nb\nc")]]
    template = SimpleNamespace(
        encode=TOKENIZER.encode,
        chat_template="{}",
        apply_chat_template=lambda turns, **_: "".join(each["role"][0] + each["content"] for each in turns),
    )
    assert dataset.prompts(template) == [[*map(ord, "uab")], [*map(ord, "uaabuc")]]


def test_dataset_lines_end_only_at_a_newline(tmp_path):
    line = json.dumps({"prompt": "a\u2028b"}, ensure_ascii=False)
    assert len(Dataset(write(tmp_path, f"{line}\r", line)).conversations) == 2


def test_unmeasured_cell_has_the_label_of_the_dataset(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    path = write(tmp_path, {"prompt": "a"})
    job = read_job(["serving", "--quant", "fp16", "--model", "qwen3-small", "--dataset", f"~/{path.name}"])
    assert workload_of("serving").cell_fields(job, job.points()[0], [])["dataset"] == Dataset(path).label


def test_short_dataset_is_repeated_in_an_order_set_by_the_seed():
    prompts = [[number] for number in range(5)]
    requests = requests_of(POINT._replace(prompt_tokens=0, dataset="chat.jsonl"), 12, prompts=prompts)
    order = [request.prompt[0] for request in requests]
    assert sorted(order[:5]) == sorted(order[5:10]) == [0, 1, 2, 3, 4]
    assert order == [request.prompt[0] for request in requests_of(POINT._replace(dataset="x"), 12, prompts=prompts)]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "line 2 is no JSON"),
        ({"text": "a"}, "line 2 must be "),
        ({"prompt": 3}, "line 2 must be "),
        ({"prompt": "a", "messages": [turn("user", "a")]}, "line 2 must be "),
        ({"messages": [turn("assistant", "a")]}, "line 2 must be "),
        ([1], "line 2 must be "),
    ],
)
def test_invalid_line_is_refused_with_its_number(tmp_path, line, problem):
    with pytest.raises(SpecError, match=problem):
        Dataset(write(tmp_path, {"prompt": "a"}, line))


def test_dataset_requires_a_file_with_lines_and_a_tokenizer(tmp_path):
    remedy = re.escape(
        f"; give a file with lines {LINE_FORMAT}, or leave --dataset out for prompts of random token ids"
    )
    with pytest.raises(SpecError, match=f"--dataset .*nowhere.jsonl: cannot be read: No such file .*{remedy}$"):
        Dataset(tmp_path / "nowhere.jsonl")
    with pytest.raises(SpecError, match=f"is empty{remedy}$"):
        Dataset(write(tmp_path, ""))
    with pytest.raises(ModelError, match="--dataset: the checkpoint has no tokenizer; leave it out for"):
        Dataset(write(tmp_path, {"prompt": "a"})).prompts(None)
