// From a face to what the model says about it, as fer_vit/face/crop.py and fer_vit/predict.

import * as ort from 'onnxruntime-web/wasm';

import { blur } from './blur';
import type { Facts, HeadFacts, NetworkFacts, RegionFacts } from './facts';
import type { Detection } from './find';
import { apply, determinant, invert, mean, middle, rotation, similarity, type Box, type Matrix, type Point } from './geometry';
import { planes, warp, type Picture } from './image';

const FACES_AT_ONCE = 16;

/** Where a face and its regions are. */
export interface Place {
  toCrop: Matrix;
  boxes: Box[];
  visible: boolean[];
  blur: number | null;
}

/** A face as the model gets it. */
export interface Crop extends Place {
  pixels: Float32Array;
}

/** What the model says about a face. */
export interface Prediction {
  logits: number[];
  probabilities: number[];
  /** The expressions of the prediction set at 90 %. */
  set: string[];
  /** The values of each head, by name. */
  values: Record<string, number[]>;
}

export interface Face<C extends Place = Place> extends Detection, Prediction {
  crop: C;
  /** The side of the crop in pixels of the picture. */
  size: number;
  /** The regions whose centre is in the picture. */
  inPicture: boolean[];
}

function placeRegions(points: Point[], regions: RegionFacts[], size: number): { boxes: Box[]; visible: boolean[] } {
  const across = [points[1][0] - points[0][0], points[1][1] - points[0][1]];
  const [eyes, mouth] = [mean(points.slice(0, 2)), mean(points.slice(3))];
  const eyeDistance = Math.hypot(...across);
  const unit = Math.max(eyeDistance, Math.hypot(mouth[0] - eyes[0], mouth[1] - eyes[1]));
  const [x, y] = across.map(length => length / Math.max(eyeDistance, 1e-9));
  const boxes = regions.map(({ anchors, offset, side }): Box => {
    const anchor = mean(anchors.map(row => points[row]));
    const centre = [
      anchor[0] + unit * (offset[0] * x - offset[1] * y),
      anchor[1] + unit * (offset[0] * y + offset[1] * x),
    ];
    const half = (unit * side) / 2;
    return [centre[0] - half, centre[1] - half, centre[0] + half, centre[1] + half];
  });
  const visible = boxes.map(box => {
    const within = middle(box).every(place => place >= 0 && place < size);
    return within && box[2] - box[0] >= 2;
  });
  return { boxes, visible };
}

/** The matrix from a picture to the crop of a face. */
function cropMatrix(landmarks: Point[], { template, size }: Facts): Matrix {
  return similarity(landmarks, template.map(([x, y]): Point => [x * size, y * size]));
}

/** Whether a face becomes larger in its crop. */
export const isEnlarged = ({ landmarks }: Detection, facts: Facts): boolean => determinant(cropMatrix(landmarks, facts)) > 1;

function cropFace(image: Picture, landmarks: Point[], facts: Facts): Crop {
  const toCrop = cropMatrix(landmarks, facts);
  const square = warp(image, toCrop, facts.size);
  const { boxes, visible } = placeRegions(landmarks.map(point => apply(toCrop, point)), Object.values(facts.regions), facts.size);
  return { pixels: planes(square, [0, 1, 2], 1), toCrop, boxes, visible, blur: blur(square) };
}

/** The pixels of a crop with their mean colour in a box; a pixel is in it if its centre is. */
function covered(pixels: Float32Array, [left, top, right, bottom]: Box, size: number): Float32Array {
  const made = pixels.slice();
  const first = (start: number): number => Math.max(0, Math.ceil(start - 0.5));
  const end = (stop: number): number => Math.min(size, Math.floor(stop - 0.5) + 1);
  for (let plane = 0; plane < pixels.length; plane += size * size) {
    const colour = pixels.subarray(plane, plane + size * size).reduce((sum, level) => sum + level, 0) / size ** 2;
    for (let y = first(top); y < end(bottom); y += 1) {
      made.fill(colour, plane + size * y + first(left), plane + size * y + end(right));
    }
  }
  return made;
}

/** Which regions are visible and have their centre in the picture. */
function regionsInPicture({ toCrop, boxes, visible }: Crop, image: Picture): boolean[] {
  const back = invert(toCrop);
  return boxes.map((box, region) => {
    const [x, y] = apply(back, middle(box));
    return visible[region] && x >= 0 && y >= 0 && x < image.width && y < image.height;
  });
}

function softmax(logits: number[]): number[] {
  const most = Math.max(...logits);
  const powers = logits.map(logit => Math.exp(logit - most));
  const sum = powers.reduce((total, power) => total + power, 0);
  return powers.map(power => power / sum);
}

const ACTIVATIONS: Record<HeadFacts['scale'], (raw: number) => number> = {
  intensity: raw => 1 / (1 + Math.exp(-raw)),
  number: raw => raw,
  signed: Math.tanh,
};

const decode = ({ scale, middle: centre, step }: HeadFacts, raw: number): number => centre + step * ACTIVATIONS[scale](raw);

/** An angle in the picture, from an angle in a crop that was turned clockwise by some degrees. */
function inPicture(column: string, { period }: HeadFacts, value: number, degrees: number): number {
  if (column !== 'roll' || period === null) return value;
  const turned = value - degrees;
  return turned - period * Math.round(turned / period);
}

export class Model {
  constructor(
    private readonly facts: Facts,
    private readonly network: NetworkFacts,
    private readonly session: ort.InferenceSession,
  ) {}

  async predict(crops: Crop[]): Promise<Prediction[]> {
    const predictions: Prediction[] = [];
    for (let first = 0; first < crops.length; first += FACES_AT_ONCE) {
      predictions.push(...await this.predictAtOnce(crops.slice(first, first + FACES_AT_ONCE)));
    }
    return predictions;
  }

  private async predictAtOnce(crops: Crop[]): Promise<Prediction[]> {
    const { facts } = this;
    const [faces, regions] = [crops.length, crops[0].boxes.length];
    const pixels = new Float32Array(faces * 3 * facts.size ** 2);
    const boxes = new Float32Array(faces * regions * 4);
    const valid = new Uint8Array(faces * regions);
    crops.forEach((crop, face) => {
      pixels.set(crop.pixels, face * crop.pixels.length);
      crop.boxes.forEach((box, region) => {
        if (!crop.visible[region]) return;
        boxes.set(box, 4 * (face * regions + region));
        valid[face * regions + region] = 1;
      });
    });
    const tensors = [
      new ort.Tensor('float32', pixels, [faces, 3, facts.size, facts.size]),
      new ort.Tensor('float32', boxes, [faces, regions, 4]),
      new ort.Tensor('bool', valid, [faces, regions]),
    ];
    const inputs = Object.fromEntries(this.session.inputNames.map((name, i) => [name, tensors[i]]));
    const results = await this.session.run(inputs);
    const row = (name: string, face: number): number[] => {
      const numbers = results[name].data as Float32Array;
      const length = numbers.length / faces;
      return [...numbers.subarray(face * length, (face + 1) * length)];
    };
    return crops.map((crop, face) => {
      const degrees = rotation(crop.toCrop);
      const values = Object.fromEntries(facts.heads.map(head => [
        head.name,
        row(head.name, face).map((raw, k) => inPicture(head.columns[k], head, decode(head, raw), degrees)),
      ]));
      const logits = row('logits', face);
      const probabilities = softmax(logits.map(logit => logit / this.network.temperature));
      const set = facts.labels.filter((_, label) => probabilities[label] >= this.network.threshold);
      return { logits, probabilities, set, values };
    });
  }

  /** How far the logit of a label falls when a region is hidden, for each region; 0 if it is not visible. */
  async hideRegions(crop: Crop, label: number): Promise<number[]> {
    const regions = [...crop.boxes.keys()].filter(region => crop.visible[region]);
    const hidden = regions.map(region => ({
      ...crop,
      pixels: covered(crop.pixels, crop.boxes[region], this.facts.size),
      visible: crop.visible.map((visible, other) => visible && other !== region),
    }));
    const [whole, ...without] = await this.predict([crop, ...hidden]);
    const falls = crop.boxes.map(() => 0);
    regions.forEach((region, i) => { falls[region] = whole.logits[label] - without[i].logits[label]; });
    return falls;
  }

  /** Classifies the faces of a picture. */
  async classify(image: Picture, found: Detection[]): Promise<Face<Crop>[]> {
    const crops = found.map(face => cropFace(image, face.landmarks, this.facts));
    const predictions = await this.predict(crops);
    return found.map((face, i) => ({
      ...face,
      ...predictions[i],
      crop: crops[i],
      size: this.facts.size / Math.sqrt(determinant(crops[i].toCrop)),
      inPicture: regionsInPicture(crops[i], image),
    }));
  }
}
