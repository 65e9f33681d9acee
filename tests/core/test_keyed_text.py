"""Texts that follow from a key alone, which prompts of a load without end are made of."""

from collections import Counter

from scipy import stats

from benchgate.plan.vocabulary import VOCABULARIES, Vocabulary, keyed_text

WORDS = VOCABULARIES["words"]


def test_text_has_as_many_pieces_as_asked_for_and_follows_from_its_key() -> None:
    assert [len(keyed_text(WORDS, tokens, "0/7").split()) for tokens in (1, 3, 100, 5_000)] == [1, 3, 100, 5_000]
    assert keyed_text(WORDS, 100, "0/7") == keyed_text(WORDS, 100, "0/7")
    assert keyed_text(WORDS, 4, "0/7") == "result game game country"  # as it was, so that a seed goes on to mean it
    assert keyed_text(VOCABULARIES["letters"], 8, "0/7").isalpha()


def test_no_two_keys_begin_alike_so_that_no_prefix_cache_answers() -> None:
    begins = {keyed_text(WORDS, 16, f"{seed}/{index}") for seed in (0, 1) for index in range(5_000)}
    assert len(begins) == 10_000


def test_every_piece_is_as_likely_as_any_other() -> None:
    pieces = Vocabulary(tuple(f"p{number}" for number in range(100)), " ")
    seen = Counter(piece for index in range(500) for piece in keyed_text(pieces, 100, f"3/{index}").split())
    assert len(seen) == 100
    assert stats.chisquare(list(seen.values())).pvalue > 0.001
