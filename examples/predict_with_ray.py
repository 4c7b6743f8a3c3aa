"""Label an archive on a Ray cluster: a Parquet data set with a row per video.

    pip install "frame-flexible[ray]"
    python examples/predict_with_ray.py LIST.csv OUTPUT --weights W --actors 8 [--gpus 1]

LIST has a column path, of files or addresses that all machines open. A video that cannot be read is
a row with its cause. Started again, with the same weights and frames, it leaves out the videos that
OUTPUT has.
"""

import argparse
import os

import pandas as pd
import pyarrow as pa
import ray

import ffn
from ffn.data.records import Record
from ffn.files import without_password
from ffn.serve.batch import predict_rows, read_clips
from ffn.serve.output import columns

LABELS, BATCH, TIMEOUT = 5, 64, 600.0  # labels of a row, videos that are read together, seconds
TEXTS = {"path", "error", *(name for name in columns(LABELS) if name.startswith("label"))}
SCHEMA = pa.schema([(n, pa.string() if n in TEXTS else pa.float64()) for n in columns(LABELS)])


class Label:
    """An actor with one network, and a process that reads, which a bad file may end or block."""

    def __init__(self, weights, frames, device):
        self.predictor = ffn.Predictor(weights, device=device, precision="fp32")
        self.reader = self.predictor.reader(frames)

    def __call__(self, batch):
        """The rows of a batch of videos."""
        videos = [(path, Record(path, label=0)) for path in batch["path"]]
        clips = list(read_clips([record for _, record in videos], self.reader, 1, TIMEOUT, BATCH))
        rows = predict_rows(self.predictor, videos, clips, LABELS)
        named = [dict(zip(SCHEMA.names, row, strict=True)) for row in rows]
        return pa.Table.from_pylist(named, schema=SCHEMA)


def main():
    """Label the videos that OUTPUT lacks."""
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("list")
    parser.add_argument("output")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--frames", type=int)
    parser.add_argument("--actors", type=int, default=1)
    parser.add_argument("--gpus", type=float, default=0, help="per actor")
    parser.add_argument("--rows", type=int, default=512, help="of a file of OUTPUT")
    args = parser.parse_args()

    output, known = os.path.abspath(args.output), set()
    if os.path.isdir(output):
        known = {*ray.data.read_parquet(output, columns=["path"]).to_pandas()["path"]}
    listed = pd.read_csv(args.list)["path"].drop_duplicates()
    left = [path for path in listed if without_password(path) not in known]
    print(f"{len(left)} videos to label", flush=True)
    if left:
        videos = ray.data.from_items(
            [{"path": path} for path in left], override_num_blocks=-(-len(left) // args.rows)
        )
        videos.map_batches(
            Label,
            fn_constructor_args=(args.weights, args.frames, "cuda" if args.gpus else "cpu"),
            batch_size=min(BATCH, args.rows),
            compute=ray.data.ActorPoolStrategy(size=args.actors),
            num_gpus=args.gpus or None,
        ).write_parquet(output, ray_remote_args={"num_cpus": 0})  # actors may have all processors


if __name__ == "__main__":
    main()
