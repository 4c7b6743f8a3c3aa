"""Texts as labels: sequences of characters or words, their decoding, and error rates.

For each step in time, a network returns logits of K tokens and, last, of the blank of CTC (Graves
et al., ICML 2006), (B, T', K + 1). A path has a symbol per step; merging equal neighbours and
leaving out blanks gives its text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ffn.labels import SingleLabel, canonical

SPACE = "<space>"  # the token of the character between words
PADDING = -1  # after the tokens of a text


class Characters(SingleLabel):
    """A text per video, a sequence of characters; the K tokens are the classes."""

    loss_name = "ctc"
    separator = ""  # between tokens in a text
    beams = 0  # prefixes that the beam search of `results` keeps; 0: greedy decoding

    def __init__(self, classes: Sequence[str]) -> None:
        self.classes = tuple(classes)
        if missing := [one for one in ("fast_ctc_decode", "jiwer") if find_spec(one) is None]:
            raise ImportError(f"texts need {missing[0]}: pip install 'frame-flexible[text]'")

    @staticmethod
    def tokens(text: str) -> list[str]:
        """The tokens of a text; several blanks are one."""
        return [SPACE if one == " " else one for one in " ".join(canonical(text).split())]

    @classmethod
    def read(
        cls, rows: Sequence[Any], classes: Sequence[str] | None
    ) -> tuple[list[tuple[int, ...]], list[str]]:
        """Token indices of the column text of each row of a list, and the vocabulary.

        The vocabulary is that in ``classes``, or all tokens of the rows, sorted. Raises ValueError
        for a row without a text, or with a token that is not in the vocabulary.
        """
        texts = [cls.tokens(row.others.get("text", "")) for row in rows]
        names = [*classes] if classes else sorted({one for text in texts for one in text})
        index = {name: number for number, name in enumerate(names)}
        for row, text in zip(rows, texts, strict=True):
            unknown = [one for one in text if one not in index]
            if not text:
                fault = "the text is empty" if "text" in row.others else "there is no column text"
                remedy = "a table with the columns path and text is expected"
                raise ValueError(f"{row.where}: {fault}; {remedy}. Add the text, or drop the row")
            if unknown:
                raise ValueError(
                    f"{row.where}: {unknown[0]!r} in the text is not one of the {len(names)} "
                    f"tokens of the weights, data.classes or data.train: {' '.join(names[:40])}. "
                    "Correct the text, or give all tokens (data.classes=FILE, one per line)"
                )
        return [tuple(index[one] for one in text) for text in texts], names

    @staticmethod
    def target(label: Sequence[int], longest: int) -> Tensor:
        """Token indices (longest,), padded."""
        return torch.tensor([*label, *[PADDING] * (longest - len(label))])

    @staticmethod
    def loss(logits: Tensor, label: Tensor, weights: None = None) -> Tensor:
        """CTC loss of each text over its number of tokens, mean over the videos.

        It is infinite for a text that needs more steps (:func:`needed_steps`), which is refused
        before training.

        Args:
            logits: (B, T', K + 1).
            label: (B, L) token indices, padded.
        """
        videos, steps, symbols = logits.shape
        lengths = torch.full((videos,), steps), (label != PADDING).sum(1).cpu()
        scores = logits.float().log_softmax(-1).transpose(0, 1)  # (T', B, K + 1)
        return F.ctc_loss(scores, label.clamp(min=0), *lengths, blank=symbols - 1)

    def results(self, logits: Tensor, ok: Tensor) -> Tensor:
        """Tokens of the texts, by beam search or of the best paths (greedy), and `PADDING`.

        Returns (B, T') float32 on the CPU; NaN where logits are not finite, no token where ``ok``
        (B,) is False.
        """
        finite = logits.isfinite()
        if self.beams:
            texts = [beam_search(one, self.beams)[0] for one in logits.where(finite, 0)]
            found = torch.stack([self.target(text, logits.shape[1]) for text in texts])
        else:
            best = logits.argmax(-1).cpu()  # (B, T')
            starts = best != F.pad(best, (1, 0), value=PADDING)[:, :-1]
            found = best.where(starts & (best < logits.shape[-1] - 1), PADDING)
        found = found.float().where(finite.flatten(1).all(1).cpu()[:, None], torch.nan)
        return found.where(ok[:, None], float(PADDING))

    def text(self, tokens: Sequence[float]) -> str:
        """The text of token indices; padding is left out."""
        names = [self.classes[int(one)] for one in tokens if one != PADDING]
        return self.separator.join(" " if one == SPACE else one for one in names)

    def metrics(self, results: Tensor, label: Tensor) -> dict[str, float]:
        """``wer`` and ``cer``, error rates of words and of characters (with blanks), in percent.

        Substitutions, deletions and insertions in all texts over the number in all labels.

        Args:
            results: (N, T') of :meth:`results`.
            label: (N, L) token indices, padded.
        """
        import jiwer

        right, found = ([self.text(row) for row in rows.tolist()] for rows in (label, results))
        return {"wer": 100 * jiwer.wer(right, found), "cer": 100 * jiwer.cer(right, found)}

    def words(self, tokens: Sequence[int], steps: Sequence[int]) -> list[tuple[str, int, int]]:
        """Each word of a text, with the steps of its first and of its last token."""
        words: list[list[tuple[int, int]]] = [[]]
        for token, step in zip(tokens, steps, strict=True):
            is_space = self.classes[token] == SPACE
            if is_space or self.separator:
                words.append([])
            if not is_space:
                words[-1].append((token, step))
        return [(self.text([t for t, _ in w]), w[0][1], w[-1][1]) for w in words if w]


class Words(Characters):
    """A text per video, a sequence of words."""

    separator = " "

    @staticmethod
    def tokens(text: str) -> list[str]:
        """The words of a text."""
        return canonical(text).split()


def needed_steps(tokens: Sequence[int]) -> int:
    """Least number T' of steps that can spell a text: a blank stands between equal tokens."""
    return len(tokens) + sum(a == b for a, b in pairwise(tokens))


def beam_search(logits: Tensor, beams: int = 20) -> tuple[list[int], float]:
    """The most probable text over all paths (T', K + 1) that spell it: its tokens and probability.

    ``beams`` prefixes are kept.
    """
    from fast_ctc_decode import beam_search as search

    # Its blank is the first symbol; a symbol is one character.
    probabilities = logits.float().softmax(-1).roll(1, -1).cpu().numpy()
    first = 0xF0000  # of the private characters of Unicode
    alphabet = [chr(first + number) for number in range(logits.shape[-1])]
    tokens = [ord(one) - first - 1 for one in search(probabilities, alphabet, beams, 0.0)[0]]
    label = torch.tensor([tokens], dtype=torch.int64, device=logits.device)
    return tokens, math.exp(-Characters.loss(logits[None], label) * max(1, len(tokens)))


@torch.enable_grad()
def align(logits: Tensor, tokens: Sequence[int]) -> list[int]:
    """The most probable step of each token of a text, over all paths (T', K + 1) that spell it.

    Equal neighbours count as different tokens, which need no blank between them.
    """
    steps, count = len(logits), len(tokens)
    scores = logits.float().log_softmax(-1)[:, [*tokens, -1]].clone().requires_grad_()
    each = torch.arange(count)[None]
    loss = F.ctc_loss(scores[:, None], each, [steps], [count], blank=count, reduction="sum")
    (gradient,) = torch.autograd.grad(loss, scores)
    # torch returns p - q for the probability p of a symbol in a step, and q of it in the text.
    return (scores.exp() - gradient)[:, :count].argmax(0).tolist()
