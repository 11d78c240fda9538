/* Copies the tables, or saves the picture, of a box. */
function tools(box, name) {
  const note = element('output');
  const copy = button('Copy numbers', () => {
    getSelection().selectAllChildren(box.querySelector('.numbers'));
    document.execCommand('copy');
    getSelection().removeAllRanges();
  });
  const saving = kind => button(`Save ${kind.toUpperCase()}`, async () => {
    note.value = '';
    try {
      await save(box.querySelector('svg'), `${name()}.${kind}`);
    } catch {
      note.value = 'From disk, the browser lets this page read no picture beside it. ' +
        '`fer-vit visualize --figures svg` writes all figures.';
    }
  });
  return element('p', {class: 'tools'}, copy, saving('svg'), saving('png'), note);
}

/* A drawing with its pictures inside: no address of a file or folder is left. */
async function standalone(svg) {
  const copy = svg.cloneNode(true);
  const [, , width, height] = svg.getAttribute('viewBox').split(' ');
  copy.setAttribute('xmlns', 'http://www.w3.org/2000/svg');
  copy.setAttribute('width', 2 * width);
  copy.setAttribute('height', 2 * height);
  for (const image of copy.querySelectorAll('image')) {
    image.setAttribute('href', await embedded(image.getAttribute('href')));
  }
  const rules = [...document.styleSheets[0].cssRules].map(rule => rule.cssText);
  const style = rules.filter(text => text.startsWith('svg ')).join('\n');
  copy.prepend(element('style', {}, style));
  return copy;
}

async function save(svg, name) {
  const copy = await standalone(svg);
  const text = new XMLSerializer().serializeToString(copy);
  let blob = new Blob([text], {type: 'image/svg+xml'});
  if (name.endsWith('.png')) {
    const canvas = element('canvas', {width: copy.getAttribute('width'), height: copy.getAttribute('height')});
    const picture = await loadedPicture(`data:image/svg+xml,${encodeURIComponent(text)}`);
    canvas.getContext('2d').drawImage(picture, 0, 0);
    blob = await new Promise(done => canvas.toBlob(done));
  }
  const link = element('a', {href: URL.createObjectURL(blob), download: name});
  link.click();
  URL.revokeObjectURL(link.href);
}

async function loadedPicture(address) {
  const picture = new Image();
  picture.src = address;
  await picture.decode();
  return picture;
}

/* A picture as data. Throws where the browser does not let the page read it. */
async function embedded(address) {
  if (address.startsWith('data:')) return address;
  const picture = await loadedPicture(address);
  const canvas = element('canvas', {width: picture.naturalWidth, height: picture.naturalHeight});
  canvas.getContext('2d').drawImage(picture, 0, 0);
  return canvas.toDataURL();
}
