// Parts that several views show.

import { el } from "./dom.js";
import { age, time } from "./format.js";

// storageHash returns the address of the view of one storage instance.
export const storageHash = (name) => `#/storage/${encodeURIComponent(name)}`;

// storageLink returns a link to the view of one storage instance.
export const storageLink = (name) => el("a", { href: storageHash(name) }, name);

// selectionLink returns a link to the storage that a filter selects.
export function selectionLink(filter, text) {
  return el("a", { href: `#/storage?${new URLSearchParams(filter)}` }, text);
}

const urgencyNames = ["failed", "retried", "busy"];

// statusOf returns the status of storage, in the colour of its urgency.
export function statusOf(s) {
  const name = urgencyNames[s.shown.urgency] ?? (s.status === "attached" ? "good" : "idle");
  return el("span", { class: `badge ${name}` }, s.shown.status);
}

// moment returns a time, as a text or as an age.
export function moment(text, asAge = false) {
  const date = new Date(text);
  return el("time", { datetime: text, title: asAge ? time(date) : null }, asAge ? age(date) : time(date));
}

// machineOf returns the name of the machine that has the storage.
export const machineOf = (s) => s.attachments?.[0]?.machine ?? "";

// problem returns a paragraph for an error of a list.
export function problem(text) {
  return text === undefined ? null : el("p", { class: "problem" }, `This could not be read: ${text}`);
}

// columnsOfEvents are those of tables of events.
export const columnsOfEvents = [
  { title: "Time", cell: (e) => moment(e.time), class: "nowrap" },
  { title: "Storage", cell: (e) => storageLink(e.storage) },
  { title: "By", cell: (e) => e.by ?? "" },
  { title: "Event", cell: (e) => el("span", { class: e.type.endsWith("error") ? "failed" : null }, e.description) },
];

export const keyOfEvent = (e) => `${e.storage} ${e.number}`;
