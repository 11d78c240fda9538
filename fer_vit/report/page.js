'use strict';
const {labels, colours, regions, grid, meaning, people, averages, faces} = JSON.parse(document.getElementById('data').textContent);
const form = document.querySelector('.filter'), gallery = document.querySelector('.gallery');
const dialog = document.querySelector('dialog'), controls = dialog.querySelector('.controls');
const file = name => name.split('/').pop();
const percent = share => `${Math.round(100 * share) + 0}%`;
const SVG = ['svg', 'g', 'rect', 'line', 'path', 'image', 'circle', 'text', 'title'];

function element(name, attributes = {}, ...children) {
  const made = SVG.includes(name) ? document.createElementNS('http://www.w3.org/2000/svg', name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith('--')) made.style.setProperty(key, value); else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

/* Arcs and discs: a byte per value, the square root of a share; see `pack_attention`. The last view are interactions. */
const R = regions.length, PATCHES = grid[0] * grid[1], LENGTH = R * R + R + PATCHES, ARCS = 12;
let packed;

function attention(face, view = -1) {
  packed ??= document.getElementById('attention').textContent.split('\n');
  face.bytes ??= Uint8Array.from(atob(face.attention ?? packed[faces.indexOf(face)]), letter => letter.charCodeAt(0));
  const start = (view < 0 ? face.bytes.length / LENGTH + view : view) * LENGTH;
  const values = Array.from(face.bytes.subarray(start, start + LENGTH), byte => (byte / 255) ** 2);
  const pairs = [];
  face.boxes.forEach((one, a) => face.boxes.forEach((other, b) => {
    const takes = values[a * R + b], gives = values[b * R + a];
    if (a < b && one && other && takes + gives > 0) pairs.push({a, b, takes, gives, share: takes + gives});
  }));
  pairs.sort((one, other) => other.share - one.share);
  return {pairs: pairs.slice(0, ARCS), output: values.slice(R * R, R * R + R), patches: values.slice(R * R + R)};
}

/* Patches as a picture of a pixel each, which the browser draws soft. */
function softMap(patches) {
  const canvas = element('canvas', {width: grid[1], height: grid[0]}), most = Math.max(1e-9, ...patches);
  const pixels = new ImageData(grid[1], grid[0]);
  patches.forEach((share, i) => pixels.data.set([195, 255, 165, 190 * share / most], 4 * i));
  canvas.getContext('2d').putImageData(pixels, 0, 0);
  return canvas.toDataURL();
}

/* Draws a face, or an average, into a box with an SVG, a legend and numbers. */
function draw(box, face, settings) {
  const state = Object.fromEntries(new FormData(settings)), looks = state.mode === 'attention', svg = box.querySelector('svg');
  const contrast = state.label === 'contrast', label = face.faces ? 0 : contrast ? 'contrast' : +state.label;
  const crop = element('g', {transform: `matrix(${face.matrix})`}), predicted = face.faces || label === face.order[0];
  const seen = looks ? attention(face, +state.view) : predicted ? attention(face) : {pairs: []};
  const [a, b, c, d, e, f] = face.matrix, place = (x, y) => [a * x + c * y + e, b * x + d * y + f];
  const middle = face.boxes.map(box => box && place((box[0] + box[2]) / 2, (box[1] + box[3]) / 2));
  svg.setAttribute('viewBox', `0 0 ${face.size.join(' ')}`);
  svg.replaceChildren(element('image', {href: face.image, width: face.size[0], height: face.size[1], class: state.map || looks ? 'grey' : ''}), crop);
  const unit = Math.max(...face.size) / 480;
  if (looks) drawAttention(svg, crop, face, seen, middle, unit, state);
  else drawAttribution(svg, crop, face, label, contrast, state, seen, middle, unit);
  const shares = contrast ? face.contrast : face.shares[label];
  const words = looks ? attentionNumbers(face, seen, +state.view) : attributionNumbers(face, shares, seen);
  box.querySelector('.numbers').replaceChildren(...words);
  const what = looks ? 'Where the model looks' : 'What drives the prediction';
  svg.setAttribute('aria-label', `${what}: ${face.label ?? `${labels[face.order[0]]}, ${face.name}`}`);
  box.querySelector('.legend').replaceChildren(...looks ? attentionLegend(seen) : attributionLegend(state, seen));
}

function drawAttribution(svg, crop, face, label, contrast, state, {pairs}, middle, unit) {
  if (state.map) {  // of all that is in the picture, one square
    const rows = face.heat ? 1 : labels.length + 1;
    const map = element('svg', {width: face.crop, height: face.crop, viewBox: `0 ${contrast ? labels.length : label} 1 1`, class: 'heat'});
    map.append(element('image', {href: face.heat ?? face.image.replace('.jpg', '.png'), width: 1, height: rows, preserveAspectRatio: 'none'}));
    crop.append(map);
  }
  const shares = contrast ? face.contrast : face.shares[label];
  if (state.regions) {
    face.boxes.forEach((box, r) => box && crop.append(element('rect', {x: box[0], y: box[1], width: box[2] - box[0], height: box[3] - box[1],
      class: 'region'}, element('title', {}, `${regions[r]} ${percent(shares[r])}`))));
    drawArcs(svg, pairs, middle, unit, together);
  }
}

const together = ({a, b, share}) => `${regions[a]} and ${regions[b]}, ${percent(share)} of the interactions`;

function drawArcs(svg, pairs, middle, unit, title) {
  for (const pair of pairs.toReversed()) {
    const [[x1, y1], [x2, y2]] = [middle[pair.a], middle[pair.b]], width = unit * Math.max(1.5, 9 * pair.share / pairs[0].share);
    const d = `M${x1} ${y1}Q${(x1 + x2) / 2 - .15 * (y2 - y1)} ${(y1 + y2) / 2 + .15 * (x2 - x1)} ${x2} ${y2}`;
    svg.append(element('path', {d, class: 'shadow', 'stroke-width': width + 2 * unit}), element('path', {d, class: 'arc', 'stroke-width': width}, element('title', {}, title(pair))));
  }
}

function drawAttention(svg, crop, face, {pairs, output, patches}, middle, unit, state) {
  if (PATCHES && state.map) crop.append(element('image', {href: softMap(patches), width: face.crop, height: face.crop, preserveAspectRatio: 'none', class: 'soft'}));
  if (!state.regions) return;
  drawArcs(svg, pairs, middle, unit, ({a, b, takes, gives}) => `${regions[a]} takes ${percent(takes)} from ${regions[b]}, which takes ${percent(gives)}`);
  const most = Math.max(1e-9, ...output), size = 11 * face.size[0] / (svg.clientWidth || 480), name = (r, [x, y]) => element('text', {x, y: y + 1.5 * size, 'font-size': size}, regions[r]);
  middle.forEach((at, r) => at && svg.append(element('circle', {cx: at[0], cy: at[1], r: (2 + 12 * Math.sqrt(output[r] / most)) * unit, 'stroke-width': unit, class: 'disc'},
    element('title', {}, `${regions[r]}: ${percent(output[r])} of the attention to the output`))));
  middle.forEach((at, r) => at && svg.append(name(r, at)));
}

function attributionLegend(state, {pairs}) {
  return [...state.map ? [element('span', {}, 'against', element('i', {class: 'scale'}), 'for, scaled within the picture')] : [],
    ...state.regions && pairs.length ? [element('span', {}, element('i', {class: 'line'}), `widest: ${together(pairs[0])}`)] : []];
}

function attentionLegend({pairs, output}) {
  const most = output.indexOf(Math.max(...output)), parts = [];
  if (pairs.length) parts.push(['line', `widest: ${regions[pairs[0].a]} and ${regions[pairs[0].b]}, ${percent(pairs[0].share)} in both directions`]);
  if (output[most] > 0) parts.push(['ball', `largest: ${regions[most]}, ${percent(output[most])} of the attention to the output`]);
  if (PATCHES) parts.push(['cloud', 'attention from patches to the output']);
  return parts.map(([kind, text]) => element('span', {}, element('i', {class: kind}), text));
}

function attributionNumbers(face, shares, {pairs}) {
  const largest = Math.max(1e-9, ...shares.map(Math.abs));
  const rows = shares.flatMap((share, r) => face.boxes[r] ? [[regions[r], bar(share / largest), percent(share) + interval(face, r)]] : []);
  const both = pairs.map(({a, b, share}) => [`${regions[a]}, ${regions[b]}`, percent(share)]);
  return [table('contribution', ['region', '', 'share'], rows), ...both.length ? [table('interactions between regions', ['pair', 'share'], both)] : []];
}

function attentionNumbers(face, {pairs, output}, view) {
  const own = index => view ? '' : interval(face, index), most = Math.max(1e-9, ...output);
  const regionsFirst = output.flatMap((share, r) => face.boxes[r] ? [[regions[r], bar(share / most, 'plain'), percent(share) + own(R + r)]] : []);
  const between = pairs.map(({a, b, takes, gives}) => [`${regions[a]}, ${regions[b]}`, percent(takes) + own(2 * R + a * R + b), percent(gives) + own(2 * R + b * R + a)]);
  return [table('attention to the output', ['region', '', 'share'], regionsFirst),
    ...between.length ? [table('attention between regions', ['pair', 'first from second', 'second from first'], between)] : []];
}

const interval = (face, index) => face.intervals?.[index] ? ` (${face.intervals[index].map(percent).join(' to ')})` : '';
const bar = (length, kind = length < 0 ? 'against' : 'for') => element('i', {'--w': Math.abs(length), class: kind});

function table(caption, head, rows) {
  const cells = (row, scope) => row.map((cell, i) => (scope === 'col' ? cell : !i) ? element('th', {scope}, cell) : element('td', {}, cell));
  return element('table', {class: 'bars'}, element('caption', {}, caption), element('thead', {}, element('tr', {}, ...cells(head, 'col'))),
    element('tbody', {}, ...rows.map(row => element('tr', {}, ...cells(row, 'row')))));
}

/* Copies the tables, or saves the picture, of a box. */
function tools(box, name, png = true) {
  const button = (text, act) => { const made = element('button', {type: 'button'}, text); made.addEventListener('click', act); return made; };
  return element('p', {class: 'tools'}, button('Copy numbers', () => {
    getSelection().selectAllChildren(box.querySelector('.numbers'));
    document.execCommand('copy');
    getSelection().removeAllRanges();
  }), button('Save SVG', () => save(box, `${name()}.svg`)), ...png ? [button('Save PNG', () => save(box, `${name()}.png`))] : []);
}

async function save(box, name) {
  const svg = box.querySelector('svg'), copy = svg.cloneNode(true), [, , width, height] = svg.getAttribute('viewBox').split(' ');
  for (const [key, value] of Object.entries({xmlns: 'http://www.w3.org/2000/svg', width: 2 * width, height: 2 * height})) copy.setAttribute(key, value);
  for (const image of copy.querySelectorAll('image')) image.setAttribute('href', await embedded(image.getAttribute('href')));
  copy.prepend(element('style', {}, [...document.styleSheets[0].cssRules].map(rule => rule.cssText).filter(text => text.startsWith('svg ')).join('\n')));
  const text = new XMLSerializer().serializeToString(copy);
  let blob = new Blob([text], {type: 'image/svg+xml'});
  if (name.endsWith('.png')) {
    const picture = new Image(), canvas = element('canvas', {width: 2 * width, height: 2 * height});
    picture.src = `data:image/svg+xml,${encodeURIComponent(text)}`;
    await picture.decode();
    canvas.getContext('2d').drawImage(picture, 0, 0);
    blob = await new Promise(done => canvas.toBlob(done));
  }
  const link = element('a', {href: URL.createObjectURL(blob), download: name});
  link.click();
  URL.revokeObjectURL(link.href);
}

/* A picture as data. From disk the browser does not let the page read it: then its address, which viewers of SVG open. */
async function embedded(address) {
  if (address.startsWith('data:')) return address;
  const picture = new Image(), canvas = element('canvas');
  picture.src = address;
  await picture.decode();
  [canvas.width, canvas.height] = [picture.naturalWidth, picture.naturalHeight];
  canvas.getContext('2d').drawImage(picture, 0, 0);
  try { return canvas.toDataURL(); } catch { return picture.src; }
}

/* Shows the settings and the sentence that belong to one of the two pictures. */
function settle(settings) {
  const {mode} = Object.fromEntries(new FormData(settings));
  settings.querySelector('.pixels').hidden = mode !== 'pixels' || settings !== controls;
  settings.querySelector('.attention').hidden = mode !== 'attention';
  settings.querySelector('.map').hidden = mode === 'attention' && !PATCHES;
  settings.nextElementSibling.textContent = meaning[mode] ?? '';
}

/* Averages. */
const choices = document.querySelector('#averages .controls');
const means = averages.map(average => {
  const box = element('figure', {}, element('svg', {role: 'img'}), element('figcaption', {}, element('b', {}, average.label), ` ${average.faces} faces`),
    element('p', {class: 'legend'}), element('details', {}, element('summary', {}, 'numbers, 95% intervals'), element('div', {class: 'numbers'})));
  box.querySelector('details').append(tools(box, () => `average-${average.label}`));
  document.querySelector('.means').append(box);
  return () => draw(box, average, choices);
});
function drawMeans() { settle(choices); means.forEach(drawn => drawn()); }
if (choices) { choices.addEventListener('input', drawMeans); drawMeans(); }

/* The gallery: built once, then only hidden, shown and sorted. Of a person in a clip it has the changes of expression. */
const runs = new Map();
const cards = faces.map((face, number) => {
  const label = face.order[0], shares = face.shares[label], top = shares.indexOf(Math.max(...shares)), person = `${face.track} ${face.name}`;
  const card = element('button', {type: 'button', class: 'card', title: face.name},
    element('img', {src: face.image, alt: '', width: face.size[0], height: face.size[1], loading: 'lazy', decoding: 'async'}),
    element('span', {class: 'label'}, element('b', {}, labels[label]), ` ${percent(face.probabilities[label])}`),
    element('bdi', {class: 'name'}, file(face.name)));
  if (face.track !== null) card.append(element('span', {class: 'where'}, face.where), element('span', {class: 'top'}, `smoothed: ${labels[face.smoothed]}`));
  if (shares[top] > 0) card.append(element('span', {class: 'top'}, `${regions[top]} ${percent(shares[top])}`));
  card.addEventListener('click', () => { line = () => shown; back = () => cards[current].card; open(number); });
  gallery.append(card);
  const same = face.track !== null && runs.get(person) === face.smoothed;
  runs.set(person, face.smoothed);
  return {card, face, label, same, name: `${face.name} ${face.where}`.toLowerCase(), sure: face.probabilities[label]};
});
const ranks = {found: () => 0, most: (a, b) => b.sure - a.sure, least: (a, b) => a.sure - b.sure};
let ordered = 'found', shown = [...faces.keys()];

function filter() {
  const {label, order, text, every} = Object.fromEntries(new FormData(form));
  const wanted = text.trim().toLowerCase();
  for (const {card, label: predicted, same, name} of cards) {
    card.hidden = (label !== '' && +label !== predicted) || !name.includes(wanted) || (same && !every);
  }
  const line = [...cards.keys()].sort((a, b) => ranks[order](cards[a], cards[b]) || a - b);
  if (order !== ordered) gallery.append(...line.map(i => cards[i].card));
  ordered = order;
  shown = line.filter(i => !cards[i].card.hidden);
  form.querySelector('output').value = `${shown.length} of ${faces.length} faces`;
}
form.addEventListener('input', filter);
form.addEventListener('submit', event => event.preventDefault());

/* Photos with several faces, whole. */
faces.forEach((second, number) => {
  if (second.index !== 1 || !second.box) return;
  const picture = faces[number - 1].image.replace('.jpg', '-whole.jpg'), place = element('figure', {},
    element('img', {src: picture, alt: '', loading: 'lazy'}), element('figcaption', {}, element('bdi', {title: second.name}, file(second.name))));
  const boxes = element('div', {class: 'whole'}, place.firstChild);
  for (let n = number - 1, i = 0; faces[n]?.index === i && faces[n].name === second.name; n++, i++) {
    const [left, top, right, bottom] = faces[n].box.map(edge => Math.min(1, Math.max(0, edge))), label = faces[n].order[0], own = n;
    const box = element('button', {type: 'button', '--l': left, '--t': top, '--w': right - left, '--h': bottom - top, '--c': colours[label],
      'aria-label': `${faces[n].where}: ${labels[label]} ${percent(faces[n].probabilities[label])}`}, element('span', {}, labels[label]));
    box.addEventListener('click', () => { line = () => [...faces.keys()].filter(k => faces[k].name === second.name); back = () => box; open(own); });
    boxes.append(box);
  }
  place.prepend(boxes);
  document.querySelector('.groups').append(place);
});

/* One face, large. */
let current = 0, line, back;  // what the arrows walk along, and where the focus goes in the end
const choice = controls.querySelector('[name=label]'), large = dialog.querySelector('.face');
large.querySelector('.side').append(tools(large, () => `${file(faces[current].name)}-${faces[current].where}`.replaceAll(' ', '-'), location.protocol !== 'file:'));

function open(number) {
  const face = faces[current = number], [top, next] = face.order;
  dialog.querySelector('h2').replaceChildren(element('b', {}, labels[top]), ` ${percent(face.probabilities[top])}`);
  dialog.querySelector('.name').textContent = face.name;
  dialog.querySelector('.number').textContent = face.where;
  const options = face.order.filter(i => face.shares[i]);
  choice.replaceChildren(...options.map(i => element('option', {value: i}, labels[i])));
  if (face.contrast && next !== undefined) choice.append(element('option', {value: 'contrast'}, `${labels[top]} rather than ${labels[next]}`));
  const likely = face.order.filter((i, rank) => !rank || face.probabilities[i] >= .005);
  dialog.querySelector('.probabilities').replaceChildren(table('probability', ['expression', '', 'share'],
    likely.map(i => [labels[i], bar(face.probabilities[i], 'plain'), percent(face.probabilities[i])])));
  const person = people.find(one => shows(one, face)), when = dialog.querySelector('.when');
  if (when.person !== person) when.replaceChildren(...person ? [when.timeline = timeline(when.person = person)] : []);
  if (person) when.timeline.place(number); else when.person = undefined;
  redraw();
  if (!dialog.open) dialog.showModal();
}

function redraw() { settle(controls); draw(large, faces[current], controls); }

function step(by) {
  const at = line().indexOf(current) + by;
  if (at >= 0 && at < line().length) open(line()[at]);
}
controls.addEventListener('input', redraw);
dialog.querySelector('.before').addEventListener('click', () => step(-1));
dialog.querySelector('.after').addEventListener('click', () => step(1));
dialog.querySelector('.close').addEventListener('click', () => dialog.close());
dialog.addEventListener('click', event => { if (event.target === dialog) dialog.close(); });
dialog.addEventListener('close', () => back().focus());
dialog.addEventListener('keydown', event => {
  if (event.target.matches('select') || !['ArrowLeft', 'ArrowRight'].includes(event.key)) return;
  event.preventDefault();
  step(event.key === 'ArrowLeft' ? -1 : 1);
});

/* People over time. */
const shows = (person, face) => person.track === face.track && person.name === face.name;
const clock = seconds => {
  const tenths = Math.round(10 * seconds);  // before the minutes: 59.97 seconds are 1:00.0
  return `${Math.floor(tenths / 600)}:${(tenths % 600 / 10).toFixed(1).padStart(4, '0')}`;
};

/* Areas on top of each other; each reaches to 0 and is covered by those before it. */
function stacked({start, end, gaps}, times, layers, title) {
  const sums = times.map(() => 0), span = end - start || 1;
  const edges = layers.map(({values}) => values.map((value, i) => [sums[i] += value, 0]));
  const high = Math.max(...sums);
  const x = time => (1000 * (time - start) / span).toFixed(1), y = value => (100 * (high - value) / (high || 1)).toFixed(1);
  const drawn = element('svg', {viewBox: '0 0 1000 100', preserveAspectRatio: 'none', 'aria-hidden': 'true'});
  const steps = times.length < 60 ? spans(times) : times.map(time => [time]);  // steps where frames are few
  layers.forEach(({colour, name}, n) => {
    const along = side => steps.flatMap((span, i) => span.map(time => `${x(time)} ${y(edges[n][i][side])}`));
    const points = [...along(0), ...along(1).reverse()];
    drawn.prepend(element('path', {d: `M${points.join('L')}Z`, '--c': colour}, element('title', {}, name)));
  });
  for (const [from, to] of gaps) drawn.append(element('rect', {x: x(from), y: 0, width: x(to) - x(from), height: 100}));
  return element('figure', {}, element('figcaption', {}, title), drawn);
}

const spans = times => times.map((time, i) => [times[i - 1] ?? time, times[i + 1] ?? time].map(other => (time + other) / 2));

/* A row for each region: orange where it contributes to the predicted expression, blue where it counts against it. */
function strips({start, end, gaps}, own) {
  const rows = [...regions.keys()].filter(r => own.some(i => faces[i].boxes[r])), scale = 1000 / (end - start || 1);
  const shares = own.map(i => faces[i].shares[faces[i].order[0]]), most = Math.max(1e-9, ...shares.flat().map(Math.abs));
  const drawn = element('svg', {viewBox: `0 0 1000 ${rows.length}`, preserveAspectRatio: 'none', 'aria-hidden': 'true'});
  spans(own.map(i => faces[i].seconds)).forEach(([from, to], n) => rows.forEach((r, y) => drawn.append(element('rect', {
    x: scale * (from - start), y: y + .04, width: Math.max(2, scale * (to - from)), height: .92, class: shares[n][r] < 0 ? 'against' : 'for',
    'fill-opacity': (Math.abs(shares[n][r]) / most).toFixed(3)}, element('title', {}, `${regions[r]} ${percent(shares[n][r])}`)))));
  for (const [from, to] of gaps) drawn.append(element('rect', {x: scale * (from - start), y: 0, width: scale * (to - from), height: rows.length}));
  const names = element('div', {class: 'rows', 'aria-hidden': 'true'}, ...rows.map(r => element('span', {}, regions[r])));
  return element('figure', {class: 'strips'}, element('figcaption', {}, 'what drives the prediction'), drawn, names);
}

function timeline(person) {
  const own = [...faces.keys()].filter(i => shows(person, faces[i]));
  const {start, end} = person, at = time => (time - start) / (end - start || 1);
  const nearest = time => own.reduce((best, i) => Math.abs(faces[i].seconds - time) < Math.abs(faces[best].seconds - time) ? i : best);
  const strip = element('div', {class: 'strip'}), ticks = element('div', {class: 'ticks'}), slots = 14;
  for (let slot = 0; slot < slots; slot++) {
    const time = start + (slot + .5) / slots * (end - start), number = nearest(time), half = .5 / slots * (end - start);
    const there = time > person.times[0] - half && time < person.times.at(-1) + half && !person.gaps.some(([from, to]) => from < time && time < to);
    strip.append(there ? element('img', {src: faces[number].image, alt: '', loading: 'lazy', draggable: 'false'}) : element('span'));
  }
  const unit = [.1, .2, .5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 3600].find(one => (end - start) / one <= 6) || 7200;
  for (let time = Math.ceil(start / unit) * unit; time <= end - .07 * (end - start); time += unit) ticks.append(element('span', {'--x': at(time)}, clock(time)));
  const block = element('div', {class: 'timeline'}, strip,
    stacked(person, person.times, labels.map((name, n) => ({name, colour: colours[n], values: person.shares[n]})), 'probability'),
    strips(person, own),
    ticks);
  block.own = own;
  block.place = number => { block.number = number; block.style.setProperty('--x', at(faces[number].seconds)); };
  block.near = event => {
    const {left, width} = block.getBoundingClientRect();
    return nearest(start + (event.clientX - left) / width * (end - start));
  };
  block.addEventListener('click', event => { line = () => own; open(block.near(event)); });
  return block;
}

function show(person) {
  const name = `person ${person.track}`, block = timeline(person), now = element('output');
  block.tabIndex = 0;
  const state = {role: 'slider', 'aria-label': `${name} over time`, 'aria-valuemin': person.start, 'aria-valuemax': person.end};
  for (const [key, value] of Object.entries(state)) block.setAttribute(key, value);
  const place = number => {
    const face = faces[number], label = face.order[0];
    block.place(number);
    now.value = `${clock(face.seconds)}  ${labels[label]} ${percent(face.probabilities[label])}`;
    block.setAttribute('aria-valuenow', face.seconds);
    block.setAttribute('aria-valuetext', now.value);
  };
  place(block.own[0]);
  block.addEventListener('pointermove', event => place(block.near(event)));
  const here = () => { place(current); return block; };
  block.addEventListener('click', () => { back = here; });
  block.addEventListener('keydown', event => {
    const steps = {ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, Home: -Infinity, End: Infinity};
    const last = block.own.length - 1, to = block.own.indexOf(block.number) + steps[event.key];
    if (event.key in steps) place(block.own[Math.min(last, Math.max(0, to))]);
    else if (event.key === 'Enter') { line = () => block.own; back = here; open(block.number); }
    else return;
    event.preventDefault();
  });
  const key = element('p', {class: 'key', 'aria-hidden': 'true'}, ...labels.map((label, n) => element('span', {}, element('i', {'--c': colours[n]}), label)));
  const seen = `${file(person.name)}, ${clock(person.times[0])} to ${clock(person.times.at(-1))}, ${person.frames} frames`;
  return element('section', {class: 'person', 'aria-label': name},
    element('header', {}, element('h3', {}, name), element('bdi', {title: person.name}, seen), now), key, block);
}

const most = [...people].sort((a, b) => b.frames - a.frames).slice(0, 8);  // at first, of a crowd
const several = new Set(people.map(person => person.name)).size > 1;
if (people.length) document.querySelector('.tracks').hidden = people.length < 2;
for (const person of people) {
  const place = document.querySelector('.people').appendChild(element('div', {hidden: ''}));
  const box = element('input', {type: 'checkbox'});
  const choose = () => {
    if (box.checked && !place.firstChild) place.append(show(person));
    place.hidden = !box.checked;
  };
  box.checked = most.includes(person);
  box.addEventListener('input', choose);
  choose();
  document.querySelector('.tracks fieldset').append(element('label', {}, box,
    element('span', {}, `person ${person.track} `, element('small', {}, several ? person.name : ''))));
}
filter();

/* In a frame of another page only the faces count, and a single one is shown at once. */
if (window !== parent) {
  document.documentElement.className = 'framed';
  if (faces.length === 1) cards[0].card.click();
}
