// The width of a face's edges, as `measure_blur` of fer_vit/predict/computed.py.

import type { Picture } from './image';

const SIDE = 48;

/** A side reduced by a triangle, as PyTorch's antialiased bilinear interpolation. */
function weights(source: number): { first: number; shares: number[] }[] {
  const scale = source / SIDE;
  const support = Math.max(scale, 1);
  return Array.from({ length: SIDE }, (_, i) => {
    const centre = scale * (i + 0.5);
    const first = Math.max(0, Math.trunc(centre - support + 0.5));
    const end = Math.min(source, Math.trunc(centre + support + 0.5));
    const raw = Array.from({ length: end - first }, (__, j) => Math.max(0, 1 - Math.abs((j + first - centre + 0.5) / support)));
    const sum = raw.reduce((total, weight) => total + weight, 0);
    return { first, shares: raw.map(weight => weight / sum) };
  });
}

function variance(values: number[]): number {
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  return values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (values.length - 1);
}

/** The blur of a square crop in pixels of 48; null without contrast. */
export function blur({ width, data }: Picture): number | null {
  const taps = weights(width);
  const level = (x: number, y: number): number => {
    const at = 4 * (y * width + x);
    return (data[at] + data[at + 1] + data[at + 2]) / 3 / 255;
  };
  const across = Array.from({ length: width }, (_, y) =>
    taps.map(({ first, shares }) => shares.reduce((sum, share, k) => sum + share * level(first + k, y), 0)));
  const small = taps.map(({ first, shares }) =>
    taps.map((_, x) => shares.reduce((sum, share, k) => sum + share * across[first + k][x], 0)));
  const edges: number[] = [];
  for (let y = 1; y < SIDE - 1; y += 1) {
    for (let x = 1; x < SIDE - 1; x += 1) {
      edges.push(small[y - 1][x] + small[y + 1][x] + small[y][x - 1] + small[y][x + 1] - 4 * small[y][x]);
    }
  }
  const levels = small.flat();
  const rounding = 8 * 2 ** -23 * Math.max(...levels);
  const sharpness = variance(edges);
  return sharpness > rounding ** 2 ? (variance(levels) / sharpness) ** 0.25 : null;
}
