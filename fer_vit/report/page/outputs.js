/* The values of any head as bars, their meanings and terms: for heads without a chart of their kind. */
CHARTS.outputs = (data, shared, face) => {
  const {names, marks, meanings, unit, low, high} = shared;
  const digits = high - low > 10 ? 1 : 2;
  const text = value => (low < 0 ? signed(value, digits) : value.toFixed(digits));
  const most = Math.max(Math.abs(low), Math.abs(high));
  const size = value => (low < 0 ? signedBar(value / most) : bar((value - low) / (high - low)));
  const rows = names.map((name, k) => [withMark(name, marks[k]), size(data.values[k]), text(data.values[k])]);
  const scale = `from ${text(low).replace(MINUS, '\u2212')} to ${high}${unit && ` ${unit}`}`;
  const notes = meanings.map((meaning, k) => element('p', {class: 'note'}, `${names[k]}: ${meaning}`));
  const bars = table(scale, ['output', 'size', 'value'], rows);
  const parts = [bars, ...notes];
  if (data.regions) parts.push(outputTerms(data, shared, face, digits));
  return {parts};
};

/* What each output of a head is made of, all on one scale. */
function outputTerms(data, shared, face, digits) {
  const {names, unit, bounded} = shared;
  const scale = bounded ? ', before it is bounded' : unit && ` in ${unit}`;
  const terms = names.map((_, k) => termsOf(data, shared, face, k));
  const end = endOf(terms.flat());
  const tables = names.map((name, k) => termsTable(name + scale, face, terms[k], digits, end));
  return element('details', {}, element('summary', {}, TERMS), element('div', {class: 'terms'}, ...tables));
}
