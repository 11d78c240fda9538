/* Valence and arousal: a dot in a square beside the bars. */
CHARTS.affect = (data, shared, face) => {
  const at = name => data.values[shared.names.indexOf(name)] ?? 0;
  const svg = element('svg', {viewBox: '-1.5 -1.25 3 2.5', class: 'square', 'aria-hidden': 'true'},
    element('rect', {x: -1, y: -1, width: 2, height: 2}),
    element('path', {d: 'M-1 0H1M0 -1V1'}),
    element('circle', {cx: at('valence'), cy: -at('arousal'), r: .07}));
  return {parts: [svg, ...CHARTS.outputs(data, shared, face).parts]};
};
