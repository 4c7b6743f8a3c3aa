"""Texts as labels: the loss, the decoders and the error rates against sums over all paths."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import pytest
import torch
from torch import Tensor

from ffn.data.lists import AnnotationRow
from ffn.texts import PADDING, SPACE, Characters, Words, align, beam_search, needed_steps


def probabilities_of_texts(logits: Tensor) -> dict[tuple[int, ...], Tensor]:
    """The probability of every text, summed over all paths (T', K + 1) that spell it."""
    shares, blank = logits.softmax(-1), logits.shape[1] - 1
    found: dict[tuple[int, ...], Tensor] = defaultdict(lambda: torch.zeros((), dtype=torch.float64))
    for path in itertools.product(range(blank + 1), repeat=len(logits)):
        text = tuple(symbol for symbol, _ in itertools.groupby(path) if symbol != blank)
        found[text] = found[text] + shares[range(len(path)), path].prod()
    return found


def random_logits(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(shape, generator=generator, dtype=torch.float64)


def test_loss_and_gradient_are_those_of_the_sum_over_all_paths() -> None:
    logits = random_logits(3, 5, 4).requires_grad_()
    texts = [(0, 1), (2, 2, 0), (1,)]
    label = torch.stack([Characters.target(text, 4) for text in texts])

    loss = Characters.loss(logits, label)
    expected = torch.stack(
        [
            -probabilities_of_texts(row)[text].log() / len(text)
            for row, text in zip(logits, texts, strict=True)
        ]
    ).mean()

    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=0)
    (gradient,) = torch.autograd.grad(loss, logits)
    (wanted,) = torch.autograd.grad(expected, logits)
    torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-6)


def test_a_text_that_the_steps_cannot_spell_has_an_infinite_loss() -> None:
    for text, steps in (((0, 1, 2), 3), ((0, 0), 3), ((0, 0, 1, 1), 6), ((2,), 1)):
        assert needed_steps(text) == steps
        label = torch.tensor([text])
        assert Characters.loss(random_logits(1, steps, 4), label).isfinite()
        if steps > 1:
            assert Characters.loss(random_logits(1, steps - 1, 4), label) == math.inf


@pytest.mark.parametrize("seed", range(8))
def test_beam_search_finds_the_most_probable_text(seed: int) -> None:
    logits = random_logits(5, 4, seed=seed)
    every = probabilities_of_texts(logits)
    best = max(every, key=lambda text: float(every[text]))

    tokens, probability = beam_search(logits, beams=1000)

    assert tuple(tokens) == best
    kind = Characters(("a", "b", "c"))
    kind.beams = 1000
    found = kind.results(torch.stack([logits, logits, logits / 0]), torch.tensor([1, 0, 1]) > 0)
    assert [x for x in found[0].tolist() if x != PADDING] == tokens
    assert kind.text(found[1].tolist()) == ""
    assert found[2].isnan().all()
    assert probability == pytest.approx(float(every[best]), rel=1e-4)


def test_alignment_is_the_most_probable_step_of_each_token() -> None:
    """Against the sum over all paths of a text: the share in which token k is in step t."""
    logits, text = random_logits(6, 4, seed=3), (2, 0, 2)
    shares, blank = logits.softmax(-1), 3
    found = torch.zeros(6, len(text), dtype=torch.float64)
    for path in itertools.product(range(blank + 1), repeat=6):
        groups = [(symbol, len([*run])) for symbol, run in itertools.groupby(path)]
        if tuple(symbol for symbol, _ in groups if symbol != blank) == text:
            steps = itertools.accumulate((length for _, length in groups), initial=0)
            spans = [(s, n) for s, (one, n) in zip(steps, groups, strict=False) if one != blank]
            for token, (start, length) in enumerate(spans):
                found[start : start + length, token] += shares[range(6), path].prod()

    assert align(logits, text) == found.argmax(0).tolist()


def test_best_paths_merge_equal_neighbours_and_leave_out_blanks() -> None:
    a, b, blank = 0, 1, 2
    paths = torch.tensor([[a, a, blank, a, b], [blank] * 5, [b, b, b, b, b], [a, b, a, b, a]])
    logits = torch.nn.functional.one_hot(paths, 3).double()
    logits[3, 2, 1] = torch.nan
    kind = Characters(("a", "b"))

    found = kind.results(logits, torch.tensor([True, True, False, True]))

    assert [kind.text(row) for row in found[:3].tolist()] == ["aab", "", ""]
    assert found[3].isnan().all()
    assert beam_search(5 * logits[0])[0] == [a, a, b]
    assert align(5 * logits[0], [a, a, b])[1:] == [3, 4]


def test_tokens_of_texts() -> None:
    """Composed Unicode, single blanks, and the indices of a given vocabulary."""
    rows = [
        AnnotationRow(f"l.csv:{n}", "v", (), others={"text": t}) for n, t in ((2, " e\u0301  b b"),)
    ]
    assert Characters.read(rows, None) == ([(2, 0, 1, 0, 1)], [SPACE, "b", "é"])
    assert Words.read(rows, ["b", "c", "é"]) == ([(2, 0, 0)], ["b", "c", "é"])
    kind = Characters((SPACE, "b", "é"))
    assert kind.text([2, 0, 1, PADDING]) == "é b"
    assert kind.words([2, 1, 0, 1], [1, 3, 4, 6]) == [("éb", 1, 3), ("b", 6, 6)]
    assert Words(("b", "é")).words([1, 0], [2, 5]) == [("é", 2, 2), ("b", 5, 5)]


def test_error_rates() -> None:
    """Edit distances over all texts, written out: 2 of 5 words, 5 of 19 characters."""
    texts = ["bin blue now", "set red"]
    found = ["bin blu now", "red"]  # one letter missing; one word and its blank missing
    names = sorted({SPACE, *"".join(texts).replace(" ", "")})
    kind = Characters(names)
    rows = [[names.index(one) for one in Characters.tokens(text)] for text in (*texts, *found)]
    padded = torch.stack([Characters.target(row, 14) for row in rows])

    rates = kind.metrics(padded[2:].float(), padded[:2])

    assert rates == {"wer": pytest.approx(100 * 2 / 5), "cer": pytest.approx(100 * 5 / 19)}
