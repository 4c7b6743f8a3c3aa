// Label the frames of a video with an exported network in Node.js; `npm install onnxruntime-node`.
//
//   ffn export --weights tsm_tiny.motion_f4_8_16 --frames 8 --to onnx \
//       --output net.onnx --preprocess --probabilities
//   ffmpeg -i video.mp4 -f rawvideo -pix_fmt rgb24 - | node examples/onnx_frames.js net.onnx 28 28
//
// The arguments are the network, and the width and height of the frames as displayed: ffmpeg applies the
// rotation that a phone writes into the file.
const fs = require("fs");
const ort = require("onnxruntime-node");

const [path, width, height] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4])];
const stated = JSON.parse(fs.readFileSync(`${path}.json`)); // the metadata, also inside the file

async function main() {
  if (stated.sampling.rule !== "segment") throw new Error(`sampling is ${stated.sampling.rule}`);
  const video = fs.readFileSync(0); // all frames, uint8 RGB
  const size = width * height * 3;
  const [n, T] = [Math.floor(video.length / size), stated.frames];

  const frames = new Uint8Array(T * size);
  for (let i = 0; i < T; i++) {
    const index = Math.floor(n / T / 2 + (n / T) * i);
    frames.set(video.subarray(index * size, (index + 1) * size), i * size);
  }
  const session = await ort.InferenceSession.create(path);
  const input = new ort.Tensor("uint8", frames, [1, T, height, width, 3]);
  const { probabilities } = await session.run({ frames: input });

  const ranked = [...probabilities.data].map((p, k) => [p, stated.classes[k]]);
  ranked.sort((a, b) => b[0] - a[0]);
  for (const [p, label] of ranked.slice(0, 3)) console.log(`${(100 * p).toFixed(2)}%  ${label}`);
}

main();
