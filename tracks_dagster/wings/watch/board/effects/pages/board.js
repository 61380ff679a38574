// Keeps a page of the board live, and gives it a keyboard and a crosshair. No library, nothing is
// fetched but the page itself: its part `main`, and nothing at all while nobody sees the page.
"use strict";

const EVERY_MS = 2000, LATE_MS_MAX = 30000; // between two looks; after failures up to the second
const main = document.querySelector("main"), pulse = document.getElementById("pulse");
const news = document.getElementById("news"); // read aloud, so it changes with what is live alone
let version = main.dataset.version, failures = 0, timer = 0, chosen = null, pointer = null;

// --- live ---
function again(ms) { clearTimeout(timer); timer = setTimeout(look, ms); }

async function look() {
  if (document.hidden || !main.hasAttribute("data-live")) return;
  let wait = EVERY_MS;
  try {
    const headers = { "X-Part": "main", "If-None-Match": version || "" };
    const answer = await fetch(location.href, { headers, cache: "no-store",
      signal: AbortSignal.timeout(LATE_MS_MAX) });
    if (answer.status !== 304 && !answer.ok) throw new Error(await reason(answer));
    if (failures) news.textContent = "live again";
    failures = 0;
    tell("");
    pulse.className = "";
    pulse.textContent = answer.headers.get("X-As-Of") || "live";
    if (answer.status !== 304) {
      const text = await answer.text();
      if (isRead()) version = ""; // not replaced under somebody who copies from it
      else { version = answer.headers.get("ETag"); replace(text); }
    }
  } catch (error) {
    failures += 1;
    wait = Math.min(LATE_MS_MAX, EVERY_MS * 2 ** failures);
    pulse.className = "late";
    pulse.textContent = "not live";
    tell(error.name === "TypeError" || error.name === "TimeoutError"
      ? "The board does not answer. What is shown here was read before." : error.message);
  }
  again(wait);
}

async function reason(answer) { // what the page says that was sent in place of this one
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const words = [...page.querySelectorAll("h1, p")].map((each) => each.textContent.trim()).join(". ");
  return `${words || `The board answers ${answer.status}.`} What is shown here was read before.`;
}

function tell(words, id = "away", css = "banner bad", role = "alert") { // once, above the page
  let banner = document.getElementById(id);
  if (banner?.textContent === words) return;
  banner?.remove();
  if (!words) return;
  banner = document.createElement("p");
  Object.assign(banner, { id, className: css, textContent: words });
  banner.setAttribute("role", role);
  main.before(banner);
}

function isRead() { // copied from, or filled in
  const selection = getSelection();
  return (selection && !selection.isCollapsed && main.contains(selection.anchorNode)) || isFilledIn();
}
const isFilledIn = () => [...main.querySelectorAll("form[method=post] :is(input, select)")].some((each) =>
  each === document.activeElement || (each.tagName === "INPUT" ? each.value !== each.defaultValue
    : each.selectedIndex !== Math.max(0, [...each.options].findIndex((option) => option.defaultSelected))));

function replace(text) { // what is unfolded, scrolled, marked and chosen stays so
  const unfolded = keys("details[open]");
  const boxes = [...main.querySelectorAll("input[type=checkbox]")].map((each) => [each.id, each.checked]);
  const scrolled = [...main.querySelectorAll("[data-scroll]")].map((each) =>
    [each.id, each.scrollTop + each.clientHeight > each.scrollHeight - 8 ? -1 : each.scrollTop]);
  const focused = main.contains(document.activeElement) ? document.activeElement : null;
  const place = focused ? like(focused).indexOf(focused) : -1;
  const own = [...main.querySelectorAll("[data-kept]")]; // what a script of its own keeps live
  main.innerHTML = text;
  for (const each of document.documentElement.classList.contains("has-script") ? own : [])
    document.getElementById(each.id)?.replaceWith(each);
  for (const id of unfolded) { const e = document.getElementById(id); if (e) e.open = true; }
  for (const [id, on] of boxes) { const e = document.getElementById(id); if (e) e.checked = on; }
  for (const [id, top] of scrolled) {
    const e = document.getElementById(id);
    if (e) e.scrollTop = top < 0 ? e.scrollHeight : top;
  }
  if (focused) {
    const again = (focused.id && document.getElementById(focused.id)) || like(focused)[place];
    again?.focus({ preventScroll: true });
  }
  settle();
}

const like = (one) => [...main.querySelectorAll(one.tagName)].filter((each) => // a link in a row has no id
  each.getAttribute("href") === one.getAttribute("href") && each.textContent === one.textContent);
const keys = (selector) => [...main.querySelectorAll(selector)].map((each) => each.id).filter(Boolean);

function settle() {
  copyable();
  filter();
  if (chosen) document.getElementById(chosen)?.classList.add("chosen");
  if (pointer) cross(pointer);
}

// --- a button beside each command ---
function copyable() {
  for (const code of main.querySelectorAll("code")) {
    if (!/^(tracks|git) /.test(code.textContent) || code.nextElementSibling?.matches(".copy")) continue;
    const button = Object.assign(document.createElement("button"),
      { type: "button", className: "copy no-print", textContent: "copy" });
    button.setAttribute("aria-label", `Copy ${code.textContent}`);
    code.after(button);
  }
}

main.addEventListener("click", async (event) => {
  const button = event.target.closest(".copy");
  if (!button) return;
  const code = button.previousElementSibling;
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "copied";
  } catch { // no secure context: the command is marked, so that a key copies it
    getSelection().selectAllChildren(code);
    button.textContent = "marked";
  }
});

// --- keyboard ---
const rows = () => [...main.querySelectorAll("[data-row]")].filter((each) => !each.hidden);

function move(by) {
  const all = rows(), at = all.findIndex((each) => each.id === chosen);
  const next = all[Math.max(0, Math.min(all.length - 1, at < 0 ? (by > 0 ? 0 : all.length - 1) : at + by))];
  if (!next) return;
  main.querySelector(".chosen")?.classList.remove("chosen");
  chosen = next.id;
  next.classList.add("chosen");
  next.scrollIntoView({ block: "nearest" });
}

const row = () => (chosen ? document.getElementById(chosen) : null);
const help = document.querySelector("dialog"), find = document.getElementById("find");
const KEYS = {
  j: () => move(1), k: () => move(-1), "?": () => help.showModal(),
  u: () => location.assign(document.querySelector(".brand").href),
  "/": () => { find.focus(); find.select(); },
  x: () => row()?.querySelector("input[type=checkbox]")?.click(),
  c: () => document.getElementById("compare")?.requestSubmit(),
  Enter: () => row()?.querySelector("a.name, td:nth-child(3) a")?.click(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.matches("input:not([type=checkbox]), textarea, select");
  if (event.key === "Escape" && event.target === find) { find.value = ""; filter(); find.blur(); return; }
  if (typing || help.open || (event.key === "Enter" && event.target.matches("a, button, summary"))) return;
  const act = KEYS[event.key];
  if (act) { event.preventDefault(); act(); }
});

function filter() { // the rows of this page, as it is typed; Enter asks for every run
  const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const each of main.querySelectorAll("[data-row]"))
    each.hidden = !words.every((word) => each.textContent.toLowerCase().includes(word));
  for (const each of main.querySelectorAll("[data-count]")) { // of a group: what of it is shown
    const all = +each.dataset.count;
    const shown = each.closest("tbody").querySelectorAll("[data-row]:not([hidden])").length;
    each.textContent = shown === all ? all : `${shown} of ${all}`;
  }
}
find.addEventListener("input", filter);

main.addEventListener("click", (event) => { // a column's head with Shift: sorted by it after the others
  const head = event.shiftKey && event.target.closest("a[data-then]");
  if (head) { event.preventDefault(); location.assign(new URL(head.dataset.then, head.href)); }
});

// --- crosshair: one line through all panels, read back from their own points ---
const read = new WeakMap();

function points(line) {
  if (!read.has(line)) read.set(line, line.getAttribute("points").trim().split(/\s+/)
    .map((pair) => pair.split(",").map(Number)));
  return read.get(line);
}

function cross(at) {
  const svg = document.elementFromPoint(at.x, at.y)?.closest("svg[data-x0]");
  for (const each of main.querySelectorAll("svg .cross")) each.remove();
  for (const each of main.querySelectorAll("figcaption output")) each.textContent = each.dataset.value;
  pointer = svg && main.contains(svg) ? at : null;
  if (!pointer) return;
  const x = xOf(svg, at.x);
  if (x < +svg.dataset.x0 || x > +svg.dataset.x1) return;
  for (const panel of main.querySelectorAll("svg[data-x0]")) mark(panel, x);
}

function xOf(svg, clientX) { // the value on the axis below a place of the window
  const box = svg.getBoundingClientRect(), d = svg.dataset;
  const px = ((clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
  return +d.x0 + ((px - d.left) / (d.right - d.left)) * (d.x1 - d.x0);
}

function mark(panel, x) {
  const d = panel.dataset;
  const px = +d.left + ((x - d.x0) / (d.x1 - d.x0)) * (d.right - d.left);
  if (!(px >= +d.left && px <= +d.right)) return;
  const near = new Map(); // of each colour, the point that is nearest to the pointer
  for (const line of panel.querySelectorAll("polyline.line:not(.lost, .raw)")) {
    if (!line.getClientRects().length) continue; // its run is hidden
    for (const point of points(line)) {
      const name = line.getAttribute("class"), known = near.get(name);
      if (!known || Math.abs(point[0] - px) < Math.abs(known[0] - px)) near.set(name, point);
    }
  }
  if (!near.size) return;
  const all = [...near.values()], off = (point) => Math.abs(point[0] - px);
  const nearest = all.reduce((a, b) => (off(b) < off(a) ? b : a));
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  const ends = { class: "cross", x1: nearest[0], x2: nearest[0], y1: d.top, y2: d.bottom };
  for (const [name, value] of Object.entries(ends)) line.setAttribute(name, value);
  panel.append(line);
  const wide = 0.02 * (d.right - d.left); // attempts that were here as well, runs that are compared
  const values = all.filter((point) => off(point) <= Math.max(wide, off(nearest)))
    .map((point) => format(valueAt(d, (d.bottom - point[1]) / (d.bottom - d.top))));
  const at = +d.x0 + ((nearest[0] - d.left) / (d.right - d.left)) * (d.x1 - d.x0);
  const shown = panel.closest("figure")?.querySelector("figcaption output");
  if (shown) shown.textContent = [format(at), ...values].join(" · ");
}

const valueAt = (d, share) => "log" in d // of a panel, from its lowest value to its highest
  ? d.y0 * (d.y1 / d.y0) ** share : +d.y0 + share * (d.y1 - d.y0);

const format = (value) => Number.isInteger(value) || Math.abs(value) >= 1e4
  ? Math.round(value).toLocaleString("en").replaceAll(",", "\u202f") : +value.toPrecision(4);

main.addEventListener("pointermove", (event) => cross({ x: event.clientX, y: event.clientY }));
main.addEventListener("pointerleave", () => cross({ x: -1, y: -1 }));

main.addEventListener("change", (event) => { // what was logged, at another step
  if (event.target.id !== "step") return;
  const query = new URLSearchParams(location.search);
  query.set("step", event.target.value);
  history.replaceState(null, "", `?${query}`);
  version = "";
  again(0);
});

// --- zoom: drag over a curve to see that part of all of them ---
let dragged = null;
const isBySteps = () => (new URLSearchParams(location.search).get("by") || "step") === "step";

main.addEventListener("pointerdown", (event) => {
  const svg = event.target.closest("svg[data-x0]");
  dragged = svg && event.button === 0 ? { svg, from: event.clientX } : null;
});
main.addEventListener("pointermove", (event) => { // the part that is marked, where it can be shown
  if (!dragged || !isBySteps() || !main.contains(dragged.svg)) return;
  const { svg, from } = dragged, box = svg.getBoundingClientRect(), d = svg.dataset;
  const scale = svg.viewBox.baseVal.width / box.width;
  const ends = [from, event.clientX].map((x) =>
    Math.min(+d.right, Math.max(+d.left, (x - box.left) * scale))).sort((a, b) => a - b);
  const band = svg.querySelector(".band")
    || svg.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "rect"));
  const sides = { class: "band", x: ends[0], width: ends[1] - ends[0], y: d.top, height: d.bottom - d.top };
  for (const [name, value] of Object.entries(sides)) band.setAttribute(name, value);
});
document.addEventListener("pointerup", (event) => {
  for (const each of main.querySelectorAll("svg .band")) each.remove();
  const drag = dragged;
  dragged = null;
  if (!drag || !main.contains(drag.svg) || Math.abs(event.clientX - drag.from) < 12) return;
  if (document.documentElement.hasAttribute("data-exported")) return; // nobody draws it again
  if (!isBySteps()) {
    tell("A part of the curves is chosen by steps: choose by step first.", "hint", "banner", "status");
    return;
  }
  const query = new URLSearchParams(location.search);
  const steps = [drag.from, event.clientX].map((x) => Math.max(0, Math.round(xOf(drag.svg, x))));
  query.set("steps", steps.sort((a, b) => a - b).join("-"));
  location.search = query;
});

document.addEventListener("visibilitychange", () => {
  if (document.hidden) pulse.className = "rests"; else again(0);
});
for (const each of main.querySelectorAll("[data-scroll]")) each.scrollTop = each.scrollHeight;
copyable();
again(EVERY_MS);
