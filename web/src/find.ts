// Finds the faces of a picture, as fer_vit/face: YuNet at two sizes, then landmarks from a network.

import * as ort from 'onnxruntime-web/wasm';

import type { Facts } from './facts';
import { apply, boxMatrix, invert, longerSide, middle, MIRRORED, overlap, side, similarity } from './geometry';
import type { Box, Matrix, Point } from './geometry';
import { grey, planes, resized, warp, type Picture } from './image';

export interface Detection {
  box: Box;
  landmarks: Point[];
  score: number;
}

export class Finder {
  constructor(
    private readonly facts: Facts,
    private readonly detector: ort.InferenceSession,
    private readonly network: ort.InferenceSession,
  ) {}

  /** The faces of a picture, best score first; their landmarks are rough. */
  async detect(image: Picture): Promise<Detection[]> {
    const { minSide, maxSide, fragmentedSide } = this.facts.detector;
    const longest = Math.max(image.width, image.height);
    const large = resized(image, Math.min(Math.max(longest, minSide), maxSide));
    const found = await this.detectInCopy(large, image);
    if (longest <= fragmentedSide) return found;
    return join(found, await this.detectInCopy(resized(large, minSide), image), longest);
  }

  /** Detected faces with exact landmarks, without uncertain ones that the second look rejects. */
  async confirm(image: Picture, found: Detection[]): Promise<Detection[]> {
    const { sureScore } = this.facts.detector;
    const faces: Detection[] = [];
    for (const face of found) {
      const { landmarks, logit } = await this.look(image, face.box);
      if (logit >= this.facts.landmarks.minLogit || face.score >= sureScore) faces.push({ ...face, landmarks });
    }
    return faces;
  }

  /** The faces that YuNet finds in a copy of a picture, in pixels of the picture, best score first. */
  private async detectInCopy(copy: Picture, image: Picture): Promise<Detection[]> {
    const { multiple, strides, minScore, suppressed } = this.facts.detector;
    const [width, height] = [copy.width, copy.height].map(length => Math.ceil(length / multiple) * multiple);
    const pixels = planes(copy, [2, 1, 0], 255, width, height);
    const input = new ort.Tensor('float32', pixels, [1, 3, height, width]);
    const results = await this.detector.run({ [this.detector.inputNames[0]]: input });
    const read = (kind: number, level: number): Float32Array =>
      results[this.detector.outputNames[kind * strides.length + level]].data as Float32Array;

    const [zoomX, zoomY] = [image.width / copy.width, image.height / copy.height];
    const candidates: { face: Detection; compared: Box }[] = [];
    const least = Math.fround(minScore);
    strides.forEach((stride, level) => {
      const [cls, obj, bbox, kps] = [0, 1, 2, 3].map(kind => read(kind, level));
      const columns = width / stride;
      for (let cell = 0; cell < cls.length; cell += 1) {
        const unit = (value: number): number => Math.min(1, Math.max(0, value));
        const score = Math.fround(Math.sqrt(unit(cls[cell]) * unit(obj[cell])));
        if (score < least) continue;
        const corner = [cell % columns, Math.floor(cell / columns)];
        const centre = [0, 1].map(axis => (corner[axis] + bbox[4 * cell + axis]) * stride);
        const sides = [2, 3].map(axis => Math.fround(Math.exp(bbox[4 * cell + axis]) * stride));
        const [left, top] = [0, 1].map(axis => Math.fround(centre[axis] - sides[axis] / 2));
        const [x, y, w, h] = [left, top, ...sides].map(Math.trunc);
        const landmarks = Array.from({ length: 5 }, (_, point): Point => [
          (kps[10 * cell + 2 * point] + corner[0]) * stride * zoomX,
          (kps[10 * cell + 2 * point + 1] + corner[1]) * stride * zoomY,
        ]);
        const box: Box = [left * zoomX, top * zoomY, (left + sides[0]) * zoomX, (top + sides[1]) * zoomY];
        candidates.push({ face: { box, landmarks, score }, compared: [x, y, x + w, y + h] });
      }
    });
    candidates.sort((first, second) => second.face.score - first.face.score);
    const kept: typeof candidates = [];
    for (const candidate of candidates) {
      if (kept.every(better => overlap(candidate.compared, better.compared) <= suppressed)) kept.push(candidate);
    }
    return kept.map(({ face }) => face);
  }

  /** The landmarks of a face, and the logit that it is one: a look at the box, then one at the upright face. */
  private async look(image: Picture, box: Box): Promise<{ landmarks: Point[]; logit: number }> {
    const { side: size, share } = this.facts.landmarks;
    const target = this.facts.template.map(([x, y]): Point => [x * size, y * size]);
    const first = await this.lookAtCut(image, boxMatrix(box, size, (share * size) / longerSide(box)));
    return this.lookAtCut(image, similarity(first.landmarks, target));
  }

  private async lookAtCut(image: Picture, toCut: Matrix): Promise<{ landmarks: Point[]; logit: number }> {
    const { side: size, points, face } = this.facts.landmarks;
    const levels = standardized(grey(warp(image, toCut, size)));
    const both = new Float32Array(2 * levels.length);
    both.set(levels);
    for (let i = 0; i < levels.length; i += 1) both[levels.length + i] = levels[i - (i % size) + size - 1 - (i % size)];
    const results = await this.network.run({ image: new ort.Tensor('float32', both, [2, 1, size, size]) });
    const found = results[points].data as Float32Array;
    const logits = results[face].data as Float32Array;
    const back = invert(toCut);
    const landmarks = MIRRORED.map((mirrored, point) => {
      const x = (found[2 * point] + 1 - found[10 + 2 * mirrored]) / 2;
      const y = (found[2 * point + 1] + found[10 + 2 * mirrored + 1]) / 2;
      return apply(back, [x * size, y * size]);
    });
    return { landmarks, logit: (logits[0] + logits[1]) / 2 };
  }
}

/** Grey levels with mean 0 and a deviation of about 1. */
function standardized(levels: Float32Array): Float32Array {
  const mean = levels.reduce((sum, level) => sum + level, 0) / levels.length;
  const variance = levels.reduce((sum, level) => sum + (level - mean) ** 2, 0) / levels.length;
  return levels.map(level => (level - mean) / (Math.sqrt(variance) + 2));
}

/** Joins the faces of a picture with the large ones of a small copy: at full size, these are found in fragments. */
function join(fine: Detection[], coarse: Detection[], longest: number): Detection[] {
  const large = coarse.filter(face => side(face.box) > longest / 3);
  const within = ([x, y]: Point, [left, top, right, bottom]: Box): boolean => left <= x && x <= right && top <= y && y <= bottom;
  const others = fine.filter(face => !large.some(around => within(middle(face.box), around.box)));
  return [...large, ...others].sort((first, second) => second.score - first.score || first.box[0] - second.box[0]);
}
