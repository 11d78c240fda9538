// The frames of a clip, decoded by the browser.

import { ALL_FORMATS, BlobSource, Input, VideoSampleSink, type VideoSample } from 'mediabunny';

import { Refusal } from './messages';
import { SMALL_HEIGHT, SMALL_WIDTH, type SmallFrame } from './shots';

/** A frame as a small picture, which tells a cut, and its pixels; null if the frame is left out. */
export interface ClipFrame extends SmallFrame {
  bitmap: ImageBitmap | null;
}

const UNREADABLE = 'not a video that this browser can decode: save it as MP4 (H.264), or use `fer-vit predict`';

/** Yields all frames in order, with the pixels of at most `fps` of each second. */
export async function* framesOf(file: Blob, fps: number): AsyncGenerator<ClipFrame> {
  if (!('VideoDecoder' in window)) {
    throw new Refusal('clips need a browser with WebCodecs (Chrome or Edge 94, Firefox 130, Safari 16.4), and https or localhost');
  }
  const input = new Input({ source: new BlobSource(file), formats: ALL_FORMATS });
  try {
    yield* decoded(input, fps);
  } finally {
    input.dispose();
  }
}

async function* decoded(input: Input, fps: number): AsyncGenerator<ClipFrame> {
  const track = await input.getPrimaryVideoTrack().catch(() => null);
  if (track === null || !await track.canDecode()) throw new Refusal(UNREADABLE);
  const reducer = new Reducer();
  let number = 0;
  let first: number | undefined;
  let last = -1;
  try {
    for await (const sample of new VideoSampleSink(track).samples()) {
      const seconds = sample.timestamp;
      first ??= seconds;
      const slot = fps === Infinity ? number : Math.floor((seconds - first) * fps + 1e-6);
      const bitmap = slot === last ? null : upright(sample);
      const levels = reducer.levels(sample);
      sample.close();
      last = slot;
      number += 1;
      yield { seconds, levels, bitmap };
    }
  } catch (error) {
    throw new Refusal(number === 0 ? UNREADABLE : `damaged after ${number} frames`);
  }
}

/** A frame with square pixels, turned as its file says: phones film sideways. */
function upright(sample: VideoSample): ImageBitmap {
  const canvas = new OffscreenCanvas(sample.displayWidth, sample.displayHeight);
  sample.draw(canvas.getContext('2d')!, 0, 0);
  return canvas.transferToImageBitmap();
}

const BLOCK = 8;
const CHANNELS = 4;

/** Makes small grey pictures: a browser reduces a frame with gaps between its pixels, so this takes means of blocks. */
class Reducer {
  private readonly width = BLOCK * SMALL_WIDTH;
  private readonly height = BLOCK * SMALL_HEIGHT;
  private readonly context = new OffscreenCanvas(this.width, this.height).getContext('2d', { willReadFrequently: true })!;

  levels(sample: VideoSample): Uint8Array {
    sample.draw(this.context, 0, 0, this.width, this.height);
    const { data } = this.context.getImageData(0, 0, this.width, this.height);
    const sums = new Float32Array(SMALL_WIDTH * SMALL_HEIGHT);
    for (let pixel = 0; pixel < this.width * this.height; pixel += 1) {
      const column = Math.floor((pixel % this.width) / BLOCK);
      const line = Math.floor(pixel / this.width / BLOCK);
      const at = CHANNELS * pixel;
      sums[SMALL_WIDTH * line + column] += 0.299 * data[at] + 0.587 * data[at + 1] + 0.114 * data[at + 2];
    }
    return Uint8Array.from(sums, sum => sum / BLOCK ** 2);
  }
}
