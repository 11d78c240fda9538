/* The values of any head as bars, and their terms: for heads without a chart of their kind. */
CHARTS.outputs = (data, shared, face) => {
  const {names, unit, low, high} = shared;
  const digits = high - low > 10 ? 1 : 2;
  const text = value => (low < 0 ? signed(value, digits) : value.toFixed(digits));
  const most = Math.max(Math.abs(low), Math.abs(high));
  const size = value => (low < 0 ? signedBar(value / most) : bar((value - low) / (high - low)));
  const rows = names.map((name, k) => [name, size(data.values[k]), text(data.values[k])]);
  const scale = `from ${text(low).replace(MINUS, '\u2212')} to ${high}${unit && ` ${unit}`}`;
  return {
    parts: [table(scale, ['output', 'size', 'value'], rows), outputTerms(data, shared, face, digits)],
  };
};

/* What each output of a head is made of. */
function outputTerms(data, {names, bias, unit, bounded}, face, digits) {
  const scale = bounded ? ', before it is bounded' : unit && ` in ${unit}`;
  const tables = names.map((name, k) => termsTable(name + scale, bias[k], data.face[k], data.regions[k], face, digits));
  return element('details', {}, element('summary', {}, 'What each is made of'), ...tables);
}
