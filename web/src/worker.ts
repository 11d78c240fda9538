// Computes beside the page, so that the page never hangs.

import * as ort from 'onnxruntime-web/wasm';

import type { Facts } from './facts';
import { Finder, type Detection } from './find';
import { boxMatrix, compose, invert, longerSide, type Box, type Matrix, type Point } from './geometry';
import { round, warp, type Picture } from './image';
import { Refusal, type Ask, type Found, type Kind, type Reply, type Requests, type ShownFace } from './messages';
import { isEnlarged, Model } from './model';

const FOLDER = 'model/';
const SHOWN_SIDE = 1600; // of a photo on the page
const MAX_THREADS = 4;
const FATAL = 4; // the detector's file names the shapes of one size, and each other size would be a line

ort.env.wasm.wasmPaths = new URL('.', self.location.href).href;
ort.env.wasm.numThreads = self.crossOriginIsolated ? Math.min(MAX_THREADS, navigator.hardwareConcurrency) : 1;
ort.env.logLevel = 'error';

/** A module with one instruction of SIMD. */
const SIMD = new Uint8Array([
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0, 253, 15, 253, 98, 11,
]);

interface Loaded {
  facts: Facts;
  finder: Finder;
  model: Model;
}

let loaded: Loaded | undefined;

/** Reads files one after the other, and reports how much of all is there. */
async function fetchAll(files: Record<string, number>): Promise<Map<string, Uint8Array>> {
  const total = Object.values(files).reduce((sum, bytes) => sum + bytes, 0);
  let before = 0;
  const contents = new Map<string, Uint8Array>();
  for (const [name, bytes] of Object.entries(files)) {
    const response = await fetch(FOLDER + name);
    if (!response.ok || response.body === null) throw new Refusal(`${name} cannot be loaded. Reload the page.`);
    const content = new Uint8Array(bytes);
    let at = 0;
    for await (const part of response.body) {
      if (at + part.length > bytes) break;
      content.set(part, at);
      at += part.length;
      send({ progress: { loaded: before + at, total } });
    }
    if (at !== bytes) throw new Refusal(`${name} was loaded only in part. Reload the page.`);
    before += bytes;
    contents.set(name, content);
  }
  return contents;
}

async function load(name: string): Promise<Facts> {
  if (!WebAssembly.validate(SIMD)) {
    throw new Refusal('This browser lacks WebAssembly SIMD. Use Chrome or Edge 91, Firefox 89, Safari 16.4, or newer.');
  }
  const facts = loaded?.facts ?? await (await fetch(`${FOLDER}facts.json`)).json() as Facts;
  const network = facts.models.find(({ file }) => file === name) ?? facts.models[0];
  const networks = loaded ? [] : [facts.detector.file, facts.landmarks.file];
  const names = [...networks, network.file];
  const contents = await fetchAll(Object.fromEntries(names.map(file => [file, facts.bytes[file]])));
  const open = async (file: string): Promise<ort.InferenceSession> => ort.InferenceSession.create(contents.get(file)!, { logSeverityLevel: FATAL });
  const finder = loaded?.finder ?? new Finder(facts, await open(facts.detector.file), await open(facts.landmarks.file));
  loaded = { facts, finder, model: new Model(facts, network, await open(network.file)) };
  return facts;
}

function ready(): Loaded {
  if (loaded === undefined) throw new Refusal('The networks are not loaded yet.');
  return loaded;
}

function context(canvas: OffscreenCanvas): OffscreenCanvasRenderingContext2D {
  const found = canvas.getContext('2d', { willReadFrequently: true });
  if (found === null) throw new RangeError('no memory for a canvas');
  return found;
}

function pixelsOf(bitmap: ImageBitmap): Picture {
  const { width, height } = bitmap;
  const drawn = context(new OffscreenCanvas(width, height));
  drawn.drawImage(bitmap, 0, 0);
  bitmap.close();
  return drawn.getImageData(0, 0, width, height);
}

/** A picture for the page, with at most `longest` pixels on its longer side. */
async function forPage({ width, height, data }: Picture, longest: number): Promise<string> {
  const scale = Math.min(1, longest / Math.max(width, height));
  const canvas = new OffscreenCanvas(Math.max(1, round(scale * width)), Math.max(1, round(scale * height)));
  const drawn = context(canvas);
  drawn.imageSmoothingQuality = 'high';
  const bitmap = await createImageBitmap(new ImageData(data as Uint8ClampedArray<ArrayBuffer>, width, height));
  drawn.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  const reader = new FileReader();
  reader.readAsDataURL(await canvas.convertToBlob({ type: 'image/jpeg', quality: 0.9 }));
  return new Promise((done, fail) => {
    reader.onload = () => done(reader.result as string);
    reader.onerror = () => fail(reader.error);
  });
}

/** A square around a face, and the matrix from the photo to it. */
function cutOut(image: Picture, box: Box, most: number): [Picture, Matrix] {
  const side = 2 * longerSide(box);
  const scale = Math.min(1, most / side);
  const size = Math.max(1, round(scale * side));
  const matrix = boxMatrix(box, size, scale);
  return [warp(image, matrix, size), matrix];
}

/** The faces of a frame, without the pixels of their crops: a long clip has many. */
async function readFrame(image: Picture): Promise<Found> {
  const { finder, model } = ready();
  const found = await finder.confirm(image, await finder.detect(image));
  const classified = await model.classify(image, found);
  const faces = classified.map(({ crop: { pixels: _, ...crop }, ...face }) => ({ ...face, crop }));
  return { width: image.width, height: image.height, faces };
}

/** The pixels of a photo, upright and scaled to a size, without colour profiles, as Python reads photos. */
async function decode(file: Blob, width: number, height: number): Promise<Picture> {
  try {
    return pixelsOf(await createImageBitmap(file, {
      resizeWidth: width, resizeHeight: height, resizeQuality: 'medium', // means of pixels
      colorSpaceConversion: 'none', premultiplyAlpha: 'none',
    }));
  } catch (error) {
    if (isOfMemory(error)) throw error;
    throw new Refusal('not an image that this browser can decode');
  }
}

const REDUCTIONS = [8, 4, 2];

/** By what the sides of a photo are divided: Python decodes large JPEGs smaller. */
function reductionOf(file: Blob, longest: number, { detector }: Facts): number {
  if (file.type !== 'image/jpeg') return 1;
  return REDUCTIONS.find(reduction => longest >= reduction * detector.maxSide) ?? 1;
}

/** A face in pixels of a picture whose sides are multiplied. */
function scaled<F extends Detection>(face: F, by: number): F {
  return {
    ...face,
    box: face.box.map(edge => by * edge) as Box,
    landmarks: face.landmarks.map(([x, y]): Point => [by * x, by * y]),
  };
}

async function readPhoto({ file, width, height }: Requests['photo']['ask']): Promise<Requests['photo']['answer']> {
  const { facts, finder, model } = ready();
  const reduction = reductionOf(file, Math.max(width, height), facts);
  let image = await decode(file, Math.ceil(width / reduction), Math.ceil(height / reduction));
  let found = await finder.detect(image);
  if (reduction > 1 && found.some(face => isEnlarged(face, facts))) {
    found = found.map(face => scaled(face, reduction));
    image = await decode(file, width, height);
  }
  const classified = await model.classify(image, await finder.confirm(image, found));
  const scale = image.width < width ? reduction : 1;
  const faces: ShownFace[] = [];
  for (const face of classified) {
    const [cut, toCut] = cutOut(image, face.box, facts.cutSide);
    const fromCrop = compose(toCut, invert(face.crop.toCrop));
    const shown = { picture: await forPage(cut, cut.width), size: cut.width, fromCrop };
    faces.push({ ...scaled(face, scale), size: scale * face.size, cut: shown });
  }
  return { width, height, faces, picture: await forPage(image, SHOWN_SIDE) };
}

async function answer(ask: Ask): Promise<Requests[Kind]['answer']> {
  switch (ask.kind) {
    case 'load': return load(ask.model);
    case 'photo': return readPhoto(ask);
    case 'frame': return readFrame(pixelsOf(ask.bitmap));
    case 'regions': return ready().model.hideRegions(ask.crop, ask.label);
  }
}

const send = (reply: Reply): void => self.postMessage(reply);

const isOfMemory = (error: unknown): boolean =>
  error instanceof RangeError || /memory|allocate|allocation/i.test(String(error));

/** One line for what went wrong. */
function line(error: unknown): string {
  if (error instanceof Refusal) return error.message;
  const text = error instanceof Error ? error.message : String(error);
  if (isOfMemory(error)) {
    return 'not enough memory: close other tabs, or use a smaller photo';
  }
  return `failed: ${text.split('\n')[0]}`;
}

// One request after the other: each may need much memory.
let last: Promise<void> = Promise.resolve();
self.addEventListener('message', ({ data }: MessageEvent<Ask>) => {
  last = last.then(async () => {
    try {
      send({ id: data.id, answer: await answer(data) });
    } catch (error) {
      send({ id: data.id, error: line(error) });
    }
  });
});
