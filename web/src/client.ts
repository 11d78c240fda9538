// The page's side of the worker: a promise for each request.

import type { Kind, Reply, Requests } from './messages';
import { Refusal } from './messages';

export type Progress = (loaded: number, total: number) => void;

export class Client {
  private readonly worker = new Worker('worker.js', { type: 'module' });
  private readonly waiting = new Map<number, { done: (answer: never) => void; fail: (error: Error) => void }>();
  private count = 0;

  constructor(progress: Progress) {
    this.worker.addEventListener('message', ({ data }: MessageEvent<Reply>) => {
      if ('progress' in data) {
        progress(data.progress.loaded, data.progress.total);
        return;
      }
      const { done, fail } = this.waiting.get(data.id)!;
      this.waiting.delete(data.id);
      if ('error' in data) fail(new Refusal(data.error));
      else done(data.answer as never);
    });
    this.worker.addEventListener('error', event => {
      event.preventDefault();
      for (const { fail } of this.waiting.values()) fail(new Refusal('The computation ended: not enough memory, or an old browser.'));
      this.waiting.clear();
    });
  }

  ask<K extends Kind>(kind: K, ask: Requests[K]['ask'], moved: Transferable[] = []): Promise<Requests[K]['answer']> {
    this.count += 1;
    const id = this.count;
    return new Promise((done, fail) => {
      this.waiting.set(id, { done, fail });
      this.worker.postMessage({ id, kind, ...ask }, moved);
    });
  }
}
