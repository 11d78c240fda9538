/* Valence and arousal: a dot in a square, and their terms. */
CHARTS.affect = (data, {names, bias}, face) => {
  const {valence = 0, arousal = 0} = data.values;
  const svg = element('svg', {viewBox: '-1.5 -1.25 3 2.5', class: 'square', 'aria-hidden': 'true'},
    element('rect', {x: -1, y: -1, width: 2, height: 2}),
    element('path', {d: 'M-1 0H1M0 -1V1'}),
    element('circle', {cx: valence, cy: -arousal, r: .07}));
  const rows = Object.entries(data.values).map(([name, value]) => [name, signedBar(value), signed(value)]);
  const tables = names.map((name, k) => termsTable(`${name}, before it is bounded`, bias[k], data.face[k], data.regions[k], face, 2));
  return {
    title: 'Valence and arousal',
    parts: [svg, table('from \u22121 to 1', ['output', 'size from the middle', 'value'], rows),
      element('details', {}, element('summary', {}, 'What each is made of'), ...tables)],
  };
};
