"""Label a video with an exported network; needs onnxruntime, av and numpy, neither torch nor ffn.

ffn export --weights tsm_tiny.motion_f4_8_16 --frames 8 --to onnx --output net.onnx \
    --preprocess --probabilities
python examples/onnx_video.py net.onnx video.mp4
"""

import argparse
import json

import av
import numpy as np
import onnxruntime


def read_frames(path: str, indices: list[int]) -> np.ndarray:
    """Frames of a video as displayed (T, H, W, 3), uint8 RGB."""

    def upright(frame: av.VideoFrame) -> np.ndarray:
        return np.rot90(frame.to_ndarray(format="rgb24"), frame.rotation // 90)

    with av.open(f"file:{path}") as container:
        wanted = set(indices)
        decoded = enumerate(container.decode(video=0))
        frames = {i: upright(frame) for i, frame in decoded if i in wanted}
    return np.stack([frames[i] for i in indices])


def count_frames(path: str) -> int:
    """The number of frames that the decoder returns."""
    with av.open(f"file:{path}") as container:
        return sum(1 for _ in container.decode(video=0))


def main() -> None:
    """Print the three most probable classes of a video."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("network", help="file of ffn export --preprocess --probabilities")
    parser.add_argument("video", help="any file that FFmpeg reads")
    given = parser.parse_args()
    session = onnxruntime.InferenceSession(given.network, providers=["CPUExecutionProvider"])
    stated = session.get_modelmeta().custom_metadata_map  # values are JSON
    assert json.loads(stated["sampling"])["rule"] == "segment"
    n, T = count_frames(given.video), json.loads(stated["frames"])
    frames = read_frames(given.video, [int(n / T / 2 + n / T * i) for i in range(T)])
    probabilities = session.run(None, {"frames": frames[None]})[0][0]
    for k in np.argsort(-probabilities)[:3]:
        print(f"{probabilities[k]:7.2%}  {json.loads(stated['classes'])[k]}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
