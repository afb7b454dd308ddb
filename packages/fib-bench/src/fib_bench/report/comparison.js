// Everything shown comes out of a JSON block and goes in as text, never as markup.
(() => {
  const digest = parse("comparison");
  const pairs = digest.pairs;
  const isWorse = (pair) => digest.worse.includes(pair.verdict);
  const isBetter = (pair) => pair.verdict === "faster" || pair.verdict === "fixed";
  const axes = (pair) => Object.entries(pair.axes).map(([axis, size]) => `${axis}=${size}`).join(", ") || pair.workload;
  const us = (ms) => (ms === null ? null : ms * 1e3);

  function head() {
    at("made").textContent = `Comparison, made ${digest.made.replace("T", " ").replace("+00:00", " UTC")}`;
    const devices = [...new Set(pairs.map((pair) => pair.hardware))];
    at("devices").append(make("p", { class: "soft", text: devices.join(", ") }));
    at("tiles").append(...Object.entries(digest.counts).map(([word, number]) => make("div", {}, make("dt", { text: word }), make("dd", { text: count(number) }))));
    at("verdict").append(make("b", { class: digest.isWorse ? "bad-text" : "good-text", text: digest.isWorse ? "Something became slower or stopped passing." : "Nothing became slower or stopped passing." }),
      ` after / before: ${digest.ratio} (geometric mean)`);
  }

  let wanted = "";
  function filters() {
    const select = make("select", { "aria-label": "All verdicts", onchange: (event) => { wanted = event.target.value; refresh(); } });
    select.append(make("option", { value: "", text: "All verdicts" }), ...Object.keys(digest.counts).map((value) => make("option", { value, text: value })));
    at("filters").append(select);
  }

  const columns = [
    { label: "solution", kind: "name", value: (pair) => pair.solution, show: (pair) => make("span", {}, make("span", { text: pair.solution }),
      pair.reason ? make("span", { class: isWorse(pair) ? "why" : "why flagged", text: pair.reason }) : null) },
    { label: "axes", kind: "text", value: axes, show: axes },
    { label: "before", value: (pair) => pair.before_ms, show: (pair) => pair.before },
    { label: "after", value: (pair) => pair.after_ms, show: (pair) => pair.after },
    { label: "after / before", value: (pair) => pair.ratio, show: (pair) => pair.ratio_text.replace("x", "×").replace(/^-$/, "–") },
    { label: "verdict", value: (pair) => digest.order.indexOf(pair.verdict), show: (pair) => make("span", { class: isWorse(pair) ? "bad-text" : isBetter(pair) ? "good-text" : null, text: pair.verdict }) },
  ];
  if (pairs.some((pair) => pair.timed_by)) columns.push({ label: "timed by", kind: "text", value: (pair) => pair.timed_by, show: (pair) => pair.timed_by || "linked" });

  function refresh() {
    const rows = pairs.filter((pair) => !wanted || pair.verdict === wanted);
    const key = (pair) => pair.definition;
    const order = [...new Set(rows.map(key))];
    rows.sort((a, b) => order.indexOf(key(a)) - order.indexOf(key(b))); // the worst definition first, stable within
    at("pairs").replaceChildren(table(columns, rows, null, { key, head: (pair) => pair.definition }));
  }

  async function draw() {
    const spec = styled(digest.spec);
    const points = pairs.filter((pair) => pair.point !== null && pair.before_ms).map((pair) => ({ us: us(pair.before_ms), ratio: pair.point,
      low: pair.ratio_interval?.[0] ?? null, high: pair.ratio_interval?.[1] ?? null, verdict: pair.verdict, definition: pair.definition, solution: pair.solution, axes: axes(pair), change: pair.ratio_text }));
    if (!points.length) {
      ["role", "aria-label"].forEach((name) => at("chart").removeAttribute(name));
      at("chart").replaceChildren(make("p", { class: "note", text: "No latencies were compared, so there is nothing to draw." }));
      return;
    }
    spec.datasets = { points };
    await window.vegaEmbed(at("chart"), spec, { mode: "vega-lite", actions: false, ast: true, renderer: points.length > 3000 ? "canvas" : "svg", tooltip: { theme: "custom" } });
    at("chart").dataset.drawn = "yes";
  }

  head();
  filters();
  refresh();
  drawn.add(draw);
  draw();
})();
