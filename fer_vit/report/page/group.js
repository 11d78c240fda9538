/* Photos with several faces, whole and small; a box opens its face. */
const CROWD = 8; // faces above which a photo is shown larger, with names on request only

function makeGroup(first) {
  const {name} = faces[first];
  const numbers = [];
  for (let n = first; faces[n]?.index === n - first && faces[n].name === name; n++) numbers.push(n);
  const address = faces[first].image.replace('.jpg', '-whole.jpg');
  const boxes = numbers.map(number => faceBox(number, numbers));
  const whole = element(
    'div',
    {class: 'whole'},
    element('img', {src: address, alt: '', loading: 'lazy'}),
    ...boxes,
  );
  const figure = element(
    'figure',
    {class: numbers.length > CROWD ? 'crowd' : ''},
    whole,
    element(
      'figcaption',
      {},
      element('bdi', {title: name}, file(name)),
      `, ${numbers.length} faces`,
      expressionCounts(numbers),
    ),
  );
  document.querySelector('.groups').append(figure);
  new ResizeObserver(() => placeNames(whole, boxes)).observe(whole);
  return {figure, numbers, boxes};
}

function faceBox(number, numbers) {
  const face = faces[number];
  const label = face.order[0];
  const [left, top, right, bottom] = face.box.map(edge => Math.min(1, Math.max(0, edge)));
  const title = `${face.where}: ${labels[label]} ${probability(face.probabilities[label])}`;
  const box = element(
    'button',
    {
      type: 'button',
      '--l': left,
      '--t': top,
      '--w': right - left,
      '--h': bottom - top,
      '--c': colours[label],
      'aria-label': title,
      title,
    },
    element('span', {}, labels[label]),
  );
  box.addEventListener('click', () =>
    openFace(
      number,
      () => numbers,
      () => box,
    ),
  );
  return box;
}

/* The expressions in a photo with their colours and numbers of faces, the most frequent first. */
function expressionCounts(numbers) {
  const counts = labels.map(() => 0);
  for (const number of numbers) counts[faces[number].order[0]] += 1;
  return colourKey(largest(counts, labels.length), label => `${labels[label]} ${counts[label]}`);
}

/* Names of faces, large faces first. A name that would cover another name or face, or leave the
   photo, is shown when its box is pointed at, and so are all names of a crowd; the colour of the box
   is always the expression's. */
function placeNames(whole, boxes) {
  const photo = whole.getBoundingClientRect();
  const edges = new Map(boxes.map(box => [box, box.getBoundingClientRect()]));
  const area = box => edges.get(box).width * edges.get(box).height;
  const taken = [];
  for (const box of [...boxes].sort((a, b) => area(b) - area(a))) {
    const name = box.firstChild;
    const {left, top, right} = edges.get(box);
    const {offsetWidth: width, offsetHeight: height} = name;
    // On the box, so that it is not read as the name of a face below; inside it at the edge of the photo.
    const y = top - height < photo.top ? top : top - height;
    const places = [left, right - width].map(x => ({left: x, top: y, right: x + width, bottom: y + height}));
    const fits = place =>
      within(place, photo) &&
      !taken.some(shown => overlap(place, shown)) &&
      !boxes.some(face => face !== box && overlap(place, edges.get(face)));
    const place = boxes.length > CROWD ? undefined : places.find(fits);
    box.classList.toggle('unnamed', !place);
    if (place) taken.push(place);
    const shown = place ?? places.find(candidate => within(candidate, photo)) ?? places[0];
    name.style.left = `${shown.left - left}px`;
    name.style.top = `${shown.top - top}px`;
  }
}

const overlap = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
const within = (a, b) => a.left >= b.left && a.right <= b.right && a.top >= b.top && a.bottom <= b.bottom;
