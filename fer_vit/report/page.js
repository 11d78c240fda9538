/* The gallery of faces with its filter, and one face, large. */
const INLINE = 3; // faces, at most, that are shown with all details instead of in a gallery
const form = document.querySelector('.filter');
const gallery = document.querySelector('.gallery');
const dialog = document.querySelector('dialog');
const inline = faces.length <= INLINE;
const runs = new Map(); // the last smoothed expression by person

/* Whether the photo of a face has further faces. */
const shared = number =>
  [faces[number - 1], faces[number + 1]].some(
    near => near !== undefined && near.name === faces[number].name && near.track === null,
  );

/* The gallery: built once, then only hidden, shown and sorted. Of a person in a clip it has the changes of expression. */
function makeCard(face, number) {
  const label = face.order[0];
  const {shares} = face.targets[0];
  const top = shares.indexOf(Math.max(...shares));
  const photo = element('img', {
    src: face.image,
    alt: '',
    width: face.size[0],
    height: face.size[1],
    loading: 'lazy',
    decoding: 'async',
  });
  // A page that was sent without its folder has the pictures of its first faces inside.
  photo.addEventListener(
    'error',
    () => {
      photo.src = pictures(face).photo;
    },
    {once: true},
  );
  const card = element(
    'button',
    {type: 'button', class: 'card', title: face.name},
    photo,
    element(
      'span',
      {class: 'label'},
      element('b', {}, labels[label]),
      ` ${probability(face.probabilities[label])}`,
    ),
    element('bdi', {class: 'name'}, file(face.name)),
  );
  if (face.track !== null || shared(number)) card.append(element('span', {class: 'where'}, face.where));
  if (face.track !== null) card.append(element('span', {class: 'top'}, `smoothed: ${labels[face.smoothed]}`));
  if (shares[top] > 0)
    card.append(element('span', {class: 'top'}, `mainly ${regions[top]} ${signedPercent(shares[top])}`));
  for (const text of face.warnings) card.append(element('span', {class: 'flag'}, text));
  card.addEventListener('click', () =>
    openFace(
      number,
      () => shown,
      () => cards[current].card,
    ),
  );
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
  for (const {figure, numbers, boxes} of groups) {
    figure.hidden = numbers.every(i => cards[i].card.hidden);
    boxes.forEach((box, k) => box.classList.toggle('filtered', cards[numbers[k]].card.hidden));
  }
  const none = shown.length === 0;
  document.querySelector('#faces > .none').hidden = !none;
  document.querySelector('#faces > .note').hidden = none || inline;
  form.querySelector('output').value = `${shown.length} of ${faces.length} faces`;
}

/* What is found begins below the form, which may lie over a part of the page far below. */
function filterFromTop() {
  filter();
  const section = document.querySelector('#faces');
  if (section.getBoundingClientRect().top < 0) section.scrollIntoView();
}
form.addEventListener('input', filterFromTop);
document.querySelector('.none button').addEventListener('click', () => {
  form.reset();
  filterFromTop();
  form.text.focus(); // the button is hidden
});
form.addEventListener('submit', event => event.preventDefault());

/* Photos with several faces. */
const starts = [...faces.keys()].filter(
  n =>
    faces[n + 1]?.index === 1 &&
    faces[n + 1].box &&
    faces[n].box &&
    faces[n].index === 0 &&
    faces[n].name === faces[n + 1].name,
);
const groups = starts.map(makeGroup);

/* One face, large. */
let current = 0;
let line; // what the arrows walk along
let back; // where the focus goes in the end
const large = makePanel();
dialog.prepend(large);
large.prepend(dialog.querySelector('nav'));

/* The address of an open face, which can be sent to others. A face that is opened on this page has an entry of its own in
   the browser's history, with the state OPENED: Back closes the face, and so does Close, which goes back to the page. */
const ADDRESS = /^#face-(\d+)$/;
const OPENED = 'opened';
let leaving = false; // whether the browser is on its way back from the entry of a closed face
let isLeft = false; // whether the browser has left the entry of the face that closes now

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

/* Faces that follow in the same dialog replace the address of the first: one Back closes them all. */
function writeAddress() {
  const address = `#face-${current}`;
  if (leaving || location.hash === address) return;
  if (ADDRESS.test(location.hash)) {
    history.replaceState(history.state, '', address);
    return;
  }
  history.scrollRestoration = 'manual'; // Back must not scroll away from the card that has the focus
  history.pushState(OPENED, '', address);
}

function leaveAddress() {
  if (leaving || !ADDRESS.test(location.hash)) return;
  if (history.state === OPENED) {
    leaving = true;
    history.back();
    return;
  }
  history.replaceState(null, '', location.href.split('#')[0]);
}

/* The browser has gone to another entry of its history, or a reader has typed an address. A face that was opened on the way
   gets its address now. */
function onEntry() {
  const reopened = leaving && dialog.open;
  leaving = false;
  history.scrollRestoration = 'auto'; // when the page is loaded again
  if (reopened) writeAddress();
  else followAddress();
}

/* Opens the face of the address, or closes the open one: a link, or the browser's Back. */
function followAddress() {
  const named = location.hash.match(ADDRESS);
  if (!named || !faces[named[1]]) {
    isLeft = dialog.open && !named;
    dialog.close();
    return;
  }
  line = () => [...faces.keys()];
  back = () => cards[current].card;
  step(0, Number(named[1]));
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
    when.replaceChildren(...(person ? [chosenCurve.key(), when.timeline] : []));
  }
  when.timeline?.place(current);
  if (!dialog.open) {
    dialog.showModal();
    dialog.querySelector('.close').focus(); // `autofocus` would act when a frame loads
  }
  large.showFace(face);
  dialog.scrollTop = by ? dialog.scrollTop : 0;
  writeAddress(); // at the end: a browser refuses more than so many addresses in some seconds
}
dialog.querySelector('.before').addEventListener('click', () => step(-1));
dialog.querySelector('.after').addEventListener('click', () => step(1));
dialog.querySelector('.close').addEventListener('click', () => dialog.close());
dialog.addEventListener('click', event => {
  if (event.target === dialog) dialog.close();
});
dialog.addEventListener('close', () => {
  const home = back();
  home.focus();
  const isHidden = document.activeElement !== home; // by the filter, which can change
  if (isHidden) form.text.focus();
  if (!isLeft) leaveAddress(); // by now, the browser may have gone forward to the entry again
  isLeft = false;
});
dialog.addEventListener('keydown', event => {
  const isMoved = event.target.matches('select, [type=radio]'); // by the same keys
  if (isMoved || !['ArrowLeft', 'ArrowRight'].includes(event.key)) return;
  event.preventDefault();
  step(event.key === 'ArrowLeft' ? -1 : 1);
});

showPeople();
showAverages();
filter();
if (!inline) {
  followAddress();
  addEventListener('hashchange', onEntry);
}
if (window !== parent) document.documentElement.className = 'framed';
