// The view of all storage, what needs attention first.

import { el, fill } from "./dom.js";
import { count, labels, size } from "./format.js";
import { compareNames } from "./model.js";
import { machineOf, moment, statusOf, storageLink } from "./parts.js";
import { Table } from "./table.js";

// filters select storage by one of its fields.
const filters = {
  status: { title: "Status", of: (s) => s.status },
  pool: { title: "Pool", of: (s) => s.pool },
  machine: { title: "Machine", of: machineOf },
};

const columns = [
  { title: "Name", cell: (s) => storageLink(s.name) },
  { title: "Status", cell: (s) => [statusOf(s), " ", moment(s.since, true)], class: "nowrap" },
  { title: "Size", cell: (s) => s.shown.size, class: "number" },
  { title: "Kind", cell: (s) => s.kind, class: "nowrap" },
  { title: "Pool", cell: (s) => s.pool },
  { title: "Machine", cell: machineOf },
  { title: "Location", cell: (s) => s.location === "" ? "" : el("code", {}, s.location), class: "location" },
  { title: "Message", cell: (s) => s.message, class: "message" },
];

// contains tells whether storage has the text, in lower case, in one of its fields.
function contains(s, text) {
  return [s.name, s.message, s.location, labels(s.labels)].some((field) => field.toLowerCase().includes(text));
}

export class StorageView {
  title = "Storage";
  wants = [];

  constructor(model, query) {
    this.model = model;
    this.summary = el("p", { class: "summary" });
    this.none = el("div", { class: "none" });
    this.table = new Table({ columns, key: (s) => s.name });
    this.text = el("input", { type: "search", id: "text", autocomplete: "off", spellcheck: "false" });
    this.text.value = query.get("text") ?? "";
    const fields = [el("label", { for: "text" }, "Name or text", this.text)];
    this.selects = {};
    for (const [name, { title }] of Object.entries(filters)) {
      const select = el("select", { id: name });
      this.selects[name] = { select, wanted: query.get(name) ?? "", options: undefined };
      fields.push(el("label", { for: name }, title, select));
    }
    this.filters = el("form", { role: "search", "aria-label": "Filter storage", class: "filters" }, ...fields);
    this.filters.addEventListener("submit", (event) => event.preventDefault());
    this.filters.addEventListener("input", () => this.filter());
    this.element = el("div", {}, this.summary, this.filters, this.none, this.table.element);
  }

  // filter takes over what the user has chosen, and keeps it in the address.
  filter() {
    const query = new URLSearchParams();
    if (this.text.value !== "") {
      query.set("text", this.text.value);
    }
    for (const [name, chosen] of Object.entries(this.selects)) {
      chosen.wanted = chosen.select.value;
      if (chosen.wanted !== "") {
        query.set(name, chosen.wanted);
      }
    }
    const text = query.toString();
    history.replaceState(null, "", text === "" ? "#/storage" : `#/storage?${text}`);
    this.table.toStart();
    this.show();
  }

  show() {
    if (!this.model.complete) {
      this.filters.hidden = this.table.element.hidden = true;
      return;
    }
    const all = this.model.all();
    this.filters.hidden = this.table.element.hidden = all.length === 0;
    for (const [name, chosen] of Object.entries(this.selects)) {
      showOptions(chosen, all.map(filters[name].of));
    }
    const text = this.text.value.trim().toLowerCase();
    const selected = all.filter((s) => (text === "" || contains(s, text)) &&
      Object.entries(this.selects).every(([name, { wanted }]) => wanted === "" || filters[name].of(s) === wanted));
    this.summarize(all);
    fill(this.none, ...(all.length === 0 ? [
      el("p", {}, "There is no storage yet. To make some, run for example:"),
      el("pre", {}, el("code", {}, "stowage create data --pool loop --size 1G --mount /srv/data")),
      el("p", {}, "It appears here when the command has been accepted."),
    ] : selected.length === 0 ? [el("p", {}, "No storage is as the filter says.")] : []));
    this.table.show(selected, selected.length === all.length
      ? count(all.length, "storage instance")
      : `${count(selected.length, "storage instance")} of ${all.length.toLocaleString("en")}`);
  }

  // summarize says how much storage there is, and how much needs attention.
  summarize(all) {
    const urgent = all.filter((s) => s.shown.urgency < 2).length;
    const busy = all.filter((s) => s.shown.urgency === 2).length;
    const wanted = all.reduce((sum, s) => sum + Math.max(s["size-mib"], s["wanted-mib"]), 0);
    this.summary.hidden = all.length === 0;
    fill(this.summary,
      urgent === 0 ? "None needs attention" : el("strong", { class: "failed" }, `${count(urgent, "needs", "need")} attention`),
      busy === 0 ? null : ` · ${busy.toLocaleString("en")} in progress`,
      ` · ${size(wanted)} wanted`);
  }
}

// showOptions shows the values to choose from: those that there are, and the one that is chosen.
function showOptions(chosen, values) {
  const options = [...new Set(values)].filter((v) => v !== "");
  if (chosen.wanted !== "" && !options.includes(chosen.wanted)) {
    options.push(chosen.wanted);
  }
  options.sort(compareNames);
  const made = JSON.stringify(options);
  if (chosen.options !== made) {
    chosen.options = made;
    fill(chosen.select, el("option", { value: "" }, "any"), ...options.map((v) => el("option", { value: v }, v)));
  }
  chosen.select.value = chosen.wanted;
}
