"use strict";
// Text nodes out of JSON blocks, numbers as text, sortable tables.

const parse = (id) => JSON.parse(document.getElementById(id).textContent);
const at = (id) => document.getElementById(id);
const FIRST_ROWS = matchMedia("(max-width: 44rem)").matches ? 15 : 100;

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") element.textContent = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// -- numbers as text -----------------------------------------------------------------------

const digits = (value) => Number(value.toPrecision(3)).toString();
const count = (value) => value.toLocaleString("en");
const percent = (value) => (value === null || value === undefined ? "–" : `${Math.round(value * 1000) / 10} %`);
const number = (value) => (typeof value === "number" ? value : null);
const ratio = (value) => (value === null || value === undefined ? "–" : typeof value === "string" ? value : value >= 0.1 ? `${value.toFixed(2)}×` : `${value.toPrecision(2)}×`);
const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;
function latency(us) {
  if (us === null || us === undefined) return "–";
  return us >= 1e6 ? `${digits(us / 1e6)}\u00a0s` : us >= 1e3 ? `${digits(us / 1e3)}\u00a0ms` : `${digits(us)}\u00a0µs`;
}

// -- tables ----------------------------------------------------------------------------------

// A column: {label, value(row) to sort by, show(row) -> text or node, kind: "text" | "name" | "", bar(row), descends}
// A group: {key(row), head(row) -> node}; rows are sorted within their group.
function table(columns, rows, sorted = null, group = null) {
  const body = make("tbody");
  const heads = columns.map((column, index) => make("th", { scope: "col", class: column.kind ? "text" : "" },
    make("button", { type: "button", text: column.label, onclick: () => sort(index) })));
  const more = make("button", { type: "button", class: "more", onclick: () => { shown = Infinity; fill(); } });
  const box = make("div", {}, make("div", { class: "scroll", tabindex: "0" },
    make("table", { class: "cards" }, make("thead", {}, make("tr", {}, ...heads)), body)), more);
  const places = new Map(rows.map((row, index) => [group && group.key(row), index]).reverse());
  let order = rows, shown = FIRST_ROWS, by = null, sign = 1;

  function compare(a, b) {
    if (a === b) return 0;
    if (a === null || a === undefined) return 1; // unknown values come last in both orders
    if (b === null || b === undefined) return -1;
    return sign * (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
  }
  function sort(index) {
    const column = columns[index];
    sign = by === index ? -sign : column.descends ? -1 : 1;
    by = index;
    const place = (row) => (group ? places.get(group.key(row)) : 0);
    order = [...rows].sort((a, b) => place(a) - place(b) || compare(column.value(a), column.value(b)));
    heads.forEach((head, i) => head.removeAttribute("aria-sort"));
    heads[index].setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    fill();
  }
  function cell(column, row) {
    const content = column.show(row);
    const bar = column.bar ? column.bar(row) : null;
    const kind = [column.kind === "name" ? "text name" : column.kind, bar ? "meter" : ""].join(" ").trim();
    return make("td", { class: kind || null, "data-label": column.label }, content, bar);
  }
  const headOf = (row, above) => (!group || (above && group.key(above) === group.key(row)) ? [] :
    [make("tr", { class: "group" }, make("th", { colspan: columns.length, scope: "rowgroup", class: "text" }, group.head(row)))]);
  function fill() {
    body.replaceChildren(...order.slice(0, shown).flatMap((row, index) =>
      [...headOf(row, order[index - 1]), make("tr", {}, ...columns.map((column) => cell(column, row)))]));
    more.hidden = order.length <= shown;
    more.textContent = `Show all ${count(order.length)} rows`;
  }
  if (sorted !== null) sort(sorted); else fill();
  return box;
}

// -- theme -------------------------------------------------------------------------------------

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const drawn = new Set(); // functions that redraw the charts after a change of theme
const redraw = () => drawn.forEach((draw) => draw());
at("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches;
  root.dataset.theme = isDark ? "light" : "dark";
  redraw();
});
prefersDark.addEventListener("change", redraw);

// A specification with the colours of the page. Its box has a name for screen readers, and the tables have the numbers.
function styled(spec) {
  const style = getComputedStyle(document.documentElement);
  const soft = style.getPropertyValue("--soft").trim(), line = style.getPropertyValue("--line").trim();
  return Object.assign(structuredClone(spec), { width: "container", background: "transparent", autosize: { type: "fit-x", contains: "padding" },
    config: { aria: false, mark: { aria: false }, font: "system-ui, sans-serif", view: { stroke: null }, axis: { labelColor: soft, titleColor: soft, gridColor: line, domainColor: line, tickColor: line, labelFontSize: 11, titleFontSize: 11, titleFontWeight: 400, labelOverlap: "greedy", labelSeparation: 8 }, legend: { labelColor: soft } } });
}

// Everything shown comes out of JSON blocks and goes in as text, never as markup.
(() => {
  const digest = parse("digest");
  const MOST_POINTS = 20000, SVG_POINTS = 3000;

  // -- the data of the blocks --------------------------------------------------------------------

  const sections = digest.sections.map(([definition, opType, description, hardware, workloads], index) =>
    ({ index, definition, opType, description, hardware, workloads, rows: [], anchor: "" }));
  for (const section of sections) { // stable in pages of later runs
    const isOnly = sections.filter((other) => other.definition === section.definition).length === 1;
    section.anchor = encodeURIComponent(isOnly ? section.definition : `${section.definition}@${section.hardware}`);
  }
  for (const row of digest.leaders) {
    row.section = sections[row.section];
    row.rank = row.section.rows.push(row);
  }
  const hardwares = [...new Set(sections.map((section) => section.hardware))];
  const allRows = sections.flatMap((section) => section.rows);
  const has = (field) => allRows.some((row) => row[field] !== null && row[field] !== undefined);
  const speedups = allRows.map((row) => number(row.speedup)).filter((value) => value !== null && value > 0);
  const scale = [Math.min(0.5, ...speedups), Math.max(2, ...speedups)].map(Math.log);
  const share = (value) => `${(100 * (Math.log(value) - scale[0])) / (scale[1] - scale[0])}%`;
  function bar(value) { // from 1 to the speedup, on a logarithmic scale
    if (value === null || value <= 0) return null;
    const [from, to] = value < 1 ? [share(value), share(1)] : [share(1), share(value)];
    const box = make("span", { class: value < 1 ? "gauge slower" : "gauge", "aria-hidden": "true" }, make("i"));
    for (const [name, place] of [["--from", from], ["--to", to], ["--one", share(1)]]) box.style.setProperty(name, place);
    return box;
  }

  function entryColumns(rows) {
    const name = (row) => make("span", {}, make("span", { text: row.solution }),
      make("span", { class: "by", text: [row.author, row.language].filter((word) => word !== "?").join(" · ") }),
      row.labels.length ? make("span", { class: "why flagged", text: row.labels.join(", ") }) : null,
      row.problem ? make("span", { class: row.passed === row.total ? "why flagged" : "why", text: row.problem }) : null);
    const columns = [];
    columns.push({ label: "solution", kind: "name", value: (row) => row.solution, show: name });
    columns.push({ label: "passed", value: (row) => row.passed / row.total, descends: true,
      show: (row) => make("span", { class: row.passed < row.total ? "bad-text" : null, text: `${count(row.passed)}/${count(row.total)}` }) });
    columns.push({ label: "speedup", value: (row) => number(row.speedup), descends: true, show: (row) => (row.said === "-" ? "–" : row.said.replace("x", "×")), bar: (row) => bar(number(row.speedup)) });
    if (has("baseline")) {
      const label = digest.baselines.length === 1 ? `vs ${digest.baselines[0]}` : "vs baseline";
      columns.push({ label, value: (row) => number(row.baseline), descends: true, show: (row) => ratio(row.baseline) });
    }
    columns.push({ label: "fast_1", value: (row) => row.fast, descends: true, show: (row) => percent(row.fast) });
    if (has("fraction")) columns.push({ label: "speed of light", value: (row) => row.fraction, descends: true, show: (row) => percent(row.fraction) });
    const range = (low, high) => (low === null ? "–" : low === high ? latency(low * 1e3) : `${latency(low * 1e3)} – ${latency(high * 1e3)}`);
    columns.push({ label: "latency", value: (row) => row.low, show: (row) => range(row.low, row.high) });
    if (has("call")) columns.push({ label: "call", value: (row) => row.call, show: (row) => range(row.call, row.longest_call) });
    if (allRows.some((row) => row.by)) columns.push({ label: "timed by", kind: "text", value: (row) => row.by, show: (row) => (row.low === null ? "–" : row.by || "handshake") });
    return columns;
  }

  const byDefinition = { key: (row) => row.section.index, head: ({ section }) => make("span", {},
    make("a", { href: `#${section.anchor}`, text: section.definition, onclick: () => open(section.index) }),
    make("span", { class: "soft", text: ` ${[section.opType, hardwares.length > 1 ? section.hardware : ""].filter(Boolean).join(" · ")}` })) };

  // -- head, filters, leaderboard --------------------------------------------------------------

  function head() {
    at("made").textContent = `Benchmark report, made ${digest.made.replace("T", " ").replace("+00:00", " UTC")}`;
    at("note").textContent = digest.note;
    at("note").hidden = !digest.note;
    const parts = new Set(digest.environments.map(({ hardware, libs }) => [hardware,
      ...["fib_bench", "torch", "triton", "cuda"].filter((name) => libs[name]).map((name) => `${name} ${libs[name]}`)].join(" · ")));
    at("devices").append(...[...parts].slice(0, 4).map((text) => make("p", { class: "soft", text })));
    at("devices").append(make("p", { class: "soft", text: `harness: fib-bench ${digest.harness}` }));
    const total = Object.values(digest.statuses).reduce((sum, number) => sum + number, 0);
    const tiles = [...Object.entries(digest.counts).map(([word, number]) => [word, count(number)]),
      ["passed", total ? percent((digest.statuses.PASSED ?? 0) / total) : "–"]];
    at("tiles").append(...tiles.map(([word, text]) => make("div", {}, make("dt", { text: word }), make("dd", { text }))));
    at("statuses").append(...Object.entries(digest.statuses).map(([status, number]) =>
      make("span", {}, make("b", { class: status === "PASSED" ? "good-text" : "bad-text", text: count(number) }), ` ${status}`)));
    if (!total) at("statuses").append(make("span", { text: "No traces yet: make some with fib-bench run." }));
  }

  const wanted = { text: "", hardware: "", opType: "", author: "", state: "" };
  function choice(label, key, options) {
    const values = options.filter((option) => option[0] !== "");
    if (values.length < 2) return null;
    const select = make("select", { id: `filter-${key}`, "aria-label": label, onchange: (event) => { wanted[key] = event.target.value; refresh(); } });
    select.append(make("option", { value: "", text: label }), ...values.map(([value, text]) => make("option", { value, text })));
    return select;
  }
  const named = (names) => [...new Set(names)].sort().map((name) => [name, name]);
  function filters() {
    const search = make("input", { type: "search", id: "filter-text", placeholder: "Filter by definition, solution or author", "aria-label": "Filter by definition, solution or author",
      oninput: (event) => { wanted.text = event.target.value.toLowerCase(); refresh(); } });
    const isLarge = allRows.length > 60 && sections.length > 1 && allRows.some((row) => row.ranked);
    if (isLarge) wanted.state = "best";
    const states = choice("All solutions", "state", [["best", "Best of each definition"], ["passing", "Passes everything"], ["failing", "Fails somewhere"]]);
    states.value = wanted.state;
    at("filters").append(...[search, states,
      choice("All devices", "hardware", named(hardwares)),
      choice("All op types", "opType", named(sections.map((section) => section.opType))),
      choice("All authors", "author", named(allRows.map((row) => row.author)))].filter(Boolean));
  }
  const isIn = (section) => (!wanted.hardware || section.hardware === wanted.hardware) && (!wanted.opType || section.opType === wanted.opType);
  function matches(row) {
    const { section } = row;
    if (!isIn(section) || (wanted.author && row.author !== wanted.author)) return false;
    if (wanted.state === "best" && (row.rank !== 1 || row.labels.length)) return false;
    if (wanted.state === "passing" && row.passed < row.total) return false;
    if (wanted.state === "failing" && row.passed === row.total) return false;
    return !wanted.text || [section.definition, row.solution, row.author].some((text) => text.toLowerCase().includes(wanted.text));
  }
  function refresh() {
    const rows = allRows.filter(matches);
    at("leaderboard").replaceChildren(rows.length ? table(entryColumns(rows), rows, null, byDefinition) :
      make("p", { class: "note", text: allRows.length ? "Nothing matches the filters." : "There are no traces to rank." }));
    const left = new Set(wanted.text || wanted.author ? allRows.filter((row) => isIn(row.section) && (!wanted.author || row.author === wanted.author) &&
      (!wanted.text || [row.section.definition, row.solution, row.author].some((text) => text.toLowerCase().includes(wanted.text)))).map((row) => row.section.index) :
      sections.filter(isIn).map((section) => section.index));
    for (const section of sections) at(`definition-${section.index}`).hidden = !left.has(section.index);
  }

  function environments() {
    const box = make("div", { class: "environments" });
    for (const entry of digest.environments) {
      const facts = Object.entries(entry.libs);
      box.append(make("div", { class: "environment" }, make("b", { text: entry.hardware }), make("span", { class: "soft", text: ` ${plural(entry.traces, "trace")}` }),
        make("dl", {}, ...facts.filter((fact) => fact[1]).flatMap(([name, text]) => [make("dt", { text: name }), make("dd", { class: "mono", text })]))));
    }
    at("environments").append(digest.environments.length ? box : make("p", { class: "note", text: "No trace says where it was made." }));
  }

  // -- one definition --------------------------------------------------------------------------

  function open(index) {
    const details = at(`definition-${index}`);
    details.hidden = false;
    details.open = true;
  }

  function shells() {
    for (const section of sections) {
      const best = section.rows.find((row) => row.ranked && row.speedup !== null);
      const isUnranked = section.rows.some((row) => row.passed === row.total && !row.ranked);
      const said = best ? `${best.solution} ${ratio(best.speedup)}` : isUnranked ? "unranked" : section.rows.some((row) => row.passed === row.total) ? "no speedup known" : "nothing passes everything";
      const details = make("details", { class: "definition", id: `definition-${section.index}` }, make("summary", {},
        make("b", { text: section.definition }), make("span", { class: "soft", text: [section.opType, section.hardware].filter(Boolean).join(" · ") }),
        make("span", { class: "soft", text: `${plural(section.workloads, "workload")}, ${plural(section.rows.length, "solution")} · ${said}` })));
      details.addEventListener("toggle", () => { if (details.open && details.childElementCount === 1) details.append(inside(section)); });
      at("sections").append(details);
    }
    const jump = () => {
      const section = sections.find((each) => `#${each.anchor}` === location.hash);
      if (!section) return;
      open(section.index);
      at(`definition-${section.index}`).scrollIntoView();
    };
    addEventListener("hashchange", jump);
    addEventListener("beforeprint", () => sections.filter((section) => !at(`definition-${section.index}`).hidden).forEach((section) => open(section.index)));
    jump();
  }

  function inside(section) {
    const data = parse(`section-${section.index}`);
    const traces = tracesOf(data);
    const box = make("div", { class: "inside" });
    box.append(make("p", { class: "permalink" }, make("a", { href: `#${section.anchor}`, text: `Link to ${section.definition}` })));
    if (section.description) box.append(make("p", { class: "soft", text: section.description }));
    box.append(table(entryColumns(section.rows), section.rows));
    const charts = chartsOf(section, data, traces);
    box.append(charts.chips, charts.box);
    box.append(...failures(data, traces), ...tracesTable(data, traces));
    requestAnimationFrame(charts.draw);
    return box;
  }

  function tracesOf(data) {
    const of = (name) => data[name] ?? null;
    const [us, speedup, low, high, call, fraction, log, flagged, by, cause] = ["us", "speedup", "low", "high", "call", "fraction", "log", "flagged", "by", "cause"].map(of);
    const axes = Object.entries(data.axes);
    const words = data.workloads.map((_, w) => axes.filter(([, sizes]) => sizes[w] !== null).map(([axis, sizes]) => `${axis}=${sizes[w]}`).join(", "));
    const repeated = new Set(words.filter((text, w) => words.indexOf(text) !== w));
    const named = words.map((text, w) => (text && repeated.has(text) ? `${text} (${data.workloads[w].slice(0, 8)})` : text));
    return data.workload.map((w, i) => ({
      w, s: data.solution[i], workload: data.workloads[w], solution: data.solutions[data.solution[i]], axes: named[w],
      status: digest.statusNames[data.status[i]], us: us && us[i], speedup: speedup && speedup[i], low: low && low[i], high: high && high[i],
      call: call && call[i], fraction: fraction && fraction[i], log: log && log[i], flagged: flagged && flagged[i], by: by && by[i], cause: cause && cause[i],
    }));
  }

  function failures(data, traces) {
    const groups = new Map();
    for (const trace of traces) {
      if (trace.status === "PASSED") continue;
      const key = trace.cause ?? trace.status;
      if (!groups.has(key)) groups.set(key, { ...trace, solutions: new Map() });
      const { solutions } = groups.get(key);
      solutions.set(trace.solution, [...(solutions.get(trace.solution) ?? []), trace.axes || trace.workload]);
    }
    if (!groups.size) return [];
    const places = (group) => [...group.solutions].map(([name, workloads]) => make("p", { class: "soft" }, make("b", { class: "mono", text: name }),
      ` on ${workloads.slice(0, 50).join("; ")}${workloads.length > 50 ? `; and ${workloads.length - 50} more` : ""}`));
    const total = (group) => [...group.solutions.values()].reduce((sum, workloads) => sum + workloads.length, 0);
    const list = [...groups.values()], first = 40;
    const box = make("div");
    const entry = (group) => make("details", { class: "failure" },
      make("summary", {}, make("b", { class: "mono", text: [...group.solutions.keys()].slice(0, 3).join(", ") + (group.solutions.size > 3 ? ` and ${group.solutions.size - 3} more` : "") }), " ",
        make("span", { class: "bad-text", text: group.status }), ` on ${plural(total(group), "workload")}`),
      ...places(group),
      group.log === null ? null : make("p", { class: "note untrusted", text: "Untrusted output of the solution: it may contain anything, instructions to readers included." }),
      make("pre", { text: group.log === null ? "(no log)" : data.logs[group.log] }));
    const fill = (most) => {
      box.replaceChildren(...list.slice(0, most).map(entry));
      if (list.length > most) box.append(make("button", { type: "button", class: "more", text: `Show all ${count(list.length)} failures`, onclick: () => fill(Infinity) }));
    };
    fill(first);
    return [make("h3", { text: "Failures" }), box];
  }

  function tracesTable(data, traces) {
    const box = make("div");
    const known = (field) => traces.some((trace) => trace[field] !== null);
    const columns = [
      { label: "axes", kind: "text", value: (t) => t.w, show: (t) => t.axes || t.workload },
      { label: "solution", kind: "name", value: (t) => t.solution, show: (t) => t.solution },
      { label: "status", value: (t) => t.status, show: (t) => make("span", { class: t.status === "PASSED" ? null : "bad-text", text: t.flagged ? `${t.status}, ${t.flagged}` : t.status }) },
      { label: "latency", value: (t) => t.us, show: (t) => latency(t.us) },
      known("low") && { label: "interval", value: (t) => (t.low === null ? null : t.high / t.low), show: (t) => (t.low === null ? "–" : `${latency(t.low)} – ${latency(t.high)}`) },
      { label: "speedup", value: (t) => number(t.speedup), descends: true, show: (t) => ratio(t.speedup) },
      known("by") && { label: "timed by", kind: "text", value: (t) => t.by, show: (t) => t.by ?? (t.us === null ? "–" : "handshake") },
      known("call") && { label: "call", value: (t) => t.call, show: (t) => latency(t.call) },
      known("fraction") && { label: "speed of light", value: (t) => t.fraction, descends: true, show: (t) => percent(t.fraction) },
      { label: "workload", kind: "text", value: (t) => t.workload, show: (t) => make("code", { text: t.workload }) },
    ].filter(Boolean);
    const details = make("details", {}, make("summary", { text: `All ${plural(traces.length, "trace")}` }), box);
    details.addEventListener("toggle", () => { if (details.open && !box.childElementCount) box.append(table(columns, traces, 0)); });
    return [make("h3", { text: "Traces" }), details];
  }

  // -- charts ----------------------------------------------------------------------------------

  function chartsOf(section, data, traces) {
    const most = digest.palette.length;
    const timed = data.solutions.map((_, s) => s).filter((s) => traces.some((trace) => trace.s === s && trace.us !== null));
    let lit = timed.slice(0, most);
    const chips = make("div", { class: "chips", role: "group", "aria-label": "Solutions with a colour" });
    const box = make("div", { class: "charts" });
    const passing = traces.filter((trace) => trace.us !== null);
    const stride = Math.ceil(passing.length / MOST_POINTS);
    const points = stride > 1 ? passing.filter((trace) => trace.w % stride === 0) : passing;
    const key = (s) => (lit.includes(s) ? data.solutions[s] : digest.others);
    const views = new Map();
    const beside = [...(data.reference ? [["reference", "dashed", data.reference]] : []),
      ...Object.entries(data.baselines ?? {}).map(([name, us]) => [name, "dotted", us])];
    const references = (sizes) => beside.flatMap(([solution, , column]) =>
      column.map((us, w) => ({ x: sizes[w], us, solution })).filter((row) => row.us !== null && row.x !== null));

    const row = (t) => ({ us: t.us, low: t.low, high: t.high, solution: t.solution, k: key(t.s), latency: latency(t.us),
      interval: t.low === null ? "not known" : `${latency(t.low)} – ${latency(t.high)}`, speedup: ratio(t.speedup), axes: t.axes, workload: t.workload });
    const jobs = [];
    for (const [axis, sizes] of Object.entries(data.axes)) {
      const mine = points.filter((t) => sizes[t.w] !== null);
      if (!mine.length) continue;
      const scale = mine.every((t) => sizes[t.w] > 0) ? "log" : "symlog";
      jobs.push(["latency", `Latency against ${axis}`, "lines join medians", () => ({ points: mine.map((t) => ({ ...row(t), x: sizes[t.w] })), references: references(sizes) }), { x: axis, scale }]);
    }
    for (const [, title, note] of jobs) box.append(make("figure", {}, make("figcaption", {}, title, make("span", { class: "soft", text: `  ${note}` })), make("div", { class: "chart", role: "img", "aria-label": `Chart: ${title}` })));
    if (stride > 1) box.append(make("p", { class: "note", text: `Charts show one of ${stride} workloads.` }));
    if (!passing.length) box.append(make("p", { class: "note", text: "Nothing passes here, so there is nothing to draw." }));

    function patched([kind, , , , said], datasets) {
      const spec = styled(digest.specs[kind]);
      spec.datasets = { references: [], ...datasets };
      const scale = { domain: [...lit.map((s) => data.solutions[s]), digest.others], range: [...lit.map((_, i) => digest.palette[i]), digest.grey] };
      for (const encoding of [spec.encoding, ...spec.layer.map((layer) => layer.encoding)].filter(Boolean)) {
        if (encoding.color) encoding.color.scale = scale;
        if (encoding.x && said.x !== undefined) encoding.x.title = said.x;
        if (encoding.y && said.y !== undefined) encoding.y.title = said.y;
        if (encoding.x && said.scale === "symlog") encoding.x.scale = { type: "symlog" };
      }
      const hasIntervals = datasets.points.some((point) => point.low);
      spec.layer = spec.layer.filter((layer) => (layer.name !== "intervals" || hasIntervals) &&
        (!layer.data?.name || spec.datasets[layer.data.name].length)); // Vega warns of layers without points
      return spec;
    }
    async function draw() {
      if (!box.isConnected) return;
      const places = box.querySelectorAll(".chart");
      for (const [index, job] of jobs.entries()) {
        const datasets = job[3]();
        const renderer = datasets.points.length > SVG_POINTS ? "canvas" : "svg";
        views.get(index)?.finalize();
        const options = { mode: "vega-lite", actions: false, renderer, ast: true, tooltip: { theme: "custom" } };
        views.set(index, await window.vegaEmbed(places[index], patched(job, datasets), options));
      }
      box.dataset.drawn = "yes";
    }
    function toggle(s) {
      lit = lit.includes(s) ? lit.filter((other) => other !== s) : [...lit, s].slice(-most);
      label();
      draw();
    }
    function label() {
      chips.replaceChildren(...timed.slice(0, 60).map((s) => {
        const name = data.solutions[s], place = lit.indexOf(s);
        const chip = make("button", { type: "button", class: "chip", "aria-pressed": place >= 0 ? "true" : "false", onclick: () => toggle(s) }, make("i"), make("span", { text: name }));
        chip.style.setProperty("--swatch", place >= 0 ? digest.palette[place] : digest.grey);
        return chip;
      }));
      for (const [name, dashes] of beside) {
        const line = make("span", { class: "key" }, make("i", { class: dashes }), make("span", { text: name }));
        chips.append(line);
      }
    }
    label();
    drawn.add(draw);
    return { chips, box, draw };
  }

  head();
  environments();
  shells();
  filters();
  refresh();
})();
