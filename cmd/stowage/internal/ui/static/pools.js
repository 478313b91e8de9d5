// The view of the pools, with what is stored in each.

import { el, fill } from "./dom.js";
import { count, size } from "./format.js";
import { problem, selectionLink } from "./parts.js";
import { Table } from "./table.js";

export class PoolsView {
  title = "Pools";
  wants = ["pools", "machines"];

  constructor(model) {
    this.model = model;
    this.stored = new Map(); // the number and the size of the storage, by pool
    this.table = new Table({
      key: (p) => p.name,
      columns: [
        { title: "Name", cell: (p) => p.name },
        { title: "Provider", cell: (p) => p.provider },
        { title: "Storage", cell: (p) => this.storageOf(p), class: "nowrap" },
        { title: "Stored", cell: (p) => this.stored.has(p.name) ? size(this.stored.get(p.name).mib) : "", class: "number" },
        { title: "Free", cell: (p) => this.freeFor(p), class: "number" },
        { title: "Attributes", cell: attributesOf },
        { title: "Origin", cell: (p) => p.default ? "comes with its provider" : "made by a user" },
      ],
    });
    this.problem = el("div");
    this.element = el("div", {}, this.problem, this.table.element);
  }

  storageOf(pool) {
    const n = this.stored.get(pool.name)?.n ?? 0;
    return n === 0 ? "none" : selectionLink({ pool: pool.name }, count(n, "instance"));
  }

  // freeFor returns the space that the machines have for a pool, as far as they have reported it.
  freeFor(pool) {
    const spaces = (this.model.list("machines") ?? []).map((m) => m.space?.[pool.provider]).filter(Boolean);
    if (spaces.length === 0) {
      return "";
    }
    const free = size(spaces.reduce((sum, s) => sum + s["free-mib"], 0));
    return spaces.length === 1 ? free : `${free} on ${count(spaces.length, "machine")}`;
  }

  show() {
    this.stored = new Map();
    for (const s of this.model.storage.values()) {
      const before = this.stored.get(s.pool) ?? { n: 0, mib: 0 };
      this.stored.set(s.pool, { n: before.n + 1, mib: before.mib + s["size-mib"] });
    }
    const pools = this.model.list("pools") ?? [];
    this.table.show(pools, count(pools.length, "pool"));
    fill(this.problem, ...this.wants.map((path) => problem(this.model.errors.get(path))));
  }
}

function attributesOf(pool) {
  return Object.entries(pool.attributes ?? {}).map(([name, value]) =>
    el("div", {}, el("code", {}, `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`)));
}
