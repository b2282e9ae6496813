"""Writing a turn: cached equals uncached under every intervention, guesses change no token, every ending has a name."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from mech.decoding.bans import TokenBan, contains
from mech.decoding.decode import Decoding, decode, decode_uncached
from mech.decoding.kv_sequence import KVSequence
from mech.engine.engine import Engine
from mech.engine.prefix_cache import PrefixCache
from mech.errors import InputError
from mech.heads import Head, HeadSet
from mech.interventions.hooks import HookMissed
from mech.interventions.intervention import NOTHING, knock_out_edges, replace_heads, scale_heads
from mech.interventions.persistent import NOTHING_PERSISTENT, PersistentIntervention, Span
from mech.models.model import Model
from mech.patching.patch import all_heads
from tests.mech_cases import (
    HEADS,
    LEFT,
    SOME,
    STEM,
    FolderFactory,
    n_torch_hooks,
    noise,
    spread,
    tiny_model,
)
from tests.mech_cases import one_thread as one_thread
from tests.tiny_models import FAMILIES
from tests.tolerances import FP32, FP64, NATS

pytestmark = pytest.mark.usefixtures("exact_softmax", "one_thread")
N_NEW = 10
# A transcript that repeats itself, so that guesses are made and accepted now and then.
PROMPT = (*LEFT, 30, 31, 32, 33, 34, *LEFT[:10], 30, 31, 32)
SPANS: tuple[Span, ...] = ((len(STEM), len(STEM) + 6), (len(LEFT) + 2, len(LEFT) + 5))


def persistent_kinds(model: Model) -> dict[str, PersistentIntervention]:
    """Every kind of persistent intervention."""
    return _persistent_kinds(
        noise(model, model.n_layers, model.n_heads, model.d_head, seed=3), all_heads(model)
    )


def _persistent_kinds(mean: torch.Tensor, everyone: HeadSet) -> dict[str, PersistentIntervention]:
    return {
        "nothing": NOTHING_PERSISTENT,
        "mean everywhere": PersistentIntervention(replace_heads(HEADS, mean, "all")),
        "zero everywhere": PersistentIntervention(scale_heads(HEADS, 0.0, "all")),
        "scaled at the candidate": PersistentIntervention(scale_heads(HEADS, 0.3, "candidate")),
        "mean at the candidate": PersistentIntervention(replace_heads(HEADS, mean, "candidate")),
        "hidden from some": PersistentIntervention(knockout_heads=HEADS),
        "hidden from all": PersistentIntervention(knockout_heads=everyone),
        "all at once": PersistentIntervention(
            scale_heads(HEADS, 0.4, "all") + scale_heads(HEADS, 0.4, "candidate"), HeadSet([Head(1, 2)])
        ),
    }


KINDS = tuple(_persistent_kinds(torch.zeros(3, 4, 1), HEADS))


def kv_sequence(
    model: Model, persistent: PersistentIntervention, prefix_cache: tuple[int, ...] = ()
) -> KVSequence:
    return KVSequence(model, Engine(model).prefix_cache(prefix_cache, persistent.edits), persistent)


@pytest.mark.parametrize(("family", "kind"), spread(KINDS))
def test_cached_decoding_writes_what_full_forwards_write(
    family: str, kind: str, tiny_folder: FolderFactory
) -> None:
    _require_equal(tiny_model(tiny_folder, family), kind, FP64 * 10)


@pytest.mark.parametrize("kind", ["nothing", "all at once"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_so_it_does_in_the_precision_of_use(family: str, kind: str, tiny_folder: FolderFactory) -> None:
    _require_equal(tiny_model(tiny_folder, family, "float32"), kind, FP32 * 10)


def _require_equal(model: Model, kind: str, tolerance: float) -> None:
    """The same turn by full forwards, by one token a forward, and by guesses that are verified."""
    persistent = persistent_kinds(model)[kind]
    slow = decode_uncached(model, PROMPT, Decoding(N_NEW), persistent, spans=SPANS)
    for draft in (0, 8):
        how = Decoding(N_NEW, draft=draft)
        fast = decode(kv_sequence(model, persistent, STEM[:5]), PROMPT, how, spans=SPANS)
        assert (fast.tokens, fast.text, fast.stop, fast.end) == (slow.tokens, slow.text, slow.stop, slow.end)
        np.testing.assert_allclose(fast.logprobs, slow.logprobs, rtol=0, atol=tolerance)
        first = [[value for _, value in turn.first] for turn in (fast, slow)]
        np.testing.assert_allclose(*first, rtol=0, atol=tolerance)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "nothing"])
def test_each_standing_intervention_moves_the_first_token_s_logits(
    kind: str, tiny_folder: FolderFactory
) -> None:
    model = tiny_model(tiny_folder, "llama")
    clean = decode_uncached(model, PROMPT, Decoding(1), spans=SPANS)
    changed = decode_uncached(model, PROMPT, Decoding(1), persistent_kinds(model)[kind], spans=SPANS)
    moved = max(abs(a - b) for (_, a), (_, b) in zip(clean.first, changed.first, strict=True))
    assert moved > 1e-3


def test_it_holds_at_every_generated_token_and_not_at_the_first_alone(tiny_folder: FolderFactory) -> None:
    """Trap 12: after the prompt a hook sees one token at a time."""
    model = tiny_model(tiny_folder, "llama")
    persistent = persistent_kinds(model)["scaled at the candidate"]
    turn = decode(kv_sequence(model, persistent), PROMPT, Decoding(N_NEW, draft=0), spans=SPANS)
    assert turn.tokens
    # The same tokens, teacher-forced without the intervention: later log-probabilities differ too.
    source = KVSequence(model, PrefixCache((), "clean"))
    with source.hooks():
        source.rewind(PROMPT)
        logits = source.push([PROMPT[-1], *turn.tokens[:-1]])
    plain = torch.log_softmax(logits.double(), -1)[range(len(turn.tokens)), list(turn.tokens)]
    apart = (plain - torch.tensor(turn.logprobs[: len(turn.tokens)], dtype=torch.float64)).abs()
    assert (apart > 1e-4).all()


@pytest.mark.parametrize("kind", ["nothing", "mean at the candidate", "hidden from some", "all at once"])
@pytest.mark.parametrize("family", SOME)
def test_a_chain_that_went_through_other_prompts_writes_the_same(
    family: str, kind: str, tiny_folder: FolderFactory
) -> None:
    """A longer transcript, a shorter one, one that differs early, and one whose hidden spans grew."""
    model = tiny_model(tiny_folder, family)
    persistent = persistent_kinds(model)[kind]
    how = Decoding(4)
    kept = kv_sequence(model, persistent)
    first = decode(kept, PROMPT, how, spans=SPANS[:1])
    longer = (*PROMPT, *first.tokens, 21, 22, *STEM[:4], 9)
    record = (len(PROMPT), len(PROMPT) + len(first.tokens))
    for prompt, spans in (
        (longer, (*SPANS, record)),
        (longer, SPANS[:1]),
        (PROMPT[:30], ()),
        (longer, (*SPANS, record)),
        ((*PROMPT[:20], 50, 51, *PROMPT[20:]), SPANS[1:]),
        (PROMPT, SPANS),
    ):
        again = decode(kept, prompt, how, spans=spans)
        slow = decode_uncached(model, prompt, how, persistent, spans=spans)
        assert again.tokens == slow.tokens
        np.testing.assert_allclose(again.logprobs, slow.logprobs, rtol=0, atol=FP64 * 10)


def test_only_new_tokens_are_run(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama")
    kept = kv_sequence(model, NOTHING_PERSISTENT, STEM)
    turn = decode(kept, PROMPT, Decoding(4, draft=0))
    with kept.hooks():
        assert kept.rewind((*PROMPT, *turn.tokens, 5)) >= len(PROMPT) + len(turn.tokens) - 1
        assert kept.rewind(PROMPT) == len(PROMPT) - 1


def test_tokens_edited_as_candidates_are_run_again_as_part_of_a_prompt(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama")
    kept = kv_sequence(model, persistent_kinds(model)["mean at the candidate"])
    turn = decode(kept, PROMPT, Decoding(4))
    with kept.hooks():
        assert kept.rewind((*PROMPT, *turn.tokens, 5)) == len(PROMPT) - 1


def test_sampling_is_the_same_with_and_without_a_cache_and_guesses(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama")
    turns = [
        decode(
            kv_sequence(model, NOTHING_PERSISTENT),
            PROMPT,
            Decoding(10, 1.3, draft=d),
            rng=np.random.default_rng(5),
        )
        for d in (0, 8)
    ]
    turns.append(decode_uncached(model, PROMPT, Decoding(10, 1.3), rng=np.random.default_rng(5)))
    assert len({turn.tokens for turn in turns}) == 1
    other = decode(
        kv_sequence(model, NOTHING_PERSISTENT), PROMPT, Decoding(10, 1.3), rng=np.random.default_rng(6)
    )
    assert other.tokens != turns[0].tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_are_those_of_transformers(
    family: str, tiny_folder: FolderFactory, tiny_hf_model: Any
) -> None:
    model = tiny_model(tiny_folder, family)
    stock = tiny_hf_model(family, "float64").eval()
    ids = torch.tensor([PROMPT])
    written = stock.generate(
        ids,
        max_new_tokens=20,
        do_sample=False,
        attention_mask=torch.ones_like(ids),
        eos_token_id=[4],
        pad_token_id=2,
    )[0, len(PROMPT) :].tolist()
    turn = decode(kv_sequence(model, NOTHING_PERSISTENT), PROMPT, Decoding(20))
    assert list(turn.tokens) == written[: len(turn.tokens)] and len(turn.tokens) > 3


def test_every_ending_has_its_name(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama")
    logits = torch.zeros(model.d_vocab)

    def written(order: list[int], how: Decoding) -> Any:
        """A turn whose token number i is order[i], whatever the model thinks."""
        from mech.decoding.decode import _write

        def source(generated: Any) -> torch.Tensor:
            chosen = logits.clone()
            chosen[order[len(generated)]] = 9.0
            return chosen

        return _write(model, source, how, (), None)

    end, eos, bos, letter, line = (
        4,
        1,
        0,
        *(model.tokenizer.encode(t, add_special_tokens=False)[0] for t in "a\n"),
    )
    ended = written([letter, end], Decoding(5))
    assert (ended.stop, ended.end, ended.text, ended.tokens) == ("end_of_turn", end, "a", (letter,))
    assert len(ended.logprobs) == 2  # that it ended has a probability too
    assert written([letter, eos], Decoding(5)).stop in ("end_of_turn", "special_token")
    special = written([letter, bos], Decoding(5))
    assert (special.stop, special.text, special.end) == ("special_token", "a", bos)
    assert written([end], Decoding(5)).text == ""
    limit = written([letter] * 3, Decoding(3))
    assert (limit.stop, limit.text, limit.end) == ("token_limit", "aaa", None)
    stopped = written([line, letter, line, letter], Decoding(9, stops=lambda text: "\n" in text.lstrip()))
    assert (stopped.stop, stopped.text) == ("stop_text", "\na\n")


def test_hooks_are_gone_after_a_turn_and_after_an_error(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama")
    before = n_torch_hooks(model)
    kept = kv_sequence(model, persistent_kinds(model)["all at once"])
    decode(kept, PROMPT, Decoding(3), spans=SPANS)
    assert n_torch_hooks(model) == before

    def stops(text: str) -> bool:
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        decode(kept, PROMPT, Decoding(3, stops=stops), spans=SPANS)
    assert n_torch_hooks(model) == before
    # What the error left behind is still right.
    again = decode(kept, PROMPT, Decoding(3), spans=SPANS)
    assert again.tokens == decode_uncached(model, PROMPT, Decoding(3), kept.persistent, spans=SPANS).tokens


def test_a_hook_that_is_not_reached_is_an_error(
    tiny_folder: FolderFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(tiny_folder, "llama")
    persistent = PersistentIntervention(scale_heads(HEADS, 0.0, "all"))
    monkeypatch.setattr(
        PersistentIntervention, "hook_names", lambda self, model: ("blocks.0.attn.hook_q", "hook_embed")
    )
    kept = kv_sequence(model, persistent)
    with pytest.raises(HookMissed):
        with kept.hooks():
            kept.rewind(PROMPT)
            kept.forwards += 1


def test_a_trunk_of_another_intervention_is_refused(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama")
    clean = Engine(model).prefix_cache(STEM)
    with pytest.raises(ValueError, match="another intervention"):
        KVSequence(model, clean, persistent_kinds(model)["zero everywhere"])


@pytest.mark.parametrize("spans", [((3, 3),), ((5, 9), (7, 12)), ((9, 12), (3, 5)), ((2, 400),), ((-1, 4),)])
def test_spans_that_are_none_are_refused(spans: tuple[Span, ...], tiny_folder: FolderFactory) -> None:
    kept = kv_sequence(tiny_model(tiny_folder, "llama"), NOTHING_PERSISTENT)
    with pytest.raises(InputError, match="span"), kept.hooks():
        kept.rewind(PROMPT, spans)


def test_what_cannot_stand_is_refused(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama")
    rows = noise(model, model.n_layers, 4, model.n_heads, model.d_head)
    with pytest.raises(InputError, match="another token in each prompt"):
        PersistentIntervention(knock_out_edges(HEADS, [3], (5, 6)))
    with pytest.raises(InputError, match="another token in each prompt"):
        PersistentIntervention(scale_heads(HEADS, 0.0, (4, 5)))
    with pytest.raises(InputError, match="one value for all positions"):
        PersistentIntervention(replace_heads(HEADS, rows, "candidate"))
    with pytest.raises(InputError, match="L9H0 does not exist"):
        KVSequence(
            model, PrefixCache((), "clean"), PersistentIntervention(knockout_heads=HeadSet([Head(9, 0)]))
        )
    with pytest.raises(InputError, match="L0H9 does not exist"):
        KVSequence(
            model,
            PrefixCache((), NOTHING.fingerprint),
            PersistentIntervention(scale_heads(HeadSet([Head(0, 9)]), 0.0, "candidate")),
        )


def test_learned_positions_run_out_in_one_sentence(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "gpt2")
    for draft in (0, 8):
        with pytest.raises(InputError, match="knows 2048 positions"):
            decode(kv_sequence(model, NOTHING_PERSISTENT), (5, 6) * 1024, Decoding(4, draft=draft))


def test_guesses_need_no_room_that_the_turn_does_not(tiny_folder: FolderFactory) -> None:
    """A turn whose last token just fits is written with guesses as without."""
    model = tiny_model(tiny_folder, "gpt2")
    prompt = (*range(20, 64), *(5, 6, 7) * 666, 20, 21, 22)  # whose guess would be 23, 24, … 30
    turns = [decode(kv_sequence(model, NOTHING_PERSISTENT), prompt, Decoding(4, draft=d)) for d in (0, 8)]
    assert len(prompt) + 4 - 1 == 2048 and turns[0].tokens == turns[1].tokens and len(turns[0].tokens) == 4


def test_hiding_the_record_from_all_heads_is_no_longer_seeing_it(tiny_folder: FolderFactory) -> None:
    """From every position behind the span no head of any layer reads it: what its tokens are no longer matters."""
    model = tiny_model(tiny_folder, "llama")
    persistent = PersistentIntervention(knockout_heads=all_heads(model))
    span = (len(STEM), len(STEM) + 6)
    other = (*PROMPT[: span[0]], *range(120, 126), *PROMPT[span[1] :])
    one, two = (decode(kv_sequence(model, persistent), p, Decoding(8), spans=[span]) for p in (PROMPT, other))
    seen = decode(kv_sequence(model, NOTHING_PERSISTENT), other, Decoding(8))
    assert one.tokens == two.tokens and one.logprobs == pytest.approx(two.logprobs, abs=FP64 * 10)
    assert seen.logprobs != pytest.approx(one.logprobs, abs=1e-3)


def test_the_real_model_writes_the_same_with_and_without_a_cache(smollm2: Model) -> None:
    """Interventions in prefill and in every decode step, on the checkpoint itself."""
    from mech.models.chat import prompt_ids

    call = "open_document(location='beds/ivy.txt')"
    messages = [
        {
            "role": "user",
            "content": f"Tools: open_document(location: str). Read beds/ivy.txt with one call, such as {call}",
        },
        {"role": "assistant", "content": call},
        {"role": "user", "content": "Result: there is no document of that name."},
    ]
    prompt = prompt_ids(smollm2, messages)
    heads = HeadSet.parse("L17H3,L17H4,L18H6,L18H7,L20H3,L20H5,L20H6,L21H8")
    start = prompt_ids(smollm2, messages[:1])
    span = (len(start), len(start) + 8)
    found = {}
    for name, persistent in {
        "clean": NOTHING_PERSISTENT,
        "scaled": PersistentIntervention(scale_heads(heads, 0.5, "all")),
        "zero": PersistentIntervention(scale_heads(heads, 0.0, "candidate")),
        "hidden": PersistentIntervention(knockout_heads=heads),
    }.items():
        fast = decode(
            KVSequence(smollm2, Engine(smollm2).prefix_cache(prompt[:20], persistent.edits), persistent),
            prompt,
            Decoding(4),
            spans=[span],
        )
        slow = decode_uncached(smollm2, prompt, Decoding(4), persistent, spans=[span])
        assert fast.tokens == slow.tokens and fast.text == slow.text
        np.testing.assert_allclose(fast.logprobs, slow.logprobs, rtol=0, atol=NATS)
        found[name] = fast.logprobs
    assert len({round(values[0], 4) for values in found.values()}) == len(found)


@pytest.mark.parametrize("family", SOME)
def test_conversations_drawn_at_random_are_written_as_by_full_forwards(
    family: str, tiny_folder: FolderFactory
) -> None:
    """Transcripts that grow and shrink, spans that come and go, edits of every kind, bans, sampling: one chain each."""
    model = tiny_model(tiny_folder, family)
    draw = random.Random(f"conversations of {family}")
    for seed in range(2):
        persistent = _drawn_standing(model, draw, seed)
        spoken = draw.choices(range(20, 200), k=draw.randint(3, 12))
        kept = kv_sequence(model, persistent, tuple(spoken[:2]))
        shortest, spans = len(spoken) + 1, list[Span]()
        for turn in range(4):
            spoken += draw.choices(range(20, 60), k=draw.randint(1, 9))
            if draw.random() < 0.3:
                spoken = spoken[: draw.randint(shortest, len(spoken))]
            spans = [span for span in spans if span[1] <= len(spoken) and draw.random() < 0.8]
            bans = [TokenBan("t", tuple(draw.choices(range(20, 60), k=draw.randint(1, 2)))), contains("e")]
            how = Decoding(draw.randint(1, 7), draw.choice([0.0, 1.1]), draft=draw.choice([0, 3, 8]))
            fast, slow = (
                write(tuple(spoken), how, bans=bans, spans=spans, rng=np.random.default_rng(turn))
                for write in (partial(decode, kept), partial(decode_uncached, model, persistent=persistent))
            )
            assert (fast.tokens, fast.text, fast.stop) == (slow.tokens, slow.text, slow.stop)
            assert fast.events == slow.events
            np.testing.assert_allclose(fast.logprobs, slow.logprobs, rtol=0, atol=FP64 * 100)
            start = len(spoken)
            spoken += fast.tokens
            if fast.tokens:
                spans.append((start, len(spoken)))


def _drawn_standing(model: Model, draw: random.Random, seed: int) -> PersistentIntervention:
    heads = list(all_heads(model))
    edited, knockout_heads = (
        HeadSet(draw.sample(heads, 3)),
        HeadSet(draw.sample(heads, draw.choice([0, 4, len(heads)]))),
    )
    where = draw.choice(["all", "candidate"])
    mean = noise(model, model.n_layers, model.n_heads, model.d_head, seed=seed)
    return PersistentIntervention(
        replace_heads(edited, mean, where) if draw.random() < 0.5 else scale_heads(edited, 0.5, where),
        knockout_heads,
    )
