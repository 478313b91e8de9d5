// The view of one storage instance.

import { el, fill } from "./dom.js";
import { labels, size } from "./format.js";
import { columnsOfEvents, keyOfEvent, moment, problem, selectionLink, statusOf } from "./parts.js";
import { Table } from "./table.js";

// remedies are the commands that help storage with a status.
const remedies = {
  error: ["Fix the cause that the message names, then try again:", "retry"],
  retried: ["It is tried again by itself. When the cause is fixed, try again at once:", "retry"],
  detached: ["To use it, attach it:", "attach"],
};

// Names of storage are of these characters. A command with anything else is not shown, because it could be
// copied.
const safeName = /^[A-Za-z0-9][A-Za-z0-9./-]*$/;

export class DetailView {
  constructor(model, name) {
    this.model = model;
    this.name = name;
    this.title = `Storage ${name}`;
    this.pathOfEvents = `events?${new URLSearchParams({ name })}`;
    this.wants = ["snapshots", this.pathOfEvents];
    this.fields = el("div");
    this.attachments = new Table({
      key: (a) => a.machine,
      columns: [
        { title: "Machine", cell: (a) => a.machine },
        { title: "Location", cell: (a) => a.location === "" ? "not yet known" : el("code", {}, a.location) },
        { title: "Access", cell: (a) => a["read-only"] ? "read-only" : "read and write" },
        { title: "State", cell: (a) => a.life === "alive" ? "wanted" : "to be detached" },
      ],
    });
    this.snapshots = new Table({
      key: (s) => s.name,
      columns: [
        { title: "Name", cell: (s) => s.name },
        { title: "Status", cell: (s) => s.status },
        { title: "Taken", cell: (s) => s["taken-at"] ? moment(s["taken-at"]) : "" },
        { title: "Size", cell: (s) => size(s["size-mib"]), class: "number" },
        { title: "Message", cell: (s) => s.message ?? "", class: "message" },
      ],
    });
    this.events = new Table({ key: keyOfEvent, columns: columnsOfEvents.filter((c) => c.title !== "Storage") });
    this.problem = el("div");
    this.noSnapshots = el("p", {}, "There are none.");
    this.noEvents = el("p", {}, "None are recorded.");
    this.notAttached = el("p", {}, "It is attached to no machine.");
    const section = (title, ...children) => el("section", { "aria-label": title }, el("h3", {}, title), ...children);
    this.sections = [
      section("Attachments", this.notAttached, this.attachments.element),
      section("Snapshots", this.noSnapshots, this.snapshots.element),
    ];
    this.element = el("div", { class: "detail" },
      el("p", {}, el("a", { href: "#/storage" }, "All storage")),
      this.fields, ...this.sections, section("Events", this.noEvents, this.events.element), this.problem);
    this.made = undefined;
  }

  show() {
    const s = this.model.storage.get(this.name);
    const instances = this.model.all().filter((other) => other.name.startsWith(`${this.name}/`));
    for (const section of this.sections) {
      section.hidden = s === undefined;
    }
    const fields = s ? describe(s) : [this.model.complete ? missing(this.name, instances.length) : null];
    const made = fields.map((f) => f?.outerHTML).join("");
    if (this.made !== made) { // a field that somebody reads or copies stays as it is
      this.made = made;
      fill(this.fields, ...fields);
    }
    const attachments = s?.attachments ?? [];
    this.notAttached.hidden = attachments.length > 0;
    this.attachments.show(attachments, "Machines that have it");
    const snapshots = (this.model.list("snapshots") ?? []).filter((o) => o["storage-name"] === this.name);
    this.noSnapshots.hidden = snapshots.length > 0;
    this.snapshots.show(snapshots, "Snapshots of it");
    const events = (this.model.list(this.pathOfEvents) ?? []).toReversed();
    this.noEvents.hidden = events.length > 0;
    this.events.show(events, "What happened to it, the latest first");
    fill(this.problem, ...this.wants.map((path) => problem(this.model.errors.get(path))));
  }
}

function missing(name, instances) {
  return instances > 0
    ? el("p", {}, "This name has several instances: ", selectionLink({ text: `${name}/` }, `show ${instances}`), ".")
    : el("p", {}, "There is no such storage. It may have been removed; what happened to it is shown for a day after that.");
}

// describe returns what there is to say of storage. Fields without a value are left out.
function describe(s) {
  const growth = s["cannot-grow-to-mib"] ? `${s.shown.size}, cannot grow to ${size(s["cannot-grow-to-mib"])}` : s.shown.size;
  const from = s.from && [s.from.snapshot && `snapshot ${s.from.snapshot}`, s.from.storage && `storage ${s.from.storage}`];
  const fields = [
    ["Status", el("span", {}, statusOf(s), " since ", moment(s.since))],
    ["Message", s.message && el("span", { class: ["failed", "retried"][s.shown.urgency] }, s.message)],
    ["Location", s.location && el("code", {}, s.location)],
    ["Size", growth],
    ["Kind", s.kind],
    ["Pool", el("span", {}, selectionLink({ pool: s.pool }, s.pool), ` (provider ${s.provider})`)],
    ["Labels", labels(s.labels)],
    ["Volume", s.volume],
    ["Filesystem", s.filesystem],
    ["Asked for by", s.asker && `${s.asker.way}, as ${s.asker.name}`],
    ["Claim", s.claim && (s.retained ? `${s.claim}, which was deleted` : s.claim)],
    ["Made from", from?.filter(Boolean).join(" of ")],
  ].filter(([, value]) => value);
  const list = el("dl", {}, ...fields.flatMap(([title, value]) => [el("dt", {}, title), el("dd", {}, value)]));
  const remedy = remedies[s.shown.urgency === 1 ? "retried" : s.status];
  if (!remedy || s.life !== "alive" || !safeName.test(s.name)) {
    return [list];
  }
  const [text, verb] = remedy;
  return [list, el("p", { class: "remedy" }, text, " ", el("code", {}, `stowage ${verb} ${s.name}`))];
}
