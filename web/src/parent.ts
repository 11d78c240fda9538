// A page around this one, such as a study in jsPsych, gets the rows: `?parent=https://study.example`.

import type { Row } from './table';

/** The origin that `?parent=` names; null without one. Raises an error for anything else. */
export function parentOrigin(search: string): string | null {
  const named = new URLSearchParams(search).get('parent');
  if (named === null) return null;
  let origin = 'null';
  try {
    ({ origin } = new URL(named));
  } catch { /* no address */ }
  if (origin === 'null' || origin !== named) {
    throw new Error('Expected an origin such as https://study.example in ?parent=. Nothing is sent.');
  }
  return origin;
}

/** Sends rows to the page around this one; the browser delivers them to this origin only. */
export function sendRows(origin: string, rows: Row[]): void {
  window.parent.postMessage({ type: 'fer-vit', rows }, origin);
}
