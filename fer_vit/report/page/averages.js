/* Averages by predicted expression: the picture of a face, with numbers on demand. */
function showAverages() {
  const choices = document.querySelector('#averages .controls');
  if (!choices) return;
  const drawn = averages.map(average => {
    const box = element(
      'figure',
      {},
      element('svg', {role: 'img'}),
      element('figcaption', {}, element('b', {}, average.label), ` ${average.faces} faces`),
      element('p', {class: 'legend'}),
      element(
        'details',
        {},
        element('summary', {}, 'numbers, 95% intervals'),
        element('div', {class: 'numbers'}),
      ),
    );
    box.querySelector('details').append(copyButton(box));
    document.querySelector('.means').append(box);
    return () => drawBox(box, average, choices);
  });
  const redraw = () => drawn.forEach(draw => draw());
  choices.addEventListener('input', redraw);
  new ResizeObserver(redraw).observe(document.querySelector('.means'));
}
