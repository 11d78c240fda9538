/* Valence and arousal: a dot in a square if the model has both, beside the bars. */
CHARTS.affect = (data, shared, face) => {
  const bars = CHARTS.outputs(data, shared, face).parts;
  const [valence, arousal] = ['valence', 'arousal'].map(name => data.values[shared.names.indexOf(name)]);
  if (valence === undefined || arousal === undefined) return {parts: bars};
  const svg = element(
    'svg',
    {viewBox: '-1.5 -1.25 3 2.5', class: 'square', 'aria-hidden': 'true'},
    element('rect', {x: -1, y: -1, width: 2, height: 2}),
    element('path', {d: 'M-1 0H1M0 -1V1'}),
    element('circle', {cx: valence, cy: -arousal, r: 0.07}),
  );
  return {parts: [svg, ...bars]};
};
