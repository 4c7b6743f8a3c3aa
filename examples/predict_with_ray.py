"""Label an archive on a Ray cluster: a Parquet data set with a row per video.

    pip install "frame-flexible[ray]"
    python examples/predict_with_ray.py LIST OUTPUT --weights W --actors 8 [--gpus 1]

LIST is one of `ffn predict --output`, of files or addresses that all machines open. A video that
cannot be read is a row with its cause. Started again, it leaves out the videos that OUTPUT has;
other weights or frames are refused.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import ray

import ffn
from ffn.data.records import Record
from ffn.files import without_password
from ffn.serve.batch import predict_rows, read_clips, read_videos
from ffn.serve.output import columns
from ffn.zoo import state_sha256

LABELS, TIMEOUT = 5, 600.0  # labels of a row, seconds to read a video
READ, FORWARD = 64, 16  # videos that are read together, and that run together
KEY = ["path", "start", "end"]
COUNTS = ("frames", "distinct_frames", "sub_network")
TEXTS = {"path", "error", *(name for name in columns(LABELS) if name.startswith("label"))}
KINDS = dict.fromkeys(TEXTS, pa.string()) | dict.fromkeys(COUNTS, pa.int64())
SCHEMA = pa.schema([(name, KINDS.get(name, pa.float64())) for name in columns(LABELS)])


class Label:
    """An actor with one network, and a process that reads, which a bad file may end or block."""

    def __init__(self, weights, frames, device):
        self.predictor = ffn.Predictor(weights, device=device, precision="fp32")
        self.reader = self.predictor.reader(frames)

    def __call__(self, batch):
        """The rows of a batch of videos."""
        videos = [(video.pop("name"), Record(**video)) for video in batch.to_pylist()]
        clips = list(read_clips([record for _, record in videos], self.reader, 1, TIMEOUT, READ))
        rows = []
        for n in range(0, len(videos), FORWARD):
            part = slice(n, n + FORWARD)
            rows += predict_rows(self.predictor, videos[part], clips[part], LABELS)
        named = [dict(zip(SCHEMA.names, row, strict=True)) for row in rows]
        return pa.Table.from_pylist(named, schema=SCHEMA)


def read_keys(file):
    """Path, start and end of the videos in a file of the output."""
    try:
        rows = pa.parquet.read_table(file, columns=KEY).to_pylist()
    except pa.ArrowInvalid as error:
        sys.exit(f"{file} is damaged, as by a stop while it was written; remove it: {error}")
    return [tuple(row.values()) for row in rows]


def main():
    """Label the videos that OUTPUT lacks."""
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("list", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--frames", type=int)
    parser.add_argument("--actors", type=int, default=1)
    parser.add_argument("--gpus", type=float, default=0, help="per actor")
    parser.add_argument("--rows", type=int, default=512, help="least of a file of OUTPUT")
    args = parser.parse_args()

    weights = state_sha256(ffn.load(args.weights).state_dict())
    settings, given = args.output / "_settings.json", [weights, args.frames]
    if settings.exists() and json.loads(settings.read_text()) != given:
        sys.exit(f"{args.output} has rows of other weights or frames; name another folder")
    args.output.mkdir(parents=True, exist_ok=True)
    settings.write_text(json.dumps(given))

    known = {key for file in args.output.glob("*.parquet") for key in read_keys(file)}
    videos = {
        (without_password(name), record.start, record.end): {"name": name, **asdict(record)}
        for name, record in read_videos(args.list.absolute())
    }
    left = [video for key, video in videos.items() if key not in known]
    print(f"{len(left)} videos to label", flush=True)
    if left:
        ray.data.from_items(left, override_num_blocks=-(-len(left) // args.rows)).map_batches(
            Label,
            fn_constructor_args=(args.weights, args.frames, "cuda" if args.gpus else "cpu"),
            batch_size=min(READ, args.rows),
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(size=args.actors),
            num_gpus=args.gpus or None,
        ).write_parquet(  # actors may have all processors
            str(args.output.absolute()), ray_remote_args={"num_cpus": 0}
        )


if __name__ == "__main__":
    main()
