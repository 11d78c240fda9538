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

/** Cubic weights of the four pixels around a place between the second and the third. */
function cubic(x: number): number[] {
  const A = -0.75;
  const w0 = ((A * (x + 1) - 5 * A) * (x + 1) + 8 * A) * (x + 1) - 4 * A;
  const w1 = ((A + 2) * x - (A + 3)) * x * x + 1;
  const w2 = ((A + 2) * (1 - x) - (A + 3)) * (1 - x) * (1 - x) + 1;
  return [w0, w1, w2, 1 - w0 - w1 - w2];
}

/** The two pixels around a place. */
const linear = (x: number): number[] => [1 - x, x];

/** The pixels of a side that make each pixel of a new side, and their weights, one after the other. */
interface Taps {
  starts: Int32Array;
  pixels: Int32Array;
  weights: Float32Array;
}

function taps(target: number, of: (index: number) => { first: number; weights: number[] }, source: number): Taps {
  const starts = new Int32Array(target + 1);
  const [pixels, weights]: number[][] = [[], []];
  for (let i = 0; i < target; i += 1) {
    const { first, weights: shares } = of(i);
    shares.forEach((share, k) => {
      pixels.push(clamp(first + k, 0, source - 1));
      weights.push(share);
    });
    starts[i + 1] = pixels.length;
  }
  return { starts, pixels: Int32Array.from(pixels), weights: Float32Array.from(weights) };
}

const LINEAR_UNIT = 2048; // OpenCV's linear weights have 11 bits

/** The pixels around the place of each new pixel, with weights of which `unit` is 1. */
function tapsBetween(source: number, target: number, weigh: (x: number) => number[], unit: number): Taps {
  const count = weigh(0).length;
  return taps(target, index => {
    const place = Math.fround((index + 0.5) * (source / target) - 0.5);
    const left = Math.floor(place);
    const outside = count === 2 && (left < 0 || left >= source - 1);
    const weights = weigh(outside ? 0 : Math.fround(place - left));
    const first = (outside ? clamp(left, 0, source - 1) : left) - count / 2 + 1;
    return { first, weights: unit === 1 ? weights : weights.map(weight => round(Math.fround(weight) * unit)) };
  }, source);
}

/** The pixels that each new pixel covers, with their shares. */
function tapsUnder(source: number, target: number): Taps {
  const scale = source / target;
  return taps(target, index => {
    const start = index * scale;
    const end = start + scale;
    const width = Math.min(scale, source - start);
    const last = Math.min(Math.floor(end), source - 1);
    const whole = Math.min(Math.ceil(start), last);
    const weights = Array.from({ length: last - whole }, () => 1 / width);
    const before = whole - start > 1e-3;
    if (before) weights.unshift((whole - start) / width);
    if (end - last > 1e-3) weights.push(Math.min(end - last, 1, width) / width);
    return { first: before ? whole - 1 : whole, weights };
  }, source);
}

/** A row of a picture at the new width, three numbers for each pixel. */
function resizeRow({ width, data }: Picture, y: number, { starts, pixels, weights }: Taps, row: Float32Array): void {
  const start = CHANNELS * width * y;
  for (let x = 0, at = 0; x + 1 < starts.length; x += 1, at += COLOURS) {
    let [red, green, blue] = [0, 0, 0];
    for (let k = starts[x]; k < starts[x + 1]; k += 1) {
      const from = start + CHANNELS * pixels[k];
      const weight = weights[k];
      red = Math.fround(red + Math.fround(weight * data[from]));
      green = Math.fround(green + Math.fround(weight * data[from + 1]));
      blue = Math.fround(blue + Math.fround(weight * data[from + 2]));
    }
    row[at] = red;
    row[at + 1] = green;
    row[at + 2] = blue;
  }
}

/** The sum of a column's numbers with their weights, as OpenCV rounds it. */
type Finish = (numbers: number[], weights: number[]) => number;

const finishArea: Finish = (numbers, weights) => {
  let sum = 0;
  for (let k = 0; k < numbers.length; k += 1) sum = Math.fround(sum + Math.fround(weights[k] * numbers[k]));
  return round(sum);
};

const finishLinear: Finish = ([first, second], [a, b]) =>
  (((a * (first >> 4)) >> 16) + ((b * (second >> 4)) >> 16) + 2) >> 2;

const finishCubic: Finish = (numbers, weights) =>
  round(numbers.reduce((sum, number, k) => sum + number * weights[k], 0));

const METHODS = {
  area: { finish: finishArea, taps: tapsUnder },
  linear: { finish: finishLinear, taps: (source: number, target: number) => tapsBetween(source, target, linear, LINEAR_UNIT) },
  cubic: { finish: finishCubic, taps: (source: number, target: number) => tapsBetween(source, target, cubic, 1) },
};
export type Method = keyof typeof METHODS;

export function resize(image: Picture, width: number, height: number, method: Method): Picture {
  if (image.width === 2 * width && image.height === 2 * height && method !== 'cubic') return halve(image);
  const { finish, taps: tapsOf } = METHODS[method];
  const [columns, lines] = [tapsOf(image.width, width), tapsOf(image.height, height)];
  const made = empty(width, height);
  const rows = new Map<number, Float32Array>(); // those of the last lines
  for (let y = 0; y < height; y += 1) {
    const used = [...lines.pixels.subarray(lines.starts[y], lines.starts[y + 1])];
    const weights = [...lines.weights.subarray(lines.starts[y], lines.starts[y + 1])];
    const free = [...rows.keys()].filter(line => !used.includes(line));
    for (const line of new Set(used)) {
      if (rows.has(line)) continue;
      const old = free.pop();
      const row = old === undefined ? new Float32Array(COLOURS * width) : rows.get(old)!;
      if (old !== undefined) rows.delete(old);
      resizeRow(image, line, columns, row);
      rows.set(line, row);
    }
    const sources = used.map(line => rows.get(line)!);
    const numbers = sources.map(() => 0);
    for (let x = 0, at = CHANNELS * width * y; x < width; x += 1, at += CHANNELS) {
      for (let channel = 0; channel < COLOURS; channel += 1) {
        for (let k = 0; k < sources.length; k += 1) numbers[k] = sources[k][COLOURS * x + channel];
        made.data[at + channel] = finish(numbers, weights);
      }
      made.data[at + COLOURS] = 255;
    }
  }
  return made;
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
const WARP_BITS = 15; // of the weights

/** The weights (4, 4) of the pixels around a place, in whole numbers with the same sum at each place. */
function warpWeights(stepX: number, stepY: number): Int32Array {
  const [across, down] = [stepX, stepY].map(step => cubic(Math.fround(step / STEPS)).map(Math.fround));
  const unit = 1 << WARP_BITS;
  const weights = Int32Array.from({ length: 16 }, (_, i) => round(Math.fround(down[i >> 2] * across[i & 3]) * unit));
  const excess = weights.reduce((sum, weight) => sum + weight, 0) - unit;
  if (excess !== 0) {
    // The rounding is made up for by the smallest or largest of four weights.
    const middles = [10, 11, 14, 15];
    const changed = middles.reduce((best, i) => ((excess < 0 ? weights[i] > weights[best] : weights[i] < weights[best]) ? i : best));
    weights[changed] -= excess;
  }
  return weights;
}

const WARP_WEIGHTS = Array.from({ length: STEPS ** 2 }, (_, i) => warpWeights(i % STEPS, Math.floor(i / STEPS)));

/** Draws a square by a matrix from its pixels to those of the image; the border is repeated. */
function warpCubic({ width, height, data }: Picture, [a, b, c, d, e, f]: Matrix, size: number): Picture {
  const made = empty(size, size);
  const unit = 1024;
  const half = 1 << (WARP_BITS - 1);
  for (let y = 0; y < size; y += 1) {
    const startX = round((b * y + c) * unit) + unit / STEPS / 2;
    const startY = round((e * y + f) * unit) + unit / STEPS / 2;
    for (let x = 0; x < size; x += 1) {
      const placeX = Math.floor((startX + round(a * x * unit)) / STEPS);
      const placeY = Math.floor((startY + round(d * x * unit)) / STEPS);
      const left = Math.floor(placeX / STEPS);
      const top = Math.floor(placeY / STEPS);
      const weights = WARP_WEIGHTS[STEPS * (placeY - STEPS * top) + placeX - STEPS * left];
      let [red, green, blue] = [half, half, half];
      for (let i = 0; i < 16; i += 1) {
        const row = clamp(top + (i >> 2) - 1, 0, height - 1) * width;
        const from = CHANNELS * (row + clamp(left + (i & 3) - 1, 0, width - 1));
        red += weights[i] * data[from];
        green += weights[i] * data[from + 1];
        blue += weights[i] * data[from + 2];
      }
      const at = CHANNELS * (y * size + x);
      made.data[at] = red >> WARP_BITS;
      made.data[at + 1] = green >> WARP_BITS;
      made.data[at + 2] = blue >> WARP_BITS;
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
