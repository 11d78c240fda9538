// The scripts of the report (fer_vit/report/page), which run before app.js.

/** A face as the scripts of the report draw it. */
interface ReportFace {
  name: string;
  where: string;
  image: string;
  heat: string;
  size: [width: number, height: number];
  matrix: number[];
  boxes: ([number, number, number, number] | null)[];
  crop: number;
  order: number[];
  probabilities: number[];
  charts: Record<string, { values: number[]; angles?: Record<string, number> }>;
  interactions: [];
}

/** What the regions of a face contribute to an expression. */
interface ReportTarget {
  index: number;
  name: string;
  shares: number[];
}

declare const labels: string[];
declare const colours: string[];

declare function element<K extends keyof HTMLElementTagNameMap>(
  name: K, attributes?: Record<string, string | number>, ...children: (Node | string)[]): HTMLElementTagNameMap[K];
declare function element(name: 'svg', attributes?: Record<string, string | number>, ...children: (Node | string)[]): SVGSVGElement;
declare function button(text: string, act: () => void): HTMLButtonElement;
declare function probability(value: number): string;
declare function percent(share: number): string;
declare function bar(length: number): HTMLElement;
declare function table(caption: string, head: string[], rows: (Node | string)[][]): HTMLTableElement;
declare function colourKey(indices: number[], text: (index: number) => string): HTMLElement;
declare function placeNames(whole: HTMLElement, boxes: HTMLElement[]): void;
declare function probabilities(face: ReportFace): HTMLTableElement;
declare function charts(face: ReportFace): HTMLElement[];
declare function startPicture(svg: SVGSVGElement, face: ReportFace, grey: boolean): object;
declare function drawAttribution(canvas: object, target: ReportTarget, state: { regions: string }): void;
declare function attributionSentence(face: ReportFace, target: ReportTarget): string;
declare function attributionTables(face: ReportFace, target: ReportTarget): HTMLTableElement[];
