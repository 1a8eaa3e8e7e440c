// The service worker of the desk: a reload without a connection still shows the page.  It keeps the
// page's own files, never what the annotator reads or writes.  `worker.py` puts VERSION before this
// text: a digest of the page, so that a browser replaces the worker when the page changes.

const SHELL = `kitestring-desk-${VERSION}`;
const PAGE = "/label/";
const PATIENCE = 5000; // milliseconds for the server to answer before the copy is used
// Gradio's assets have a digest in their names; its other files and the page may change.
const NAMED_BY_CONTENT = /^\/label\/(assets|svelte)\//;
const FILES = /^\/(static\/[\w.-]+|label\/(config|theme\.css|manifest\.json|favicon\.ico|(assets|static|svelte)\/.+|gradio_api\/(startup-events|app_id|info)\/?))$/;

self.addEventListener("install", (event) => {
  // Acts bypass the worker, which would lose the last request of a page that closes.  So does the
  // API: a stopped worker would have to start first.
  const direct = [{ requestMethod: "POST" }, { urlPattern: "/label/api/*" }];
  event.addRoutes?.(direct.map((condition) => ({ condition, source: "network" })));
  self.skipWaiting();
});

self.addEventListener("activate", (event) => {
  event.waitUntil(
    (async () => {
      for (const name of await caches.keys()) {
        if (name.startsWith("kitestring-desk-") && name !== SHELL) await caches.delete(name);
      }
      await self.clients.claim();
    })(),
  );
});

// The page names the files that it has loaded: they were loaded before there was a worker.
self.addEventListener("message", (event) => {
  if (Array.isArray(event.data?.files)) event.waitUntil(Promise.all(event.data.files.map(keep)));
});

self.addEventListener("fetch", (event) => {
  const name = nameOf(event.request);
  if (name) event.respondWith(answer(event, name));
});

// The name under which the answer is kept, or null for everything that is not the page's own file.
function nameOf({ method, mode, url }) {
  const { origin, pathname } = new URL(url);
  if (method !== "GET" || origin !== self.location.origin) return null;
  if (mode === "navigate") return pathname === PAGE || pathname === "/label" ? PAGE : null;
  return FILES.test(pathname) ? pathname : null;
}

async function keep(url) {
  const { origin, pathname } = new URL(url, self.location.origin);
  if (origin !== self.location.origin || (pathname !== PAGE && !FILES.test(pathname))) return;
  const shell = await caches.open(SHELL);
  if (await shell.match(pathname)) return;
  const found = await fetch(pathname).catch(() => null);
  if (found && isOwn(found)) await shell.put(pathname, found);
}

// A sign-in page or a captive portal is not the desk.
function isOwn(response) {
  return response.status === 200 && response.type === "basic" && !response.redirected;
}

async function answer(event, name) {
  const shell = await caches.open(SHELL);
  const copy = await shell.match(name);
  if (copy && NAMED_BY_CONTENT.test(name)) return copy;
  const asked = fetch(event.request).then((found) => {
    if (isOwn(found)) event.waitUntil(shell.put(name, found.clone()));
    return found;
  });
  if (!copy) return asked;
  const late = new Promise((resolve) => setTimeout(() => resolve(copy), PATIENCE));
  return Promise.race([asked.catch(() => copy), late]);
}
