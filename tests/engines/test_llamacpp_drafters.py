"""llama.cpp's drafters that remember: what each of their peculiarities does."""

from __future__ import annotations

from speclift.engines.llamacpp import drafters
from speclift.engines.llamacpp.drafters import DRAFT_TOKENS, NgramCache, NgramMap, NgramMod
from speclift.replayer.counts import Text

PHRASE = [11, 12, 13, 14, 15, 16, 17, 18]
FILLER = [101, 102, 103, 104, 105, 106, 107, 108, 109, 110]


def text_of(prompt: list[int], response: list[int]) -> Text:
    return Text(tokens=prompt + response, prompt_length=len(prompt))


class TestMapK:
    def drafter(self) -> NgramMap:
        return NgramMap(n=2, k=3, keys_only=True)

    def test_drafts_what_followed_the_key(self) -> None:
        drafter, prompt = self.drafter(), [1, *PHRASE, *FILLER]
        drafter.begin(text_of(prompt, PHRASE))

        assert drafter.draft(len(prompt) + 2) == PHRASE[2:5]

    def test_a_key_drafts_no_more_than_was_accepted_last_time(self) -> None:
        drafter, prompt = self.drafter(), [1, *PHRASE, *FILLER]
        drafter.begin(text_of(prompt, [*PHRASE[:2], 99, *PHRASE[:2], 99]))

        assert len(drafter.draft(len(prompt) + 2)) == 3
        drafter.accepted(1)
        assert drafter.draft(len(prompt) + 5) == PHRASE[2:3]
        drafter.accepted(0)
        assert drafter.draft(len(prompt) + 5) == []

    def test_the_end_of_the_prompt_is_never_looked_at(self) -> None:
        drafter, prompt = self.drafter(), [*FILLER, *FILLER, *PHRASE[:4]]
        drafter.begin(text_of(prompt, PHRASE))

        assert drafter.draft(len(prompt) + 2) == ()

    def test_the_next_request_does_not_look_where_the_last_one_was(self) -> None:
        first, second = [1, *FILLER, *FILLER], [1, *PHRASE, *FILLER]
        drafter = self.drafter()
        drafter.begin(text_of(first, FILLER[:2]))
        drafter.draft(len(first) + 1)
        drafter.begin(text_of(second, PHRASE))

        assert drafter.draft(len(second) + 2) == ()


class TestMapK4v:
    def test_two_continuations_seen_alike_draft_nothing(self) -> None:
        prompt = [1, 11, 12, 21, 22, 23, 11, 12, 31, 32, 33, *FILLER]
        drafter = NgramMap(n=2, k=3, keys_only=False)
        drafter.begin(text_of(prompt, [11, 12, 31]))

        assert drafter.draft(len(prompt) + 2) == ()

    def test_a_leading_continuation_is_drafted(self) -> None:
        same = [11, 12, 21, 22, 23]
        prompt = [1, *same, *same, 11, 12, 31, 32, 33, *same, *same, *FILLER]
        drafter = NgramMap(n=2, k=3, keys_only=False)
        drafter.begin(text_of(prompt, [11, 12, 21]))

        assert drafter.draft(len(prompt) + 2) == [21, 22, 23]


class TestMod:
    def test_remembers_an_earlier_request(self) -> None:
        drafter = NgramMod(n=2, k=3, n_min=2)
        drafter.begin(text_of([*PHRASE, *FILLER], []))
        drafter.begin(text_of([1, 2, 3], PHRASE))

        assert drafter.draft(5) == PHRASE[2:5]

    def test_five_poor_drafts_in_a_row_make_it_forget(self) -> None:
        drafter = NgramMod(n=2, k=4, n_min=2)
        drafter.begin(text_of([*PHRASE, *FILLER], []))
        drafter.begin(text_of([1, 2, 3], PHRASE))
        for _ in range(drafters.LOW_STREAK_MAX):
            assert drafter.draft(5)
            drafter.accepted(0)

        assert drafter.draft(5) == ()

    def test_one_good_draft_ends_the_streak(self) -> None:
        drafter = NgramMod(n=2, k=4, n_min=2)
        drafter.begin(text_of([*PHRASE, *FILLER], []))
        drafter.begin(text_of([1, 2, 3], PHRASE))
        for accepted in [0] * 4 + [4] + [0] * 4:
            assert drafter.draft(5)
            drafter.accepted(accepted)

        assert drafter.draft(5)


class TestCache:
    def test_drafts_the_usual_follower_up_to_eight_tokens(self) -> None:
        drafter, prompt = NgramCache(), [*range(20), *range(20)]
        drafter.begin(text_of(prompt, [0, 1, 2]))

        assert drafter.draft(len(prompt) + 3) == list(range(3, 3 + DRAFT_TOKENS))
