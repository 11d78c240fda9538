'use strict';
const form = document.querySelector('form'),
  cards = [...document.querySelectorAll('.card')];
const buttons = [...document.querySelectorAll('button[data-cell]')];
let cell = '';

function filter() {
  const {kind, text} = Object.fromEntries(new FormData(form)),
    wanted = text.trim().toLowerCase();
  for (const card of cards) {
    const its = card.dataset;
    card.hidden =
      !its.kinds.split(' ').includes(kind) || (cell && its.cell !== cell) || !its.name.includes(wanted);
  }
  for (const button of buttons) button.setAttribute('aria-pressed', button.dataset.cell === cell);
  const shown = cards.filter(card => !card.hidden).length;
  const all = cards.filter(card => card.dataset.kinds.split(' ').includes(kind)).length;
  form.querySelector('output').value =
    `${shown} of ${all} ${form.querySelector('[name=kind]:checked').dataset.noun}`;
}
for (const button of buttons) {
  button.addEventListener('click', () => {
    cell = cell === button.dataset.cell ? '' : button.dataset.cell;
    filter();
  });
}
form.addEventListener('input', filter);
form.addEventListener('submit', event => event.preventDefault());
filter();
