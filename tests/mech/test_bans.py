"""Bans: what must not be written is not in the decoded text, and nothing else is forbidden with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mech.decoding.bans import BanLeak, DecodingBan, TextBan, TokenBan, contains, equals, token_bans
from mech.decoding.decode import Decoding, Turn, _write, decode
from mech.decoding.kv_sequence import KVSequence
from mech.decoding.prompt_lookup import lookup
from mech.decoding.sampling import best, choose
from mech.engine.engine import Engine
from mech.errors import InputError
from mech.models.model import Model
from tests.mech_cases import LEFT, FolderFactory, tiny_model
from tests.mech_cases import one_thread as one_thread
from tests.tolerances import FP64

pytestmark = pytest.mark.usefixtures("one_thread")
END = 4  # <end>, by which the tiny chat template closes a turn


class Script:
    """A model that wants to write a text and then stop: at each place its next token, and fall-backs after it.

    Behind anything but a beginning of the text it wants `otherwise`, then the end.
    """

    def __init__(self, model: Model, text: str, then: Sequence[str] = (), otherwise: str = "z") -> None:
        self.model = model
        self.ids = [model.tokenizer.encode(part, add_special_tokens=False) for part in (text, *then)]
        self.otherwise = model.tokenizer.encode(otherwise, add_special_tokens=False)[0]

    def __call__(self, generated: Sequence[int]) -> torch.Tensor:
        logits = torch.zeros(self.model.d_vocab)
        written = list(generated)
        logits[END], logits[self.otherwise] = 2.0, 1.0
        for rank, ids in enumerate(self.ids):
            if written == ids[: len(written)]:
                wanted = ids[len(written)] if len(written) < len(ids) else END
                logits[wanted] = 9.0 - rank
        return logits

    def write(
        self, bans: Sequence[DecodingBan], limit: int = 40, stops: Callable[[str], bool] = lambda text: False
    ) -> Turn:
        return _write(self.model, self, Decoding(limit, stops=stops), bans, None)


@pytest.fixture
def model(tiny_folder: FolderFactory) -> Model:
    return tiny_model(tiny_folder, "llama")


def ids(model: Model, text: str) -> tuple[int, ...]:
    return tuple(model.tokenizer.encode(text, add_special_tokens=False))


def test_without_a_ban_it_writes_what_it_wants(model: Model) -> None:
    turn = Script(model, "cut(a=1)").write([])
    assert (turn.text, turn.stop, turn.events, turn.leaks) == ("cut(a=1)", "end_of_turn", (), ())


def test_a_token_ban_refuses_the_completing_token_only(model: Model) -> None:
    turn = Script(model, "cut(a=1)", ["cut(a=2)"]).write([TokenBan("one", ids(model, "cut(a=1"))])
    assert turn.text == "cut(a=2)"  # the shared beginning stayed free
    assert turn.events == ((6, ids(model, "1")[0], "one"),)


def test_the_prompt_does_not_count_as_a_beginning(tiny_folder: FolderFactory) -> None:
    """A prompt that ends in the ban's beginning: transformers' processor would refuse the first token here."""
    model = tiny_model(tiny_folder, "llama")
    free = decode(KVSequence(model, Engine(model).prefix_cache(())), LEFT, Decoding(4))
    ban = TokenBan("prompt and first", (LEFT[-1], free.tokens[0]))
    held = decode(KVSequence(model, Engine(model).prefix_cache(())), LEFT, Decoding(4), [ban])
    assert held.tokens == free.tokens and held.events == ()


def test_a_ban_of_one_token_holds_everywhere(model: Model) -> None:
    [letter] = ids(model, "a")
    turn = Script(model, "cat", ["cut"]).write([TokenBan("a", (letter,))])
    assert turn.text == "cut" and letter not in turn.tokens


def test_two_bans_that_share_an_ending_both_hold(model: Model) -> None:
    bans = [TokenBan("xb", ids(model, "xb")), TokenBan("ab", ids(model, "ab"))]
    assert Script(model, "ab", ["ac"]).write(bans).text == "ac"
    assert Script(model, "xb", ["xc"]).write(bans).text == "xc"
    assert Script(model, "cb").write(bans).text == "cb"


def test_an_overlapping_beginning_is_not_lost(model: Model) -> None:
    """After 'aa' the ban 'aab' has begun at the second 'a' too."""
    turn = Script(model, "aaab", ["aaac"]).write([TokenBan("aab", ids(model, "aab"))])
    assert turn.text == "aaac"


@pytest.mark.parametrize("text", ["", "  ", "\n"])
def test_an_empty_ban_is_refused(model: Model, text: str) -> None:
    for make in (contains, equals, lambda one: token_bans(model, one)):
        with pytest.raises(InputError, match="empty text"):
            make(text)
    with pytest.raises(InputError, match="no token"):
        TokenBan("nothing", ())


def test_end_of_text_alone_or_last_in_a_ban_is_refused_as_any_token(model: Model) -> None:
    turn = Script(model, "ab", ["abc"]).write([TokenBan("stop at ab", (*ids(model, "ab"), END))])
    assert turn.text == "abc" and turn.events[0] == (2, END, "stop at ab")
    endless = Script(model, "ab").write([TokenBan("no end", (END,))], limit=5)
    assert endless.stop == "token_limit" and all(event[2] == "no end" for event in endless.events)


def test_end_of_text_inside_a_ban_never_comes_to_be_completed(model: Model) -> None:
    ban = TokenBan("a END b", (*ids(model, "a"), END, *ids(model, "b")))
    turn = Script(model, "a").write([ban])
    assert (turn.text, turn.stop, turn.events) == ("a", "end_of_turn", ())


def test_the_letters_of_a_special_token_are_text_to_a_text_ban(model: Model) -> None:
    script = Script(model, "a", ["a<end b"])
    script.ids[0] = [ids(model, letter)[0] for letter in "a<end>b"]  # spelt out: no special token
    assert script.write([]).text == "a<end>b"
    assert script.write([contains("<end>")]).text == "a<end b"


class Merged:
    """The tiny tokenizer with one more token that reads "foo": two ways to spell it."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.whole = 265

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(self, text: str, **how: Any) -> Any:
        return self._tokenizer(text, **how)

    def decode(self, tokens: Sequence[int], **how: Any) -> str:
        parts = [[]]
        text = ""
        for token in tokens:
            if token == self.whole:
                text += self._tokenizer.decode(parts.pop(), **how) + "foo"
                parts.append([])
            else:
                parts[-1].append(token)
        return text + str(self._tokenizer.decode(parts[-1], **how))


def test_a_text_ban_holds_under_any_tokenisation_and_a_token_ban_tells_its_leak(model: Model) -> None:
    from dataclasses import replace

    merged = Merged(model.tokenizer)
    twofold = replace(model, tokenizer=merged)
    [x, f, o, end] = [*ids(model, "xfo"), END]

    def source(generated: Sequence[int]) -> torch.Tensor:
        logits = torch.zeros(model.d_vocab)
        order = [x, merged.whole, end]
        logits[order[len(generated)] if len(generated) < 3 else end] = 9.0
        if len(generated) == 1:
            logits[f] = 5.0
        if list(generated)[-1:] == [f]:
            logits[o], logits[end] = 9.0, 3.0
        return logits

    spelt = TokenBan("foo", (f, o, o))
    leaky = _write(twofold, source, Decoding(6), [spelt], None)
    assert leaky.text == "xfoo" and leaky.leaks == ("foo",)
    held = _write(twofold, source, Decoding(6), [contains("foo")], None)
    assert "foo" not in held.text and held.leaks == () and held.events[0][1] == merged.whole
    assert held.text.startswith("xf")  # spelt out instead, as far as it may be


def test_a_leading_space_and_more_around_it_do_not_get_past_a_text_ban(model: Model) -> None:
    for written in ("cut(a=1)", " cut(a=1)", "`cut(a=1)`", "Action: cut(a=1)"):
        assert "cut(a=1)" not in Script(model, written).write([contains("cut(a=1)")]).text


def test_a_banned_beginning_of_a_good_call_does_not_block_it(model: Model) -> None:
    """A truncated call failed; the same call, finished, must stay possible; ending there again must not."""
    cut_off = "cut(name='Al"
    assert Script(model, "cut(name='Alba')").write([equals(cut_off)]).text == "cut(name='Alba')"
    again = Script(model, cut_off, ["cut(name='Alba')"]).write([equals(cut_off)])
    assert again.text != cut_off and again.events[0][1:] == (END, cut_off)
    blocked = Script(model, "cut(name='Alba')").write([contains(cut_off)])
    assert cut_off not in blocked.text  # which is why "contains" is for whole calls


def test_a_turn_may_not_end_in_a_banned_text_by_its_limit_or_its_stop_either(model: Model) -> None:
    at_limit = Script(model, "abc", ["abd"]).write([equals("abc")], limit=3)
    assert (at_limit.text, at_limit.stop) == ("abd", "token_limit")
    line = Script(model, "abc\nx", ["abcd\n"]).write([equals("abc")], stops=lambda text: "\n" in text)
    assert line.text == "abcd\n" and line.stop == "stop_text"


def test_equality_is_asked_of_the_cleaned_text(model: Model) -> None:
    ban = equals("cut(a=1)", clean=lambda text: text.strip("` "))
    turn = Script(model, "`cut(a=1)`", ["`cut(a=1)` x"]).write([ban])
    assert turn.text.strip("` ") != "cut(a=1)"


def test_where_every_token_is_refused_the_turn_ends_with_that_outcome(model: Model) -> None:
    turn = Script(model, "abc").write(
        [
            TextBan("all", lambda text: len(text) > 1 or text == "ab"),
            TokenBan("end", (END,)),
            TextBan("no short end", lambda text: len(text) < 3, "end"),
        ]
    )
    assert turn.stop == "ban_exhausted" and turn.text == "a" and turn.end is None
    assert {label for _, _, label in turn.events} == {"all", "end", "no short end"}


def test_events_are_counted_once_a_refusal_under_the_first_ban_that_holds(model: Model) -> None:
    bans = [contains("ab"), contains("b")]
    turn = Script(model, "ab", ["ac"]).write(bans)
    assert turn.events == ((1, ids(model, "b")[0], "ab"),)


def test_a_ban_that_does_not_hold_is_an_error_and_no_result(model: Model) -> None:
    class Blind(TextBan):
        def forbids(self, proposal: Any) -> bool:
            return False

    with pytest.raises(BanLeak, match="breaks the ban of 'cut'"):
        Script(model, "cut(a=1)").write([Blind("cut", lambda text: "cut" in text)])

    class BlindIds(TokenBan):
        def forbids(self, proposal: Any) -> bool:
            return False

    with pytest.raises(BanLeak):
        Script(model, "cut(a=1)").write([BlindIds("cut", ids(model, "ut("))])


@pytest.mark.parametrize("seed", range(4))
def test_token_bans_give_what_transformers_bad_words_give(
    seed: int, tiny_folder: FolderFactory, tiny_hf_model: Any
) -> None:
    """Where its semantics fit: the prompt does not end in a ban's beginning, and none is the end of text alone."""
    model = tiny_model(tiny_folder, "llama")
    stock = tiny_hf_model("llama", "float64").eval()
    prompt = torch.randint(20, 200, (1, 12), generator=torch.Generator().manual_seed(seed))
    where = {
        "max_new_tokens": 12,
        "do_sample": False,
        "attention_mask": torch.ones_like(prompt),
        "eos_token_id": [END],
        "pad_token_id": 2,
    }
    bad: list[list[int]] = []
    for round_ in range(4):
        written = stock.generate(prompt, bad_words_ids=bad or None, **where)[0, 12:].tolist()
        bans = [TokenBan(str(each), tuple(each)) for each in bad]
        turn = decode(
            KVSequence(model, Engine(model).prefix_cache(())), prompt[0].tolist(), Decoding(12), bans
        )
        assert list(turn.tokens) == written[: len(turn.tokens)]
        assert len({event[2] for event in turn.events}) == len(bad)  # each of them was in the way
        bad.append(written[3 * round_ : 3 * round_ + 1 + round_ % 2])  # one token, then two, …


def test_both_spellings_of_a_text_are_banned_by_token(model: Model) -> None:
    made = token_bans(model, "cut")
    assert [ban.ids for ban in made] == [ids(model, "cut"), ids(model, " cut")]


@given(st.lists(st.integers(0, 5), max_size=12), st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_a_token_ban_forbids_exactly_the_tokens_that_complete_it(
    written: list[int], banned: list[int]
) -> None:
    from mech.decoding.bans import Proposal

    ban = TokenBan("b", tuple(banned))
    for token in range(6):
        whole = [*written, token]
        expected = whole[-len(banned) :] == banned
        assert ban.forbids(Proposal(written, token, "", False)) == expected
        if not ban.broken(written, ""):
            assert ban.broken(whole, "") == expected


def test_the_best_token_that_is_not_refused_is_chosen_and_its_probability_is_the_model_s_own() -> None:
    logits = torch.tensor([1.0, 3.0, 2.0, -1.0])
    choice = choose(logits, lambda token: "no" if token in (1, 2) else None)
    assert choice.token == 0 and choice.refused == ((1, "no"), (2, "no"))
    assert choice.logprob == pytest.approx(float(torch.log_softmax(logits, 0)[0]))
    nothing = choose(logits, lambda token: "no")
    assert nothing.token is None and len(nothing.refused) == 4
    assert best(logits, 2)[0][0] == 1 and len(best(logits, 9)) == 4


def test_sampling_draws_the_distribution_of_what_is_left() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, 3.0, -50.0], dtype=torch.float64)
    rng = np.random.default_rng(0)
    n = 6_000
    drawn = [choose(logits, lambda token: "no" if token == 3 else None, 0.7, rng).token for _ in range(n)]
    left = torch.softmax(torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64) / 0.7, 0).numpy()
    found = np.bincount(np.array(drawn), minlength=5) / n
    assert found[3] == 0 and found[4] == 0
    np.testing.assert_allclose(found[:3], left, atol=4 * np.sqrt(0.25 / n))


def test_a_tiny_temperature_is_greedy_and_bad_ones_are_refused() -> None:
    logits = torch.tensor([0.0, 1.0, 900.0, 3.0])
    rng = np.random.default_rng(0)
    assert choose(logits, lambda token: None, 1e-3, rng).token == 2
    assert choose(logits, lambda token: "no" if token == 2 else None, 1e-3, rng).token == 3
    with pytest.raises(InputError, match="temperature"):
        choose(logits, lambda token: None, -1.0, rng)
    with pytest.raises(InputError, match="stream"):
        choose(logits, lambda token: None, 1.0)


def test_logprobs_of_sampled_tokens_are_at_temperature_one(model: Model) -> None:
    turn = decode(
        KVSequence(model, Engine(model).prefix_cache(())),
        LEFT,
        Decoding(5, 2.0),
        rng=np.random.default_rng(1),
    )
    kv_sequence = KVSequence(model, Engine(model).prefix_cache(()))
    with kv_sequence.hooks():
        kv_sequence.rewind(LEFT)
        logits = kv_sequence.push([LEFT[-1], *turn.tokens[:-1]])
    expected = torch.log_softmax(logits, -1)[range(len(turn.tokens)), list(turn.tokens)]
    np.testing.assert_allclose(turn.logprobs[: len(turn.tokens)], expected.numpy(), atol=FP64 * 1000)


def test_a_guess_is_what_followed_the_latest_such_ending() -> None:
    assert lookup([1, 2, 3, 7, 8, 1, 2, 3, 9, 1, 2, 3], 2) == [9, 1]
    assert lookup([5, 1, 2, 6, 0, 1, 2], 8) == [6, 0, 1, 2]
    assert lookup([1, 2, 3, 4], 8) == [] and lookup([], 8) == [] and lookup([1, 1], 8) == []
    assert lookup([1, 1, 1, 1], 3) == [1]
