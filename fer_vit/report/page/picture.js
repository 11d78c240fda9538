/* The picture of a face: the photo with a heat map and regions, or with attention. */
const LABELLED = 3; // regions whose names are on the picture
let photos;

/* The pictures of a face as data where the page has them, else as the files beside it. */
function pictures(face) {
  if (face.heat) return {photo: face.image, heat: face.heat};
  photos ??= document.getElementById('pictures').textContent.split('\n');
  const [photo, heat] = photos[faces.indexOf(face)].split(' ');
  if (!photo) return {photo: face.image, heat: face.image.replace('.jpg', '.png')};
  return {photo: `data:image/jpeg;base64,${photo}`, heat: `data:image/png;base64,${heat}`};
}

/* Places on the picture: from pixels of the crop. */
function placing(face) {
  const [a, b, c, d, e, f] = face.matrix;
  const place = (x, y) => [a * x + c * y + e, b * x + d * y + f];
  const middle = face.boxes.map(box => box && place((box[0] + box[2]) / 2, (box[1] + box[3]) / 2));
  return {place, middle};
}

/* What is drawn on: `unit` is 1/480 of the picture, `text` the height of text that is 12 pixels on screen. */
function startPicture(svg, face, grey) {
  const [width, height] = face.size;
  const crop = element('g', {transform: `matrix(${face.matrix})`});
  const photo = element('image', {href: pictures(face).photo, width, height, class: grey ? 'grey' : ''});
  svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
  svg.style.setProperty('--ratio', width / height);
  svg.replaceChildren(photo, crop);
  const shown = svg.getBoundingClientRect();
  const scale = Math.min(shown.width / width, shown.height / height) || 1;
  return {
    svg,
    crop,
    face,
    width,
    height,
    unit: Math.max(width, height) / 480,
    text: 12 / scale,
    ...placing(face),
  };
}

/* Names beside the middle of regions, moved up or down until none covers another or leaves the picture. */
function drawNames(canvas, names) {
  const {svg, text, width, height} = canvas;
  const taken = [];
  for (const {at, name} of names) {
    const half = 0.31 * text * name.length;
    const x = Math.min(Math.max(at[0], half + 2), Math.max(half + 2, width - half - 2));
    const free = y =>
      y > text &&
      y < height - 0.3 * text &&
      taken.every(other => Math.abs(other.x - x) > other.half + half || Math.abs(other.y - y) > 1.25 * text);
    const steps = [0, 1, -1, 2, -2, 3, -3, 4, -4].map(step => at[1] + step * 1.3 * text);
    const y = steps.find(free) ?? at[1];
    taken.push({x, y, half});
    svg.append(element('text', {x, y, 'font-size': text}, name));
  }
}

function drawRegion(canvas, index, strong, title) {
  const box = canvas.face.boxes[index];
  const [left, top, right, bottom] = box;
  canvas.crop.append(
    element(
      'rect',
      {
        x: left,
        y: top,
        width: right - left,
        height: bottom - top,
        class: strong ? 'region strong' : 'region',
      },
      element('title', {}, title),
    ),
  );
}

/* What drives the prediction: the heat map, and regions of which the strongest have names. */
function drawAttribution(canvas, target, state) {
  const {crop, face} = canvas;
  if (state.map) {
    // of all maps that are in the picture, one square
    const map = element('svg', {
      width: face.crop,
      height: face.crop,
      viewBox: `0 ${target.index} 1 1`,
      class: 'heat',
    });
    map.append(
      element('image', {
        href: pictures(face).heat,
        width: 1,
        height: face.targets.length,
        preserveAspectRatio: 'none',
      }),
    );
    crop.append(map);
  }
  const named = largest(target.shares, LABELLED).filter(index => face.boxes[index]);
  if (state.regions) {
    face.boxes.forEach((box, r) => {
      if (box) drawRegion(canvas, r, named.includes(r), `${regions[r]} ${signedPercent(target.shares[r])}`);
    });
  }
  if (state.arcs && target.index === 0) {
    const pairs = face.interactions.map(([a, b, logits]) => ({
      a,
      b,
      size: Math.abs(logits),
      title: together(a, b, logits),
    }));
    drawArcs(canvas, pairs.slice(0, ARCS));
  }
  if (state.regions) {
    drawNames(
      canvas,
      named.map(r => ({at: above(canvas, r), name: `${regions[r]} ${signedPercent(target.shares[r])}`})),
    );
  }
}

/* A place above the upper edge of a region, so that its name covers nothing of it. */
function above({face, place, text}, index) {
  const [left, top, right] = face.boxes[index];
  const [x, y] = place((left + right) / 2, top);
  return [x, y - 0.35 * text];
}

const together = (a, b, logits) => `${regions[a]} and ${regions[b]}: ${signed(logits)} logits`;

function drawArcs({svg, middle, unit}, pairs) {
  const most = Math.max(...pairs.map(pair => pair.size));
  for (const {a, b, size, title} of pairs.toReversed()) {
    const [x1, y1] = middle[a];
    const [x2, y2] = middle[b];
    const width = unit * Math.max(1.5, (7 * size) / most);
    const bend = [(x1 + x2) / 2 - 0.15 * (y2 - y1), (y1 + y2) / 2 + 0.15 * (x2 - x1)];
    const d = `M${x1} ${y1}Q${bend.join(' ')} ${x2} ${y2}`;
    svg.append(
      element('path', {d, class: 'shadow', 'stroke-width': width + 2 * unit}),
      element('path', {d, class: 'arc', 'stroke-width': width}, element('title', {}, title)),
    );
  }
}

/* How regions exchange information: patches, arcs and discs, of which the largest have names. */
function drawAttention(canvas, {pairs, output, patches}, state) {
  const {svg, crop, face, middle, unit} = canvas;
  if (PATCHES && state.map) {
    crop.append(
      element('image', {
        href: softMap(patches, uniformShare(face)),
        width: face.crop,
        height: face.crop,
        preserveAspectRatio: 'none',
        class: 'soft',
      }),
    );
  }
  if (!state.regions) return;
  if (state.arcs) {
    drawArcs(
      canvas,
      pairs.map(({a, b, takes, gives, share}) => ({
        a,
        b,
        size: share,
        title: `${regions[a]} takes ${percent(takes)} from ${regions[b]}, which takes ${percent(gives)}`,
      })),
    );
  }
  const most = Math.max(1e-9, ...output);
  middle.forEach((at, r) => {
    if (!at) return;
    svg.append(
      element(
        'circle',
        {
          cx: at[0],
          cy: at[1],
          r: (2 + 12 * Math.sqrt(output[r] / most)) * unit,
          'stroke-width': unit,
          class: 'disc',
        },
        element('title', {}, `${regions[r]}: ${percent(output[r])} of the attention to the output`),
      ),
    );
  });
  const named = largest(output, LABELLED).filter(index => middle[index]);
  drawNames(
    canvas,
    named.map(r => ({
      at: [middle[r][0], middle[r][1] + 16 * unit + canvas.text],
      name: `${regions[r]} ${percent(output[r])}`,
    })),
  );
}
