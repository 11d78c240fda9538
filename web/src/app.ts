// The page: takes photos, clips and the camera, and keeps the rows of the table.

import { Camera } from './camera';
import { Client } from './client';
import { framesOf } from './clip';
import type { Facts } from './facts';
import { Refusal } from './messages';
import { parentOrigin, sendRows } from './parent';
import { numberShots, type SmallFrame } from './shots';
import { clipSection, countOf, photoSection } from './show';
import { csv, emptyRow, rowsOf, type Row } from './table';
import { numberPeople, smooth, type SeenFrame } from './track';

const MAX_PIXELS = 100e6;
const OPEN = 3; // photos whose first face is shown at once
const NETWORKS: Record<string, string> = { 'model.int8.onnx': 'small and fast (8 bits)', 'model.onnx': 'as in Python (32 bits)' };

const find = <T extends Element = HTMLElement>(selector: string): T => document.querySelector<T>(selector)!;
const form = find<HTMLFormElement>('.upload');
const input = find<HTMLInputElement>('.drop input');
const output = find<HTMLOutputElement>('.state output');
const progress = find<HTMLProgressElement>('.state progress');
const results = find('.results');
const files = find('.files');

const rows: Row[] = [];
let facts: Facts;
let receiver: string | null = null;
let stopped = false; // whether what is being read was removed

let client: Client;

function showLoading(loaded: number, total: number): void {
  progress.value = loaded / total;
  say(`Loading the networks, once: ${(loaded / 1e6).toFixed(0)} of ${(total / 1e6).toFixed(0)} MB`);
}

function say(text: string): void {
  output.textContent = text;
}

/** A line about what went wrong. */
function warn(text: string, name?: string): void {
  const line = element('li');
  if (name !== undefined) line.append(element('bdi', {}, name), ': ');
  line.append(text);
  find('.messages').append(line);
}

const reasonOf = (error: unknown): string => (error instanceof Error ? error.message : String(error));

function add(more: Row[]): void {
  rows.push(...more);
  if (receiver !== null) sendRows(receiver, more);
  results.hidden = false;
  const faces = rows.filter(cells => typeof cells['face'] === 'number').length;
  find('.count').textContent = `${rows.length} ${rows.length === 1 ? 'row' : 'rows'}, ${countOf(faces)}`;
}

/** Width and height of a photo; browsers decode its pixels only when they show it. */
function sizeOf(file: Blob): Promise<{ width: number; height: number }> {
  const image = new Image();
  const address = URL.createObjectURL(file);
  return new Promise<{ width: number; height: number }>((done, fail) => {
    image.onload = () => done({ width: image.naturalWidth, height: image.naturalHeight });
    image.onerror = () => fail(new Refusal('not an image that this browser can decode'));
    image.src = address;
  }).finally(() => URL.revokeObjectURL(address));
}

async function readPhoto(file: Blob, name: string): Promise<void> {
  const { width, height } = await sizeOf(file);
  if (width * height > MAX_PIXELS) {
    const size = `${width.toLocaleString('en')} x ${height.toLocaleString('en')} pixels`;
    throw new Refusal(`too large: ${size}, the limit is ${MAX_PIXELS / 1e6} megapixels`);
  }
  const found = await client.ask('photo', { file, width, height });
  if (stopped) return;
  add(rowsOf({ path: name }, found.faces, facts));
  files.append(photoSection(name, found.picture, found, facts, client, files.childElementCount < OPEN));
}

async function readClip(file: Blob, name: string): Promise<void> {
  const fps = Number(new FormData(form).get('fps'));
  const small: SmallFrame[] = []; // all frames
  const seen: SeenFrame[] = []; // those that are searched for faces
  let failure: string | null = null;
  try {
    for await (const { seconds, levels, bitmap } of framesOf(file, fps)) {
      if (stopped) return bitmap?.close();
      const number = small.length;
      small.push({ seconds, levels });
      if (bitmap === null) continue;
      say(`${name}: frame ${number + 1}, ${seconds.toFixed(1)} s`);
      const { faces } = await client.ask('frame', { bitmap }, [bitmap]);
      seen.push({ number, seconds, faces });
    }
  } catch (error) {
    failure = reasonOf(error);
    if (seen.length === 0) throw error;
  }
  if (stopped) return;
  const shots = numberShots(small);
  const frames = numberPeople(seen, shots);
  const smoothed = smooth(frames, facts.heads);
  const rowsOfClip = frames.flatMap(({ number, seconds, faces }, f) =>
    rowsOf({ path: name, frame: number, seconds }, faces, facts, smoothed[f]));
  if (failure !== null) {
    warn(failure, name);
    rowsOfClip.push(emptyRow({ path: name }, failure, facts));
  }
  add(rowsOfClip);
  files.append(clipSection(name, frames.length, smoothed.flat(), shots.at(-1)!));
}

async function readFiles(chosen: Iterable<File>): Promise<void> {
  const list = [...chosen];
  if (list.length === 0) return;
  stopped = false;
  const count = list.length;
  for (const [i, file] of list.entries()) {
    if (stopped) break;
    progress.hidden = false;
    progress.value = i / count;
    say(count > 1 ? `${i + 1} of ${count}: ${file.name}` : file.name);
    try {
      await (file.type.startsWith('video/') ? readClip : readPhoto)(file, file.name);
    } catch (error) {
      warn(reasonOf(error), file.name);
      add([emptyRow({ path: file.name }, reasonOf(error), facts)]);
    }
  }
  progress.hidden = true;
  say(stopped ? '' : `Done: ${count} ${count === 1 ? 'file' : 'files'}.`);
}

// One reading after the other.
let reading: Promise<void> = Promise.resolve();
const read = (chosen: Iterable<File>): void => {
  const list = [...chosen];
  reading = reading.then(() => readFiles(list));
};

function listen(): void {
  input.addEventListener('change', () => {
    read(input.files ?? []);
    input.value = '';
  });
  const drop = find('.drop');
  document.addEventListener('dragover', event => {
    event.preventDefault();
    drop.classList.add('over');
  });
  document.addEventListener('dragleave', () => drop.classList.remove('over'));
  document.addEventListener('drop', event => {
    event.preventDefault();
    drop.classList.remove('over');
    read(event.dataTransfer?.files ?? []);
  });
  document.addEventListener('paste', event => read(event.clipboardData?.files ?? []));
  find('.sample').addEventListener('click', async () => {
    const sample = await (await fetch('sample.jpg')).blob();
    read([new File([sample], 'sample.jpg', { type: 'image/jpeg' })]);
  });
  find('.download').addEventListener('click', () => {
    const blob = new Blob([csv(rows, facts)], { type: 'text/csv' });
    const link = element('a', { href: URL.createObjectURL(blob), download: 'faces.csv' });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
  find('.clear').addEventListener('click', () => {
    stopped = true;
    rows.length = 0;
    files.replaceChildren();
    find('.messages').replaceChildren();
    results.hidden = true;
    input.focus();
  });
}

function listenToCamera(): void {
  const live = find('.live');
  const shoot = find<HTMLButtonElement>('.shoot');
  const keep = find<HTMLInputElement>('.keep');
  const camera = new Camera(client, find('.live canvas'), find('.live aside'));
  shoot.addEventListener('click', async () => {
    shoot.disabled = true;
    live.hidden = false;
    let frame = 0;
    try {
      await camera.run((found, seconds, rate) => {
        say(`${countOf(found.faces.length)}, ${rate.toFixed(1)} pictures a second`);
        if (keep.checked) add(rowsOf({ path: 'camera', frame, seconds }, found.faces, facts));
        frame += 1;
      });
    } catch (error) {
      camera.stop();
      warn(reasonOf(error));
    }
    live.hidden = true;
    shoot.disabled = false;
    say('');
  });
  find('.stop').addEventListener('click', () => camera.stop());
}

function listenToParent(): void {
  const origin = parentOrigin(location.search);
  if (origin === null || window.parent === window) return;
  const consent = find('.consent');
  find('.origin').textContent = origin;
  consent.hidden = false;
  find('.agree').addEventListener('click', () => {
    receiver = origin;
    consent.hidden = true;
    if (rows.length) sendRows(origin, rows);
  });
  find('.refuse').addEventListener('click', () => { consent.hidden = true; });
}

function offerNetworks(): void {
  const choice = find<HTMLSelectElement>('[name=model]');
  choice.append(...facts.models.map(({ file }) => element('option', { value: file }, NETWORKS[file])));
  choice.parentElement!.hidden = facts.models.length === 1;
  choice.addEventListener('input', () => {
    reading = reading.then(async () => {
      progress.hidden = false;
      await client.ask('load', { model: choice.value });
      progress.hidden = true;
      say(`From now on: ${NETWORKS[choice.value]}. Earlier faces stay as they are.`);
    }).catch(error => warn(reasonOf(error)));
  });
}

/** Starts the service worker, which keeps all that is loaded from then on. Without one, the page works online. */
async function keepOffline(): Promise<void> {
  if (!('serviceWorker' in navigator)) return;
  const { serviceWorker } = navigator;
  const controlled = new Promise<unknown>(done => serviceWorker.addEventListener('controllerchange', done, { once: true }));
  try {
    const { installing } = await serviceWorker.register('sw.js');
    if (installing === null || serviceWorker.controller !== null) return;
    const failed = new Promise<void>(done => installing.addEventListener('statechange', () => {
      if (installing.state === 'redundant') done();
    }));
    await Promise.race([controlled, failed]);
  } catch { /* such as in a private window */ }
}

async function start(): Promise<void> {
  form.inert = true;
  try {
    listenToParent();
  } catch (error) {
    warn(reasonOf(error));
  }
  say('Loading the page …');
  await keepOffline();
  client = new Client(showLoading);
  try {
    facts = await client.ask('load', { model: '' });
  } catch (error) {
    progress.hidden = true;
    say('');
    warn(reasonOf(error));
    return;
  }
  progress.hidden = true;
  form.inert = false;
  say('Ready.');
  find('.weak').textContent = facts.weak;
  find('.facts-line').textContent = `fer-vit ${facts.version}, model ${facts.model}, built ${facts.built}. Probabilities are ` +
    'calibrated on FERPlus: small, grey, mostly frontal faces.';
  offerNetworks();
  listen();
  listenToCamera();
}

void start();
