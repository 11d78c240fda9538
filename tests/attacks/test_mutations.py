"""The list of mutations fits the code, so that each of them can be made."""

import re

import pytest

from tests.attacks.mutations import MUTATIONS, ROOT, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.sentence)
def test_the_code_of_a_defence_is_in_its_file_once_and_its_tests_exist(mutation: Mutation) -> None:
    text = (ROOT / mutation.file).read_text(encoding="utf-8")
    advice = "Adapt the row of tests/attacks/mutations.py to the code, and run it."
    assert text.count(mutation.code) == 1, advice
    for words in mutation.tests.removeprefix("-m slow ").split():
        file, _, name = words.partition("::")
        tests = (ROOT / file).read_text(encoding="utf-8")
        assert not name or re.search(rf"^def {name}\(", tests, re.MULTILINE), advice


def test_a_sentence_has_one_row() -> None:
    sentences = [mutation.sentence for mutation in MUTATIONS]
    assert len(sentences) == len({*sentences})
