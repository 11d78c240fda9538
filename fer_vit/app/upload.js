'use strict';
const $ = selector => document.querySelector(selector);
const form = $('.upload');
const status = $('output');
const result = $('.result');
const camera = $('.camera');
const video = $('video');
const bar = $('progress');
const DOWNLOADS = {
  'faces.csv': 'Table (CSV)',
  'summary.csv': 'Summary per person (CSV)',
  'intervals.csv': 'Intervals (CSV)',
  'marked.mp4': 'Marked copy (MP4)',
  'report.zip': 'Report (zip)',
};
const MAX_FILES = Number(form.dataset.files);
const MAX_MEGABYTES = Number(form.dataset.megabytes);
const CAMERA_FILE = 'camera.jpg';
let files = [];
let job = null;
let running = null;

/* What the form shows, as its class: `shooting` while the camera is on, `busy` with a job, `done` one line above a result. */
function present(state) {
  for (const name of ['shooting', 'busy', 'done']) form.classList.toggle(name, name === state);
}

function element(name, attributes = {}, ...children) {
  const made = Object.assign(document.createElement(name), attributes);
  made.append(...children);
  return made;
}

/* Moves the focus from a part that has just been hidden, and would lose it to the page. */
function keepFocus(target) {
  const focused = document.activeElement;
  const isKept = focused !== document.body && focused.checkVisibility() && !focused.disabled;
  if (!isKept) target.focus({preventScroll: true});
}

/* States what is wrong; an empty text: nothing. */
function refuse(text) {
  status.value = text;
  status.classList.toggle('wrong', text !== '');
}

/* Choosing files. */
function choose(chosen) {
  turnOff();
  files = [...chosen];
  const bytes = files.reduce((sum, file) => sum + file.size, 0);
  let wrong = '';
  if (bytes > MAX_MEGABYTES * 1e6) wrong = `At most ${MAX_MEGABYTES} MB at a time.`;
  if (files.length > MAX_FILES) wrong = `At most ${MAX_FILES} files at a time.`;
  for (const picture of document.querySelectorAll('.chosen img')) URL.revokeObjectURL(picture.src);
  $('.chosen').replaceChildren(...files.slice(0, MAX_FILES).map(listed));
  $('.clip').hidden = !files.some(file => !file.type.startsWith('image/') || file.type === 'image/gif');
  $('.go').disabled = !files.length || !!wrong;
  refuse(wrong);
}

/* A chosen file: a small picture where the browser can show it, its name, and a button that takes it out. */
function listed(file) {
  const remove = element('button', {
    type: 'button',
    title: `Remove ${file.name}`,
    ariaLabel: `Remove ${file.name}`,
    textContent: '\u00d7',
  });
  remove.addEventListener('click', () => {
    choose(files.filter(other => other !== file));
    form.files.focus();
  });
  const row = element('li', {}, element('bdi', {textContent: file.name}), remove);
  if (!file.type.startsWith('image/')) return row;
  const picture = element('img', {alt: ''});
  picture.addEventListener('error', () => picture.replaceWith(element('small', {textContent: 'no preview'})));
  picture.src = URL.createObjectURL(file);
  row.prepend(picture);
  return row;
}
form.files.addEventListener('change', () => {
  choose(form.files.files);
  form.files.value = ''; // so that a file that was taken out can be chosen again
});
for (const name of ['dragover', 'drop']) {
  document.addEventListener(name, event => {
    event.preventDefault();
    const dropped = event.dataTransfer.files; // none of text
    if (name === 'drop' && dropped.length && !running) choose(dropped);
  });
}

/* The camera. A reader may allow it late: after a job has begun, or files were chosen, it is no longer wanted. */
let requests = 0; // requests for the camera, and withdrawals: only what is last counts
const stop = stream => stream?.getTracks().forEach(track => track.stop());

async function turnOn() {
  requests += 1;
  const request = requests;
  try {
    const stream = await navigator.mediaDevices.getUserMedia({video: true});
    if (request !== requests) {
      stop(stream);
      return;
    }
    stop(video.srcObject);
    video.srcObject = stream;
    await video.play();
    if (request !== requests) return;
    camera.hidden = false;
    refuse('');
    present('shooting');
    keepFocus($('.shoot'));
  } catch {
    if (request !== requests) return;
    stop(video.srcObject);
    refuse('There is no camera, or this page may not use it.');
  }
}
for (const name of ['.on', '.another']) $(name).addEventListener('click', turnOn);
function turnOff() {
  requests += 1;
  stop(video.srcObject);
  camera.hidden = true;
  present('');
}
$('.off').addEventListener('click', () => {
  turnOff();
  keepFocus($('.on'));
});
$('.shoot').addEventListener('click', () => {
  const canvas = element('canvas', {width: video.videoWidth, height: video.videoHeight});
  canvas.getContext('2d').drawImage(video, 0, 0);
  canvas.toBlob(
    blob => {
      choose([new File([blob], CAMERA_FILE, {type: 'image/jpeg'})]);
      start();
    },
    'image/jpeg',
    0.95,
  );
});

/* One job: events come line by line. */
async function* lines(response) {
  let text = '';
  for await (const part of response.body.pipeThrough(new TextDecoderStream())) {
    const complete = (text + part).split('\n');
    text = complete.pop();
    yield* complete.map(line => JSON.parse(line));
  }
}

function follow(event) {
  job = event.id ?? job; // known before the result, which may come just when the page leaves
  const waiting = event.position === 1 ? 'One job is' : `${event.position} jobs are`;
  if (event.state === 'waiting') status.value = `${waiting} before yours\u00a0…`;
  if (event.state === 'running') status.value = 'Looking for faces\u00a0…';
  if (event.state === 'found') found(event);
  if (event.state === 'explaining') explaining(event);
  if (event.state === 'failed') throw new Error(event.message);
  if (event.state === 'done') show(event);
}

function found(event) {
  tell(event);
  began = performance.now();
  status.value = explains ? 'Finding out which parts of the face count\u00a0…' : 'Drawing\u00a0…';
}

let began = 0; // when explaining began, in milliseconds
let explains = true; // whether the job explains its faces
let again = false; // whether the job starts again, without explanations

function explaining({faces, of}) {
  bar.hidden = false;
  bar.max = of;
  bar.value = faces;
  $('.skip').hidden = false;
  $('.pace').textContent = `took ${pace(faces)} a face in the last run`;
  status.value = `Explained ${faces} of ${of} ${of === 1 ? 'face' : 'faces'}${timeLeft(faces, of)}\u00a0…`;
}

/* The mean time of a face so far. */
function pace(faces) {
  const seconds = (performance.now() - began) / faces / 1000;
  return seconds < 1 ? 'less than 1 s' : `about ${Math.round(seconds)} s`;
}

/* By the mean time of a face so far. Faces are explained several at a time, and then reported at once. */
function timeLeft(faces, of) {
  if (faces >= of) return '';
  const seconds = ((of - faces) * (performance.now() - began)) / faces / 1000;
  if (seconds < 90) return `, about ${Math.max(1, Math.round(seconds))} s left`;
  return `, about ${Math.round(seconds / 60)} min left`;
}

function tell({messages, warnings}) {
  const line = className => textContent => element('li', {textContent, className});
  result.hidden = false;
  $('.messages').replaceChildren(...messages.map(line('')), ...warnings.map(line('wrong')));
}

/* A sentence of the server; a proxy before it may refuse a request in its own words. */
async function reason(response) {
  try {
    return (await response.json()).detail;
  } catch {
    return response.status === 413
      ? 'The server in between refuses uploads of this size.'
      : `The server answers with the status ${response.status}.`;
  }
}

function clear() {
  if (job) navigator.sendBeacon(`results/${job}/close`);
  job = null;
  result.hidden = true;
  for (const part of ['.messages', '.downloads', '.copy', '.pictures', '.frame']) $(part).replaceChildren();
}

/* The columns of the table: all of the model, unless some are left out. */
let outputs = {}; // by model

function offerOutputs() {
  const boxes = outputs[form.model.value].map(name =>
    element(
      'label',
      {},
      element('input', {type: 'checkbox', name: 'outputs', value: name, checked: true}),
      ` ${name}`,
    ),
  );
  $('.kinds').replaceChildren($('#kinds'), ...boxes);
}
form.model.addEventListener('change', offerOutputs);

function chosenOutputs() {
  return [...document.querySelectorAll('.kinds :checked')].map(box => box.value);
}

async function start(explain = form.explain.checked) {
  const offered = outputs[form.model.value] ?? []; // none before the server has listed its models
  const columns = chosenOutputs();
  if (offered.length && !columns.length) {
    refuse('Choose at least one kind of column.');
    $('.options').open = true;
    return;
  }
  clear();
  turnOff();
  explains = explain;
  const body = new FormData();
  for (const file of files) body.append('files', file);
  for (const name of $('.clip').hidden ? ['model'] : ['model', 'fps', 'start', 'end']) {
    if (form[name].value) body.append(name, form[name].value);
  }
  body.append('explain', explains);
  if (columns.length < offered.length) columns.forEach(name => body.append('outputs', name));
  running = new AbortController();
  present('busy');
  toggle(true);
  $('.cancel').focus();
  status.value = 'Sending\u00a0…';
  status.classList.remove('wrong');
  try {
    const response = await fetch('api/report', {
      method: 'POST',
      body,
      signal: running.signal,
      headers: {Accept: 'application/x-ndjson'},
    });
    if (!response.ok) throw new Error(await reason(response));
    let last;
    for await (const event of lines(response)) {
      follow(event);
      last = event.state;
    }
    if (last !== 'done') throw new Error('The server stopped before the result.');
  } catch (error) {
    clear();
    present('');
    status.classList.toggle('wrong', error.name !== 'AbortError');
    status.value =
      error.name === 'AbortError'
        ? 'Cancelled.'
        : error instanceof TypeError
          ? 'The server does not answer.'
          : error.message;
  }
  running = null;
  toggle(false);
  if (again) {
    again = false;
    start(false);
    return;
  }
  keepFocus(form.classList.contains('done') ? $('.result h2') : $('.go'));
}

function toggle(busy) {
  $('.go').disabled = busy || !files.length;
  $('.cancel').hidden = !busy;
  $('.skip').hidden = true;
  bar.hidden = true;
}
form.addEventListener('submit', event => {
  event.preventDefault();
  if (!running) start();
});
$('.skip').addEventListener('click', () => {
  again = true;
  running?.abort();
});
$('.cancel').addEventListener('click', () => running?.abort());
$('.change').addEventListener('click', () => {
  present('');
  refuse('');
  form.files.focus();
});
addEventListener('pagehide', () => {
  running?.abort();
  clear();
});

/* The result. The form becomes one line above it, unless no file has a face: then, other files come next. */
function show(done) {
  tell(done);
  const anyFace = done.messages.length > 0;
  present(anyFace ? 'done' : '');
  const count = `${files.length} ${files.length === 1 ? 'file' : 'files'}`;
  const parts = [count, form.model.value];
  if (!explains) parts.push('without explanations');
  status.value = anyFace ? parts.join(', ') : '';
  $('.another').hidden = files[0]?.name !== CAMERA_FILE;
  const address = name => `results/${done.id}/${name}`;
  const report = address('report/index.html');
  const tab = element('a', {
    href: report,
    target: '_blank',
    rel: 'noopener',
    className: 'tab',
    textContent: 'Open the report in a new tab',
  });
  const downloads = Object.keys(DOWNLOADS)
    .filter(name => anyFace && done.files.includes(name))
    .map(name => element('a', {href: address(name), download: name, textContent: DOWNLOADS[name]}));
  $('.frame').replaceChildren(
    ...(done.html
      ? [element('iframe', {src: report, title: 'Which parts of each face count', loading: 'lazy'})]
      : []),
  );
  $('.downloads').replaceChildren(...(done.html ? [tab] : []), ...downloads);
  const pictures = done.photos.map(({name, file}) =>
    element(
      'figure',
      {},
      element('img', {src: address(file), alt: `${name} with its faces marked`}),
      element('figcaption', {textContent: name}),
    ),
  );
  if (done.files.includes('marked.mp4'))
    $('.copy').append(element('video', {src: address('marked.mp4'), controls: true, playsInline: true}));
  $('.pictures').replaceChildren(...pictures);
  const framed = done.html && getComputedStyle($('.frame')).display !== 'none';
  $('.photos').open = !framed; // the report has them as well
  $('.photos').hidden = !pictures.length;
  if (anyFace) form.scrollIntoView();
}

fetch('api/outputs')
  .then(response => response.json())
  .then(byModel => {
    outputs = byModel;
    form.model.append(
      ...Object.entries(outputs).map(([name, kinds]) => new Option(`${name}: ${kinds.join(', ')}`, name)),
    );
    offerOutputs();
  });
