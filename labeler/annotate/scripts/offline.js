// A copy of the buffered pairs and the guidelines in this browser, so that a page that is loaded
// without a connection goes on.  It belongs to the person who used the desk last: another person's
// sign-in replaces it, and sign-out deletes it.  Without IndexedDB (private mode) there is no copy.

const COPY = { name: "kitestring", version: 1, longest: 24 * 3600 * 1000, patience: 2000 }; // milliseconds

class OfflineCopy {
  constructor() {
    const late = new Promise((resolve) => setTimeout(() => resolve(null), COPY.patience));
    this.opened = Promise.race([this.open().catch(() => null), late]);
    this.latest = Promise.resolve(); // the latest change
  }

  async open() {
    const opening = indexedDB.open(COPY.name, COPY.version);
    opening.onupgradeneeded = () => {
      opening.result.createObjectStore("people", { keyPath: "id" });
      opening.result.createObjectStore("pairs", { keyPath: "id" });
    };
    return this.done(opening);
  }

  done(asked) {
    return new Promise((resolve, reject) => {
      asked.onsuccess = () => resolve(asked.result);
      asked.onerror = () => reject(asked.error);
    });
  }

  // Start `work(stores)` in order; the promise is kept at the end of the transaction, whatever it did.
  change(work) {
    this.latest = this.opened
      .then((db) => {
        if (!db) return;
        const change = db.transaction(["people", "pairs"], "readwrite");
        work(change.objectStore("people"), change.objectStore("pairs"));
        return new Promise((end) => {
          change.oncomplete = change.onabort = change.onerror = end;
        });
      })
      .catch(() => {}); // a full disk: the copy is incomplete, and the server has the pairs
    return this.latest;
  }

  // {annotator, progress, guidelines, pairs} of the person who used the desk last, or null.
  async read() {
    try {
      const stores = (await this.opened).transaction(["people", "pairs"]);
      const [people, pairs] = await Promise.all(
        ["people", "pairs"].map((name) => this.done(stores.objectStore(name).getAll())),
      );
      const [last] = people.filter(({ at }) => at > Date.now() - COPY.longest);
      if (!last) return null;
      const own = pairs.filter(({ annotator }) => annotator === last.id).sort((one, other) => one.at - other.at);
      const { annotator, progress, guidelines } = last;
      return { annotator, progress, guidelines, pairs: own.map(({ pair }) => pair) };
    } catch {
      return null;
    }
  }

  // From now on, the copy is this person's.
  keepPerson(annotator, progress) {
    this.annotator = annotator.id;
    return this.change((people, pairs) => {
      people.getAllKeys().onsuccess = ({ target }) => {
        if (target.result.some((id) => id !== annotator.id)) {
          people.clear();
          pairs.clear();
        }
        people.get(annotator.id).onsuccess = ({ target: { result } }) => {
          people.put({ ...result, id: annotator.id, annotator, progress, at: Date.now() });
        };
      };
    });
  }

  keepGuidelines(guidelines) {
    return this.change((people) => {
      people.get(this.annotator).onsuccess = ({ target: { result } }) => {
        if (result) people.put({ ...result, guidelines });
      };
    });
  }

  keep(added) {
    const at = Date.now();
    return this.change((_, pairs) => {
      for (const [index, pair] of added.entries()) {
        pairs.put({ id: pair.id, annotator: this.annotator, at: at + index / 1000, pair });
      }
    });
  }

  drop(ids) {
    return this.change((_, pairs) => {
      for (const id of ids) pairs.delete(id);
    });
  }

  clear() {
    return this.change((people, pairs) => {
      people.clear();
      pairs.clear();
    });
  }
}

// The service worker keeps the page's own files (worker.js).  Over plain http there is none, and the
// page needs a connection to load.
async function keepPage() {
  if (!navigator.serviceWorker) return;
  try {
    const { installing, waiting, active } = await navigator.serviceWorker.register("/label/worker.js");
    const worker = installing || waiting || active;
    if (worker.state !== "activated") {
      await new Promise((ready) => {
        worker.onstatechange = () => worker.state === "activated" && ready();
      });
    }
    const loaded = performance.getEntriesByType("resource").map(({ name }) => name);
    worker.postMessage({ files: ["/label/", ...loaded] });
  } catch {
    // Signed out, or the browser forbids it: as over plain http.
  }
}

async function forgetPage() {
  for (const registration of (await navigator.serviceWorker?.getRegistrations()) || []) {
    await registration.unregister();
  }
  for (const name of await (window.caches?.keys() ?? [])) {
    if (name.startsWith("kitestring-desk-")) await caches.delete(name);
  }
}
