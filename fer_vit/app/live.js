'use strict';
const [image, aside, recording, line, stop] = document.querySelectorAll('img, aside, .recording, p, .stop');
let stopped = false;

function bar(name, probability) {
  const item = document.createElement('li'), [label, track, value] = ['span', 'i', 'b'].map(part => document.createElement(part));
  label.textContent = name;
  track.style.setProperty('--w', probability);
  track.style.setProperty('--c', 'var(--accent)');
  value.textContent = `${Math.round(100 * probability)}%`;
  item.append(label, track, value);
  return item;
}

function person({track, probabilities}) {
  const heading = document.createElement('h3'), list = document.createElement('ul');
  heading.textContent = `Person ${track}`;
  list.className = 'probabilities';
  list.append(...Object.entries(probabilities).map(([name, probability]) => bar(name, probability)));
  return [heading, list];
}

async function next(known) {
  const state = await (await fetch(`/live/newest?known=${known}`)).json();
  recording.hidden = !state.recording || state.stopped;
  recording.textContent = `Recording to ${state.recording}`;
  stopped = state.stopped;
  if (state.number === known) return known;
  image.src = `data:image/jpeg;base64,${state.picture}`;
  await image.decode();
  line.textContent = image.alt = state.status;
  aside.replaceChildren(...state.faces.flatMap(person));
  document.body.classList.remove('over');
  return state.number;
}

function end(text) {
  line.textContent = text;
  recording.hidden = true;
  document.body.classList.add('over');
}

stop.addEventListener('click', async () => {
  stopped = (await fetch('/live/stop', {method: 'POST'})).ok;
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
