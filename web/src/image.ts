// Resizes and warps pictures with the numbers of OpenCV, so that the networks see what they see in Python.

import { apply, compose, determinant, invert, scaling, type Matrix, type Point } from './geometry';

/** Pixels as a canvas has them: red, green, blue and an opacity that is not read. */
export interface Picture {
  width: number;
  height: number;
  data: Uint8ClampedArray;
}

const CHANNELS = 4;
const COLOURS = 3;
const empty = (width: number, height: number): Picture =>
  ({ width, height, data: new Uint8ClampedArray(CHANNELS * width * height) });

/** Python's `round`: halves to the even number. */
export function round(value: number): number {
  const floor = Math.floor(value);
  const rest = value - floor;
  if (rest === 0.5) return floor % 2 === 0 ? floor : floor + 1;
  return rest < 0.5 ? floor : floor + 1;
}

const clamp = (value: number, low: number, high: number): number => Math.min(Math.max(value, low), high);

/** The pixels of a side that make each new pixel, and their weights. */
type Taps = { first: number; weights: number[] }[];

function resample(image: Picture, columns: Taps, rows: Taps, max: number, finish: (sum: number) => number): Picture {
  const { width, height, data } = image;
  const made = empty(columns.length, rows.length);
  // Rows that are made from the same pixels follow each other: each row is summed across once.
  const across = new Map<number, Float64Array>();
  const sumAcross = (y: number): Float64Array => {
    const row = new Float64Array(COLOURS * columns.length);
    columns.forEach(({ first, weights }, x) => {
      for (let k = 0; k < weights.length; k += 1) {
        const at = CHANNELS * (y * width + clamp(first + k, 0, width - 1));
        for (let channel = 0; channel < COLOURS; channel += 1) row[COLOURS * x + channel] += weights[k] * data[at + channel];
      }
    });
    return row;
  };
  rows.forEach(({ first, weights }, y) => {
    for (const known of across.keys()) if (known < first) across.delete(known);
    const sums = new Float64Array(COLOURS * columns.length);
    weights.forEach((weight, k) => {
      const source = clamp(first + k, 0, height - 1);
      let row = across.get(source);
      if (row === undefined) {
        row = sumAcross(source);
        across.set(source, row);
      }
      for (let i = 0; i < row.length; i += 1) sums[i] += weight * row[i];
    });
    for (let x = 0; x < columns.length; x += 1) {
      const at = CHANNELS * (y * columns.length + x);
      for (let channel = 0; channel < COLOURS; channel += 1) made.data[at + channel] = clamp(finish(sums[COLOURS * x + channel]), 0, max);
      made.data[at + COLOURS] = 255;
    }
  });
  return made;
}

/** Cubic weights of the four pixels around a place between the second and the third. */
function cubic(x: number): number[] {
  const A = -0.75;
  const w0 = ((A * (x + 1) - 5 * A) * (x + 1) + 8 * A) * (x + 1) - 4 * A;
  const w1 = ((A + 2) * x - (A + 3)) * x * x + 1;
  const w2 = ((A + 2) * (1 - x) - (A + 3)) * (1 - x) * (1 - x) + 1;
  return [w0, w1, w2, 1 - w0 - w1 - w2];
}

const linear = (x: number): number[] => [1 - x, x];
/** OpenCV has weights of 11 bits. */
const BITS = 2048;

function tapsBetween(source: number, target: number, weigh: (x: number) => number[]): Taps {
  const scale = source / target;
  return Array.from({ length: target }, (_, i) => {
    const place = Math.fround((i + 0.5) * scale - 0.5);
    let first = Math.floor(place);
    let rest = place - first;
    const weights = weigh(rest);
    if (weights.length === 2 && (first < 0 || first >= source - 1)) {
      first = clamp(first, 0, source - 1);
      rest = 0;
    }
    const rounded = weigh(rest).map(weight => round(weight * BITS) / BITS);
    return { first: first - weights.length / 2 + 1, weights: rounded };
  });
}

/** The share of each pixel in the part of a side that a new pixel covers. */
function tapsUnder(source: number, target: number): Taps {
  const scale = source / target;
  return Array.from({ length: target }, (_, i) => {
    const start = i * scale;
    const width = Math.min(scale, source - start);
    const end = start + scale;
    const whole = Math.min(Math.floor(end), source - 1);
    const first = Math.min(Math.ceil(start), whole);
    const weights = Array.from({ length: whole - first }, () => 1 / width);
    const before = first - start > 1e-3;
    if (before) weights.unshift((first - start) / width);
    if (end - whole > 1e-3) weights.push(Math.min(end - whole, 1, width) / width);
    return { first: first - (before ? 1 : 0), weights };
  });
}

export type Method = 'linear' | 'cubic' | 'area';

export function resize(image: Picture, width: number, height: number, method: Method): Picture {
  const halves = image.width === 2 * width && image.height === 2 * height;
  if (halves && method !== 'cubic') return halve(image);
  if (method === 'area') {
    return resample(image, tapsUnder(image.width, width), tapsUnder(image.height, height), 255, round);
  }
  const weigh = method === 'cubic' ? cubic : linear;
  return resample(image, tapsBetween(image.width, width, weigh), tapsBetween(image.height, height, weigh), 255, round);
}

/** The mean of 2 x 2 pixels, as `resize` by exactly a half. */
function halve({ width, height, data }: Picture): Picture {
  const made = empty(width / 2, height / 2);
  for (let y = 0; y < made.height; y += 1) {
    for (let x = 0; x < made.width; x += 1) {
      const from = CHANNELS * (2 * y * width + 2 * x);
      const below = from + CHANNELS * width;
      const at = CHANNELS * (y * made.width + x);
      for (let channel = 0; channel < COLOURS; channel += 1) {
        const sum = data[from + channel] + data[from + CHANNELS + channel] + data[below + channel] + data[below + CHANNELS + channel];
        made.data[at + channel] = (sum + 2) >> 2;
      }
      made.data[at + COLOURS] = 255;
    }
  }
  return made;
}

export const REDUCED_SCALE = 0.75;
const STRONGLY_REDUCED_SCALE = 0.5;

/** Scales the longer side of a picture to `longest` pixels, as `resized` of fer_vit/face/detectors.py. */
export function resized(image: Picture, longest: number): Picture {
  let small = image;
  while (Math.max(small.width, small.height) > 2 * longest) small = resizedBy(small, 0.5, 'linear');
  const scale = longest / Math.max(small.width, small.height);
  if (scale > 1) return resizedBy(small, scale, 'cubic');
  return resizedBy(small, scale, scale < REDUCED_SCALE ? 'area' : 'linear');
}

function resizedBy(image: Picture, scale: number, method: Method): Picture {
  const [width, height] = [image.width, image.height].map(length => Math.max(1, round(length * scale)));
  if (width === image.width && height === image.height) return image;
  return resize(image, width, height, method);
}

/** Draws a square of an image by a matrix from image to square, as `warp` of fer_vit/face/crop.py. */
export function warp(image: Picture, matrix: Matrix, size: number): Picture {
  const scale = Math.sqrt(Math.abs(determinant(matrix)));
  let source = image;
  let toSquare = matrix;
  if (scale > 0 && scale < STRONGLY_REDUCED_SCALE) [source, toSquare] = reduce(image, matrix, size, scale);
  const drawn = scale > 0 && scale < REDUCED_SCALE ? 2 * size : size;
  // OpenCV puts the centre of a pixel at whole numbers.
  const toDrawn = compose(scaling(1, 1, -0.5, -0.5), compose(scaling(drawn / size), compose(toSquare, scaling(1, 1, 0.5, 0.5))));
  const square = warpCubic(source, invert(toDrawn), drawn);
  return drawn > size ? halve(square) : square;
}

/** Reduces the part of an image that a square shows to twice the resolution of the square. */
function reduce(image: Picture, toSquare: Matrix, size: number, scale: number): [Picture, Matrix] {
  const back = invert(toSquare);
  const corners = ([[0, 0], [size, 0], [0, size], [size, size]] as Point[]).map(corner => apply(back, corner));
  const margin = 2 / scale;
  const [start, stop] = [[0, 0], [0, 0]];
  [image.width, image.height].forEach((length, axis) => {
    const places = corners.map(corner => corner[axis]);
    start[axis] = clamp(Math.floor(Math.min(...places) - margin), 0, length - 1);
    stop[axis] = clamp(Math.ceil(Math.max(...places) + margin), start[axis] + 1, length);
  });
  const part = cut(image, start[0], start[1], stop[0] - start[0], stop[1] - start[1]);
  const [width, height] = [part.width, part.height].map(length => Math.max(1, round(length * 2 * scale)));
  let halved = part;
  while (Math.min(halved.width / width, halved.height / height) >= 4) {
    halved = resize(halved, Math.floor(halved.width / 2), Math.floor(halved.height / 2), 'linear');
  }
  const toPart = scaling(part.width / width, part.height / height, start[0], start[1]);
  return [resize(halved, width, height, 'area'), compose(toSquare, toPart)];
}

function cut(image: Picture, left: number, top: number, width: number, height: number): Picture {
  const part = empty(width, height);
  for (let y = 0; y < height; y += 1) {
    const from = CHANNELS * ((top + y) * image.width + left);
    part.data.set(image.data.subarray(from, from + CHANNELS * width), CHANNELS * width * y);
  }
  return part;
}

const STEPS = 32; // OpenCV's places between two pixels
const CUBIC = Array.from({ length: STEPS }, (_, i) => cubic(i / STEPS));

/** Draws a square by a matrix from its pixels to those of the image; the border is repeated. */
function warpCubic({ width, height, data }: Picture, [a, b, c, d, e, f]: Matrix, size: number): Picture {
  const made = empty(size, size);
  const unit = 1024;
  for (let y = 0; y < size; y += 1) {
    const startX = round((b * y + c) * unit) + unit / STEPS / 2;
    const startY = round((e * y + f) * unit) + unit / STEPS / 2;
    for (let x = 0; x < size; x += 1) {
      const placeX = Math.floor((startX + round(a * x * unit)) / STEPS);
      const placeY = Math.floor((startY + round(d * x * unit)) / STEPS);
      const [left, top] = [Math.floor(placeX / STEPS), Math.floor(placeY / STEPS)];
      const across = CUBIC[placeX - STEPS * left];
      const down = CUBIC[placeY - STEPS * top];
      const at = CHANNELS * (y * size + x);
      let [red, green, blue] = [0, 0, 0];
      for (let j = 0; j < 4; j += 1) {
        const row = clamp(top + j - 1, 0, height - 1) * width;
        for (let i = 0; i < 4; i += 1) {
          const from = CHANNELS * (row + clamp(left + i - 1, 0, width - 1));
          const weight = down[j] * across[i];
          red += weight * data[from];
          green += weight * data[from + 1];
          blue += weight * data[from + 2];
        }
      }
      made.data[at] = round(red);
      made.data[at + 1] = round(green);
      made.data[at + 2] = round(blue);
      made.data[at + 3] = 255;
    }
  }
  return made;
}

/** The grey levels of a picture, as OpenCV rounds them. */
export function grey({ width, height, data }: Picture): Float32Array {
  const levels = new Float32Array(width * height);
  for (let i = 0; i < levels.length; i += 1) {
    const at = CHANNELS * i;
    levels[i] = (data[at] * 9798 + data[at + 1] * 19235 + data[at + 2] * 3735 + 16384) >> 15;
  }
  return levels;
}

/** Colours of a picture, one after the other, as numbers from 0 to `most`; `order` lists the colours. */
export function planes({ width, height, data }: Picture, order: number[], most: number, paddedWidth = width, paddedHeight = height): Float32Array {
  const size = paddedWidth * paddedHeight;
  const numbers = new Float32Array(order.length * size);
  order.forEach((channel, plane) => {
    for (let y = 0; y < height; y += 1) {
      for (let x = 0; x < width; x += 1) {
        numbers[plane * size + y * paddedWidth + x] = (data[CHANNELS * (y * width + x) + channel] * most) / 255;
      }
    }
  });
  return numbers;
}
