// Configurations of a serving engine under one load: throughput and TPOT per NPU.
"use strict";

opmeter.view((data, main) => {
  const { t, el, count, number, percent, isNumber, NONE, series } = opmeter;
  const names = ["name", "npus", "ttft", "ttftLow", "ttftHigh", "tpot", "tpotLow", "tpotHigh", "rate", "rateLow", "rateHigh", "known", "front", "refused"];
  const rows = data.rows.map((row) => Object.fromEntries(names.map((name, at) => [name, row[at]])));
  const served = rows.filter((row) => isNumber(row.rateLow));
  const range = (value, low, high) => (!isNumber(low) ? NONE : isNumber(value) ? `${number(value)} (${number(low)} – ${number(high)})` : `${number(low)} – ${number(high)}`);
  const middle = (value, low, high) => (isNumber(value) ? value : Math.sqrt(low * high));

  opmeter.head(main, {
    title: t("Configurations under one load"),
    sub: [el("span", {}, data.model), el("br"), el("span", {}, `${t("version")}  ${data.place}`)],
  });
  opmeter.facts(main, [
    [t("configurations"), count(rows.length), served.length < rows.length ? `${t("refused")}: ${count(rows.length - served.length)}` : ""],
    [t("on the Pareto front"), count(served.filter((row) => row.front === "yes").length), `${t("in part of the range")}: ${count(served.filter((row) => row.front && row.front !== "yes" && row.front !== "no").length)}`],
    [t("with values"), count(served.filter((row) => isNumber(row.rate)).length), t("others have a range: a tenth or more of the device's time has no data")],
  ]);
  front();
  table();

  function front() {
    const made = opmeter.section(main, t("Throughput and TPOT"), t("up and to the left is better"), "front");
    const points = served.filter((row) => isNumber(row.tpotLow)).map((row) => ({ ...row, x: middle(row.tpot, row.tpotLow, row.tpotHigh), y: middle(row.rate, row.rateLow, row.rateHigh) }));
    if (!points.length) {
      made.append(el("p", { class: "muted" }, t("no durations")));
      return;
    }
    const around = (low, high) => [d3.min(points, (d) => d[low]) / 1.2, d3.max(points, (d) => d[high]) * 1.2];
    const colour = (d) => (d.front === "yes" ? series[0] : d.front === "no" ? "var(--muted)" : series[1]);
    const said = (d) => `${d.name}\nTPOT ${range(d.tpot, d.tpotLow, d.tpotHigh)} ms\n${range(d.rate, d.rateLow, d.rateHigh)} ${t("tokens/s per NPU")}`;
    opmeter.chart(made, {
      label: t("Throughput and TPOT"),
      draw: (width) => ({
        width, height: 380, marginLeft: 56, marginBottom: 42, marginTop: 20, marginRight: 24,
        x: { type: "log", label: `TPOT p50 (ms)`, grid: true, domain: around("tpotLow", "tpotHigh"), ticks: Math.max(3, Math.floor(width / 130)), tickFormat: (v) => number(v), labelAnchor: "center", labelArrow: "none" },
        y: { type: "log", label: t("tokens/s per NPU"), grid: true, domain: around("rateLow", "rateHigh"), ticks: 6, tickFormat: (v) => number(v), labelArrow: "none" },
        marks: [
          Plot.link(points, { x1: "tpotLow", x2: "tpotHigh", y1: "y", y2: "y", stroke: colour, strokeOpacity: 0.5 }),
          Plot.link(points, { x1: "x", x2: "x", y1: "rateLow", y2: "rateHigh", stroke: colour, strokeOpacity: 0.5 }),
          Plot.line(points.filter((d) => d.front === "yes").sort((a, b) => a.x - b.x), { x: "x", y: "y", stroke: series[0], strokeOpacity: 0.7 }),
          Plot.dot(points, { x: "x", y: "y", r: 5, fill: colour, title: said, tip: true }),
          Plot.text(points, { x: "x", y: "y", text: "name", dy: -11, fill: "currentColor", stroke: "var(--surface)", strokeWidth: 3, fontSize: 11, pointerEvents: "none" }),
        ],
      }),
      keys: [[t("on the Pareto front"), series[0]], [t("in part of the range"), series[1]], [t("not on the front"), "var(--muted)"]],
    });
    made.append(el("p", { class: "small muted" }, t("Lines are ranges, from three runs: durations at their values and at both ends of their intervals. A configuration is on the front if no other one has a lower TPOT and a higher throughput in the same run.")));
  }

  function table() {
    const made = opmeter.section(main, t("Configurations"), "", "configurations");
    opmeter.table(made, {
      name: t("Configurations"), search: rows.length > 10 ? t("search") : null, searched: (row) => row.name, rows, size: 50,
      columns: [
        { label: t("configuration"), value: (row) => row.name },
        { label: "NPU", kind: "number", wide: true, value: (row) => row.npus, text: (row) => count(row.npus) },
        { label: "TTFT p50", unit: "ms", kind: "number", wide: true, value: (row) => row.ttftLow, text: (row) => range(row.ttft, row.ttftLow, row.ttftHigh) },
        { label: "TPOT p50", unit: "ms", kind: "number", value: (row) => row.tpotLow, text: (row) => range(row.tpot, row.tpotLow, row.tpotHigh) },
        { label: t("tokens/s per NPU"), kind: "number", value: (row) => row.rateLow, text: (row) => range(row.rate, row.rateLow, row.rateHigh) },
        { label: t("time with data"), kind: "number", wide: true, value: (row) => row.known, text: (row) => (isNumber(row.known) ? percent(row.known) : NONE) },
        { label: t("Pareto front"), value: (row) => row.front, text: (row) => (row.front ? t(row.front) : row.refused) },
      ],
    });
  }
});
