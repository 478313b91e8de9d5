// What the page knows: storage, from the stream of changes, and lists that are read when they are shown.

import { read } from "./connection.js";

const collator = new Intl.Collator("en", { numeric: true });

// compareNames orders names naturally: data/2 comes before data/10.
export const compareNames = collator.compare;

const refreshEvery = 10_000;
const refreshAfterChange = 500;
const requestTimeout = 15_000;

export class Model {
  // changed is called when there is something else to show.
  constructor(changed) {
    this.changed = changed;
    this.storage = new Map();
    this.order = []; // names, those that need attention first
    this.live = false;
    this.complete = false; // all storage was received once
    this.lists = new Map(); // by path
    this.errors = new Map(); // by path
    this.wanted = [];
    this.timer = undefined;
    this.reading = undefined;
  }

  // take applies a line of the stream. It returns the changes of statuses: the storage, and its status before.
  take(line) {
    const changes = [];
    const before = this.storage;
    if (line.first) {
      this.storage = new Map();
    }
    for (const s of line.storage ?? []) {
      const old = before.get(s.name);
      if (this.complete && old?.shown.status !== s.shown.status) {
        changes.push({ name: s.name, status: s.shown.status });
      }
      this.storage.set(s.name, s);
    }
    const gone = line.first ? [...before.keys()].filter((name) => !this.storage.has(name)) : line.gone ?? [];
    for (const name of gone) {
      this.storage.delete(name);
      changes.push({ name, status: "gone" });
    }
    if (line.first || changes.length > 0 || line.storage) {
      this.order = this.order.filter((name) => this.storage.has(name));
      const known = new Set(this.order);
      for (const name of this.storage.keys()) {
        if (!known.has(name)) {
          this.order.push(name);
        }
      }
      this.order.sort((a, b) =>
        this.storage.get(a).shown.urgency - this.storage.get(b).shown.urgency || compareNames(a, b));
      this.complete = true;
      this.refresh(refreshAfterChange);
      this.changed();
    }
    return changes;
  }

  // all returns all storage, what needs attention first.
  all() {
    return this.order.map((name) => this.storage.get(name));
  }

  setLive(live) {
    this.live = live;
    if (live) {
      this.refresh(0);
    }
    this.changed();
  }

  // list returns a list, or undefined until it was read.
  list(path) {
    return this.lists.get(path);
  }

  // want says which lists are shown. They are read at once, and again from time to time.
  want(paths) {
    this.wanted = paths;
    for (const known of [this.lists, this.errors]) {
      for (const path of known.keys()) {
        if (!paths.includes(path)) {
          known.delete(path);
        }
      }
    }
    this.reading?.abort();
    this.refresh(0);
  }

  // refresh reads the lists that are shown after a time, or earlier if that was asked for.
  refresh(after) {
    const due = Date.now() + after;
    if (this.timer !== undefined && this.due <= due) {
      return;
    }
    clearTimeout(this.timer);
    this.due = due;
    this.timer = setTimeout(async () => {
      this.timer = undefined;
      if (this.live && !document.hidden) {
        await this.readAll();
      }
      this.refresh(refreshEvery);
    }, after);
  }

  async readAll() {
    this.reading?.abort();
    const reading = this.reading = new AbortController();
    const signal = AbortSignal.any([reading.signal, AbortSignal.timeout(requestTimeout)]);
    await Promise.all(this.wanted.map(async (path) => {
      try {
        const value = await read(path, signal);
        if (!reading.signal.aborted) {
          this.lists.set(path, value);
          this.errors.delete(path);
        }
      } catch (error) {
        if (!reading.signal.aborted) {
          this.errors.set(path, error.message);
        }
      }
    }));
    if (!reading.signal.aborted) {
      this.changed();
    }
  }
}
