// The frames of a clip, decoded by the browser.

import { ALL_FORMATS, BlobSource, Input, VideoSampleSink } from 'mediabunny';

import { Refusal } from './messages';

export interface ClipFrame {
  number: number;
  seconds: number;
  frame: VideoFrame;
}

const UNREADABLE = 'not a video that this browser can decode: save it as MP4 (H.264), or use `fer-vit predict`';

/** Yields frames in order, at most `fps` of each second. */
export async function* framesOf(file: Blob, fps: number): AsyncGenerator<ClipFrame> {
  if (!('VideoDecoder' in window)) {
    throw new Refusal('clips need a browser with WebCodecs (Chrome or Edge 94, Firefox 130, Safari 16.4), and https or localhost');
  }
  const input = new Input({ source: new BlobSource(file), formats: ALL_FORMATS });
  try {
    yield* chosenFrames(input, fps);
  } finally {
    input.dispose();
  }
}

async function* chosenFrames(input: Input, fps: number): AsyncGenerator<ClipFrame> {
  const track = await input.getPrimaryVideoTrack().catch(() => null);
  if (track === null || !await track.canDecode()) throw new Refusal(UNREADABLE);
  let number = 0;
  let first: number | undefined;
  let last = -1;
  try {
    for await (const sample of new VideoSampleSink(track).samples()) {
      first ??= sample.timestamp;
      const slot = fps === Infinity ? number : Math.floor((sample.timestamp - first) * fps + 1e-6);
      if (slot !== last) {
        last = slot;
        yield { number, seconds: sample.timestamp, frame: sample.toVideoFrame() };
      }
      sample.close();
      number += 1;
    }
  } catch (error) {
    throw new Refusal(number === 0 ? UNREADABLE : `damaged after ${number} frames`);
  }
}
