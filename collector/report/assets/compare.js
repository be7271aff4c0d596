// Two versions of a database, or two stacks: which durations changed, and by how much.
"use strict";

opmeter.view((data, main) => {
  const { t, el, count, number, percent, us, isNumber, NONE, series } = opmeter;
  const slower = "var(--warn)";
  const faster = series[0];
  const change = (ratio) => {
    if (!isNumber(ratio)) return NONE;
    const share = 100 * (ratio - 1);
    return `${share > 0 ? "+" : share < 0 ? "−" : ""}${Math.abs(share) >= 1000 ? count(Math.abs(share)) : Math.abs(share).toFixed(1)} %`;
  };

  opmeter.head(main, {
    title: t("Comparison"),
    sub: [el("span", {}, `${t("before")}  ${data.before}`), el("br"), el("span", {}, `${t("after")}  ${data.after}`)],
  });
  const step = data.step;
  const found = data.findings;
  const parts = (us_) => ["changed", "equal", "inconclusive"].map((name) => `${t(name)} ${us_[name] > 0 ? "+" : ""}${us(us_[name])}`).join(", ");
  opmeter.facts(main, [
    [t("changed durations"), count(found.changed), `${t("of")} ${count(data.common)} ${t("in both")}; ${count(data.slower)} ${t("slower")}, ${count(found.changed - data.slower)} ${t("faster")}`],
    [t("equal"), count(found.equal), `${t("within")} ${percent(data.margin)}`],
    [t("inconclusive"), count(found.inconclusive), found.inconclusive ? `${t("half of them show changes from")} ×${number(data.detectable)}` : ""],
    [t("time of the cases, each once"), data.total.before_us ? change(data.total.after_us / data.total.before_us) : NONE, parts(data.total.parts)],
    [t("median change"), isNumber(data.median_ratio) ? change(data.median_ratio) : NONE, t("over all cases in both")],
    ...(step ? [[t("the step"), step.before_us ? change(step.after_us / step.before_us) : NONE, step.before_us ? `${us(step.before_us)} → ${us(step.after_us)}` : t("not measured")]] : []),
  ]);

  if (step) stepSection();
  volcano();
  kernels();
  changes();

  function stepSection() {
    const made = opmeter.section(main, t("The step of a model"), step.name, "step");
    const all = data.kernels.map((one) => ({ ...one, delta: one.step_after_us - one.step_before_us }));
    const least = 0.002 * d3.max(all, (one) => Math.abs(one.delta)); // less is no visible bar
    const rows = all.filter((one) => one.delta && Math.abs(one.delta) >= least).slice(0, 20);
    made.append(el("p", { class: "small muted" },
      `${percent(step.covered)} ${t("of the time of the step is in cases that both sides measured.")} ${t("The difference by what the comparison shows:")} ${parts(step.parts)}.`));
    if (!rows.length) return;
    opmeter.chart(made, {
      label: t("change of the step by kernel type"),
      draw: (width) => ({
        width, height: 24 * rows.length + 56, marginTop: 8, marginLeft: Math.min(190, width * 0.5), marginRight: 20, marginBottom: 38,
        x: { label: `${t("change of the step")} (µs)`, grid: true, nice: true, ticks: Math.max(3, Math.floor(width / 130)), labelAnchor: "center", labelArrow: "none" },
        y: { label: null, domain: rows.map((one) => one.kernel), tickSize: 0 },
        marks: [
          Plot.barX(rows, { x: "delta", y: "kernel", fill: (d) => (d.delta > 0 ? slower : faster), insetTop: 3, insetBottom: 3, rx: 2, title: (d) => `${d.kernel}\n${us(d.step_before_us)} → ${us(d.step_after_us)}`, tip: true }),
          Plot.ruleX([0]),
        ],
      }),
      keys: [[t("slower"), slower], [t("faster"), faster]],
    });
  }

  function volcano() {
    const rows = data.points.map(([kernel, shapes, ratio, p, isChanged, weight]) => ({ kernel, shapes, ratio, p, isChanged, weight, y: Math.min(40, -Math.log10(p)) }));
    const note = rows.length < data.common ? `${count(rows.length)} ${t("of")} ${count(data.common)} ${t("points are drawn")}` : "";
    const made = opmeter.section(main, t("Size and certainty of each change"), note, "volcano");
    if (!rows.length) {
      made.append(el("p", { class: "muted" }, t("no durations")));
      return;
    }
    const most = d3.max(rows, (d) => d.weight) || 0;
    const heaviest = (d) => (most ? 2 + 8 * Math.sqrt(d.weight / most) : 3);
    const extent = d3.max(rows, (d) => Math.abs(Math.log(d.ratio))) || 0.01;
    const ends = [Math.exp(-extent * 1.05), Math.exp(extent * 1.05)];
    opmeter.chart(made, {
      label: t("Size and certainty of each change"),
      draw: (width) => ({
        width, height: 380, marginTop: 28, marginLeft: 48, marginBottom: 40,
        x: { type: "log", domain: ends, label: `${t("duration after over before")} (×)`, ticks: Math.max(3, Math.floor(width / 110)), tickFormat: (v) => `${+v.toPrecision(3)}`, labelAnchor: "center", labelArrow: "none" },
        y: { label: "−log10 p", grid: true, nice: true, ticks: 6, labelArrow: "none" },
        marks: [
          Plot.ruleX([1], { stroke: "currentColor", strokeOpacity: 0.5 }),
          Plot.dot(rows.filter((d) => !d.isChanged), { x: "ratio", y: "y", r: 1.8, fill: "currentColor", fillOpacity: 0.35 }),
          Plot.dot(rows.filter((d) => d.isChanged), { x: "ratio", y: "y", r: heaviest, symbol: (d) => (d.ratio > 1 ? "triangle" : "circle"), fill: (d) => (d.ratio > 1 ? slower : faster), fillOpacity: 0.8 }),
          Plot.tip(rows, Plot.pointer({ x: "ratio", y: "y", maxRadius: 30, title: (d) => `${d.kernel} ${d.shapes}\n${change(d.ratio)}, p ${d.p.toPrecision(2)}` })),
        ],
        r: { type: "identity" },
        symbol: { type: "identity" },
      }),
      keys: [[t("slower"), slower, d3.symbolTriangle], [t("faster"), faster], [t("no change shown"), "var(--muted)"]],
    });
    made.append(el("p", { class: "small muted" },
      `${t("A duration counts as changed if its two intervals do not overlap and the Benjamini-Hochberg procedure reports it; expected share of false reports, at most:")} ${percent(data.false_discoveries)}. ${t("Cases of disturbed sessions never count as changed; there are")} ${count(data.disturbed)}.`));
    if (found.inconclusive) {
      const sessions = data.sessions ? count(data.sessions) : `${t("more than")} ${count(1000)}`;
      made.append(el("p", { class: "small muted" },
        `${t("The intervals of inconclusive cases are too wide: sessions on each side, on different devices, that would show a change in half of them,")} ×${data.sought}: ${sessions}.`));
    }
  }

  function kernels() {
    const made = opmeter.section(main, t("Kernel types"), "", "kernels");
    opmeter.table(made, {
      name: t("Kernel types"), search: t("search kernel types"), searched: (row) => row.kernel, rows: data.kernels, size: 25,
      columns: [
        { label: t("kernel type"), value: (row) => row.kernel },
        { label: t("in both"), kind: "number", value: (row) => row.cases, text: (row) => count(row.cases) },
        { label: t("slower"), kind: "number", value: (row) => row.slower, text: (row) => count(row.slower) },
        { label: t("faster"), kind: "number", value: (row) => row.faster, text: (row) => count(row.faster) },
        { label: t("median change"), kind: "number", value: (row) => row.median_ratio, text: (row) => change(row.median_ratio) },
        ...(step ? [
          { label: t("step before"), unit: "µs", kind: "number", wide: true, value: (row) => row.step_before_us, text: (row) => number(row.step_before_us) },
          { label: t("step after"), unit: "µs", kind: "number", wide: true, value: (row) => row.step_after_us, text: (row) => number(row.step_after_us) },
        ] : []),
      ],
    });
    made.append(el("p", { class: "small muted" },
      `${count(data.only_before)} ${t("cases only before")}, ${count(data.only_after)} ${t("only after")}`));
  }

  function changes() {
    const made = opmeter.section(main, t("Compared durations"), count(data.common), "changes");
    opmeter.table(made, {
      name: t("Compared durations"), search: t("search kernel types and shapes"), rows: data.changes, size: 25,
      searched: (row) => `${row[0]} ${row[2]} ${row[3]} ${row[1]}`,
      empty: t("no durations"),
      columns: [
        { label: t("kernel type"), value: (row) => row[0] },
        { label: t("input shapes"), value: (row) => row[2], text: (row) => row[2].split(";").filter(Boolean).join("; ") || NONE },
        { label: t("before"), unit: "µs", kind: "number", wide: true, value: (row) => row[4], text: (row) => number(row[4]) },
        { label: t("after"), unit: "µs", kind: "number", wide: true, value: (row) => row[5], text: (row) => number(row[5]) },
        { label: t("finding"), value: (row) => row[11], text: (row) => t(row[11]) },
        { label: t("change"), kind: "number", value: (row) => row[6], text: (row) => change(row[6]) },
        { label: t("95 % interval"), kind: "number", wide: true, value: (row) => row[7], text: (row) => `${change(row[7])} … ${change(row[8])}` },
        { label: t("detectable"), kind: "number", wide: true, value: (row) => row[14], text: (row) => `×${number(row[14])}` },
        { label: t("warnings"), wide: true, value: (row) => `${row[16]}${row[17]}`, text: (row) => (row[16] || row[17] ? `${row[16] || NONE} → ${row[17] || NONE}` : "") },
        { label: "q", kind: "number", wide: true, value: (row) => row[10], text: (row) => (row[10] < 1e-4 ? row[10].toExponential(0) : row[10].toPrecision(2)) },
        ...(step ? [{ label: t("step"), unit: "µs", kind: "number", wide: true, value: (row) => Math.abs(row[13]), text: (row) => (row[12] ? `${row[13] > 0 ? "+" : ""}${number(row[13])}` : NONE) }] : []),
      ],
    });
    if (data.common > data.changes.length) {
      made.append(el("p", { class: "muted small" }, `${count(data.changes.length)} ${t("of")} ${count(data.common)}; ${t("all are in")} index.csv`));
    }
  }
});
