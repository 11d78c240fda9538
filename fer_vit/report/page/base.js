'use strict';
/* The data of the page, and small helpers for all other scripts. A face is what `face_data` returns. */
const {labels, colours, regions, grid, regionTokens, fixed, chartOrder, meaning, people, averages, faces} =
  JSON.parse(document.getElementById('data').textContent);

/* Charts by the name of a head: each is a function of a face's values, of what all faces share, and of the
   face, and returns its parts. A file of this folder may add one; `outputs` is for all other heads. */
const CHARTS = {};

const SVG = ['svg', 'g', 'rect', 'line', 'path', 'image', 'circle', 'ellipse', 'text', 'tspan', 'title'];

function element(name, attributes = {}, ...children) {
  const made = SVG.includes(name)
    ? document.createElementNS('http://www.w3.org/2000/svg', name)
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith('--')) made.style.setProperty(key, value);
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

/* Numbers as text. */
const MINUS = '-'; // a hyphen: spreadsheets read copied numbers
const file = name => name.split('/').pop();
const percent = share => `${Math.round(100 * share) + 0}%`;

/* A probability; none is 100%, since no prediction is certain. */
function probability(value) {
  const text = percent(value);
  return text === '100%' ? '>99%' : text;
}

function signed(value, digits = 2) {
  const text = Math.abs(value).toFixed(digits);
  if (Number(text) === 0) return text;
  return (value < 0 ? MINUS : '+') + text;
}

function signedPercent(share) {
  const rounded = Math.round(100 * share);
  if (rounded === 0) return '0%';
  return `${rounded < 0 ? MINUS : '+'}${Math.abs(rounded)}%`;
}

/* The indices of the `most` values that are largest in absolute size, the largest first. */
function largest(values, most) {
  const order = [...values.keys()].filter(index => values[index] !== 0);
  order.sort((a, b) => Math.abs(values[b]) - Math.abs(values[a]) || a - b);
  return order.slice(0, most);
}

/* The name of output `k` of a head as a text, and as the content of an element, with its mark if there is one. */
const markedName = ({names, marks}, k) => names[k] + (marks[k] && ` (${marks[k]})`);
const withMark = (name, mark) =>
  mark ? element('span', {}, `${name} `, element('small', {class: 'mark'}, mark)) : name;

/* A bar from 0 to 1; `mark` is a place with a line, such as an equal share. */
function bar(length, mark = null) {
  const drawn = element('i', {class: 'bar', '--w': Math.min(1, Math.max(0, length))});
  if (mark !== null) drawn.append(element('b', {'--x': Math.min(1, mark)}));
  return drawn;
}

/* A bar from -1 to 1 that grows from a line in its middle. */
function signedBar(length) {
  const inside = Math.min(1, Math.max(-1, length));
  return element('i', {
    class: inside < 0 ? 'bar signed against' : 'bar signed for',
    '--x': inside < 0 ? 0.5 + inside / 2 : 0.5,
    '--w': Math.abs(inside) / 2,
  });
}

/* A table with a caption; the first cell of a row is its name. A cell may be a `td` of its own. */
function table(caption, head, rows) {
  const headCells = head.map(cell => element('th', {scope: 'col'}, cell));
  const bodyRows = rows.map(row => {
    const cells = row.map((cell, i) => {
      if (cell instanceof HTMLTableCellElement) return cell;
      return i ? element('td', {}, cell) : element('th', {scope: 'row'}, cell);
    });
    return element('tr', {}, ...cells);
  });
  return element(
    'table',
    {class: 'bars'},
    element('caption', {}, caption),
    element('thead', {}, element('tr', {}, ...headCells)),
    element('tbody', {}, ...bodyRows),
  );
}

/* The largest absolute value, which is the end of a scale from its middle. */
const endOf = values => Math.max(1e-9, ...values.map(Math.abs));

/* The end of a scale of shares: the same for all faces with shares up to a half, so that their bars can be compared. */
const shareEnd = shares => (endOf(shares) > 0.5 ? 1 : 0.5);

/* Signed values as bars on a scale from `-end` to `end`. */
function signedTable(caption, names, values, text, end = endOf(values)) {
  const rows = names.map((name, i) => [name, signedBar(values[i] / end), text(values[i], i)]);
  return table(caption, ['name', 'size from the middle', 'value'], rows);
}

/* A table with the scale of its bars below them. */
function withScale(made, ...ends) {
  const marks = ends.map(text => element('small', {}, text));
  const scale = element('td', {}, element('span', {class: 'ends'}, ...marks));
  made.append(
    element('tfoot', {'aria-hidden': 'true'}, element('tr', {}, element('td'), scale, element('td'))),
  );
  return made;
}

/* Colours of expressions, by their indices, with the text of each. */
function colourKey(indices, text) {
  const entries = indices.map(index =>
    element('span', {}, element('i', {'--c': colours[index]}), text(index)),
  );
  return element('p', {class: 'key'}, ...entries);
}

const expressionKey = () => colourKey([...labels.keys()], index => labels[index]);

/* A button that copies the tables of a box. */
function copyButton(box) {
  const made = element('button', {type: 'button'}, 'Copy numbers');
  made.addEventListener('click', () => {
    getSelection().selectAllChildren(box.querySelector('.numbers'));
    document.execCommand('copy');
    getSelection().removeAllRanges();
  });
  return element('p', {class: 'tools'}, made);
}
