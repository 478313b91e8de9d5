// The page: which view is shown, and what is said of the connection.

import { Connection, read } from "./connection.js";
import { el, fill, say } from "./dom.js";
import { count, time } from "./format.js";
import { Model } from "./model.js";
import { StorageView } from "./storage.js";
import { DetailView } from "./detail.js";
import { MachinesView } from "./machines.js";
import { PoolsView } from "./pools.js";
import { EventsView } from "./events.js";

const views = [
  { path: "storage", title: "Storage", view: StorageView },
  { path: "machines", title: "Machines", view: MachinesView },
  { path: "pools", title: "Pools", view: PoolsView },
  { path: "events", title: "Events", view: EventsView },
];

const redrawEvery = 10_000; // ages grow
const minRedraw = 100;
const announceEvery = 3_000;

const main = document.getElementById("main");
const connection = document.getElementById("connection");
const announcer = document.getElementById("announcer");

let current; // the view
let drawing; // the timer of the next redraw

const model = new Model(redraw);

function redraw() {
  drawing ??= setTimeout(() => {
    drawing = undefined;
    current?.show();
  }, minRedraw);
}

// parse returns the view of an address, such as #/storage/data or #/events?text=data.
function parse(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?", 2);
  const [name, ...rest] = path.split("/");
  const at = views.find((v) => v.path === name) ?? views[0];
  let item = "";
  try {
    item = decodeURIComponent(rest.join("/"));
  } catch {
    item = rest.join("/"); // not written by this page
  }
  return { at, item, query: new URLSearchParams(query) };
}

function route() {
  if (location.hash === "#main") {
    return; // the link that skips the navigation
  }
  const { at, item, query } = parse(location.hash);
  const before = current;
  current = at.path === "storage" && item !== ""
    ? new DetailView(model, item)
    : new at.view(model, query);
  document.title = `${current.title} – stowage`;
  current.heading = el("h2", { tabindex: "-1" }, current.title);
  fill(main, current.heading, current.element);
  for (const link of document.querySelectorAll("#views a")) {
    if (link.getAttribute("href") === `#/${at.path}`) {
      link.setAttribute("aria-current", "page");
    } else {
      link.removeAttribute("aria-current");
    }
  }
  model.want(current.wants);
  current.show();
  if (before) {
    current.heading.focus();
    scrollTo(0, 0);
  }
}

// Changes are read out together, so that many of them do not follow each other for minutes.
let unsaid = new Map();
let saying;

function announce(changes) {
  for (const { name, status } of changes) {
    unsaid.set(name, status);
  }
  if (unsaid.size === 0 || saying !== undefined) {
    return;
  }
  const next = () => {
    saying = undefined;
    if (unsaid.size > 0) {
      say(announcer, unsaid.size <= 3
        ? [...unsaid].map(([name, status]) => `${name} is ${status}`).join(", ")
        : `${count(unsaid.size, "storage instance has", "storage instances have")} changed`);
      unsaid = new Map();
      saying = setTimeout(next, announceEvery);
    }
  };
  saying = setTimeout(next, minRedraw);
}

let asOf; // when the connection was lost

function setConnection(kind, text) {
  connection.className = `connection ${kind}`;
  say(connection, text);
  document.body.classList.toggle("stale", kind !== "live");
}

const stream = new Connection({
  take: (line) => announce(model.take(line)),
  live() {
    asOf = undefined;
    model.setLive(true);
    setConnection("live", "Live");
  },
  lost(message, final) {
    asOf ??= model.complete ? new Date() : undefined;
    const stale = asOf ? ` What you see is as of ${time(asOf)}.` : "";
    const next = final ? "" : " Trying to connect again.";
    const end = /[.?!]$/.test(message) ? "" : ".";
    setConnection("lost", `Not connected: ${message}${end}${stale}${next}`);
    model.setLive(false);
  },
});

fill(document.getElementById("views"), ...views.map((v) => el("li", {}, el("a", { href: `#/${v.path}` }, v.title))));
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address is that of the view
  main.focus();
});
addEventListener("hashchange", route);
document.addEventListener("visibilitychange", () => model.refresh(0));
setInterval(redraw, redrawEvery);
read("about").then(
  ({ source }) => say(document.getElementById("source"), source),
  () => {}, // the connection says what is wrong
);
route();
stream.run();
