const TERMS = 'Which regions raise or lower each'; // title of the terms

/* The terms of an output of a further head: they add up to the output itself. */
function termsTable(caption, face, values, digits, end = endOf(values)) {
  const names = ['same for every face (bias)', 'whole face', ...present(face).map(r => regions[r])];
  const made = signedTable(caption, names, values, value => signed(value, digits), end);
  return withScale(made, signed(-end, digits), '0', signed(end, digits));
}

/* The terms of output `k`: the bias, the part of the whole face, and those of the regions that are there. */
const termsOf = (data, {bias}, face, k) => [
  bias[k],
  data.face[k],
  ...present(face).map(r => data.regions[k][r]),
];
