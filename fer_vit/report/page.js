/* The gallery of faces with its filter, and one face, large. */
const INLINE = 3;  // faces, at most, that are shown with all details instead of in a gallery
const form = document.querySelector('.filter');
const gallery = document.querySelector('.gallery');
const dialog = document.querySelector('dialog');
const inline = faces.length <= INLINE;
const runs = new Map();  // the last smoothed expression by person

/* The gallery: built once, then only hidden, shown and sorted. Of a person in a clip it has the changes of expression. */
function makeCard(face, number) {
  const label = face.order[0];
  const {shares} = face.targets[0];
  const top = shares.indexOf(Math.max(...shares));
  const photo = element('img', {
    src: face.image, alt: '', width: face.size[0], height: face.size[1], loading: 'lazy', decoding: 'async',
  });
  // A page that was sent without its folder has the pictures of its first faces inside.
  photo.addEventListener('error', () => { photo.src = pictures(face).photo; }, {once: true});
  const card = element('button', {type: 'button', class: 'card', title: face.name}, photo,
    element('span', {class: 'label'}, element('b', {}, labels[label]), ` ${probability(face.probabilities[label])}`),
    element('bdi', {class: 'name'}, file(face.name)));
  if (face.track !== null) {
    card.append(element('span', {class: 'where'}, face.where),
      element('span', {class: 'top'}, `smoothed: ${labels[face.smoothed]}`));
  }
  if (shares[top] > 0) card.append(element('span', {class: 'top'}, `${regions[top]} ${signedPercent(shares[top])}`));
  for (const text of face.warnings) card.append(element('span', {class: 'flag'}, text));
  card.addEventListener('click', () => openFace(number, () => shown, () => cards[current].card));
  gallery.append(card);
  const person = `${face.track} ${face.name}`;
  const same = face.track !== null && runs.get(person) === face.smoothed;
  runs.set(person, face.smoothed);
  const name = `${face.name} ${face.where}`.toLowerCase();
  return {card, face, label, same, name, sure: face.probabilities[label]};
}

/* One to three faces: all details at once. */
function makeInline(face) {
  const panel = makePanel();
  panel.tabIndex = -1;
  gallery.append(panel);
  panel.showFace(face);
  return {card: panel, face, label: face.order[0], same: false, name: '', sure: 0};
}

gallery.classList.toggle('inline', inline);
form.hidden = inline;
document.querySelector('#faces > .note').hidden = inline;
const cards = faces.map(inline ? makeInline : makeCard);
const ranks = {found: () => 0, most: (a, b) => b.sure - a.sure, least: (a, b) => a.sure - b.sure};
let ordered = 'found';
let shown = [...faces.keys()];

function filter() {
  const {label, order, text, every} = settings(form);
  const wanted = text.trim().toLowerCase();
  for (const {card, label: predicted, same, name} of cards) {
    const otherLabel = label !== '' && Number(label) !== predicted;
    const hidden = otherLabel || !name.includes(wanted) || (same && !every);
    card.hidden = hidden && !inline;
  }
  const line = [...cards.keys()].sort((a, b) => ranks[order](cards[a], cards[b]) || a - b);
  if (order !== ordered) gallery.append(...line.map(i => cards[i].card));
  ordered = order;
  shown = line.filter(i => !cards[i].card.hidden);
  for (const {figure, numbers} of groups) figure.hidden = numbers.every(i => cards[i].card.hidden);
  form.querySelector('output').value = `${shown.length} of ${faces.length} faces`;
}
form.addEventListener('input', filter);
form.addEventListener('submit', event => event.preventDefault());

/* Photos with several faces. */
const starts = [...faces.keys()].filter(n => faces[n + 1]?.index === 1 && faces[n + 1].box && faces[n].box &&
  faces[n].index === 0 && faces[n].name === faces[n + 1].name);
const groups = starts.map(makeGroup);

/* One face, large. */
let current = 0;
let line;  // what the arrows walk along
let back;  // where the focus goes in the end
const large = makePanel();
dialog.prepend(large);
large.querySelector('header').append(dialog.querySelector('nav'));

function openFace(number, along, home) {
  line = along;
  back = home;
  if (inline) {
    cards[number].card.scrollIntoView({block: 'start'});
    cards[number].card.focus();
    return;
  }
  step(0, number);
}

function step(by, from = current) {
  const at = line().indexOf(from) + by;
  if (at < 0 || at >= line().length) return;
  current = line()[at];
  const face = faces[current];
  const person = people.find(candidate => shows(candidate, face));
  const when = large.querySelector('.when');
  if (when.person !== person) {
    when.person = person;
    when.timeline = person && timeline(person);
    when.replaceChildren(...person ? [expressionKey(), when.timeline] : []);
  }
  when.timeline?.place(current);
  if (!dialog.open) dialog.showModal();
  large.showFace(face);
  dialog.scrollTop = by ? dialog.scrollTop : 0;
}
dialog.querySelector('.before').addEventListener('click', () => step(-1));
dialog.querySelector('.after').addEventListener('click', () => step(1));
dialog.querySelector('.close').addEventListener('click', () => dialog.close());
dialog.addEventListener('click', event => { if (event.target === dialog) dialog.close(); });
dialog.addEventListener('close', () => back?.().focus());
dialog.addEventListener('keydown', event => {
  if (event.target.matches('select') || !['ArrowLeft', 'ArrowRight'].includes(event.key)) return;
  event.preventDefault();
  step(event.key === 'ArrowLeft' ? -1 : 1);
});

showPeople();
showAverages();
filter();
if (window !== parent) document.documentElement.className = 'framed';
