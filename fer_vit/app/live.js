'use strict';
const [image, aside, recording, line, stop] = document.querySelectorAll('img, aside, .recording, p, .stop');
let stopped = false;

function person({track, rows}) {
  const table = document.createElement('table');
  table.className = 'bars';
  table.createCaption().textContent = `Person ${track}`;
  for (const [name, probability, text] of rows) {
    const row = table.insertRow();
    const label = document.createElement('th');
    const bar = document.createElement('i');
    label.scope = 'row';
    label.textContent = name;
    bar.className = 'bar';
    bar.style.setProperty('--w', probability);
    row.append(label);
    row.insertCell().append(bar);
    row.insertCell().textContent = text;
  }
  return table;
}

async function next(known) {
  const state = await (await fetch(`live/newest?known=${known}`)).json();
  recording.hidden = !state.recording || state.stopped;
  recording.textContent = `Recording to ${state.recording}`;
  stopped = state.stopped;
  if (state.number === known) return known;
  image.src = `data:image/jpeg;base64,${state.picture}`;
  await image.decode();
  line.textContent = image.alt = state.status;
  const people = state.faces.sort((first, second) => first.track - second.track); // each keeps its place
  aside.replaceChildren(...people.map(person));
  document.body.classList.remove('over');
  return state.number;
}

function end(text) {
  line.textContent = text;
  recording.hidden = true;
  document.body.classList.add('over');
}

stop.addEventListener('click', async () => {
  stopped = (await fetch('live/stop', {method: 'POST'})).ok;
});

(async () => {
  let known = 0;
  while (!stopped) {
    try {
      known = await next(known);
    } catch {
      end('No more pictures: fer-vit has ended. They come back here when it runs again.');
      known = 0;
      await new Promise(done => setTimeout(done, 1000));
    }
  }
  end('Stopped. Start fer-vit live again for more pictures.');
  stop.disabled = true;
})();
