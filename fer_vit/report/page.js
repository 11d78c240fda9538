'use strict';
const {labels, regions, faces} = JSON.parse(document.getElementById('data').textContent);
const form = document.querySelector('form'), gallery = document.querySelector('.gallery');
const dialog = document.querySelector('dialog'), svg = dialog.querySelector('svg');
const percent = share => `${Math.round(100 * share) + 0}%`;
const words = name => name.replaceAll('_', ' ');

function element(name, attributes = {}, ...children) {
  const drawn = ['svg', 'g', 'rect', 'line', 'image', 'circle', 'title'].includes(name);
  const made = drawn ? document.createElementNS('http://www.w3.org/2000/svg', name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith('--')) made.style.setProperty(key, value); else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

/* The gallery: built once, then only hidden, shown and sorted. */
const cards = faces.map((face, number) => {
  const label = face.order[0], shares = face.shares[label], top = shares.indexOf(Math.max(...shares));
  const card = element('button', {type: 'button', class: 'card'},
    element('img', {src: face.image, alt: '', width: face.size[0], height: face.size[1], loading: 'lazy', decoding: 'async'}),
    element('span', {class: 'label'}, element('b', {}, labels[label]), ` ${percent(face.probabilities[label])}`),
    element('bdi', {class: 'name'}, face.name));
  if (shares[top] > 0) {
    card.append(element('span', {class: 'top', '--c': regions[top].colour}, `${words(regions[top].name)} ${percent(shares[top])}`));
  }
  card.addEventListener('click', () => open(number));
  gallery.append(card);
  return {card, face, label, name: face.name.toLowerCase(), sure: face.probabilities[label]};
});
const ranks = {found: () => 0, most: (a, b) => b.sure - a.sure, least: (a, b) => a.sure - b.sure};
let ordered = 'found', shown = [...faces.keys()];

function filter() {
  const {label, order, text} = Object.fromEntries(new FormData(form));
  const wanted = text.trim().toLowerCase();
  for (const {card, label: predicted, name} of cards) {
    card.hidden = (label !== '' && +label !== predicted) || !name.includes(wanted);
  }
  const line = [...cards.keys()].sort((a, b) => ranks[order](cards[a], cards[b]) || a - b);
  if (order !== ordered) gallery.append(...line.map(i => cards[i].card));
  ordered = order;
  shown = line.filter(i => !cards[i].card.hidden);
  form.querySelector('output').value = `${shown.length} of ${faces.length} faces`;
}
form.addEventListener('input', filter);
form.addEventListener('submit', event => event.preventDefault());

/* One face, large. */
let current = 0;
const controls = dialog.querySelector('.controls'), choice = controls.querySelector('select');

function open(number) {
  const face = faces[current = number], [top, next] = face.order;
  dialog.querySelector('h3').replaceChildren(element('b', {}, labels[top]), ` ${percent(face.probabilities[top])}`);
  dialog.querySelector('.name').textContent = face.name;
  dialog.querySelector('.number').textContent = `face ${face.number}`;
  const options = face.order.filter(i => face.shares[i]);
  choice.replaceChildren(...options.map(i => element('option', {value: i}, labels[i])));
  if (face.contrast && next !== undefined) choice.append(element('option', {value: 'contrast'}, `${labels[top]} rather than ${labels[next]}`));
  dialog.querySelector('.probabilities').replaceChildren(...face.order.map(i => bar(words(labels[i]), face.probabilities[i], face.probabilities[i], '')));
  draw();
  if (!dialog.open) dialog.showModal();
}

function bar(name, value, length, colour) {
  const attributes = {'--w': Math.abs(length), '--c': colour || 'var(--accent)', class: value < 0 ? 'against' : 'for'};
  return element('li', {}, element('span', {}, name), element('i', attributes), element('b', {}, percent(value)));
}

function draw() {
  const face = faces[current], layers = new FormData(controls), contrast = choice.value === 'contrast';
  const shares = contrast ? face.contrast : face.shares[choice.value];
  const largest = Math.max(1e-9, ...shares.map(Math.abs));
  const list = dialog.querySelector('.shares');
  list.replaceChildren(...shares.flatMap((share, r) => face.boxes[r] ? [bar(words(regions[r].name), share, share / largest, regions[r].colour)] : []));
  list.previousElementSibling.textContent = contrast ? `for ${labels[face.order[0]]} rather than ${labels[face.order[1]]}` : `for ${labels[choice.value]}`;

  svg.setAttribute('viewBox', `0 0 ${face.size.join(" ")}`);
  svg.replaceChildren(element('image', {href: face.image, width: face.size[0], height: face.size[1]}));
  const crop = element('g', {transform: `matrix(${face.matrix})`});
  svg.append(crop);
  const place = ([left, top, right, bottom], more) => element('rect', {x: left, y: top, width: right - left, height: bottom - top, ...more});
  if (layers.has('heat')) {  // of all that is in the picture, one square
    const map = element('svg', {class: 'heat', width: face.crop, height: face.crop, viewBox: `0 ${contrast ? labels.length : choice.value} 1 1`});
    map.append(element('image', {href: face.image.replace('.jpg', '.png'), width: 1, height: labels.length + 1, preserveAspectRatio: 'none'}));
    crop.append(map);
  }
  if (layers.has('regions')) {
    face.boxes.forEach((box, r) => {
      if (box) crop.append(place(box, {class: 'region', '--c': regions[r].colour}));
      if (box) crop.lastChild.append(element('title', {}, `${words(regions[r].name)} ${percent(shares[r])}`));
    });
  }
  if (layers.has('relations')) {
    const middle = face.boxes.map(box => box && [(box[0] + box[2]) / 2, (box[1] + box[3]) / 2]), pairs = [];
    face.relations.forEach((row, a) => row.forEach((share, b) => { if (a < b && middle[a] && middle[b]) pairs.push([share + face.relations[b][a], a, b]); }));
    pairs.sort((a, b) => b[0] - a[0]);
    for (const [share, a, b] of pairs.slice(0, 15)) {
      const [[x1, y1], [x2, y2]] = [middle[a], middle[b]], width = 4 * share / Math.max(1e-9, pairs[0][0]);
      crop.append(element('line', {x1, y1, x2, y2, class: 'relation', 'stroke-width': width.toFixed(2)}, element('title', {},
        `${words(regions[a].name)} takes ${percent(face.relations[a][b])} from ${words(regions[b].name)}, which takes ${percent(face.relations[b][a])}`)));
    }
    middle.forEach(at => { if (at) crop.append(element('circle', {cx: at[0], cy: at[1], r: face.crop / 70, class: 'joint'})); });
  }
}

function step(by) {
  const at = shown.indexOf(current) + by;
  if (at >= 0 && at < shown.length) open(shown[at]);
}
controls.addEventListener('input', draw);
dialog.querySelector('.before').addEventListener('click', () => step(-1));
dialog.querySelector('.after').addEventListener('click', () => step(1));
dialog.querySelector('.close').addEventListener('click', () => dialog.close());
dialog.addEventListener('click', event => { if (event.target === dialog) dialog.close(); });
dialog.addEventListener('close', () => cards[current].card.focus());
dialog.addEventListener('keydown', event => {
  if (event.target.matches('select') || !['ArrowLeft', 'ArrowRight'].includes(event.key)) return;
  event.preventDefault();
  step(event.key === 'ArrowLeft' ? -1 : 1);
});
filter();

/* In a frame of another page only the faces count, and a single one is shown at once. */
if (window !== parent) {
  document.documentElement.className = 'framed';
  document.querySelector('details').open = false;
  if (faces.length === 1) open(0);
}
