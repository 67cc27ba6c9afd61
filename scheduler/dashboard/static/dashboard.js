// What the pages do beyond htmx: clocks that go on, one job marked wherever it stands, output that is followed.
"use strict";

function durationText(seconds) {
  const s = Math.max(0, Math.floor(seconds)), two = (n) => String(n).padStart(2, "0");
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${two(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${two(Math.floor((s % 3600) / 60))} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function showClocks() {
  for (const it of document.querySelectorAll(".elapsed")) {
    setText(it, durationText(Date.now() / 1000 - Number(it.dataset.since)));
  }
}

const timeFormat = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const dayFormat = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

function momentText(at) {
  const today = at.toDateString() === new Date().toDateString();
  return (today ? "" : dayFormat.format(at) + " ") + timeFormat.format(at);
}

function showMoments() {
  for (const it of document.querySelectorAll("time.moment")) {
    setText(it, momentText(new Date(it.dateTime)));
  }
}

function markJob(target) {
  const at = target instanceof Element ? target.closest("tr, a.block") : null;
  const link = at && (at.matches("a") ? at : at.querySelector("th a[href^='/jobs/']"));
  for (const it of document.querySelectorAll(".same")) it.classList.remove("same");
  if (!link) return;
  if (at === link) link.title = link.getAttribute("aria-label");
  for (const it of document.querySelectorAll(`a[href="${link.getAttribute("href")}"]`)) {
    (it.closest("tr") || it).classList.add("same");
  }
}

const follows = () => document.getElementById("follow")?.checked ?? false;

function toEnd() {
  const log = document.getElementById("log");
  if (log && follows()) log.scrollTop = log.scrollHeight;
}

const MAX_CHARACTERS = 2_000_000; // of output in the page; the oldest goes first

function dropOldest() {
  const log = document.getElementById("log");
  if (!log) return;
  let length = log.textContent.length;
  while (length > MAX_CHARACTERS && log.childNodes.length > 2) {
    length -= log.firstChild.textContent.length;
    log.firstChild.remove();
  }
}

function announce() {
  const changed = document.querySelector("[data-status]");
  if (changed) setText(document.getElementById("status"), changed.dataset.status);
}

function showLink(works) {
  const link = document.getElementById("link");
  link.classList.toggle("lost", !works);
  setText(link, works ? "live" : "no answer");
}

function showAll() {
  showClocks();
  showMoments();
}

// What is replaced while it is held down is not clicked; so nothing changes until it is let go. A browser may never tell
// that it was, so that what is held for long counts no more.
const held = new Map(), LONGEST_HOLD_MS = 30_000;
const hold = (it) => held.has(it) || held.set(it, Date.now());
const isHeld = () => [...held.values()].some((since) => Date.now() - since < LONGEST_HOLD_MS);
const PRESSING = ["Space", "Enter", "NumpadEnter"]; // other keys click nothing
document.addEventListener("pointerdown", (event) => hold(event.pointerId), true);
for (const kind of ["pointerup", "pointercancel"]) {
  document.addEventListener(kind, (event) => held.delete(event.pointerId), true);
}
document.addEventListener("pointermove", (event) => event.buttons === 0 && held.delete(event.pointerId), true);
document.addEventListener("keydown", (event) => PRESSING.includes(event.code) && hold(event.code), true);
document.addEventListener("keyup", (event) => held.delete(event.code), true);
for (const kind of ["blur", "dragend", "pagehide"]) window.addEventListener(kind, () => held.clear());
document.addEventListener("htmx:beforeSwap", (event) => {
  if (isHeld()) event.detail.shouldSwap = false;
});
// Whoever logs out asks for nothing more: it would be refused, and the browser would complain.
let isLeaving = false;
document.addEventListener("submit", (event) => {
  if (!event.target.matches(".logout")) return;
  isLeaving = true;
  for (const it of document.querySelectorAll("[hx-get]")) htmx.trigger(it, "htmx:abort");
});
window.addEventListener("pageshow", () => { isLeaving = false; });
document.addEventListener("mouseover", (event) => markJob(event.target));
document.addEventListener("focusin", (event) => markJob(event.target));
document.addEventListener("change", (event) => event.target.id === "follow" && toEnd());
document.addEventListener("htmx:beforeRequest", (event) => {
  if (isLeaving || (event.target.id === "log-more" && !follows())) event.preventDefault();
});
document.addEventListener("htmx:afterSettle", () => {
  showAll();
  announce();
  dropOldest();
  toEnd();
});
document.addEventListener("htmx:afterRequest", (event) => {
  if (!isLeaving) showLink(event.detail.xhr.status > 0 && event.detail.xhr.status < 500);
});
setInterval(showClocks, 1000);
showAll();
toEnd();
