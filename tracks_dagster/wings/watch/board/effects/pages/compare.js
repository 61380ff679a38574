// The curves of a comparison, drawn by uPlot over the server's pictures: zoom, averages, outliers, bands
// over seeds, all without a page load. What is chosen is in the address. The numbers of the panels that
// are seen come from /compare.json; in an exported page they lie in it.
"use strict";

(() => {
  const root = document.getElementById("curves"), body = document.getElementById("curves-body");
  if (!body || !window.uPlot) return;
  document.documentElement.classList.add("has-script");

  const BATCH = 6, BATCH_OF_MANY = 2, EVERY_MS = 10000, MANY = 12, TYPING_MS = 300; // MANY runs: half as many points each
  const LATE_MS_MAX = 30000; // for an answer
  const FENCE = 3, TIP_RUNS = 6, HEIGHT = 190, LARGE = 430, ZOOM = 0.25;
  const embedded = JSON.parse(document.getElementById("numbers")?.textContent || "null");
  let asked = new URLSearchParams(location.search), epoch = 0, isBusy = false, isOver = false;
  const numbers = new Map(), charts = new Map(), seen = new Set(); // of metrics; of figures; on the screen

  // --- what is chosen ---
  const by = () => asked.get("by") || "step";
  const smooth = () => +asked.get("smooth") || 0;
  const boxes = () => [...root.querySelectorAll(".keys input")];

  function part() { // of the axis: [low, high], or null for all of it
    const text = asked.get("x") || (asked.get("steps") || "").replace("-", "..");
    return text ? text.split("..").map(Number) : null;
  }

  const isOf = (range, name) => range.slice(range.indexOf(":") + 1) === name; // a name may have a ":"

  function rangeOf(name) { // of a panel's values, as somebody dragged it
    const found = asked.getAll("range").find((each) => isOf(each, name));
    return found ? found.slice(0, found.length - name.length - 1).split("..").map(Number) : null;
  }

  function change(edit) {
    edit(asked);
    try { history.replaceState(null, "", `?${asked}`); } catch { /* a file: what is chosen is not kept */ }
  }

  function only(name, value) { // instead of all values of a key
    if (value) asked.set(name, value); else asked.delete(name);
  }

  function toggle(name, value) {
    const others = asked.getAll(name).filter((each) => each !== value);
    const had = others.length < asked.getAll(name).length;
    asked.delete(name);
    for (const each of had ? others : [...others, value]) asked.append(name, each);
  }

  // --- numbers ---
  const address = () => look().getAttribute("action"); // of this page, whatever it is reached below
  const key = () => [by(), part(), boxes().length, epoch].join(" ");

  async function ask(names) {
    if (embedded) return embedded[by()] || embedded.step;
    const query = new URLSearchParams(body.querySelector("#look").dataset.numbers.split("?")[1]);
    query.set("by", by());
    if (part()) query.set("x", part().join(".."));
    query.set("buckets", boxes().length > MANY ? 240 : 480);
    for (const name of names) {
      query.append("metric", name);
      query.append("since", numbers.get(name)?.cursor || ""); // what is known of it is not sent again
    }
    const answer = await get(`${address()}.json?${query}`);
    if (!answer.ok) throw new Error(words(await answer.text()) || `The board answers ${answer.status}.`);
    return answer.json();
  }

  const get = (url) => fetch(url, { cache: "no-store", signal: AbortSignal.timeout(LATE_MS_MAX) });

  const words = (html) => [...new DOMParser().parseFromString(html, "text/html")
    .querySelectorAll("main h1, main p")].map((each) => each.textContent.trim()).join(". ");

  // What is on the screen and was not read as it is asked for now. isDue: it is asked at least once, so
  // that metrics which are new are found where nothing is on the screen.
  async function load(isDue = false) {
    if (isBusy) return;
    isBusy = true;
    let listed = shownNames();
    try {
      for (;; isDue = false) {
        const wanted = key();
        const names = [...seen].filter((name) => numbers.get(name)?.key !== wanted).slice(0, boxes().length > MANY ? BATCH_OF_MANY : BATCH);
        if (!names.length && !isDue) break;
        const { metrics, ...shared } = await ask(names);
        isOver = shared.is_over;
        listed = shared.names;
        say(Object.entries(shared.without).map(([run, why]) => `${run} is not drawn: ${why}`).join(" "));
        for (const name of names) {
          const found = joined(numbers.get(name), metrics[name] || { x: [], runs: {} });
          numbers.set(name, { ...shared, ...found, key: wanted });
          for (const figure of figures(name)) draw(figure);
        }
      }
    } catch (error) {
      isOver = false; // it is asked again
      say(`These curves cannot be read now: ${error.message}`);
    }
    isBusy = false;
    if (!embedded && listed !== shownNames()) renew();
  }

  function joined(known, fresh) { // what is known up to there, and what came behind it
    const { after } = fresh, runs = {};
    if (!after) return fresh;
    for (const [name, run] of Object.entries(fresh.runs)) {
      const old = known.runs[name] || { at: [], mean: [] }, end = old.at.filter((at) => at < after).length;
      const both = (key) => [...(old[key] || old.mean).slice(0, end), ...(run[key] || run.mean)];
      runs[name] = { ...run, at: [...old.at.slice(0, end), ...run.at], mean: both("mean"),
        first: both("first"), second: both("second"),
        odd: [...(old.odd || []).filter((at) => at < after), ...(run.odd || [])] };
    }
    return { ...fresh, x: [...known.x.slice(0, after), ...fresh.x], runs };
  }

  function say(text) {
    let line = root.querySelector(".banner");
    if (line?.textContent === text) return;
    line?.remove();
    if (!text) return;
    line = document.createElement("p");
    Object.assign(line, { className: "banner", textContent: text });
    line.setAttribute("role", "status");
    body.before(line);
  }

  // --- one run's line ---
  function points(found, run) { // its places, and of each what is drawn: averages where they are asked for
    const { at, mean, steps_per_x: scale } = found.runs[run];
    const values = mean.map(Number);
    return { at, values: smooth() ? averaged(at.map((n) => found.x[n] * scale), values) : values };
  }

  function averaged(steps, values) { // as `smoothed` in curve.py: 1/e so many steps away
    const sums = (order) => {
      const found = new Array(values.length);
      let total = 0, weight = 0, last = null;
      for (const n of order) {
        const rest = last === null ? 0 : Math.exp(-Math.abs(steps[n] - steps[last]) / smooth());
        total = total * rest + values[n];
        weight = weight * rest + 1;
        last = n;
        found[n] = [total, weight];
      }
      return found;
    };
    const order = values.map((_, n) => n), before = sums(order), after = sums(order.slice().reverse());
    return values.map((value, n) =>
      (before[n][0] + after[n][0] - value) / (before[n][1] + after[n][1] - 1));
  }

  function raw(found, run) { // two slots a place: the smallest and the largest value, as they came
    const { at, mean, first, second, odd } = found.runs[run], line = new Array(2 * found.x.length).fill();
    for (const n of odd || []) line[2 * n] = null; // a gap
    at.forEach((n, k) => {
      line[2 * n] = Number(first ? first[k] : mean[k]);
      if (second && second[k] !== first[k]) line[2 * n + 1] = Number(second[k]);
    });
    return line;
  }

  function even(found, { at, values }) { // one value a place
    const line = new Array(2 * found.x.length).fill();
    at.forEach((n, k) => { line[2 * n] = values[k]; });
    return line;
  }

  function along(found, { at, values }) { // at every place from its first to its last
    const line = new Array(found.x.length).fill();
    for (let k = 0; k < at.length; k += 1) {
      line[at[k]] = values[k];
      for (let n = at[k] + 1; k + 1 < at.length && n < at[k + 1]; n += 1) {
        const share = (found.x[n] - found.x[at[k]]) / (found.x[at[k + 1]] - found.x[at[k]] || 1);
        line[n] = values[k] + share * (values[k + 1] - values[k]);
      }
    }
    return line;
  }

  function bandOf(found, runs) { // mean and deviation where at least two runs are
    const lines = runs.map((run) => along(found, points(found, run)));
    const made = [0, 1, 2].map(() => new Array(2 * found.x.length).fill());
    found.x.forEach((_, n) => {
      const values = lines.map((line) => line[n]).filter((value) => value !== undefined);
      if (values.length < 2) return;
      const mean = values.reduce((a, b) => a + b) / values.length;
      const squares = values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
      const off = Math.sqrt(squares / (values.length - 1));
      [mean, mean - off, mean + off].forEach((value, which) => { made[which][2 * n] = value; });
    });
    return made;
  }

  // --- a panel ---
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const DASHES = { d1: [8, 3], d2: [2, 3], d3: [8, 3, 2, 3] };
  const figures = (name) => [...body.querySelectorAll("figure[data-metric]")]
    .filter((each) => each.dataset.metric === name);

  function linesOf(found) { // every series of a panel: label, values, stroke, whether it is only behind
    const lines = [], bands = [], families = new Map();
    const shown = boxes().filter((box) => box.checked && Object.hasOwn(found.runs, box.dataset.run));
    const isAlone = (band) => shown.filter((box) => box.dataset.band === band).length < 2;
    for (const box of shown) {
      const { run, look, band } = box.dataset;
      const [colour, dash] = look.split(" ");
      const style = { stroke: css(`--${colour}`), dash: DASHES[dash], width: 1.6 };
      if (asked.has("bands") && band !== undefined && !isAlone(band)) {
        if (!families.has(band)) families.set(band, { style, runs: [] });
        families.get(band).runs.push(run);
      } else if (smooth()) {
        lines.push({ label: run, values: raw(found, run), isBehind: true,
          style: { ...style, width: 1, stroke: `${style.stroke}44` } });
        lines.push({ label: run, values: even(found, points(found, run)), style });
      } else lines.push({ label: run, values: raw(found, run), style });
    }
    for (const { style, runs } of families.values()) {
      const [mean, low, high] = bandOf(found, runs), place = lines.length + 1;
      const edge = { ...style, width: 0.01, stroke: `${style.stroke}00` };
      lines.push({ label: `mean of ${runs.join(", ")}`, values: mean, style });
      lines.push({ values: low, style: edge, isBehind: true }, { values: high, style: edge, isBehind: true });
      bands.push({ series: [place + 2, place + 1], fill: `${style.stroke}33` });
    }
    return { lines, bands };
  }

  function inner(lines) { // the values between Tukey's outer fences
    const drawn = lines.filter((line) => !(line.isBehind && line.label)); // not what averages are made of
    const all = drawn.flatMap((line) => line.values.filter(Number.isFinite)).sort((a, b) => a - b);
    if (!all.length) return null;
    const low = all[Math.floor(all.length / 4)], high = all[Math.floor((3 * all.length) / 4)];
    const room = FENCE * (high - low) || Math.abs(high) * 0.1 || 1;
    const kept = all.filter((value) => value >= low - room && value <= high + room);
    return { range: [kept[0], kept[kept.length - 1]], outside: all.length - kept.length };
  }

  function draw(figure) {
    const name = figure.dataset.metric, found = numbers.get(name), unit = figure.dataset.unit;
    tools(figure, name);
    const { lines, bands } = found ? linesOf(found) : { lines: [] };
    figure.classList.toggle("drawn", Boolean(found));
    if (!lines.length) { drop(figure); return; }
    const own = rangeOf(name), clipped = asked.has("clip") ? inner(lines) : null;
    const positive = lines.every((line) => line.values.every((value) => value == null || value > 0));
    const isLog = positive && (asked.get("y") === "log") !== asked.getAll("log").includes(name);
    const output = figure.querySelector("output");
    output.dataset.value = output.textContent = clipped?.outside ? `${clipped.outside} values outside` : "";
    let holder = figure.querySelector(".chart");
    if (!holder) figure.append(holder = Object.assign(document.createElement("div"), { className: "chart" }));
    const title = figure.querySelector(".name").textContent;
    holder.setAttribute("role", "img");
    holder.setAttribute("aria-label", `${title} by ${found.x_label} of ${lines
      .filter((line) => !line.isBehind).map((line) => line.label).join(", ")}`);
    const axis = { stroke: css("--soft"), font: "11px system-ui, sans-serif", ticks: { show: false },
      grid: { stroke: css("--rule"), width: 1 } };
    const width = holder.clientWidth || 420, height = figure.classList.contains("large") ? LARGE : HEIGHT;
    const series = lines.map(({ label, style, values, isBehind }) => ({ label, ...style,
      points: isBehind ? { show: false } : values.filter(Number.isFinite).length === 1 ? { show: true } : {} }));
    const data = [found.x.flatMap((x) => [x, x]), ...lines.map((line) => line.values)];
    const shape = JSON.stringify([width, height, isLog, unit, axis, series, bands]);
    const now = { found, lines, own, inner: clipped?.range, within: part() || found.within };
    const before = charts.get(figure);
    if (before?.shape === shape) { // other numbers alone: who points at the chart, or drags in it, goes on
      Object.assign(before.now, now);
      before.setData(data);
      return;
    }
    drop(figure);
    const chart = new uPlot({
      width, height,
      legend: { show: false },
      focus: { alpha: 0.25 },
      cursor: {
        y: false, focus: { prox: 24, // what lies faint behind is never the nearest
          dist: (_, n, __, at, pointer) => (now.lines[n - 1]?.isBehind ? Infinity : at - pointer) }, drag: { x: true, y: true, uni: 24, setScale: false },
        sync: { key: "curves", scales: ["x", null],
          filters: { pub: (type) => type === "mousemove" || type === "mouseleave", sub: () => true } },
      },
      scales: {
        x: { time: false, range: () => wide(now.within) },
        y: { distr: isLog ? 3 : 1, range: (_, low, high) => now.own || room(now.inner || [low, high], isLog) },
      },
      axes: [{ ...axis, size: 28, values: (_, all) => all.map((value) => short(value, "")) },
        { ...axis, size: 62, values: (_, all) => all.map((value) => short(value, unit)) }],
      series: [{}, ...series],
      bands,
      hooks: { setSelect: [(u) => zoomed(u, name)], setCursor: [(u) => tip(u, now.lines, unit)],
        draw: [(u) => gaps(u, now.found)] },
    }, data, holder);
    charts.set(figure, Object.assign(chart, { shape, now }));
  }

  function drop(figure) {
    charts.get(figure)?.destroy();
    charts.delete(figure);
  }

  const wide = ([low, high]) => [low, high > low ? high : low + 1];

  function room([low, high], isLog) { // a little above and below
    if (low == null || !Number.isFinite(low) || !Number.isFinite(high)) return [0, 1];
    if (isLog) return high > low ? [low / (high / low) ** 0.04, high * (high / low) ** 0.04] : [low / 2, low * 2];
    const off = (high / 2 - low / 2) * 0.08 || Math.abs(low) * 0.08 || 1;
    return [low - off, high + off];
  }

  function gaps(u, found) { // a cross at the top for each value that is not a finite number
    const { ctx } = u, size = 4 * devicePixelRatio;
    ctx.save();
    ctx.strokeStyle = css("--bad");
    ctx.lineWidth = 1.8 * devicePixelRatio;
    for (const box of boxes()) {
      for (const n of (box.checked && found.runs[box.dataset.run]?.odd) || []) {
        const x = u.valToPos(found.x[n], "x", true), y = u.bbox.top + size;
        if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) continue;
        ctx.beginPath();
        for (const way of [1, -1]) { ctx.moveTo(x - size, y - way * size); ctx.lineTo(x + size, y + way * size); }
        ctx.stroke();
      }
    }
    ctx.restore();
  }

  function tip(u, lines, unit) {
    let box = u.over.querySelector(".tip");
    if (!u.over.matches(":hover") || u.cursor.idx == null) { box?.remove(); return; }
    if (!box) u.over.append(box = Object.assign(document.createElement("div"), { className: "tip" }));
    const near = lines.map((line, n) => ({ label: line.label, isBehind: line.isBehind, stroke: line.style.stroke,
      value: line.values[u.cursor.idxs[n + 1] ?? u.cursor.idx] }))
      .filter((each) => !each.isBehind && Number.isFinite(each.value))
      .sort((a, b) => off(a) - off(b)).slice(0, TIP_RUNS).sort((a, b) => b.value - a.value);
    function off(each) { return Math.abs(u.valToPos(each.value, "y") - u.cursor.top); }
    box.replaceChildren(short(u.data[0][u.cursor.idx], "", 9), ...near.map((each) => {
      const line = document.createElement("div"), mark = document.createElement("span");
      mark.style.background = each.stroke;
      line.append(mark, `${each.label} `, Object.assign(document.createElement("b"),
        { textContent: short(each.value, unit) }));
      return line;
    }));
    const isRight = u.cursor.left > u.over.clientWidth / 2;
    box.style.left = isRight ? "" : `${u.cursor.left + 12}px`;
    box.style.right = isRight ? `${u.over.clientWidth - u.cursor.left + 12}px` : "";
  }

  const SIZES = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];
  const POWERS = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

  function short(value, unit, digits = 5) { // as people read it
    const size = Math.abs(value);
    const [scale, word] = (unit === "bytes" ? SIZES : POWERS)
      .find(([least]) => size >= (unit === "bytes" || digits < 6 ? 1 : 1e6) * (unit === "bytes" ? least : 10 * least))
      || [1, ""];
    if (size && (size < 1e-4 || size >= 1e15)) return value.toExponential(3);
    return `${+(value / scale).toPrecision(digits)}${unit === "bytes" && word ? ` ${word}` : word}`;
  }

  function tools(figure, name) { // what the server has no link for
    const line = figure.querySelector(".tools");
    if (!line || line.querySelector("button")) { mark(line, name); return; }
    const log = Object.assign(document.createElement("button"), { type: "button", textContent: "log" });
    log.addEventListener("click", () => { change(() => toggle("log", name)); draw(figure); });
    const back = Object.assign(document.createElement("button"), { type: "button", textContent: "whole height" });
    back.className = "back";
    back.addEventListener("click", () => { change(() => forget(name)); draw(figure); });
    line.append(log, back);
    mark(line, name);
  }

  function mark(line, name) {
    if (!line) return;
    const isLog = (asked.get("y") === "log") !== asked.getAll("log").includes(name);
    line.querySelector("button").setAttribute("aria-pressed", isLog);
    line.querySelector(".back").hidden = !rangeOf(name);
  }

  function forget(name) {
    const others = asked.getAll("range").filter((each) => !isOf(each, name));
    asked.delete("range");
    for (const each of others) asked.append("range", each);
  }

  // --- zoom ---
  const round = (value) => (by() === "step" ? Math.round(value) : +value.toPrecision(8));

  function zoomed(u, name) { // a part of the axis of all panels, of the values of this one
    const { left, top, width, height } = u.select;
    if (width < 6 && height < 6) return;
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    const isWide = width < u.over.clientWidth - 1, isHigh = height < u.over.clientHeight - 1;
    if (isHigh) {
      change(() => {
        forget(name);
        const ends = [u.posToVal(top + height, "y"), u.posToVal(top, "y")].map((y) => +y.toPrecision(6));
        asked.append("range", `${ends.join("..")}:${name}`);
      });
      figures(name).forEach(draw);
    }
    if (isWide) show([u.posToVal(left, "x"), u.posToVal(left + width, "x")]);
  }

  function show(ends) { // a part of the axis; null: all of it
    change(() => {
      asked.delete("steps");
      const [low, high] = (ends || []).map((end) => Math.max(0, round(end)));
      only("x", ends && high > low ? `${low}..${high}` : "");
    });
    way();
    redraw();
    load();
  }

  function way() { // back to the whole axis
    let back = body.querySelector("#whole");
    if (!back && part()) {
      back = Object.assign(document.createElement("button"), { id: "whole", type: "button" });
      back.textContent = "show the whole axis";
      back.addEventListener("click", () => show(null));
      body.querySelector("#look").append(back);
    }
    if (back) back.hidden = !part();
    for (const each of body.querySelectorAll("#look > a[data-soft]")) each.hidden = true;
  }

  body.addEventListener("dblclick", (event) => {
    const figure = event.target.closest("figure[data-metric]");
    if (!figure) return;
    change(() => forget(figure.dataset.metric));
    draw(figure);
    show(null);
  });

  body.addEventListener("keydown", (event) => { // the same by keys, in the panel that has the focus
    const figure = event.target.closest("figure[data-metric]");
    const found = figure && event.target === figure && numbers.get(figure.dataset.metric);
    if (!found || event.ctrlKey || event.metaKey || event.altKey) return;
    const [low, high] = part() || found.within, off = ZOOM * (high - low);
    const ends = { "+": [low + off, high - off], "-": [low - 2 * off, high + 2 * off],
      ArrowLeft: [low - off, high - off], ArrowRight: [low + off, high + off] }[event.key];
    if (!ends && event.key !== "0") return;
    event.preventDefault();
    event.stopPropagation();
    show(ends || null);
  });

  // --- the form, the boxes, the links ---
  const redraw = () => { for (const name of seen) figures(name).forEach(draw); };
  const look = () => body.querySelector("#look");
  const shownNames = () => look().dataset.names;
  const slid = (value) => (+value ? Math.round(10 ** (value / 10)) : 0);

  function set(form) { // what the form says, in the address
    const before = asked.get("find") || "";
    change(() => {
      for (const name of ["by", "y", "smooth", "find"]) {
        const { value } = form.elements[name];
        only(name, { by: "step", y: "linear", smooth: "0" }[name] === value ? "" : value.trim());
      }
      for (const name of ["clip", "bands"]) only(name, form.elements[name]?.checked ? "1" : "");
      if (before !== (asked.get("find") || "")) asked.delete("page");
    });
    return before !== (asked.get("find") || "");
  }

  let timer = 0, frame = 0;
  body.addEventListener("input", (event) => {
    const { target } = event, form = look();
    if (!form.contains(target)) return;
    const hadAxis = by();
    if (target.id === "slider") form.elements.smooth.value = slid(target.value);
    else if (target.name === "smooth") form.querySelector("#slider").value = 10 * Math.log10(+target.value || 1);
    const isFound = set(form);
    if (hadAxis !== by()) { change(() => { asked.delete("x"); asked.delete("steps"); }); way(); }
    clearTimeout(timer);
    if (isFound) timer = setTimeout(embedded ? sift : renew, TYPING_MS);
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(() => { redraw(); load(); });
  });
  body.addEventListener("submit", (event) => event.preventDefault());

  root.addEventListener("change", (event) => { // a run is shown, or not
    if (!event.target.dataset.run) return;
    change(() => {
      asked.delete("off");
      for (const box of boxes()) if (!box.checked) asked.append("off", box.dataset.run);
    });
    redraw();
  });

  body.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-soft]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || embedded) return;
    event.preventDefault();
    const kept = ["by", "y", "smooth", "clip", "bands", "x", "steps", "find"].map((name) => [name, asked.get(name)]);
    const others = ["log", "range", "off"].map((name) => [name, asked.getAll(name)]);
    change(() => {
      asked = new URLSearchParams(link.getAttribute("href"));
      for (const [name, value] of kept) only(name, value);
      for (const [name, values] of others) { asked.delete(name); for (const each of values) asked.append(name, each); }
    });
    renew();
  });

  let turn = 0; // of renewals: an answer counts for the newest alone
  async function renew() { // the panels that are asked for now; those that were there stay as they are
    const mine = turn += 1;
    const answer = await get(`${address()}/curves?${asked}`).catch(() => null);
    const html = await answer?.text().catch(() => null);
    if (mine !== turn) return;
    if (html == null || !answer.ok) { say(html == null ? "The board does not answer." : words(html)); return; }
    say("");
    const box = document.createElement("div"), form = look(), { activeElement } = document;
    box.innerHTML = html;
    const known = new Map([...body.querySelectorAll("figure[data-metric]")].map((each) => [each.dataset.metric, each]));
    for (const fresh of box.querySelectorAll("figure[data-metric]")) {
      const old = known.get(fresh.dataset.metric);
      if (!old) continue;
      for (const each of ["figcaption", ".tools"]) old.querySelector(each).replaceWith(fresh.querySelector(each));
      fresh.replaceWith(old);
      known.delete(fresh.dataset.metric);
    }
    known.forEach(drop);
    const freshForm = box.querySelector("#look");
    form.dataset.names = freshForm.dataset.names;
    freshForm.remove();
    for (const each of [...body.childNodes]) if (each !== form) each.remove(); // who types in it goes on
    form.after(...box.childNodes);
    if (body.contains(activeElement)) activeElement.focus({ preventScroll: true });
    begin();
  }

  function sift() { // of an exported page: by its names
    let pattern = null;
    try { pattern = new RegExp(asked.get("find") || "", "i"); } catch { return; }
    for (const each of body.querySelectorAll("figure[data-metric]")) each.hidden = !pattern.test(each.dataset.metric);
  }

  // --- begin, and go on ---
  const observer = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) seen.add(target.dataset.metric); else seen.delete(target.dataset.metric);
      if (isIntersecting && numbers.has(target.dataset.metric)) draw(target);
    }
    load();
  }, { rootMargin: "200px" });

  function begin() {
    observer.disconnect();
    seen.clear();
    for (const figure of body.querySelectorAll("figure[data-metric]")) {
      tools(figure, figure.dataset.metric);
      observer.observe(figure);
    }
    const form = look();
    form.querySelector("#slider").value = smooth() ? 10 * Math.log10(smooth()) : 0;
    way();
  }

  let width = 0;
  new ResizeObserver(() => {
    if (body.clientWidth !== width) { width = body.clientWidth; redraw(); }
  }).observe(body);
  for (const media of ["(prefers-color-scheme: dark)", "print"]) matchMedia(media).addEventListener("change", redraw);
  setInterval(() => {
    if (isOver || embedded || document.hidden) return;
    epoch += 1;
    load(true);
  }, EVERY_MS);
  if (embedded) {
    for (const each of look().elements.by.options) each.hidden = each.disabled = !embedded[each.value];
    sift();
  }
  begin();
})();
