/* People in clips over time. */
const SLOTS = 14; // pictures in a strip
const UNITS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 3600]; // seconds between ticks
const AT_FIRST = 8; // people that are shown at first, of a crowd

const shows = (person, face) => person.track === face.track && person.name === face.name;

function clock(seconds) {
  const tenths = Math.round(10 * seconds); // before the minutes: 59.97 seconds are 1:00.0
  return `${Math.floor(tenths / 600)}:${((tenths % 600) / 10).toFixed(1).padStart(4, '0')}`;
}

/* From where to where each of these times counts: half the way to its neighbours. */
function spans(times) {
  return times.map((time, i) => {
    const neighbours = [times[i - 1] ?? time, times[i + 1] ?? time];
    return neighbours.map(neighbour => (time + neighbour) / 2);
  });
}

/* A place in a chart that is 1000 wide. */
const acrossChart =
  ({start, end}) =>
  time =>
    ((1000 * (time - start)) / (end - start || 1)).toFixed(1);

const emptyChart = () =>
  element('svg', {viewBox: '0 0 1000 100', preserveAspectRatio: 'none', 'aria-hidden': 'true'});

/* A chart with its scale, whose texts are its top, its quantity and its bottom; empty while the person is absent. */
function framed(person, drawn, texts) {
  const x = acrossChart(person);
  for (const [from, to] of person.gaps) {
    drawn.append(element('rect', {x: x(from), y: 0, width: x(to) - x(from), height: 100}));
  }
  const scale = texts.map(text => element('span', {}, text));
  return element('figure', {}, element('div', {class: 'rows ends', 'aria-hidden': 'true'}, ...scale), drawn);
}

/* The probabilities as areas on top of each other; each reaches to 0 and is covered by those before it. */
function probabilityAreas(person) {
  const {times} = person;
  const layers = labels.map((name, n) => ({name, colour: colours[n], values: person.shares[n]}));
  const sums = times.map(() => 0);
  const edges = layers.map(({values}) => values.map((value, i) => [(sums[i] += value), 0]));
  const high = Math.max(...sums);
  const x = acrossChart(person);
  const y = value => ((100 * (high - value)) / (high || 1)).toFixed(1);
  const drawn = emptyChart();
  const steps = times.length < 60 ? spans(times) : times.map(time => [time]); // steps where frames are few
  layers.forEach(({colour, name}, n) => {
    const along = side => steps.flatMap((span, i) => span.map(time => `${x(time)} ${y(edges[n][i][side])}`));
    const points = [...along(0), ...along(1).reverse()];
    drawn.prepend(element('path', {d: `M${points.join('L')}Z`, '--c': colour}, element('title', {}, name)));
  });
  return framed(person, drawn, ['1', 'probability', '0']);
}

/* Lines differ in colour and in dashes. */
const LINES = [
  {colour: 'var(--ink)', dashes: 'none'},
  {colour: '#12a37a', dashes: '7 4'},
  {colour: '#a855f7', dashes: '2 3'},
];
const lineOf = n => LINES[n % LINES.length];

/* Outputs as lines, and a line at 0 if values may be below; an unknown value interrupts its line. */
function outputLines(person, {lines, low, high, unit}) {
  const x = acrossChart(person);
  const y = value => ((100 * (high - value)) / (high - low)).toFixed(1);
  const drawn = emptyChart();
  if (low < 0) drawn.append(element('path', {d: `M0 ${y(0)}H1000`, class: 'zero'}));
  lines.forEach(({name, head, k}, n) => {
    let path = '';
    let known = false; // whether the time before has a value
    person.outputs[head][k].forEach((value, i) => {
      if (value !== null) {
        const point = `${x(person.times[i])} ${y(value)}`;
        path += known ? `L${point}` : `M${point}h0`; // a dot if no value follows
      }
      known = value !== null;
    });
    const {colour, dashes} = lineOf(n);
    drawn.append(
      element(
        'path',
        {d: path, class: 'curve', '--c': colour, 'stroke-dasharray': dashes},
        element('title', {}, name),
      ),
    );
  });
  return framed(person, drawn, [String(high), unit, String(low)]);
}

/* What a reader may choose to see over time: {title, family, draw, key, text}. `draw` returns the chart of a person, `key`
   the key of its colours, and `text` the values at the time of a face. */
const EXPRESSIONS = {
  title: 'expressions',
  family: '',
  draw: probabilityAreas,
  key: expressionKey,
  text: (person, face) => `${labels[face.order[0]]} ${probability(face.probabilities[face.order[0]])}`,
};
let chosenCurve = EXPRESSIONS;

/* Outputs that a head names are in one chart. Of other heads, each output has a chart, and both sides have one. */
function outputCurves() {
  const curves = [];
  for (const head of chartOrder.filter(name => people[0].outputs[name])) {
    const shared = fixed[head];
    if (shared.meanings.length) {
      curves.push(outputCurve(head, [...shared.names.keys()], shared.title, ''));
    } else {
      for (const {name, mark, sides} of movementGroups(shared))
        curves.push(outputCurve(head, Object.values(sides), name + (mark && ` (${mark})`), shared.title));
    }
  }
  return curves.sort((a, b) => (a.family ? 1 : 0) - (b.family ? 1 : 0)); // single entries are not below long lists
}

const ANGLES = [10, 20, 45, 90]; // degrees at the end of a scale
function outputCurve(head, indices, title, family) {
  const shared = fixed[head];
  const lines = indices.map(k => ({name: markedName(shared, k), head, k}));
  let {low, high} = shared;
  if (low < 0 && high > 10) {
    const values = people.flatMap(person => indices.flatMap(k => person.outputs[head][k]));
    const most = values.reduce((end, value) => Math.max(end, Math.abs(value)), 0);
    high = ANGLES.find(end => end >= most) ?? high;
    low = -high;
  }
  const digits = high > 5 ? 0 : 2;
  const chart = {lines, low, high, unit: shared.unit || (low < 0 ? 'value' : 'intensity')};
  return {
    title,
    family,
    draw: person => outputLines(person, chart),
    key: () => {
      const entries = lines.map(({name}, n) => {
        const {colour, dashes} = lineOf(n);
        const line = element('path', {d: 'M0 4H26', '--c': colour, 'stroke-dasharray': dashes});
        return element('span', {}, element('svg', {viewBox: '0 0 26 8', 'aria-hidden': 'true'}, line), name);
      });
      return element('p', {class: 'key'}, ...entries);
    },
    text: (person, face) => {
      const distances = person.times.map(time => Math.abs(time - face.seconds));
      const nearest = distances.indexOf(Math.min(...distances));
      const values = lines.map(({name, k}) => {
        const value = person.outputs[head][k][nearest];
        return `${name} ${value === null ? 'unknown' : value.toFixed(digits)}`;
      });
      return values.join(', ');
    },
  };
}

/* The list of curves: one is chosen for all people, on the page and below a face. */
function showCurveChoices() {
  const curves = [EXPRESSIONS, ...outputCurves()];
  const form = document.querySelector('.curves');
  form.hidden = curves.length < 2;
  const families = new Map([['', form.curve]]);
  curves.forEach(({title, family}, value) => {
    if (!families.has(family)) {
      const group = element('optgroup', {label: family});
      families.set(family, group);
      form.curve.append(group);
    }
    families.get(family).append(element('option', {value}, title));
  });
  form.addEventListener('submit', event => event.preventDefault());
  form.addEventListener('input', () => {
    chosenCurve = curves[form.curve.value];
    for (const key of document.querySelectorAll('#time > .key, .when .key')) key.replaceWith(chosenCurve.key());
    for (const block of document.querySelectorAll('.timeline')) block.redraw();
  });
}

/* A row for each region: orange where it contributes to the predicted expression, blue where it counts against it. */
function strips({start, end, gaps}, own) {
  const rows = [...regions.keys()].filter(r => own.some(i => faces[i].boxes[r]));
  const scale = 1000 / (end - start || 1);
  const shares = own.map(i => faces[i].targets[0].shares);
  const most = Math.max(1e-9, ...shares.flat().map(Math.abs));
  const drawn = element('svg', {
    viewBox: `0 0 1000 ${rows.length}`,
    preserveAspectRatio: 'none',
    'aria-hidden': 'true',
  });
  spans(own.map(i => faces[i].seconds)).forEach(([from, to], n) =>
    rows.forEach((r, y) => {
      const share = shares[n][r];
      drawn.append(
        element(
          'rect',
          {
            x: scale * (from - start),
            y: y + 0.04,
            width: Math.max(2, scale * (to - from)),
            height: 0.92,
            class: share < 0 ? 'against' : 'for',
            'fill-opacity': (Math.abs(share) / most).toFixed(3),
          },
          element('title', {}, `${regions[r]} ${signedPercent(share)}`),
        ),
      );
    }),
  );
  for (const [from, to] of gaps) {
    drawn.append(
      element('rect', {x: scale * (from - start), y: 0, width: scale * (to - from), height: rows.length}),
    );
  }
  const names = element(
    'div',
    {class: 'rows', 'aria-hidden': 'true'},
    ...rows.map(r => element('span', {}, regions[r])),
  );
  return element('figure', {class: 'strips'}, names, drawn);
}

function pictureStrip(person, nearest) {
  const {start, end, times, gaps} = person;
  const half = (0.5 / SLOTS) * (end - start);
  const strip = element('div', {class: 'strip'});
  for (let slot = 0; slot < SLOTS; slot++) {
    const time = start + ((slot + 0.5) / SLOTS) * (end - start);
    const within = time > times[0] - half && time < times.at(-1) + half;
    const absent = gaps.some(([from, to]) => from < time && time < to);
    strip.append(
      within && !absent
        ? element('img', {src: faces[nearest(time)].image, alt: '', loading: 'lazy', draggable: 'false'})
        : element('span'),
    );
  }
  return strip;
}

function timeTicks({start, end}, at) {
  const ticks = element('div', {class: 'ticks'});
  const unit = UNITS.find(length => (end - start) / length <= 6) || 7200;
  for (let time = Math.ceil(start / unit) * unit; time <= end - 0.07 * (end - start); time += unit) {
    ticks.append(element('span', {'--x': at(time)}, clock(time)));
  }
  return ticks;
}

function timeline(person) {
  const own = [...faces.keys()].filter(i => shows(person, faces[i]));
  const {start, end} = person;
  const at = time => (time - start) / (end - start || 1);
  const distance = (i, time) => Math.abs(faces[i].seconds - time);
  const nearest = time => own.reduce((best, i) => (distance(i, time) < distance(best, time) ? i : best));
  let chart = chosenCurve.draw(person);
  const block = element(
    'div',
    {class: 'timeline'},
    pictureStrip(person, nearest),
    chart,
    strips(person, own),
    timeTicks(person, at),
  );
  block.own = own;
  block.redraw = () => {
    const before = chart;
    chart = chosenCurve.draw(person);
    before.replaceWith(chart);
  };
  block.place = number => {
    block.number = number;
    block.style.setProperty('--x', at(faces[number].seconds));
  };
  block.near = event => {
    const {left, width} = block.getBoundingClientRect();
    return nearest(start + ((event.clientX - left) / width) * (end - start));
  };
  block.addEventListener('click', event => openFace(block.near(event), () => own, block.home ?? back));
  return block;
}

function showPerson(person) {
  const name = `person ${person.track}`;
  const block = timeline(person);
  const now = element('output');
  const state = {
    role: 'slider',
    tabindex: 0,
    'aria-label': `${name} over time`,
    'aria-valuemin': person.start,
    'aria-valuemax': person.end,
  };
  for (const [attribute, value] of Object.entries(state)) block.setAttribute(attribute, value);
  const place = number => {
    const face = faces[number];
    block.place(number);
    now.value = `${clock(face.seconds)}  ${chosenCurve.text(person, face)}`;
    block.setAttribute('aria-valuenow', face.seconds);
    block.setAttribute('aria-valuetext', now.value);
  };
  place(block.own[0]);
  const {redraw} = block;
  block.redraw = () => {
    redraw();
    place(block.number);
  };
  block.addEventListener('pointermove', event => place(block.near(event)));
  const here = () => {
    place(current);
    return block;
  };
  block.home = here;
  block.addEventListener('keydown', event => {
    const steps = {ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, Home: -Infinity, End: Infinity};
    if (event.key in steps) {
      const to = block.own.indexOf(block.number) + steps[event.key];
      place(block.own[Math.min(block.own.length - 1, Math.max(0, to))]);
    } else if (event.key === 'Enter') {
      openFace(block.number, () => block.own, here);
    } else {
      return;
    }
    event.preventDefault();
  });
  const frames =
    block.own.length < person.frames
      ? `${person.frames} frames, ${block.own.length} of them explained`
      : `${person.frames} frames`;
  const seen = `${file(person.name)}, ${clock(person.times[0])} to ${clock(person.times.at(-1))}, ${frames}`;
  return element(
    'section',
    {class: 'person', 'aria-label': name},
    element('header', {}, element('h3', {}, name), element('bdi', {title: person.name}, seen), now),
    block,
  );
}

function showPeople() {
  if (!people.length) return;
  document.querySelector('.tracks').hidden = people.length < 2;
  showCurveChoices();
  document.querySelector('.people').before(chosenCurve.key());
  const longest = [...people].sort((a, b) => b.frames - a.frames).slice(0, AT_FIRST);
  const several = new Set(people.map(person => person.name)).size > 1;
  for (const person of people) {
    const place = document.querySelector('.people').appendChild(element('div', {hidden: ''}));
    const box = element('input', {type: 'checkbox'});
    const choose = () => {
      if (box.checked && !place.firstChild) place.append(showPerson(person));
      place.hidden = !box.checked;
    };
    box.checked = longest.includes(person);
    box.addEventListener('input', choose);
    choose();
    const clip = element('small', {}, several ? person.name : '');
    document
      .querySelector('.tracks fieldset')
      .append(element('label', {}, box, element('span', {}, `person ${person.track} `, clip)));
  }
}
