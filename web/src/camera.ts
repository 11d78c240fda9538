// The camera: the newest picture, its faces, and the next.

import type { Client } from './client';
import type { Found } from './messages';
import { Refusal } from './messages';
import { expressionBars } from './show';

const IDEAL_WIDTH = 640;

const BLOCKED: Record<string, string> = {
  NotAllowedError: 'The camera is blocked: allow it in the address bar, then try again.',
  NotFoundError: 'No camera was found.',
  NotReadableError: 'The camera is in use by another program.',
};

async function openCamera(): Promise<MediaStream> {
  const devices = navigator.mediaDevices as MediaDevices | undefined;
  if (devices === undefined) throw new Refusal('The camera needs an address with https, or localhost.');
  try {
    return await devices.getUserMedia({ video: { width: { ideal: IDEAL_WIDTH } } });
  } catch (error) {
    const { name, message } = error as DOMException;
    throw new Refusal(BLOCKED[name] ?? `The camera cannot be used: ${message}`);
  }
}

export class Camera {
  private stream: MediaStream | null = null;

  constructor(
    private readonly client: Client,
    private readonly canvas: HTMLCanvasElement,
    private readonly aside: HTMLElement,
  ) {}

  /** Shows pictures until `stop`, and calls `seen` with the faces of each. */
  async run(seen: (found: Found, seconds: number, rate: number) => void): Promise<void> {
    const stream = await openCamera();
    this.stream = stream;
    const video = document.createElement('video');
    video.muted = true;
    video.playsInline = true;
    video.srcObject = stream;
    await video.play();
    const start = performance.now();
    let before = start;
    while (this.stream === stream) {
      const bitmap = await createImageBitmap(video);
      const picture = await createImageBitmap(bitmap);
      const time = performance.now();
      const found = await this.client.ask('frame', { bitmap }, [bitmap]);
      if (this.stream !== stream) break;
      this.draw(picture, found);
      const now = performance.now();
      seen(found, (time - start) / 1000, 1000 / (now - before));
      before = now;
    }
    video.srcObject = null;
  }

  stop(): void {
    this.stream?.getTracks().forEach(track => track.stop());
    this.stream = null;
  }

  private draw(picture: ImageBitmap, { faces }: Found): void {
    const { canvas } = this;
    [canvas.width, canvas.height] = [picture.width, picture.height];
    const context = canvas.getContext('2d')!;
    context.drawImage(picture, 0, 0);
    picture.close();
    context.lineWidth = Math.max(2, canvas.width / 200);
    context.font = `${Math.max(14, canvas.width / 40)}px system-ui, sans-serif`;
    faces.forEach(({ box: [left, top, right, bottom], probabilities }, i) => {
      const label = probabilities.indexOf(Math.max(...probabilities));
      context.strokeStyle = colours[label];
      context.strokeRect(left, top, right - left, bottom - top);
      context.fillStyle = '#000c';
      const text = `${i + 1}: ${labels[label]}`;
      const height = 1.4 * parseFloat(context.font);
      context.fillRect(left, top - height, context.measureText(text).width + 10, height);
      context.fillStyle = '#fff';
      context.fillText(text, left + 5, top - 0.35 * height);
    });
    this.aside.replaceChildren(...faces.map(({ probabilities }, i) => expressionBars(`Face ${i + 1}`, probabilities, probability)));
  }
}
