"""Send many requests to `ffn serve`, some of them bad, and compare all answers with a predictor.

ffn serve --weights tsm_tiny.motion_f4_8_16 --precision fp32 &
python examples/serve/load.py http://localhost:7860 data/motion/videos --requests 10000
"""

import argparse
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from ffn.serve import Client, Predictor, ServiceError

COUNTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24)
BAD = {  # what is sent, and the status that is expected
    "empty": (lambda content: b"", 4, 422),
    "text": (lambda content: b"#EXTM3U\nhttp://localhost/\n", 4, 422),
    "cut": (lambda content: content[: len(content) // 3], 4, 422),
    "no frames": (lambda content: content, 0, 422),
    "too many frames": (lambda content: content, 10**6, 400),
}
TOLERANCE = 1e-4  # of probabilities: a batch rounds differently from a single clip


def main() -> int:
    """Send the requests and print what came back; returns 1 if an answer is wrong."""
    given = _arguments()
    client, choose = Client(given.address), random.Random(given.seed)
    paths = sorted(Path(given.videos).glob("*.mp4"))[: given.files]
    name = client.models()[0]["name"]
    predictor = Predictor(given.weights or name, precision="fp32")
    contents = {path: path.read_bytes() for path in paths}
    expected = {(p, n): dict(predictor(p, frames=n).top(3)) for p in paths for n in COUNTS}

    plan = []
    for number in range(given.requests):
        bad = choose.choice(list(BAD)) if number % 100 == 99 else None
        plan.append((choose.choice(paths), choose.choice(COUNTS), bad))

    def send(one: tuple[Path, int, str | None]) -> tuple[str, float]:
        path, frames, bad = one
        content, status = contents[path], 200
        if bad:
            change, frames, status = BAD[bad]
            content = change(content)
        started = time.perf_counter()
        try:
            answer, found = client.predict(content, frames, top=3), 200
        except ServiceError as error:
            answer, found = None, error.status
        seconds = time.perf_counter() - started
        right = found == status
        if right and answer:
            labels = {label["label"]: label["probability"] for label in answer["labels"]}
            wanted = expected[path, frames]
            right = answer["frames"] == frames and labels.keys() == wanted.keys()
            right = right and all(abs(labels[k] - wanted[k]) < TOLERANCE for k in wanted)
        return f"{status}, {'right' if right else f'WRONG: {found}'}", seconds

    started = time.perf_counter()
    with ThreadPoolExecutor(given.clients) as pool:
        results = list(pool.map(send, plan))
    spent = time.perf_counter() - started

    counts = Counter(result for result, _ in results)
    times = 1000 * np.array([seconds for _, seconds in results])
    for result, count in sorted(counts.items()):
        print(f"{count:6,}  status {result}")
    print(f"{len(plan) / spent:.0f} requests per second from {given.clients} clients")
    print(f"p50 {np.percentile(times, 50):.1f} ms, p99 {np.percentile(times, 99):.1f} ms")
    return int(any("WRONG" in result for result in counts))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("address", help="of the service, e.g. http://localhost:7860")
    parser.add_argument("videos", help="folder of *.mp4 files")
    parser.add_argument("--weights", help="that the service uses; default: the name it tells")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=8, help="requests at a time")
    parser.add_argument("--files", type=int, default=40, help="videos that are used")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
