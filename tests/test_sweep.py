"""The parent process: which variants run, what is passed on, and what a failure looks like."""

from pathlib import Path

import pytest

from benchmarker.errors import SpecError
from benchmarker.spec import read_experiment
from benchmarker.sweep import chosen, split_arguments

CONFIG = Path("configs/qwen3-4b.yaml")


def test_names_come_first_and_options_are_passed_on() -> None:
    assert split_arguments(["fp16", "int8", "--runs", "3"]) == (["fp16", "int8"], ["--runs", "3"])
    assert split_arguments(["--no-profile"]) == ([], ["--no-profile"])


def test_variants_run_in_the_order_of_the_config_and_all_of_them_by_default() -> None:
    experiment = read_experiment(CONFIG)
    assert chosen(experiment, ["int8", "fp16"], CONFIG) == ["fp16", "int8"]
    assert chosen(experiment, [], CONFIG) == [variant.name for variant in experiment.variants]


def test_a_name_that_the_config_lacks_is_refused_with_the_near_miss() -> None:
    with pytest.raises(SpecError, match=r"no variant 'int-8'; did you mean 'int8'\?"):
        chosen(read_experiment(CONFIG), ["int-8"], CONFIG)
