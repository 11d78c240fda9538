// The rows of `fer-vit predict`, with the command's columns in the command's order, and their CSV.

import type { Facts, FieldFacts } from './facts';
import type { Face } from './model';

export type Cell = string | number | boolean | null;
export type Row = Record<string, Cell>;

/** A face of a clip has these besides. */
export interface Tracked {
  track: number;
  smoothed: number[];
  smoothedOutputs: number[];
}

/** What identifies a photo or frame. */
interface Place {
  path: string;
  frame?: number;
  seconds?: number;
}

const LANDMARKS = ['right_eye', 'left_eye', 'nose', 'right_mouth', 'left_mouth'];

export const largest = (values: number[]): number => values.indexOf(Math.max(...values));

/** The names of the warnings that apply to a face. */
export function warningsOf(face: Face, facts: Facts): string[] {
  const applies = [
    face.size < facts.smallSize,
    (face.values['pose'] ?? []).some(angle => Math.abs(angle) > facts.turnedAngle),
    face.score < facts.detector.sureScore,
  ];
  return facts.warnings.filter((_, i) => applies[i]);
}

/** The rows of a photo or frame: one for each face, or one without a face. */
export function rowsOf(place: Place, faces: Face[], facts: Facts, tracked?: Tracked[]): Row[] {
  if (faces.length === 0) return [emptyRow(place, facts.statuses.none, facts)];
  return faces.map((face, index) => row(place, index, face, facts, tracked?.[index]));
}

function row(place: Place, index: number, face: Face, facts: Facts, tracked?: Tracked): Row {
  const { probabilities, set, box, landmarks } = face;
  const top = largest(probabilities);
  const cells: Row = {
    ...place,
    status: facts.statuses.ok,
    face: index,
    label: facts.labels[top],
    confidence: probabilities[top],
    ambiguous: set.length !== 1,
    warning: warningsOf(face, facts).join(facts.separator) || null,
    prediction_set: set.join(facts.separator),
    entropy: -probabilities.reduce((sum, p) => sum + (p > 0 ? p * Math.log(p) : 0), 0),
    size: face.size,
    blur: face.crop.blur,
    outside: Object.keys(facts.regions).filter((_, region) => !face.inPicture[region]).join(facts.separator),
    score: face.score,
    ...originOf(facts),
  };
  const names = facts.heads.flatMap(head => head.columns);
  const outputs = facts.heads.flatMap(head => face.values[head.name]);
  facts.labels.forEach((label, i) => { cells[`p_${label}`] = probabilities[i]; });
  Object.assign(cells, outputCells('', names, outputs, facts));
  ['left', 'top', 'right', 'bottom'].forEach((edge, i) => { cells[`box_${edge}`] = box[i]; });
  LANDMARKS.forEach((name, i) => { [cells[`${name}_x`], cells[`${name}_y`]] = landmarks[i]; });
  if (tracked) {
    cells['track'] = tracked.track;
    cells['label_smoothed'] = facts.labels[largest(tracked.smoothed)];
    facts.labels.forEach((label, i) => { cells[`smoothed_${label}`] = tracked.smoothed[i]; });
    Object.assign(cells, outputCells('smoothed_', names, tracked.smoothedOutputs, facts));
  }
  return cells;
}

/** The outputs of all heads, and means of both sides. */
function outputCells(prefix: string, names: string[], outputs: number[], { means }: Facts): Row {
  const cells: Row = {};
  names.forEach((name, i) => { cells[prefix + name] = outputs[i]; });
  for (const [mean, [left, right]] of Object.entries(means)) {
    cells[prefix + mean] = (outputs[names.indexOf(left)] + outputs[names.indexOf(right)]) / 2;
  }
  return cells;
}

/** The row of a photo or frame without a face, or of a file that cannot be read. */
export const emptyRow = (place: Place, status: string, facts: Facts): Row => ({ ...place, status, ...originOf(facts) });

function originOf(facts: Facts): Row {
  const today = new Date();
  const date = [today.getFullYear(), today.getMonth() + 1, today.getDate()];
  return {
    model: facts.model,
    detector: facts.detector.name,
    fer_vit_version: facts.version,
    predicted_on: date.map(part => String(part).padStart(2, '0')).join('-'),
    pose_from: 'head',
  };
}

/** A number as Python's format has it: `.4g`, `.8g` or `z.1f`. */
function numberText(value: number, format: string): string {
  const digits = Number(/\d+/.exec(format)![0]);
  if (format.endsWith('f')) return (Number(value.toFixed(digits)) + 0).toFixed(digits);
  if (value === 0) return '0';
  const [mantissa, exponent] = value.toExponential(digits - 1).split('e');
  const power = Number(exponent);
  if (power < -4 || power >= digits) {
    return `${Number(mantissa)}e${power < 0 ? '-' : '+'}${String(Math.abs(power)).padStart(2, '0')}`;
  }
  return String(Number(value.toPrecision(digits)));
}

function cellText(cell: Cell | undefined, { type, format }: FieldFacts, formula: RegExp): string {
  if (cell === undefined || cell === null) return '';
  if (typeof cell === 'boolean') return cell ? 'TRUE' : 'FALSE';
  if (typeof cell === 'number') {
    if (!Number.isFinite(cell)) return '';
    return type === 'integer' ? String(cell) : numberText(cell, format);
  }
  const text = cell.replace(formula, "$&'"); // so that no spreadsheet runs it
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** A table as CSV; with `videos`, it has the columns of videos. */
export function csv(rows: Row[], facts: Facts): string {
  const videos = rows.some(cells => cells['frame'] !== undefined);
  const fields = facts.fields.filter(field => videos || !field.video);
  const formula = new RegExp(facts.formula, 'g');
  const lines = rows.map(cells => fields.map(field => cellText(cells[field.name], field, formula)));
  return [fields.map(({ name }) => name), ...lines].map(line => `${line.join(',')}\r\n`).join('');
}
