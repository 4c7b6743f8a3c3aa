"""A random order that keeps few regions of a store in use at a time."""

from __future__ import annotations

import numpy as np

WINDOW = 16  # pages


def page_order(
    pages: np.ndarray, seed: int, epoch: int, *, window: int | None = WINDOW
) -> np.ndarray:
    """A permutation of samples that goes through the pages they lie on, few at a time.

    The quasi-random order of FFCV (Leclerc et al. 2023): pages come in a random order, and samples
    mix inside a window that slides over them. Here a sample on the page of rank r gets the sort key
    r + window * u, u uniform in [0, 1). While key k is due, only pages of the ranks
    k - window < r <= k are in use: never more than `window`, and a new one begins for each that
    ends.

        >>> page_order(np.array([0, 0, 1, 1, 2, 2]), seed=0, epoch=0, window=1).tolist()
        [4, 5, 3, 2, 0, 1]

    Two samples far from each other in the store can stand side by side in some epoch; how far a
    sample moves from its page's place is bounded by `window` pages in one epoch, and the pages
    themselves are dealt anew in each. Where `window` covers all pages, the order is a uniformly
    random permutation.

    Args:
        pages: (N,) int, the page of each sample.
        seed: First part of the random seed.
        epoch: Second part.
        window: Pages in use at a time; None: all.

    Returns:
        (N,) int64, each of 0 … N - 1 once; a function of the arguments alone.

    Raises:
        ValueError: if `window` is below 1.
    """
    if window is not None and window < 1:
        raise ValueError(f"window is {window} pages; expected at least 1, or None for all")
    generator = np.random.default_rng(np.random.SeedSequence([seed, epoch]))
    names, page = np.unique(pages, return_inverse=True)
    if window is None or window >= len(names):
        return generator.permutation(len(pages))
    rank = generator.permutation(len(names))
    keys = rank[page.reshape(-1)] + window * generator.random(len(pages))
    return np.argsort(keys, kind="stable")
