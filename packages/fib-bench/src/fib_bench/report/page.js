"use strict";
// Everything shown comes out of JSON blocks and goes in as text, never as markup.
(() => {
  const parse = (id) => JSON.parse(document.getElementById(id).textContent);
  const at = (id) => document.getElementById(id);
  const digest = parse("digest");
  const FIRST_ROWS = matchMedia("(max-width: 44rem)").matches ? 15 : 100, MOST_POINTS = 20000, SVG_POINTS = 3000;

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
    return us >= 1e6 ? `${digits(us / 1e6)} s` : us >= 1e3 ? `${digits(us / 1e3)} ms` : `${digits(us)} µs`;
  }

  // -- tables ----------------------------------------------------------------------------------

  // A column: {label, value(row) to sort by, show(row) -> text or node, kind: "text" | "name" | "", share(row), descends}
  function table(columns, rows, sorted = null) {
    const body = make("tbody");
    const heads = columns.map((column, index) => make("th", { scope: "col", class: column.kind ? "text" : "" },
      make("button", { type: "button", text: column.label, onclick: () => sort(index) })));
    const more = make("button", { type: "button", class: "more", onclick: () => { shown = Infinity; fill(); } });
    const box = make("div", {}, make("div", { class: "scroll" },
      make("table", { class: "cards" }, make("thead", {}, make("tr", {}, ...heads)), body)), more);
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
      order = [...rows].sort((a, b) => compare(column.value(a), column.value(b)));
      heads.forEach((head, i) => head.removeAttribute("aria-sort"));
      heads[index].setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      fill();
    }
    function cell(column, row, above) {
      const content = column.show(row);
      const share = column.share ? column.share(row) : null;
      const isRepeated = above !== undefined && column.repeats && column.repeats(row, above);
      const kind = [column.kind === "name" ? "text name" : column.kind, share !== null ? "meter" : "", isRepeated ? "again" : ""].join(" ").trim();
      const td = make("td", { class: kind || null, "data-label": column.label }, content);
      if (share !== null) td.style.setProperty("--share", Math.max(0, Math.min(1, share)));
      return td;
    }
    function fill() {
      body.replaceChildren(...order.slice(0, shown).map((row, index) =>
        make("tr", {}, ...columns.map((column) => cell(column, row, order[index - 1])))));
      more.hidden = order.length <= shown;
      more.textContent = `Show all ${count(order.length)} rows`;
    }
    if (sorted !== null) sort(sorted); else fill();
    return box;
  }

  // -- the data of the blocks --------------------------------------------------------------------

  const sections = digest.sections.map(([definition, opType, description, hardware, workloads], index) =>
    ({ index, definition, opType, description, hardware, workloads, rows: [] }));
  for (const values of digest.leaders) {
    const row = Object.fromEntries(digest.leaderFields.map((field, index) => [field, values[index]]));
    row.section = sections[row.section];
    row.rank = row.section.rows.push(row);
  }
  const hardwares = [...new Set(sections.map((section) => section.hardware))];
  const allRows = sections.flatMap((section) => section.rows);
  const has = (field) => allRows.some((row) => row[field] !== null && row[field] !== undefined);
  const largest = allRows.reduce((most, row) => Math.max(most, number(row.speedup) ?? 0), 2);
  const meter = (value) => (value === null ? null : Math.log1p(value) / Math.log1p(largest));

  function entryColumns(rows, isOverview) {
    const name = (row) => make("span", {}, make("span", { text: row.solution }),
      make("span", { class: "by", text: [row.author, row.language].filter((word) => word !== "?").join(" · ") }),
      row.labels.length ? make("span", { class: "why flagged", text: row.labels.join(", ") }) : null,
      row.problem ? make("span", { class: row.passed === row.total ? "why flagged" : "why", text: row.problem }) : null);
    const columns = [];
    if (isOverview) {
      const link = (row) => make("a", { href: `#definition-${row.section.index}`, text: row.section.definition, onclick: () => open(row.section.index) });
      columns.push({ label: "definition", kind: "text title", repeats: (row, above) => row.section === above.section, value: (row) => row.section.definition, show: link });
      if (hardwares.length > 1) columns.push({ label: "device", kind: "text", value: (row) => row.section.hardware, show: (row) => row.section.hardware });
    }
    columns.push({ label: "solution", kind: "name", value: (row) => row.solution, show: name });
    columns.push({ label: "passed", value: (row) => row.passed / row.total, descends: true,
      show: (row) => make("span", { class: row.passed < row.total ? "bad-text" : null, text: `${count(row.passed)}/${count(row.total)}` }) });
    columns.push({ label: "speedup", value: (row) => number(row.speedup), descends: true, show: (row) => ratio(row.speedup), share: (row) => meter(number(row.speedup)) });
    if (has("baseline")) {
      const label = digest.baselines.length === 1 ? `vs ${digest.baselines[0]}` : "vs baseline";
      columns.push({ label, value: (row) => number(row.baseline), descends: true, show: (row) => ratio(row.baseline) });
    }
    digest.winFactors.forEach((factor, index) => columns.push(
      { label: `win@${factor}`, value: (row) => row.wins[index], descends: true, show: (row) => percent(row.wins[index]) }));
    columns.push({ label: "fast_p area", value: (row) => row.area, descends: true, show: (row) => (row.area === null ? "–" : row.area.toFixed(3)) });
    if (has("fraction")) columns.push({ label: "speed of light", value: (row) => row.fraction, descends: true, show: (row) => percent(row.fraction) });
    const range = (row) => (row.low === null ? "–" : row.low === row.high ? latency(row.low * 1e3) : `${latency(row.low * 1e3)} – ${latency(row.high * 1e3)}`);
    columns.push({ label: "latency", value: (row) => row.low, show: range });
    if (allRows.some((row) => row.by)) columns.push({ label: "timed by", kind: "text", value: (row) => row.by, show: (row) => row.by || "linked" });
    return columns;
  }

  // -- head, filters, leaderboard --------------------------------------------------------------

  function head() {
    at("made").textContent = `Benchmark report, made ${digest.made.replace("T", " ").replace("+00:00", " UTC")}`;
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
    at("leaderboard").replaceChildren(rows.length ? table(entryColumns(rows, true), rows) :
      make("p", { class: "note", text: allRows.length ? "Nothing matches the filters." : "There are no traces to rank." }));
    const left = new Set(wanted.text || wanted.author ? allRows.filter((row) => isIn(row.section) && (!wanted.author || row.author === wanted.author) &&
      (!wanted.text || [row.section.definition, row.solution, row.author].some((text) => text.toLowerCase().includes(wanted.text)))).map((row) => row.section.index) :
      sections.filter(isIn).map((section) => section.index));
    for (const section of sections) at(`definition-${section.index}`).hidden = !left.has(section.index);
  }

  function authors() {
    if (!digest.authors.length) return;
    at("authors-part").hidden = false;
    at("authors").append(make("p", { class: "note", text: `Mean speedup of each author's best solutions over those by ${digest.baselineAuthor}. ${digest.authorsNote}` }),
      table([
        { label: "author", kind: "name", value: (row) => row[0], show: (row) => row[0] },
        { label: "speedup", value: (row) => row[1], descends: true, show: (row) => ratio(row[1]) },
        { label: "workloads", value: (row) => row[2], descends: true, show: (row) => count(row[2]) },
      ], digest.authors));
  }

  function environments() {
    const box = make("div", { class: "environments" });
    for (const entry of digest.environments) {
      const facts = [...Object.entries(entry.libs), ["isolation", entry.isolation], ["first trace", entry.first], ["last trace", entry.last]];
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
    const jump = () => { const match = /^#definition-(\d+)$/.exec(location.hash); if (match && at(`definition-${match[1]}`)) open(match[1]); };
    addEventListener("hashchange", jump);
    jump();
  }

  function inside(section) {
    const data = parse(`section-${section.index}`);
    const traces = tracesOf(data);
    const box = make("div", { class: "inside" });
    if (section.description) box.append(make("p", { class: "soft", text: section.description }));
    if (data.methods.length) box.append(make("p", { class: "soft", text: `timed by: ${data.methods.join(", ")}` }));
    box.append(table(entryColumns(section.rows, false), section.rows));
    const charts = chartsOf(section, data, traces);
    box.append(charts.chips, charts.box);
    box.append(...failures(data, traces), ...tracesTable(data, traces));
    requestAnimationFrame(charts.draw);
    return box;
  }

  function tracesOf(data) {
    const of = (name) => data[name] ?? null;
    const [us, speedup, low, high, host, fraction, log, flagged, by] = ["us", "speedup", "low", "high", "host", "fraction", "log", "flagged", "by"].map(of);
    const axes = Object.entries(data.axes);
    const words = data.workloads.map((_, w) => axes.filter(([, sizes]) => sizes[w] !== null).map(([axis, sizes]) => `${axis}=${sizes[w]}`).join(", "));
    return data.workload.map((w, i) => ({
      w, s: data.solution[i], workload: data.workloads[w], solution: data.solutions[data.solution[i]], axes: words[w],
      status: digest.statusNames[data.status[i]], us: us && us[i], speedup: speedup && speedup[i], low: low && low[i], high: high && high[i],
      host: host && host[i], fraction: fraction && fraction[i], log: log && log[i], flagged: flagged && flagged[i], by: by && by[i],
    }));
  }

  function failures(data, traces) {
    const groups = new Map();
    for (const trace of traces) {
      if (trace.status === "PASSED") continue;
      const key = `${trace.s}/${trace.status}/${trace.log}`;
      if (!groups.has(key)) groups.set(key, { ...trace, workloads: [] });
      groups.get(key).workloads.push(trace.axes || trace.workload);
    }
    if (!groups.size) return [];
    const list = [...groups.values()], first = 40;
    const box = make("div");
    const entry = (group) => make("details", { class: "failure" },
      make("summary", {}, make("b", { class: "mono", text: group.solution }), " ", make("span", { class: "bad-text", text: group.status }),
        ` on ${plural(group.workloads.length, "workload")}`),
      make("p", { class: "soft", text: group.workloads.slice(0, 12).join("; ") + (group.workloads.length > 12 ? "; …" : "") }),
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
      known("by") && { label: "timed by", kind: "text", value: (t) => t.by, show: (t) => t.by ?? (t.us === null ? "–" : "linked") },
      known("host") && { label: "host", value: (t) => t.host, show: (t) => latency(t.host) },
      known("fraction") && { label: "speed of light", value: (t) => t.fraction, descends: true, show: (t) => percent(t.fraction) },
      { label: "workload", kind: "text", value: (t) => t.workload, show: (t) => make("code", { text: t.workload }) },
    ].filter(Boolean);
    const details = make("details", {}, make("summary", { text: `All ${plural(traces.length, "trace")}` }), box);
    details.addEventListener("toggle", () => { if (details.open && !box.childElementCount) box.append(table(columns, traces, 0)); });
    return [make("h3", { text: "Traces" }), details];
  }

  // -- charts ----------------------------------------------------------------------------------

  const drawn = new Set(); // functions that redraw the charts after a change of theme or width
  const colours = () => getComputedStyle(document.documentElement);

  function chartsOf(section, data, traces) {
    const most = digest.palette.length;
    let lit = data.solutions.map((_, s) => s).slice(0, most);
    const chips = make("div", { class: "chips", role: "group", "aria-label": "Solutions with a colour" });
    const box = make("div", { class: "charts" });
    const passing = traces.filter((trace) => trace.us !== null);
    const stride = Math.ceil(passing.length / MOST_POINTS);
    const points = stride > 1 ? passing.filter((trace) => trace.w % stride === 0) : passing;
    const key = (s) => (lit.includes(s) ? data.solutions[s] : digest.others);
    const views = new Map();

    const row = (t) => ({ us: t.us, low: t.low, high: t.high, solution: t.solution, k: key(t.s), latency: latency(t.us),
      interval: t.low === null ? "not known" : `${latency(t.low)} – ${latency(t.high)}`, speedup: ratio(t.speedup), attained: percent(t.fraction), axes: t.axes, workload: t.workload });
    const jobs = [];
    for (const [axis, sizes] of Object.entries(data.axes)) {
      const mine = points.filter((t) => sizes[t.w] !== null);
      if (!mine.length) continue;
      const scale = mine.every((t) => sizes[t.w] > 0) ? "log" : "symlog";
      jobs.push(["latency", `Latency against ${axis}`, "lines join medians", () => ({ points: mine.map((t) => ({ ...row(t), x: sizes[t.w] })) }), { x: axis, scale }]);
    }
    if (data.fast.length) {
      jobs.push(["fast", "fast_p", "hover for the area under a curve", () => ({ points: data.fast.flatMap((curve, s) => curve.map((share, i) =>
        ({ p: digest.grid[i], share, solution: data.solutions[s], k: key(s), area: data.area[s] }))) }), {}]);
    }
    if (data.bytes) {
      const place = (t) => {
        const moved = data.bytes[t.w];
        if (!data.operations) return moved ? { x: moved, y: moved / t.us / 1e3 } : null;
        const done = data.operations[t.w];
        return moved && done ? { x: done / moved, y: done / t.us / 1e6 } : null;
      };
      const mine = points.map((t) => [t, place(t)]).filter((pair) => pair[1]);
      const titles = data.operations ? ["operations per byte", "TFLOP/s"] : ["bytes moved", "GB/s"];
      if (mine.length) jobs.push(["roofline", "Roofline", "the line is what the device attains", () => ({ points: mine.map(([t, xy]) => ({ ...row(t), ...xy })), roof: roofOf(data, mine.map((pair) => pair[1].x)) }), { x: titles[0], y: titles[1] }]);
    }
    for (const [, title, note] of jobs) box.append(make("figure", {}, make("figcaption", {}, title, make("span", { class: "soft", text: `  ${note}` })), make("div", { class: "chart" })));
    if (stride > 1) box.append(make("p", { class: "note", text: `Charts show one of ${stride} workloads.` }));
    if (!passing.length) box.append(make("p", { class: "note", text: "Nothing passes here, so there is nothing to draw." }));

    function patched([kind, , , , said], datasets) {
      const spec = structuredClone(digest.specs[kind]);
      const style = colours();
      const soft = style.getPropertyValue("--soft").trim(), line = style.getPropertyValue("--line").trim();
      Object.assign(spec, { datasets: { roof: [], ...datasets }, width: "container", background: "transparent", autosize: { type: "fit-x", contains: "padding" },
        config: { font: "system-ui, sans-serif", view: { stroke: null }, axis: { labelColor: soft, titleColor: soft, gridColor: line, domainColor: line, tickColor: line, labelFontSize: 11, titleFontSize: 11, titleFontWeight: 400, labelOverlap: "greedy", labelSeparation: 8 } } });
      const scale = { domain: [...lit.map((s) => data.solutions[s]), digest.others], range: [...lit.map((_, i) => digest.palette[i]), digest.grey] };
      for (const encoding of [spec.encoding, ...spec.layer.map((layer) => layer.encoding)].filter(Boolean)) {
        if (encoding.color) encoding.color.scale = scale;
        if (encoding.x && said.x !== undefined) encoding.x.title = said.x;
        if (encoding.y && said.y !== undefined) encoding.y.title = said.y;
        if (encoding.x && said.scale === "symlog") encoding.x.scale = { type: "symlog" };
      }
      if (!datasets.points.some((point) => point.low)) spec.layer = spec.layer.filter((layer) => layer.name !== "intervals");
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
      chips.replaceChildren(...data.solutions.slice(0, 60).map((name, s) => {
        const place = lit.indexOf(s);
        const chip = make("button", { type: "button", class: "chip", "aria-pressed": place >= 0 ? "true" : "false", onclick: () => toggle(s) }, make("i"), make("span", { text: name }));
        chip.style.setProperty("--swatch", place >= 0 ? digest.palette[place] : digest.grey);
        return chip;
      }));
    }
    label();
    drawn.add(draw);
    return { chips, box, draw };
  }

  function roofOf(data, xs) {
    if (!data.bandwidth) return [];
    let low = Math.min(...xs), high = Math.max(...xs);
    if (!data.operations) return [low / 2, high * 2].map((x) => ({ x, y: data.bandwidth / 1e9 }));
    const corner = data.rate / data.bandwidth;
    if (corner > low * 1.001) low /= 2; // a side of the roof is known where a workload touches it
    if (corner < high * 0.999) high *= 2;
    const corners = low < corner && corner < high ? [low, corner, high] : [low, high];
    return corners.map((x) => ({ x, y: Math.min(data.bandwidth * x, data.rate) / 1e12 }));
  }

  // -- theme -----------------------------------------------------------------------------------

  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const redraw = () => drawn.forEach((draw) => draw());
  at("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches;
    root.dataset.theme = isDark ? "light" : "dark";
    redraw();
  });
  prefersDark.addEventListener("change", redraw);

  head();
  authors();
  environments();
  shells();
  filters();
  refresh();
})();
