// What the page and its worker say to each other.

import type { Facts } from './facts';
import type { Matrix } from './geometry';
import type { Crop, Face } from './model';

/** A face with the square around it as a picture for the page; pictures are addresses of the kind `data:`. */
export interface ShownFace extends Face<Crop> {
  cut: { picture: string; size: number; fromCrop: Matrix };
}

export interface Found<F extends Face = Face> {
  width: number;
  height: number;
  faces: F[];
}

export interface Requests {
  load: { ask: { model: string }; answer: Facts };
  photo: { ask: { file: Blob; width: number; height: number }; answer: Found<ShownFace> & { picture: string } };
  frame: { ask: { bitmap: ImageBitmap }; answer: Found };
  regions: { ask: { crop: Crop; label: number }; answer: number[] };
}

export type Kind = keyof Requests;
export type Ask = { [K in Kind]: { id: number; kind: K } & Requests[K]['ask'] }[Kind];

export type Reply =
  | { id: number; answer: unknown }
  | { id: number; error: string }
  | { progress: { loaded: number; total: number } };

/** Something wrong that a line on the page names, with what the visitor can do. */
export class Refusal extends Error {}
