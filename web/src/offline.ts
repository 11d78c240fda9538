// The service worker: keeps the page and its networks, so that later visits need no network.

export {};
declare const self: ServiceWorkerGlobalScope;
declare const FILES: string[];
declare const VERSION: string;

const PREFIX = 'fer-vit-';
const NAME = PREFIX + VERSION;

/** A network is kept when the page has asked for it: a visitor may never need the second one. */
const isNetwork = (name: string): boolean => name.endsWith('.onnx');

self.addEventListener('install', event => {
  const small = FILES.filter(name => !isNetwork(name));
  event.waitUntil((async () => {
    const cache = await caches.open(NAME);
    await cache.addAll(['./', ...small].map(name => new Request(name, { cache: 'no-cache' })));
    await self.skipWaiting();
  })());
});

self.addEventListener('activate', event => {
  event.waitUntil((async () => {
    const old = (await caches.keys()).filter(name => name.startsWith(PREFIX) && name !== NAME);
    await Promise.all(old.map(name => caches.delete(name)));
    await self.clients.claim();
  })());
});

self.addEventListener('fetch', event => {
  const { request } = event;
  const name = request.url.split(/[?#]/)[0].slice(self.registration.scope.length);
  if (request.method !== 'GET' || (name !== '' && !FILES.includes(name))) return;
  event.respondWith((async () => {
    const cache = await caches.open(NAME);
    const known = await cache.match(name === '' ? './' : name);
    if (known) return known;
    const response = await fetch(request);
    if (response.ok) event.waitUntil(cache.put(name, response.clone()));
    return response;
  })());
});
