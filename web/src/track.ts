// People in clips: numbers for faces that move on, and averages over time, as fer_vit/predict/video.py and smoothing.py.

import type { HeadFacts } from './facts';
import { overlap, side, type Box, type Point } from './geometry';
import type { Face } from './model';
import type { Tracked } from './table';

const MAX_GAP = 2; // seconds without a face after which its track ends
const SPEED_MEMORY = 0.2; // seconds over which a speed is averaged
const MAX_DISTANCE = 0.6; // between expected and found landmarks, in widths of the face
const MAX_SPEED = 1.5; // widths a second
const MAX_GROWTH = 1.7;

type Place = Pick<Face, 'box' | 'landmarks'>;

interface Track {
  number: number;
  place: Place;
  seconds: number;
  speed: Point;
}

const moved = ({ box, landmarks }: Place, [x, y]: Point): Place => ({
  box: [box[0] + x, box[1] + y, box[2] + x, box[3] + y],
  landmarks: landmarks.map(([u, v]): Point => [u + x, v + y]),
});

function distance(first: Place, second: Place): number {
  const lengths = first.landmarks.map(([x, y], i) => Math.hypot(x - second.landmarks[i][0], y - second.landmarks[i][1]));
  return lengths.reduce((sum, length) => sum + length, 0) / lengths.length;
}

/** The cost of giving a face of a later frame to a track; infinite if it is impossible. */
function cost({ place, seconds: before, speed }: Track, face: Place, seconds: number): number {
  const gap = seconds - before;
  const ahead = Math.min(gap, 1);
  const expected = moved(place, [speed[0] * ahead, speed[1] * ahead]);
  const [width, expectedWidth] = [side(face.box), side(expected.box)];
  const growth = width / expectedWidth;
  if (growth <= 1 / MAX_GROWTH || growth >= MAX_GROWTH) return Infinity;
  const far = distance(face, expected) / Math.max(width, expectedWidth);
  if (far > MAX_DISTANCE + MAX_SPEED * Math.min(gap, MAX_GAP)) return Infinity;
  return 1 - overlap(expected.box as Box, face.box as Box) + far + gap;
}

export class Tracker {
  private tracks: Track[] = [];
  private last = 0;
  private count = 0;

  /** The number of each face's person in the next frame. */
  number(faces: Place[], seconds: number): number[] {
    const tracks = this.tracks.filter(track => track.seconds === this.last || seconds - track.seconds <= MAX_GAP);
    const pairs = tracks.flatMap(track => faces.map((face, i) => ({ track, i, cost: cost(track, face, seconds) })))
      .filter(pair => pair.cost < Infinity)
      .sort((first, second) => first.cost - second.cost);
    const assigned = new Map<number, Track>();
    const used = new Set<Track>();
    for (const { track, i } of pairs) {
      if (assigned.has(i) || used.has(track)) continue;
      assigned.set(i, track);
      used.add(track);
    }
    const numbers = faces.map((face, i) => {
      let track = assigned.get(i);
      if (track === undefined) {
        this.count += 1;
        track = { number: this.count, place: face, seconds, speed: [0, 0] };
        tracks.push(track);
      }
      update(track, face, seconds);
      return track.number;
    });
    this.tracks = tracks;
    this.last = seconds;
    return numbers;
  }
}

function update(track: Track, face: Place, seconds: number): void {
  const passed = seconds - track.seconds;
  if (passed > 0) {
    const weight = 1 - Math.exp(-passed / SPEED_MEMORY);
    track.speed = track.speed.map((speed, axis) => {
      const steps = face.landmarks.map((point, i) => point[axis] - track.place.landmarks[i][axis]);
      const newest = steps.reduce((sum, step) => sum + step, 0) / steps.length / passed;
      return speed + (newest - speed) * weight;
    }) as Point;
  }
  track.place = face;
  track.seconds = seconds;
}

export interface TrackedFrame {
  seconds: number;
  faces: Face[];
  tracks: number[];
}

export const TIME_CONSTANT = 0.25; // seconds
const HALF_WIDTH = 3; // of an average's window, in time constants
const MIN_PROBABILITY = 1e-6;
const MIN_FRAME_SECONDS = 1e-6;

/** How long each frame counts: half of the time from the frame before to the frame after. */
function durations(frames: TrackedFrame[]): number[] {
  return frames.map(({ seconds }, i) => {
    const sides = [i > 0 ? seconds - frames[i - 1].seconds : 0, i + 1 < frames.length ? frames[i + 1].seconds - seconds : 0];
    const known = sides.filter((_, s) => (s === 0 ? i > 0 : i + 1 < frames.length));
    const length = known.length ? known.reduce((sum, part) => sum + part, 0) / known.length : 0;
    return Math.max(Math.min(length, TIME_CONSTANT), MIN_FRAME_SECONDS);
  });
}

/** A Gaussian average over time for each face of a clip, by frames. */
export function smooth(frames: TrackedFrame[], heads: HeadFacts[]): Tracked[][] {
  const lengths = durations(frames);
  const periods = heads.flatMap(head => head.columns.map(() => head.period));
  return frames.map(({ seconds, faces, tracks }) => {
    const near = frames.map((frame, i) => ({ frame, i })).filter(({ frame }) => Math.abs(frame.seconds - seconds) <= HALF_WIDTH * TIME_CONSTANT);
    return faces.map((face, index) => {
      const same = near.flatMap(({ frame, i }) => {
        const at = frame.tracks.indexOf(tracks[index]);
        if (at < 0) return [];
        const age = (seconds - frame.seconds) / TIME_CONSTANT;
        return [{ face: frame.faces[at], weight: lengths[i] * Math.exp(-0.5 * age * age) }];
      });
      const total = same.reduce((sum, { weight }) => sum + weight, 0);
      const average = (value: (face: Face) => number): number =>
        same.reduce((sum, one) => sum + (one.weight / total) * value(one.face), 0);
      const powers = face.probabilities.map((_, i) =>
        Math.exp(average(one => Math.log(Math.max(one.probabilities[i], MIN_PROBABILITY)))));
      const sum = powers.reduce((all, power) => all + power, 0);
      const outputsOf = (one: Face): number[] => heads.flatMap(head => one.values[head.name]);
      const smoothedOutputs = outputsOf(face).map((_, k) => {
        const period = periods[k];
        if (period === null) return average(one => outputsOf(one)[k]);
        const turn = (2 * Math.PI) / period;
        const [sine, cosine] = [Math.sin, Math.cos].map(wave => average(one => wave(outputsOf(one)[k] * turn)));
        return Math.atan2(sine, cosine) / turn;
      });
      return { track: tracks[index], smoothed: powers.map(power => power / sum), smoothedOutputs };
    });
  });
}
