/* A face, or an average, in a box: its picture with a legend, tables, and charts. */
const MODES = {
  attribution: {
    title: 'What drives the prediction',
    draw: (box, face, state) => {
      const target = chosenTarget(face, state);
      drawAttribution(startPicture(box.querySelector('svg'), face, state.map), target, state);
      box.querySelector('.result')?.replaceChildren(attributionSentence(face, target));
      fill(box, attributionLegend(face, target, state), attributionTables(face, target));
    },
  },
  attention: {
    title: 'How regions exchange information',
    draw: (box, face, state) => {
      const seen = attention(face, Number(state.view));
      drawAttention(startPicture(box.querySelector('svg'), face, true), seen, state);
      box.querySelector('.result')?.replaceChildren(attentionSentence(face, seen));
      fill(box, attentionLegend(face, seen, state), attentionTables(face, seen, Number(state.view)));
    },
  },
};

function fill(box, legend, tables) {
  box.querySelector('.legend').replaceChildren(...legend);
  box.querySelector('.numbers').replaceChildren(...tables);
}

/* The settings of a form; a checkbox that is off is absent. */
const settings = form => Object.fromEntries(new FormData(form));

function chosenTarget(face, state) {
  const index = face.faces ? 0 : Math.min(Number(state.target ?? 0), face.targets.length - 1);
  return {index, ...face.targets[index]};
}

/* Shows the settings and the sentence that belong to one of the two pictures, and draws it. */
function drawBox(box, face, form) {
  const state = settings(form);
  const looks = state.mode === 'attention';
  for (const part of form.querySelectorAll('.attribution')) part.hidden = looks || Boolean(face.faces);
  for (const part of form.querySelectorAll('.attention')) part.hidden = !looks;
  form.querySelector('.map').hidden = looks && !PATCHES;
  form.nextElementSibling.querySelector('p').textContent = meaning[state.mode] ?? '';
  MODES[state.mode].draw(box, face, state);
  const of = face.label ?? `${labels[face.order[0]]}, ${file(face.name)}`;
  box.querySelector('svg').setAttribute('aria-label', `${MODES[state.mode].title}: ${of}`);
}

/* The result in words: the regions with the largest shares. */
const NAMED = 3; // regions of a sentence, at most
const SMALL = 5; // percent, rounded as shown, below which a region is not in a sentence

function attributionSentence(face, {name, shares}) {
  const named = sign =>
    largest(shares, shares.length)
      .filter(r => face.boxes[r] && Math.round(100 * sign * shares[r]) >= SMALL)
      .slice(0, NAMED)
      .map(r => `${regions[r]} ${signedPercent(shares[r])}`)
      .join(', ');
  const pro = named(1);
  const contra = named(-1);
  const parts = [`For ${name}: ${pro || `no region with ${SMALL}% or more`}.`];
  if (contra) parts.push(`Against it: ${contra}.`);
  return parts.join(' ');
}

function attentionSentence(face, {output}) {
  const named = largest(output, NAMED)
    .filter(r => face.boxes[r])
    .map(r => `${regions[r]} ${percent(output[r])}`);
  return named.length ? `The output takes most from: ${named.join(', ')}.` : '';
}

/* Legends. */
function key(kind, text) {
  return element('span', {}, element('i', {class: kind}), text);
}

function attributionLegend(face, target, state) {
  const parts = [];
  if (state.map) {
    const scale = element('i', {class: 'scale'});
    parts.push(element('span', {}, 'against', scale, 'for, scaled within the picture'));
  }
  if (state.arcs && target.index === 0 && face.interactions.length) {
    parts.push(key('line', `widest: ${together(...face.interactions[0])}`));
  }
  return parts;
}

function attentionLegend(face, {pairs, output, patches}, state) {
  const parts = [];
  const most = output.indexOf(Math.max(...output));
  if (state.arcs && pairs.length) {
    const {a, b, share} = pairs[0];
    parts.push(key('line', `widest: ${regions[a]} and ${regions[b]}, ${percent(share)} in both directions`));
  }
  if (output[most] > 0) {
    parts.push(
      key('ball', `largest: ${regions[most]}, ${percent(output[most])} of the attention to the output`),
    );
  }
  if (PATCHES && state.map) {
    const times = Math.max(...patches) / uniformShare(face);
    parts.push(
      key(
        'cloud',
        times > 1.05
          ? `patches above an equal share, up to ${times.toFixed(1)} times`
          : 'all patches have about an equal share',
      ),
    );
  }
  parts.push(element('span', {}, 'attention is no reason for the prediction'));
  return parts;
}

/* Tables. */
function interval(face, index, text) {
  const bounds = face.intervals?.[index];
  return bounds ? ` (${bounds.map(text).join(' to ')})` : '';
}

const present = face => [...regions.keys()].filter(r => face.boxes[r]);

function attributionTables(face, {index, shares}) {
  const shown = present(face);
  const end = shareEnd(shares);
  const contributions = signedTable(
    'contribution of regions; absolute values add up to 100%',
    shown.map(r => regions[r]),
    shown.map(r => shares[r]),
    (share, i) => signedPercent(share) + interval(face, shown[i], signedPercent),
    end,
  );
  const tables = [withScale(contributions, signedPercent(-end), '0', signedPercent(end))];
  if (index === 0 && face.interactions.length) {
    const rows = face.interactions
      .slice(0, 2 * ARCS)
      .map(([a, b, logits]) => [`${regions[a]}, ${regions[b]}`, signed(logits)]);
    tables.push(
      table(
        'pairs that count more (+) or less (-) together than the sum of each alone, in logits',
        ['pair', 'logits'],
        rows,
      ),
    );
  }
  return tables;
}

function attentionTables(face, {pairs, output}, view) {
  const bounds = index => (view ? '' : interval(face, index, percent));
  const shown = present(face);
  const end = shareEnd(output);
  const equal = 1 / shown.length;
  const rows = shown.map(r => [
    regions[r],
    bar(output[r] / end, equal / end),
    percent(output[r]) + bounds(R + r),
  ]);
  const received = table(
    'attention to the output; the line is an equal share',
    ['region', 'size', 'share'],
    rows,
  );
  const tables = [withScale(received, '0', percent(end))];
  if (pairs.length) {
    const between = pairs.map(({a, b, takes, gives}) => [
      `${regions[a]}, ${regions[b]}`,
      percent(takes) + bounds(2 * R + a * R + b),
      percent(gives) + bounds(2 * R + b * R + a),
    ]);
    tables.push(
      table('attention between regions', ['pair', 'first from second', 'second from first'], between),
    );
  }
  return tables;
}

/* A panel of a face: made once from the template, then shown for any face. */
function makePanel() {
  const panel = document.querySelector('#panel').content.firstElementChild.cloneNode(true);
  const form = panel.querySelector('.controls');
  const choice = form.querySelector('[name=target]');
  let shown = null;
  const redraw = () => shown && drawBox(panel, shown, form);

  panel.querySelector('.side').append(copyButton(panel));
  form.addEventListener('input', redraw);
  new ResizeObserver(redraw).observe(panel.querySelector('svg'));

  panel.showFace = face => {
    shown = face;
    const top = face.order[0];
    panel
      .querySelector('h2')
      .replaceChildren(element('b', {}, labels[top]), ` ${probability(face.probabilities[top])}`);
    panel.querySelector('.name').textContent = face.name;
    panel.querySelector('.number').textContent = face.where;
    panel.querySelector('.flags').replaceChildren(...face.warnings.map(text => element('li', {}, text)));
    choice.replaceChildren(...face.targets.map(({name}, value) => element('option', {value}, name)));
    panel.querySelector('.probabilities').replaceChildren(probabilities(face));
    panel.querySelector('.charts').replaceChildren(...charts(face));
    redraw();
  };
  return panel;
}

function probabilities(face) {
  const likely = face.order.filter((label, rank) => rank === 0 || face.probabilities[label] >= 0.005);
  return table(
    'expression',
    ['expression', 'size', 'probability'],
    likely.map(label => [
      labels[label],
      bar(face.probabilities[label]),
      probability(face.probabilities[label]),
    ]),
  );
}

function charts(face) {
  const drawn = [];
  for (const name of chartOrder) {
    if (face.charts[name] === undefined) continue;
    const draw = CHARTS[name] ?? CHARTS.outputs;
    const {parts} = draw(face.charts[name], fixed[name], face);
    drawn.push(element('section', {class: `chart ${name}`}, element('h3', {}, fixed[name].title), ...parts));
  }
  return drawn;
}
