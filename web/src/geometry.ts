// Points, boxes and matrices in pixels. A pixel's centre lies at +0.5, as in fer_vit/geometry.py.

export type Point = [x: number, y: number];
export type Box = [left: number, top: number, right: number, bottom: number];
/** The rows of a matrix (2, 3), one after the other. */
export type Matrix = [a: number, b: number, c: number, d: number, e: number, f: number];

/** Whether left and right change places when a face is mirrored: the rows of its landmarks. */
export const MIRRORED = [1, 0, 2, 4, 3];

export const scaling = (x: number, y = x, left = 0, top = 0): Matrix => [x, 0, left, 0, y, top];

export const apply = ([a, b, c, d, e, f]: Matrix, [x, y]: Point): Point => [a * x + b * y + c, d * x + e * y + f];

export const determinant = ([a, b, , d, e]: Matrix): number => a * e - b * d;

/** The matrix that applies `first`, then `second`. */
export function compose(second: Matrix, first: Matrix): Matrix {
  const [a, b, c, d, e, f] = second;
  const [g, h, i, j, k, l] = first;
  return [a * g + b * j, a * h + b * k, a * i + b * l + c, d * g + e * j, d * h + e * k, d * i + e * l + f];
}

export function invert(matrix: Matrix): Matrix {
  const [a, b, c, d, e, f] = matrix;
  const scale = 1 / determinant(matrix);
  const [g, h, j, k] = [e * scale, -b * scale, -d * scale, a * scale];
  return [g, h, -(g * c + h * f), j, k, -(j * c + k * f)];
}

/** The degrees, clockwise, by which a matrix turns. */
export const rotation = ([a, , , d]: Matrix): number => (Math.atan2(d, a) * 180) / Math.PI;

export function mean(points: Point[]): Point {
  const sum = points.reduce(([x, y], [u, v]) => [x + u, y + v]);
  return [sum[0] / points.length, sum[1] / points.length];
}

export const middle = ([left, top, right, bottom]: Box): Point => [(left + right) / 2, (top + bottom) / 2];

/** The similarity that maps points onto others with the least square error (Umeyama 1991). */
export function similarity(source: Point[], target: Point[]): Matrix {
  const from = mean(source);
  const to = mean(target);
  let [real, imaginary, norm] = [0, 0, 1e-12];
  source.forEach(([x, y], i) => {
    const [a, b, c, d] = [x - from[0], y - from[1], target[i][0] - to[0], target[i][1] - to[1]];
    real += a * c + b * d;
    imaginary += a * d - b * c;
    norm += a * a + b * b;
  });
  real /= norm;
  imaginary /= norm;
  return [
    real, -imaginary, to[0] - real * from[0] + imaginary * from[1],
    imaginary, real, to[1] - imaginary * from[0] - real * from[1],
  ];
}

/** The matrix that scales a box and puts its middle into that of a square. */
export function boxMatrix(box: Box, size: number, scale: number): Matrix {
  const [x, y] = middle(box);
  return scaling(scale, scale, size / 2 - scale * x, size / 2 - scale * y);
}

/** The side of a square as large as a box. */
export const side = ([left, top, right, bottom]: Box): number => Math.sqrt((right - left) * (bottom - top));

export const longerSide = ([left, top, right, bottom]: Box): number => Math.max(right - left, bottom - top);

/** Intersection over union of two boxes. */
export function overlap(first: Box, second: Box): number {
  const width = Math.min(first[2], second[2]) - Math.max(first[0], second[0]);
  const height = Math.min(first[3], second[3]) - Math.max(first[1], second[1]);
  const common = Math.max(0, width) * Math.max(0, height);
  return common / (side(first) ** 2 + side(second) ** 2 - common);
}
