'use strict';
const {labels, colours, regions, people, faces} = JSON.parse(document.getElementById('data').textContent);
const form = document.querySelector('.filter'), gallery = document.querySelector('.gallery');
const dialog = document.querySelector('dialog'), svg = dialog.querySelector('svg');
const percent = share => `${Math.round(100 * share) + 0}%`;
const words = name => name.replaceAll('_', ' ');

function element(name, attributes = {}, ...children) {
  const drawn = ['svg', 'g', 'rect', 'line', 'path', 'image', 'circle', 'title'].includes(name);
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
  if (face.track !== null) card.append(element('span', {class: 'where'}, face.where));
  if (shares[top] > 0) {
    card.append(element('span', {class: 'top', '--c': regions[top].colour}, `${words(regions[top].name)} ${percent(shares[top])}`));
  }
  card.addEventListener('click', () => { line = () => shown; back = () => cards[current].card; open(number); });
  gallery.append(card);
  return {card, face, label, name: `${face.name} ${face.where}`.toLowerCase(), sure: face.probabilities[label]};
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
let current = 0, line, back;  // what the arrows walk along, and where the focus goes in the end
const controls = dialog.querySelector('.controls'), choice = controls.querySelector('select');

function open(number) {
  const face = faces[current = number], [top, next] = face.order;
  dialog.querySelector('h3').replaceChildren(element('b', {}, labels[top]), ` ${percent(face.probabilities[top])}`);
  dialog.querySelector('.name').textContent = face.name;
  dialog.querySelector('.number').textContent = face.where;
  const options = face.order.filter(i => face.shares[i]);
  choice.replaceChildren(...options.map(i => element('option', {value: i}, labels[i])));
  if (face.contrast && next !== undefined) choice.append(element('option', {value: 'contrast'}, `${labels[top]} rather than ${labels[next]}`));
  dialog.querySelector('.probabilities').replaceChildren(...face.order.map(i => bar(words(labels[i]), face.probabilities[i], face.probabilities[i], '')));
  const person = people.find(one => shows(one, face)), when = dialog.querySelector('.when');
  if (when.person !== person) when.replaceChildren(...person ? [when.timeline = timeline(when.person = person)] : []);
  if (person) when.timeline.place(number); else when.person = undefined;
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
  const at = line().indexOf(current) + by;
  if (at >= 0 && at < line().length) open(line()[at]);
}
controls.addEventListener('input', draw);
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

/* Areas on top of each other, what is negative below 0; each reaches to 0 and is covered by those before it. */
function stacked({start, end, gaps}, times, layers, title) {
  const sums = [times.map(() => 0), times.map(() => 0)];
  const edges = layers.map(({values}) => values.map((value, i) => { sums[+(value < 0)][i] += value; return [sums[0][i], sums[1][i]]; }));
  const high = Math.max(...sums[0]), low = Math.min(...sums[1]), span = end - start || 1;
  const x = time => (1000 * (time - start) / span).toFixed(1), y = value => (100 * (high - value) / (high - low || 1)).toFixed(1);
  const drawn = element('svg', {viewBox: '0 0 1000 100', preserveAspectRatio: 'none', 'aria-hidden': 'true'});
  const middle = (i, j) => (times[i] + times[j in times ? j : i]) / 2;
  const spans = times.map((time, i) => times.length < 60 ? [middle(i, i - 1), middle(i, i + 1)] : [time]);  // steps where frames are few
  layers.forEach(({colour, name}, n) => {
    const along = side => spans.flatMap((span, i) => span.map(time => `${x(time)} ${y(edges[n][i][side])}`));
    const points = [...along(0), ...along(1).reverse()];
    drawn.prepend(element('path', {d: `M${points.join('L')}Z`, '--c': colour}, element('title', {}, words(name))));
  });
  if (low < 0) drawn.append(element('line', {x1: 0, x2: 1000, y1: y(0), y2: y(0)}));
  for (const [from, to] of gaps) drawn.append(element('rect', {x: x(from), y: 0, width: x(to) - x(from), height: 100}));
  return element('figure', {}, element('figcaption', {}, title), drawn);
}

function timeline(person) {
  const own = [...faces.keys()].filter(i => shows(person, faces[i])), times = own.map(i => faces[i].seconds);
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
    stacked(person, times, regions.map(({name, colour}, r) => ({name, colour, values: own.map(i => faces[i].shares[faces[i].order[0]][r])})), 'what speaks for it'),
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
  const seen = `${person.name}, ${clock(person.times[0])} to ${clock(person.times.at(-1))}, ${person.frames} frames`;
  return element('section', {class: 'person', 'aria-label': name},
    element('header', {}, element('h3', {}, name), element('bdi', {}, seen), now), block);
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
  document.querySelector('details').open = false;
  if (faces.length === 1) cards[0].card.click();
}
