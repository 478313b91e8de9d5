// The view of the machines, and of the servers if there are any.

import { el, fill } from "./dom.js";
import { count, labels, size } from "./format.js";
import { machineOf, moment, problem, selectionLink } from "./parts.js";
import { Table } from "./table.js";

const badges = { up: "good", unreachable: "failed", fenced: "retried", pending: "busy" };

export class MachinesView {
  title = "Machines";
  wants = ["machines", "servers"];

  constructor(model) {
    this.model = model;
    this.stored = new Map(); // storage by machine
    this.machines = new Table({
      key: (m) => m.number,
      columns: [
        { title: "Name", cell: (m) => m.name },
        { title: "Status", cell: (m) => el("span", { class: `badge ${badges[m.status] ?? "idle"}` }, m.status + (m.drained ? ", drained" : "")) },
        { title: "Last seen", cell: (m) => m["last-seen"] ? el("span", {}, moment(m["last-seen"], true), " ago") : "", class: "nowrap" },
        { title: "Storage", cell: (m) => this.storageOf(m), class: "nowrap" },
        { title: "Free space", cell: (m) => spaceOf(m), class: "location" },
        { title: "Labels", cell: (m) => labels(m.labels), class: "labels" },
        { title: "Message", cell: (m) => m.refused ? el("span", { class: "failed" }, "another agent, with a copy of its directory, was refused at ", moment(m.refused)) : "" },
      ],
    });
    this.servers = new Table({
      key: (s) => s.address,
      columns: [
        { title: "Name", cell: (s) => s.name },
        { title: "Address", cell: (s) => s.address },
        { title: "Status", cell: (s) => el("span", { class: `badge ${s.status === "up" ? "good" : s.status === "unreachable" ? "failed" : "busy"}` }, s.status) },
        { title: "Leader", cell: (s) => s.leader ? "leader" : "" },
      ],
    });
    this.none = el("p", {}, "There are no machines yet. To let one join, run ", el("code", {}, "stowage token create --role machine"),
      " here, and ", el("code", {}, "stowage agent"), " there.");
    this.serversHeading = el("h3", {}, "Servers");
    this.problem = el("div");
    this.element = el("div", {}, this.problem, this.none, this.machines.element, this.serversHeading, this.servers.element);
  }

  storageOf(machine) {
    const n = this.stored.get(machine.name) ?? 0;
    return n === 0 ? "none" : selectionLink({ machine: machine.name }, count(n, "instance"));
  }

  show() {
    this.stored = new Map();
    for (const s of this.model.storage.values()) {
      const machine = machineOf(s);
      this.stored.set(machine, (this.stored.get(machine) ?? 0) + 1);
    }
    const machines = this.model.list("machines");
    const servers = this.model.list("servers") ?? [];
    this.none.hidden = machines === undefined || machines.length > 0;
    this.machines.show(machines ?? [], count(machines?.length ?? 0, "machine"));
    this.serversHeading.hidden = this.servers.element.hidden = servers.length === 0;
    this.servers.show(servers, count(servers.length, "server"));
    fill(this.problem, ...this.wants.map((path) => problem(this.model.errors.get(path))));
  }
}

// spaceOf returns the space of a machine. Providers on the same disk have the same space, which is shown once.
function spaceOf(machine) {
  const disks = new Map();
  for (const [provider, space] of Object.entries(machine.space ?? {})) {
    const key = `${space["size-mib"]} ${space["free-mib"]}`;
    disks.set(key, { space, providers: [...(disks.get(key)?.providers ?? []), provider] });
  }
  return [...disks.values()].map(({ space, providers }) => {
    const all = space["size-mib"], free = space["free-mib"];
    const title = `${providers.join(", ")}: ${size(free)} free of ${size(all)}`;
    return el("div", { class: "space" },
      el("meter", { min: 0, max: all, value: all - free, high: all * 0.9, optimum: 0, "aria-label": `${providers.join(", ")}: used space` }), title);
  });
}
