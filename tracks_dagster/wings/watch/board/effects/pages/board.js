// Keeps a page of the board live, and gives it a keyboard and a crosshair. Nothing is fetched but what
// differs in the page's part `main`, and nothing at all while nobody sees the page.
"use strict";

const EVERY_MS = 2000, LATE_MS_MAX = 30000; // between two looks; after failures up to the second
const main = document.querySelector("main"), pulse = document.getElementById("pulse");
const news = document.getElementById("news"); // read aloud, so it changes with what is live alone
let version = main.dataset.version, failures = 0, timer = 0, chosen = null, pointer = null;
let sent = null, isBehind = false; // `main` as it came last; whether a form was left as it was
let turn = 0; // of looks: an answer counts for the newest alone, or it is applied to what another brought

// --- live ---
function again(ms) { turn += 1; clearTimeout(timer); timer = setTimeout(look, ms); }

async function look() {
  if (document.hidden || !main.hasAttribute("data-live")) return;
  const mine = turn, before = sent;
  let wait = EVERY_MS;
  try {
    let answer = await ask(before === null ? "main" : "difference", version || "");
    let fresh = await text(answer, before);
    if (fresh === undefined) fresh = await text(answer = await ask("main", ""), before);
    if (mine !== turn) return;
    if (failures) news.textContent = "live again";
    failures = 0;
    tell("");
    pulse.className = "";
    pulse.textContent = answer.headers.get("X-As-Of") || "live";
    if (answer.status !== 304) {
      sent = fresh;
      version = answer.headers.get("ETag");
    }
    if (answer.status !== 304 || isBehind) show(sent);
  } catch (error) {
    if (mine !== turn) return;
    failures += 1;
    news.textContent = "";
    wait = Math.min(LATE_MS_MAX, EVERY_MS * 2 ** failures);
    pulse.className = "late";
    pulse.textContent = "not live";
    tell(error.name === "TypeError" || error.name === "TimeoutError"
      ? "The board does not answer. What is shown here was read before." : error.message);
  }
  again(wait);
}

async function ask(part, known) {
  const headers = { "X-Part": part, "If-None-Match": known };
  const answer = await fetch(location.href, { headers, cache: "no-store",
    signal: AbortSignal.timeout(LATE_MS_MAX) });
  if (answer.status !== 304 && !answer.ok) throw new Error(await reason(answer));
  return answer;
}

async function text(answer, before) { // of `main`; undefined where what differs does not make it of before
  if (answer.status === 304) return before;
  if (!(answer.headers.get("Content-Type") || "").startsWith("application/json")) return answer.text();
  const made = applied(await answer.json(), before);
  return await isOf(made, answer.headers.get("ETag")) ? made : undefined;
}

async function isOf(text, version) { // as `digest` in pages.py
  if (!crypto.subtle) return true; // no secure context
  const bytes = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text)));
  const digest = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return version === `"${digest.slice(0, 16)}"`;
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

function applied(pieces, before) { // as difference.py: lines as they are, lines of before, changed ones
  const lines = before.split("\n");
  return pieces.flatMap((piece) => {
    if (typeof piece === "string") return piece;
    const [at, head, middle, tail] = piece;
    if (piece.length === 2) return lines.slice(at, at + head);
    return lines[at].slice(0, head) + middle + lines[at].slice(lines[at].length - tail);
  }).join("\n");
}

// Only what differs is changed: focus, selection, and what is unfolded, marked or half written stay.
function show(text) {
  const fresh = new DOMParser().parseFromString(`<main>${text}</main>`, "text/html").querySelector("main");
  const before = spoken();
  const ends = [...main.querySelectorAll("[data-scroll]")].filter((each) => // read at its end
    each.scrollTop + each.clientHeight > each.scrollHeight - 8);
  isBehind = false;
  copyable(fresh);
  Idiomorph.morph(main, [...fresh.childNodes], { morphStyle: "innerHTML",
    callbacks: { beforeNodeMorphed: isMorphed, beforeAttributeUpdated: isUpdated } });
  for (const each of ends) each.scrollTop = each.scrollHeight;
  if (spoken() !== before) news.textContent = spoken();
  filter();
  if (chosen) document.getElementById(chosen)?.classList.add("chosen");
  if (pointer) cross(pointer);
}

const spoken = () => [...main.querySelectorAll("[data-news]")].map((each) => each.textContent).join(", ");

function isMorphed(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) rewrite(old, fresh.data);
  if (old.nodeType !== Node.ELEMENT_NODE) return false;
  if (old.matches("[data-kept]") && document.documentElement.classList.contains("has-script")) return false;
  if (old.matches("form[method=post]") && isFilledIn(old)) { isBehind = true; return false; }
  if (old.matches("[data-scroll]") && fresh.firstElementChild) { // lines that it does not have any more
    const lines = [...old.children];
    const gone = lines.findIndex((each) => each.isEqualNode(fresh.firstElementChild));
    for (const each of lines.slice(0, Math.max(0, gone))) each.remove();
  }
  return true;
}

function isUpdated(name, { tagName, type, value, defaultValue }) { // not what a person set
  if (name === "open") return tagName !== "DETAILS";
  if (name === "checked" || name === "selected") return false;
  return name !== "value" || tagName !== "INPUT" || type === "hidden" || value === defaultValue;
}

function rewrite(node, text) { // in place: what is selected in the rest stays so
  const old = node.data;
  if (old === text) return;
  const begin = old.indexOf(text.slice(0, text.indexOf("\n") + 1)); // a log loses its first lines
  if (begin > 0 && text.startsWith(old.slice(begin))) node.deleteData(0, begin);
  const { data } = node;
  let head = 0, tail = 0;
  while (head < Math.min(data.length, text.length) && data[head] === text[head]) head += 1;
  const most = Math.min(data.length, text.length) - head;
  while (tail < most && data[data.length - 1 - tail] === text[text.length - 1 - tail]) tail += 1;
  node.replaceData(head, data.length - head - tail, text.slice(head, text.length - tail));
}

const isFilledIn = (form) => [...form.querySelectorAll("input, select")].some((each) =>
  each === document.activeElement || (each.tagName === "INPUT" ? each.value !== each.defaultValue
    : each.selectedIndex !== Math.max(0, [...each.options].findIndex((option) => option.defaultSelected))));

// --- a button beside each command ---
function copyable(root) {
  for (const code of root.querySelectorAll("code")) {
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
  const text = line.getAttribute("points"), known = read.get(line);
  if (known?.text === text) return known.found;
  const found = text.trim().split(/\s+/).map((pair) => pair.split(",").map(Number));
  read.set(line, { text, found });
  return found;
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
copyable(main);
again(EVERY_MS);
