// Builds the page into a folder beside the networks that `python -m web.facts` wrote: node build.mjs FOLDER

import { createHash } from 'node:crypto';
import { copyFileSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';

import { build } from 'esbuild';

const here = dirname(fileURLToPath(import.meta.url));
const folder = process.argv[2];
const report = join(here, '..', 'fer_vit', 'report');
const read = path => readFileSync(path, 'utf8');

const facts = JSON.parse(read(join(folder, 'model', 'facts.json')));

/** What the scripts of the report read of a page; faces come later, one by one. */
const reportData = {
  labels: facts.labels,
  colours: facts.colours,
  regions: Object.keys(facts.regions).map(name => name.replace('_', ' ')),
  grid: null,
  regionTokens: [],
  fixed: Object.fromEntries(facts.heads.map(head => [head.name, head])),
  chartOrder: facts.heads.map(head => head.name),
  meaning: {},
  people: [],
  averages: [],
  faces: [],
};
const REPORT_SCRIPTS = ['base', 'picture', 'panel', 'group', 'terms', 'affect', 'movements', 'outputs', 'pose'];

function bundle(entry, options) {
  return build({
    entryPoints: [join(here, 'src', entry)],
    bundle: true,
    minify: true,
    format: 'esm',
    target: 'es2022',
    legalComments: 'none',
    conditions: ['onnxruntime-web-use-extern-wasm'],
    ...options,
  });
}

await Promise.all([
  bundle('app.ts', { outfile: join(folder, 'app.js') }),
  bundle('worker.ts', { outfile: join(folder, 'worker.js') }),
]);
const runtime = join(here, 'node_modules', 'onnxruntime-web', 'dist');
for (const name of ['ort-wasm-simd-threaded.mjs', 'ort-wasm-simd-threaded.wasm']) {
  copyFileSync(join(runtime, name), join(folder, name));
}
copyFileSync(join(here, '..', 'LICENSE'), join(folder, 'LICENSE.txt'));
copyFileSync(join(here, 'NOTICE'), join(folder, 'NOTICE.txt'));
copyFileSync(join(here, '..', 'data', 'sample', 'astronaut.jpg'), join(folder, 'sample.jpg'));
writeFileSync(join(folder, 'report.js'), REPORT_SCRIPTS.map(name => read(join(report, 'page', `${name}.js`))).join('\n'));
writeFileSync(join(folder, 'page.css'), read(join(report, 'page.css')) + read(join(here, 'src', 'page.css')));
const data = JSON.stringify(reportData).replaceAll('<', '\\u003c');
writeFileSync(join(folder, 'index.html'), read(join(here, 'src', 'index.html')).replace('{data}', () => data));

/** The files of the folder, in order. */
const filesIn = path => readdirSync(path, { recursive: true, withFileTypes: true })
  .filter(entry => entry.isFile())
  .map(entry => relative(path, join(entry.parentPath, entry.name)).replaceAll('\\', '/'))
  .filter(name => name !== 'sw.js')
  .sort();

// The service worker knows all files by name, and a hash of their contents.
const files = filesIn(folder);
const hash = createHash('sha256');
for (const name of files) hash.update(name).update(readFileSync(join(folder, name)));
await bundle('offline.ts', {
  format: 'iife',
  outfile: join(folder, 'sw.js'),
  define: { FILES: JSON.stringify(files), VERSION: JSON.stringify(hash.digest('hex').slice(0, 16)) },
});
for (const name of [...files, 'sw.js']) console.log(`${(statSync(join(folder, name)).size / 1e6).toFixed(2)} MB  ${name}`);
