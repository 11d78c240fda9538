/* Attention of a face: a byte per value, the square root of a share; see `pack_attention`. */
const R = regions.length;
const PATCHES = grid[0] * grid[1];
const VIEW_LENGTH = R * R + R + PATCHES;
const ARCS = 6; // pairs that are drawn, at most
let packed;

function attention(face, view) {
  packed ??= document.getElementById('attention').textContent.split('\n');
  const text = face.attention ?? packed[faces.indexOf(face)];
  face.bytes ??= Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
  const start = view * VIEW_LENGTH;
  const bytes = face.bytes.subarray(start, start + VIEW_LENGTH);
  const values = Array.from(bytes, byte => (byte / 255) ** 2);

  const pairs = [];
  for (let a = 0; a < R; a++) {
    for (let b = a + 1; b < R; b++) {
      const takes = values[a * R + b];
      const gives = values[b * R + a];
      if (face.boxes[a] && face.boxes[b] && takes + gives > 0) {
        pairs.push({a, b, takes, gives, share: takes + gives});
      }
    }
  }
  pairs.sort((first, second) => second.share - first.share);
  return {
    pairs: pairs.slice(0, ARCS),
    output: values.slice(R * R, R * R + R),
    patches: values.slice(R * R + R),
  };
}

/* The share of a patch if all tokens of a face had the same. */
function uniformShare(face) {
  const present = face.boxes.filter(Boolean).length;
  return 1 / (PATCHES + regionTokens * present);
}

/* Patches as a picture of a pixel each, which the browser draws soft: clear up to the uniform share. */
function softMap(patches, uniform) {
  const canvas = element('canvas', {width: grid[1], height: grid[0]});
  const most = Math.max(...patches) - uniform;
  const pixels = new ImageData(grid[1], grid[0]);
  patches.forEach((share, i) => {
    const above = most > 1e-6 ? Math.max(0, share - uniform) / most : 0;
    pixels.data.set([195, 255, 165, 190 * above], 4 * i);
  });
  canvas.getContext('2d').putImageData(pixels, 0, 0);
  return canvas.toDataURL();
}
