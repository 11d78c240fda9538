// Shows faces with the pictures and bars of the report.

import type { Client } from './client';
import type { Facts } from './facts';
import type { Found, ShownFace } from './messages';
import { largest, warningsOf, type Tracked } from './table';

/** Faces of a photo count from 0, as in the report and the table. */
const place = (index: number, of: number): string => (of > 1 ? `face ${index}` : '');

function reportFace(face: ShownFace, index: number, of: number, name: string, facts: Facts): ReportFace {
  const { crop, cut, probabilities } = face;
  const [a, b, c, d, e, f] = cut.fromCrop;
  const order = [...probabilities.keys()].sort((first, second) => probabilities[second] - probabilities[first]);
  const ofHeads = facts.heads.map(({ name: head, names }) => {
    const values = face.values[head];
    return [head, head === 'pose' ? { values, angles: Object.fromEntries(names.map((angle, k) => [angle, values[k]])) } : { values }];
  });
  return {
    name,
    where: place(index, of),
    image: cut.picture,
    heat: cut.picture,
    size: [cut.size, cut.size],
    matrix: [a, d, b, e, c, f],
    boxes: crop.boxes.map((box, region) => (crop.visible[region] ? box : null)),
    crop: facts.size,
    order,
    probabilities,
    charts: Object.fromEntries(ofHeads),
    interactions: [],
  };
}

function panel(face: ShownFace, shown: ReportFace, facts: Facts, client: Client): HTMLElement {
  const made = document.querySelector<HTMLTemplateElement>('#face')!.content.firstElementChild!.cloneNode(true) as HTMLElement;
  const part = <T extends Element = HTMLElement>(selector: string): T => made.querySelector<T>(selector)!;
  const top = shown.order[0];
  const { set } = face;
  part('h3').append(element('b', {}, labels[top]), ` ${probability(shown.probabilities[top])}`);
  part('.number').textContent = shown.where;
  part('.flags').append(...warningsOf(face, facts).map(text => element('li', {}, text)));
  part('.set').textContent = set.length === 1
    ? `Prediction set (90%): ${set[0]}.`
    : `Ambiguous. Prediction set (90%): ${set.join(', ') || 'empty'}.`;
  part('.probabilities').append(probabilities(shown));
  part('.charts').append(...charts(shown));

  const svg = part<SVGSVGElement>('svg');
  svg.setAttribute('aria-label', `The face: ${labels[top]} ${probability(shown.probabilities[top])}`);
  let target: ReportTarget | undefined; // once its regions were hidden
  const draw = (): void => {
    const canvas = startPicture(svg, shown, false);
    if (target !== undefined) drawAttribution(canvas, target, { regions: 'on' });
  };
  new ResizeObserver(draw).observe(svg);

  const explain = part<HTMLButtonElement>('.explain');
  explain.addEventListener('click', async () => {
    explain.disabled = true;
    part('.result').textContent = 'Hiding one region after the other …';
    try {
      const falls = await client.ask('regions', { crop: face.crop, label: top });
      target = { index: 0, name: labels[top], shares: sharesOf(falls) };
    } catch (error) {
      part('.result').textContent = (error as Error).message;
      explain.disabled = false;
      return;
    }
    draw();
    part('.result').textContent = attributionSentence(shown, target);
    part('.numbers').replaceChildren(...attributionTables(shown, target));
    explain.parentElement!.remove();
  });
  return made;
}

/** What each region contributes: how far the logit falls without it, as a share of all falls. */
function sharesOf(falls: number[]): number[] {
  const total = falls.reduce((sum, fall) => sum + Math.abs(fall), 0);
  return falls.map(fall => (total > 0 ? fall / total : 0));
}

/** A photo with a box for each face, and one face with its numbers. */
export function photoSection(
  name: string, picture: string, found: Found<ShownFace>, facts: Facts, client: Client, open: boolean,
): HTMLElement {
  const faces = found.faces.map((face, i) => reportFace(face, i, found.faces.length, name, facts));
  const image = element('img', { src: picture, alt: `${name}, ${countOf(faces.length)}` });
  const section = element('section', { class: 'photo' }, element('h2', {}, element('bdi', {}, name)));
  const place = element('div');
  let pressed: HTMLButtonElement | undefined;
  const choose = (index: number): void => {
    pressed?.setAttribute('aria-pressed', 'false');
    pressed = boxes[index];
    pressed.setAttribute('aria-pressed', 'true');
    place.replaceChildren(panel(found.faces[index], faces[index], facts, client));
  };
  const boxes = faces.map((face, i) => {
    const { box } = found.faces[i];
    const [left, top, right, bottom] = box.map((edge, k) => Math.min(1, Math.max(0, edge / (k % 2 ? found.height : found.width))));
    const title = `${face.where || 'face'}: ${labels[face.order[0]]} ${probability(face.probabilities[face.order[0]])}`;
    const made = element('button', {
      type: 'button', '--l': left, '--t': top, '--w': right - left, '--h': bottom - top, '--c': colours[face.order[0]],
      'aria-label': title, 'aria-pressed': 'false', title,
    }, element('span', {}, labels[face.order[0]]));
    made.addEventListener('click', () => choose(i));
    return made;
  });
  const whole = element('div', { class: 'whole' }, image, ...boxes);
  section.append(whole, place);
  new ResizeObserver(() => placeNames(whole, boxes)).observe(whole);
  if (faces.length === 0) place.append(element('p', {}, 'No face was found.'));
  else if (open) choose(0);
  return section;
}

export const countOf = (faces: number): string => (faces === 1 ? '1 face' : `${faces || 'no'} faces`);

/** Bars of a person's expressions. */
export function expressionBars(title: string, values: number[], text: (value: number) => string): HTMLTableElement {
  const rows = [...values.keys()].map(i => [labels[i], bar(values[i]), text(values[i])]);
  return table(title, ['expression', 'size', 'value'], rows);
}

/** How long each person of a clip shows each smoothed expression. */
export function clipSection(name: string, frames: number, faces: Tracked[], cuts: number): HTMLElement {
  const people = new Map<number, number[]>(); // the smoothed labels of each track
  for (const { track, smoothed } of faces) {
    const found = people.get(track) ?? [];
    found.push(largest(smoothed));
    people.set(track, found);
  }
  const figures = [...people].map(([track, found]) => {
    const shares = labels.map((_, label) => found.filter(one => one === label).length / found.length);
    return expressionBars(`Person ${track}: share of ${found.length} frames with each smoothed expression`, shares, percent);
  });
  const persons = people.size === 1 ? '1 person' : `${people.size || 'no'} people`;
  const lines = [`${frames} frames, ${persons}. The table has a row for each face of each frame.`];
  if (cuts > 0) lines.push(`${cuts === 1 ? '1 cut' : `${cuts} cuts`}: after a cut, each person has a new number.`);
  return element('section', { class: 'photo' }, element('h2', {}, element('bdi', {}, name)),
    ...lines.map(line => element('p', {}, line)), element('div', { class: 'people' }, ...figures));
}
