/* The terms of an output of a further head: they add up to the output itself. */
function termsTable(caption, bias, whole, byRegion, face, digits) {
  const shown = present(face);
  const names = ['always (bias)', 'whole face', ...shown.map(r => regions[r])];
  const values = [bias, whole, ...shown.map(r => byRegion[r])];
  return signedTable(caption, names, values, value => signed(value, digits));
}
