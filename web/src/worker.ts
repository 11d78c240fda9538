// Computes beside the page, so that the page never hangs.

import * as ort from 'onnxruntime-web/wasm';

import type { Facts } from './facts';
import { Finder } from './find';
import { compose, invert, longerSide, middle, scaling, type Box, type Matrix } from './geometry';
import { round, warp, type Picture } from './image';
import { Refusal, type Ask, type Found, type Kind, type Reply, type Requests, type ShownFace } from './messages';
import { Model } from './model';

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

async function asBlob({ width, height, data }: Picture): Promise<Blob> {
  const canvas = new OffscreenCanvas(width, height);
  context(canvas).putImageData(new ImageData(data as Uint8ClampedArray<ArrayBuffer>, width, height), 0, 0);
  return canvas.convertToBlob({ type: 'image/jpeg', quality: 0.9 });
}

/** A square around a face, and the matrix from the photo to it. */
function cutOut(image: Picture, box: Box, most: number): [Picture, Matrix] {
  const side = 2 * longerSide(box);
  const scale = Math.min(1, most / side);
  const size = Math.max(1, round(scale * side));
  const [x, y] = middle(box);
  const matrix = scaling(scale, scale, size / 2 - scale * x, size / 2 - scale * y);
  return [warp(image, matrix, size), matrix];
}

async function read(image: Picture): Promise<Found> {
  const { finder, model } = ready();
  const faces = await model.classify(image, await finder.find(image));
  return { width: image.width, height: image.height, faces };
}

/** A photo as the page shows it: as it is, or smaller. */
async function shown(file: Blob, { width, height }: Picture): Promise<Blob> {
  const scale = SHOWN_SIDE / Math.max(width, height);
  const smaller = scale < 1 ? { resizeWidth: round(width * scale), resizeHeight: round(height * scale) } : {};
  const bitmap = await createImageBitmap(file, { ...smaller, resizeQuality: 'high' });
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
  context(canvas).drawImage(bitmap, 0, 0);
  bitmap.close();
  return canvas.convertToBlob({ type: 'image/jpeg', quality: 0.9 });
}

async function readPhoto(file: Blob): Promise<Requests['photo']['answer']> {
  let bitmap: ImageBitmap;
  try {
    // Without colour profiles, as Python reads photos.
    bitmap = await createImageBitmap(file, { colorSpaceConversion: 'none', premultiplyAlpha: 'none' });
  } catch (error) {
    if (isOfMemory(error)) throw error;
    throw new Refusal('not an image that this browser can decode');
  }
  const image = pixelsOf(bitmap);
  const found = await read(image);
  const faces: ShownFace[] = [];
  for (const face of found.faces) {
    const [cut, toCut] = cutOut(image, face.box, ready().facts.cutSide);
    const fromCrop = compose(toCut, invert(face.crop.toCrop));
    faces.push({ ...face, cut: { picture: await asBlob(cut), size: cut.width, fromCrop } });
  }
  return { ...found, faces, picture: await shown(file, image) };
}

async function answer(ask: Ask): Promise<Requests[Kind]['answer']> {
  switch (ask.kind) {
    case 'load': return load(ask.model);
    case 'photo': return readPhoto(ask.file);
    case 'frame': return read(pixelsOf(ask.bitmap));
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
