/* Facial movements: the strongest on their regions, all in a table, and the terms of any one. */
const STRONG = 0.1; // intensity from which a movement is not in the folded part of the table
const isStrong = value => Number(value.toFixed(2)) >= STRONG; // as the number on the page is rounded
const DRAWN = 6; // movements on the picture, at most

/* Movements by their name without the side: {name, mark, sides: {right, left} or {both}}; indices by side. */
function movementGroups({names, marks}) {
  const groups = new Map();
  names.forEach((name, index) => {
    const partner = name.endsWith(' left') ? name.replace(/left$/, 'right') : name.replace(/right$/, 'left');
    const sided = partner !== name && names.includes(partner);
    const base = sided ? name.replace(/ (left|right)$/, '') : name;
    const group = groups.get(base) ?? {name: base, mark: '', sides: {}};
    group.sides[sided ? name.split(' ').at(-1) : 'both'] = index;
    group.mark ||= marks[index]; // a movement is weak if a side is
    groups.set(base, group);
  });
  return [...groups.values()];
}

function movementTable(caption, groups, {values}) {
  // All bars are equally long, also of a movement without sides, which stands between the sides.
  const level = (index, kind = 'level') =>
    element('span', {class: kind}, bar(values[index]), values[index].toFixed(2));
  const rows = groups.map(({name, mark, sides}) =>
    sides.both === undefined
      ? [withMark(name, mark), level(sides.right), level(sides.left)]
      : [withMark(name, mark), element('td', {colspan: 2}, level(sides.both, 'level both'))],
  );
  const made = table(caption, ['movement', 'right', 'left'], rows);
  made.classList.add('wide');
  return made;
}

/* The strongest movement of each region as a bar on it; at most `DRAWN` regions. */
function strongestByRegion({values}, {names, places}, face) {
  const strongest = new Map();
  names.forEach((name, index) => {
    const place = places[index];
    if (place === null || !face.boxes[place] || !isStrong(values[index])) return;
    if (values[index] > (values[strongest.get(place)] ?? 0)) strongest.set(place, index);
  });
  return [...strongest.values()].sort((a, b) => values[b] - values[a]).slice(0, DRAWN);
}

function movementPicture(data, shared, face) {
  const svg = element('svg', {role: 'img', 'aria-label': 'The strongest movements on their regions'});
  const drawn = strongestByRegion(data, shared, face);
  const draw = () => {
    const canvas = startPicture(svg, face, true);
    const taken = [];
    for (const index of drawn) {
      const name = markedName(shared, index).replace(/ (left|right)\b/, '');
      drawLevel(canvas, name, data.values[index], canvas.middle[shared.places[index]], taken);
    }
  };
  new ResizeObserver(draw).observe(svg);
  draw();
  return svg;
}

/* A name with a bar below it, as near to its region as it covers no other. */
function drawLevel({svg, text, width}, name, value, [centre, middle], taken) {
  const half = Math.max(2.6 * text, 0.29 * text * name.length);
  const x = Math.min(Math.max(centre, half + 4), width - half - 4);
  const covers = y =>
    taken.some(other => Math.abs(other.x - x) < other.half + half && Math.abs(other.y - y) < 2 * text);
  const steps = [0, -1, 1, -2, 2, -3, 3, -4, 4].map(step => middle + 0.7 * step * text);
  const y = steps.find(candidate => !covers(candidate)) ?? middle;
  taken.push({x, y, half});
  const left = x - 2.5 * text;
  const bars = [
    ['track', 5 * text],
    ['level', 5 * text * value],
  ];
  for (const [kind, length] of bars) {
    svg.append(
      element(
        'rect',
        {x: left, y: y + 0.35 * text, width: length, height: 0.45 * text, class: kind},
        element('title', {}, `${name} ${value.toFixed(2)}`),
      ),
    );
  }
  svg.append(element('text', {x, y: y + 0.1 * text, 'font-size': text}, name));
}

function movementTerms(data, shared, face) {
  const choice = element('select', {'aria-label': 'Movement'});
  const order = [...shared.names.keys()].sort((a, b) => data.values[b] - data.values[a]);
  choice.append(...order.map(index => element('option', {value: index}, markedName(shared, index))));
  const place = element('div');
  const show = () => {
    const index = Number(choice.value);
    const caption = `in logits; their sum, on a logistic curve, is the intensity ${data.values[index].toFixed(2)}`;
    place.replaceChildren(termsTable(caption, face, termsOf(data, shared, face, index), 2));
  };
  choice.addEventListener('input', show);
  show();
  return element('details', {}, element('summary', {}, TERMS), element('p', {}, choice), place);
}

CHARTS.movements = (data, shared, face) => {
  const most = ({sides}) => Math.max(...Object.values(sides).map(index => data.values[index]));
  const groups = movementGroups(shared).sort((first, second) => most(second) - most(first));
  const strong = groups.filter(group => isStrong(most(group)));
  const others = groups.filter(group => !isStrong(most(group)));
  const parts = [
    element('div', {class: 'onface'}, movementPicture(data, shared, face)),
    element(
      'div',
      {class: 'numbers'},
      movementTable(
        'estimated intensity from 0 to 1, not a FACS coding; left and right are the person\u2019s',
        strong,
        data,
      ),
    ),
  ];
  if (others.length) {
    parts[1].append(
      element(
        'details',
        {},
        element('summary', {}, `${others.length} more below ${STRONG}`),
        movementTable('', others, data),
      ),
    );
  }
  if (data.regions) parts[1].append(movementTerms(data, shared, face));
  return {parts};
};
