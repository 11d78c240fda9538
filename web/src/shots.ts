// Finds the cuts of a clip, as fer_vit/predict/shots.py: jumps of the whole picture.
// Frames are compared by the edges in small grey pictures.

export const SMALL_WIDTH = 32;
export const SMALL_HEIGHT = 18;
const MAX_SHIFT_X = 6; // the largest motion from frame to frame that is followed
const MAX_SHIFT_Y = 3;
const MIN_OVERLAP = 0.5; // a shift is judged by at least this fraction of the edges
const MIN_CONTRAST = 2; // standard deviation of grey levels below which a frame shows nothing
// The least likeness of a frame with its shot, by the seconds since the frame before, linear in between.
const SECONDS_APART = [0.2, 0.6];
const LEAST_LIKENESS = [0.65, 0.4];
const MAX_FLASH_SECONDS = 0.2;
const MAX_FLASH_FRAMES = 3;

/** The grey levels (18, 32) of a frame, and its time. */
export interface SmallFrame {
  seconds: number;
  levels: Uint8Array;
}

/** The slopes of grey levels to the right and down, over the root of the steepness; the sum of squares is 1. */
interface Edges {
  right: Float32Array;
  down: Float32Array;
}

/** The edges of a small grey picture; null if it shows nothing, such as a black frame. */
function findEdges(levels: Uint8Array): Edges | null {
  const mean = levels.reduce((sum, level) => sum + level, 0) / levels.length;
  const variance = levels.reduce((sum, level) => sum + (level - mean) ** 2, 0) / levels.length;
  if (Math.sqrt(variance) < MIN_CONTRAST) return null;

  const right = new Float32Array(levels.length);
  const down = new Float32Array(levels.length);
  let norm = 0;
  for (let y = 0; y < SMALL_HEIGHT; y += 1) {
    for (let x = 0; x < SMALL_WIDTH; x += 1) {
      const level = (stepX: number, stepY: number): number =>
        levels[SMALL_WIDTH * mirrored(y + stepY, SMALL_HEIGHT) + mirrored(x + stepX, SMALL_WIDTH)];
      // Sobel's masks
      const slopeRight = level(1, -1) + 2 * level(1, 0) + level(1, 1) - level(-1, -1) - 2 * level(-1, 0) - level(-1, 1);
      const slopeDown = level(-1, 1) + 2 * level(0, 1) + level(1, 1) - level(-1, -1) - 2 * level(0, -1) - level(1, -1);
      const root = Math.sqrt(Math.max(Math.hypot(slopeRight, slopeDown), 1));
      const at = SMALL_WIDTH * y + x;
      right[at] = slopeRight / root;
      down[at] = slopeDown / root;
      norm += right[at] ** 2 + down[at] ** 2;
    }
  }
  const scale = 1 / Math.sqrt(norm);
  return { right: right.map(slope => slope * scale), down: down.map(slope => slope * scale) };
}

/** A place beside the picture becomes one in it, mirrored at the outermost pixel. */
function mirrored(place: number, length: number): number {
  if (place < 0) return -place;
  return place < length ? place : 2 * (length - 1) - place;
}

/** The correlation of two pictures' edges where one is shifted, up to 1. */
function likenessAt(before: Edges, after: Edges, shiftX: number, shiftY: number): number {
  let products = 0;
  let ofBefore = 0; // squares of the edges that overlap
  let ofAfter = 0;
  for (let y = Math.max(0, -shiftY); y < Math.min(SMALL_HEIGHT, SMALL_HEIGHT - shiftY); y += 1) {
    for (let x = Math.max(0, -shiftX); x < Math.min(SMALL_WIDTH, SMALL_WIDTH - shiftX); x += 1) {
      const later = SMALL_WIDTH * y + x;
      const earlier = SMALL_WIDTH * (y + shiftY) + x + shiftX;
      products += before.right[earlier] * after.right[later] + before.down[earlier] * after.down[later];
      ofBefore += before.right[earlier] ** 2 + before.down[earlier] ** 2;
      ofAfter += after.right[later] ** 2 + after.down[later] ** 2;
    }
  }
  return products / Math.sqrt(Math.max(ofBefore * ofAfter, MIN_OVERLAP ** 2));
}

/** Whether two pictures are alike, one shifted if need be. */
function areAlike(before: Edges, after: Edges, least: number): boolean {
  if (likenessAt(before, after, 0, 0) >= least) return true; // nearly always
  for (let shiftY = -MAX_SHIFT_Y; shiftY <= MAX_SHIFT_Y; shiftY += 1) {
    for (let shiftX = -MAX_SHIFT_X; shiftX <= MAX_SHIFT_X; shiftX += 1) {
      if (likenessAt(before, after, shiftX, shiftY) >= least) return true;
    }
  }
  return false;
}

function leastLikeness(secondsApart: number): number {
  const [short, long] = SECONDS_APART;
  const [high, low] = LEAST_LIKENESS;
  const share = Math.min(1, Math.max(0, (secondsApart - short) / (long - short)));
  return high + share * (low - high);
}

/** The number of each frame's shot, from 0. A jump is a cut, unless the picture is soon as before: then it was a flash. */
export function numberShots(frames: SmallFrame[]): number[] {
  const shots: number[] = [];
  let shot = 0;
  let edges: Edges | null = null; // of the shot's last frame that shows something

  /** Whether a frame continues the shot, and its edges. */
  const look = (index: number): { belongs: boolean; found: Edges | null } => {
    const found = findEdges(frames[index].levels);
    const apart = index > 0 ? frames[index].seconds - frames[index - 1].seconds : Infinity;
    const belongs = edges === null || found === null || areAlike(edges, found, leastLikeness(apart));
    return { belongs, found };
  };

  /** After how many frames the picture is as before; 0 for a cut. */
  const flashFrom = (start: number): number => {
    const end = Math.min(start + MAX_FLASH_FRAMES, frames.length - 1);
    for (let index = start + 1; index <= end; index += 1) {
      if (frames[index].seconds - frames[start].seconds > MAX_FLASH_SECONDS) return 0;
      const { belongs, found } = look(index);
      if (found !== null && belongs) return index - start;
    }
    return 0;
  };

  while (shots.length < frames.length) {
    const index = shots.length;
    const { belongs, found } = look(index);
    if (!belongs) {
      const flash = flashFrom(index);
      if (flash > 0) {
        for (let k = 0; k < flash; k += 1) shots.push(shot);
        continue;
      }
      shot += 1;
    }
    edges = found ?? edges;
    shots.push(shot);
  }
  return shots;
}
