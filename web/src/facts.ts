// What web/facts.py writes about the model, the networks and the tables.

import type { Point } from './geometry';

export interface HeadFacts {
  name: string;
  columns: string[];
  scale: 'intensity' | 'number' | 'signed';
  middle: number;
  step: number;
  period: number | null;
  title: string;
  unit: string;
  low: number;
  high: number;
  bounded: boolean;
  names: string[];
  marks: string[];
  meanings: string[];
  places: (number | null)[];
}

export interface RegionFacts {
  anchors: number[];
  offset: Point;
  side: number;
}

export interface FieldFacts {
  name: string;
  type: 'string' | 'integer' | 'number' | 'boolean';
  format: string;
  video: boolean;
}

/** A network, and what makes probabilities and prediction sets of its logits. */
export interface NetworkFacts {
  file: string;
  temperature: number;
  threshold: number;
}

export interface Facts {
  version: string;
  built: string;
  model: string;
  models: NetworkFacts[];
  /** The size of each file in bytes. */
  bytes: Record<string, number>;
  size: number;
  template: Point[];
  labels: string[];
  colours: string[];
  regions: Record<string, RegionFacts>;
  heads: HeadFacts[];
  /** What the mark of an output means; empty if no output has it. */
  weak: string;
  /** The columns of both sides whose mean a column is. */
  means: Record<string, [left: string, right: string]>;
  fields: FieldFacts[];
  formula: string;
  statuses: { ok: string; none: string };
  separator: string;
  warnings: [small: string, turned: string, uncertain: string];
  smallSize: number;
  turnedAngle: number;
  cutSide: number;
  detector: {
    name: string;
    file: string;
    minSide: number;
    maxSide: number;
    fragmentedSide: number;
    minScore: number;
    sureScore: number;
    suppressed: number;
    strides: number[];
    multiple: number;
  };
  landmarks: { file: string; side: number; share: number; points: string; face: string; minLogit: number };
}
