/* The pose of the head: three dials and the angles in words. */
const WORDS = {
  yaw: ['turned to the person\u2019s left', 'turned to the person\u2019s right'],
  pitch: ['looking up', 'looking down'],
  roll: ['tilted clockwise in the picture', 'tilted counter-clockwise in the picture'],
};
const STRAIGHT = 3; // degrees below which an angle has no direction

/* A head from above, from the side or from the front, turned by an angle. */
const HEADS = {
  yaw: angle => [
    element(
      'g',
      {transform: `rotate(${-angle})`},
      element('ellipse', {rx: 13, ry: 15}),
      element('path', {d: 'M-4 14L0 22L4 14Z', class: 'nose'}),
    ),
  ],
  pitch: angle => [
    element(
      'g',
      {transform: `rotate(${-angle})`},
      element('ellipse', {rx: 14, ry: 15}),
      element('path', {d: 'M13 -3L21 2L13 5Z', class: 'nose'}),
    ),
  ],
  roll: angle => [
    element(
      'g',
      {transform: `rotate(${angle})`},
      element('ellipse', {rx: 12, ry: 16}),
      element('circle', {cx: -5, cy: -4, r: 1.6, class: 'nose'}),
      element('circle', {cx: 5, cy: -4, r: 1.6, class: 'nose'}),
      element('path', {d: 'M-5 7Q0 10 5 7', class: 'mouth'}),
    ),
  ],
};
const SEEN = {yaw: 'from above', pitch: 'from the side', roll: 'from the front'};

function dial(name, angle) {
  const svg = element(
    'svg',
    {viewBox: '-26 -26 52 52', class: 'dial', 'aria-hidden': 'true'},
    ...HEADS[name](angle),
  );
  const direction = Math.abs(angle) < STRAIGHT ? 'straight' : WORDS[name][angle > 0 ? 0 : 1];
  return element(
    'figure',
    {},
    svg,
    element(
      'figcaption',
      {},
      element('b', {}, `${name} ${signed(angle, 0)}\u00b0`),
      element('br'),
      direction,
      element('br'),
      element('small', {}, SEEN[name]),
    ),
  );
}

CHARTS.pose = (data, shared, face) => {
  const dials = Object.entries(data.angles).map(([name, angle]) => dial(name, angle));
  const parts = [element('div', {class: 'dials'}, ...dials)];
  if (data.regions) {
    parts.push(outputTerms(data, shared, face, 1));
    if (shared.names.includes('roll'))
      parts[1].append(element('p', {}, 'The terms of roll are of the aligned face.'));
  } else if (!data.values) {
    parts.push(element('p', {class: 'note'}, 'Estimated from the five landmarks.'));
  }
  return {parts};
};
