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

class Tracker {
  private tracks: Track[] = [];
  private last = 0;
  private count = 0;

  /** Ends all tracks: the faces that follow get new numbers. */
  endTracks(): void {
    this.tracks = [];
  }

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

/** A frame of a clip; `number` counts all frames, also those left out. */
export interface SeenFrame {
  number: number;
  seconds: number;
  faces: Face[];
}

export interface TrackedFrame extends SeenFrame {
  tracks: number[];
}

/** Numbers the people of a clip; after a cut, each has a new number. */
export function numberPeople(frames: SeenFrame[], shots: number[]): TrackedFrame[] {
  const tracker = new Tracker();
  let shot = 0;
  return frames.map(frame => {
    if (shots[frame.number] !== shot) {
      shot = shots[frame.number];
      tracker.endTracks();
    }
    return { ...frame, tracks: tracker.number(frame.faces, frame.seconds) };
  });
}

const TIME_CONSTANT = 0.25; // seconds
const HALF_WIDTH = 3; // of an average's window, in time constants
const MIN_PROBABILITY = 1e-6;
const MIN_FRAME_SECONDS = 1e-6;

/** How long each frame counts: half of the time from the frame before to the frame after. */
function durations(frames: SeenFrame[]): number[] {
  return frames.map(({ seconds }, i) => {
    const sides: number[] = [];
    if (i > 0) sides.push(seconds - frames[i - 1].seconds);
    if (i + 1 < frames.length) sides.push(frames[i + 1].seconds - seconds);
    const length = sides.reduce((sum, part) => sum + part, 0) / Math.max(sides.length, 1);
    return Math.max(Math.min(length, TIME_CONSTANT), MIN_FRAME_SECONDS);
  });
}

/** A Gaussian average over time for each face of a clip, by frames. */
export function smooth(frames: TrackedFrame[], heads: HeadFacts[]): Tracked[][] {
  const lengths = durations(frames);
  const periods = heads.flatMap(head => head.columns.map(() => head.period));
  const reach = HALF_WIDTH * TIME_CONSTANT;
  let first = 0; // the first frame in the window of the frame that is averaged
  return frames.map(({ seconds, faces, tracks }) => {
    while (seconds - frames[first].seconds > reach) first += 1;
    return faces.map((_, index) => {
      const same: { face: Face; weight: number }[] = []; // the faces of this person in the window
      for (let f = first; f < frames.length && frames[f].seconds - seconds <= reach; f += 1) {
        const at = frames[f].tracks.indexOf(tracks[index]);
        if (at < 0) continue;
        const age = (seconds - frames[f].seconds) / TIME_CONSTANT;
        same.push({ face: frames[f].faces[at], weight: lengths[f] * Math.exp(-0.5 * age * age) });
      }
      return { track: tracks[index], ...averageOf(same, heads, periods) };
    });
  });
}

/** The mean of a person's log-probabilities and outputs; angles are averaged as directions. */
function averageOf(
  same: { face: Face; weight: number }[], heads: HeadFacts[], periods: (number | null)[],
): Omit<Tracked, 'track'> {
  const total = same.reduce((sum, { weight }) => sum + weight, 0);
  const mean = (value: (index: number) => number): number =>
    same.reduce((sum, { weight }, index) => sum + (weight / total) * value(index), 0);
  const powers = same[0].face.probabilities.map((_, label) =>
    Math.exp(mean(index => Math.log(Math.max(same[index].face.probabilities[label], MIN_PROBABILITY)))));
  const sum = powers.reduce((all, power) => all + power, 0);
  const outputs = same.map(({ face }) => heads.flatMap(head => face.values[head.name]));
  const smoothedOutputs = periods.map((period, k) => {
    if (period === null) return mean(index => outputs[index][k]);
    const turn = (2 * Math.PI) / period;
    const sine = mean(index => Math.sin(outputs[index][k] * turn));
    const cosine = mean(index => Math.cos(outputs[index][k] * turn));
    return Math.atan2(sine, cosine) / turn;
  });
  return { smoothed: powers.map(power => power / sum), smoothedOutputs };
}
