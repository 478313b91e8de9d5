// The view of what happened, the latest first.

import { el, fill } from "./dom.js";
import { count } from "./format.js";
import { columnsOfEvents, keyOfEvent, problem } from "./parts.js";
import { Table } from "./table.js";

const path = "events?limit=1000";

export class EventsView {
  title = "Events";
  wants = [path];

  constructor(model, query) {
    this.model = model;
    this.text = el("input", { type: "search", id: "text", autocomplete: "off", spellcheck: "false" });
    this.text.value = query.get("text") ?? "";
    this.filters = el("form", { role: "search", "aria-label": "Filter events", class: "filters" },
      el("label", { for: "text" }, "Name or text", this.text));
    this.filters.addEventListener("submit", (event) => event.preventDefault());
    this.filters.addEventListener("input", () => {
      const text = this.text.value;
      history.replaceState(null, "", text === "" ? "#/events" : `#/events?${new URLSearchParams({ text })}`);
      this.table.toStart();
      this.show();
    });
    this.none = el("p");
    this.problem = el("div");
    this.table = new Table({ key: keyOfEvent, columns: columnsOfEvents });
    this.element = el("div", {}, this.filters, this.problem, this.none, this.table.element);
  }

  show() {
    const all = this.model.list(path);
    const text = this.text.value.trim().toLowerCase();
    const events = (all ?? []).toReversed().filter((e) =>
      [e.storage, e.description, e.by ?? ""].some((field) => field.toLowerCase().includes(text)));
    this.none.hidden = all === undefined || events.length > 0;
    fill(this.none, all?.length > 0 ? "No event has this text." : "Nothing has happened yet.");
    const last = all?.length === 1000 ? " of the last 1,000" : "";
    this.table.show(events, `${count(events.length, "event")}${last}, the latest first`);
    fill(this.problem, problem(this.model.errors.get(path)));
  }
}
