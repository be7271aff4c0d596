// A model: what its passes launch, by layer, with the time of each launch and how it is known.
"use strict";

opmeter.view((data, main) => {
  const { t, el, count, number, percent, us, isNumber, NONE, series } = opmeter;
  const colours = { exact: series[0], imported: series[3], interpolated: series[5], estimated: "var(--warn)", unknown: series[6] };
  const labels = { exact: t("measured"), imported: t("imported from another tool"), interpolated: t("between measured sizes"), estimated: t("estimated"), unknown: t("time not known") };
  const sum = (times) => d3.sum(Object.values(times));
  const known = (times) => (times.exact + times.imported + times.interpolated) / (sum(times) || 1);
  const isMeasured = (one) => !one.unknown && one.times.exact === sum(one.times);
  const phaseOf = (one) => t(one.phase);

  opmeter.head(main, {
    title: data.name,
    sub: [el("span", {}, `${t("release")}  ${data.release}`), el("br"), el("span", {}, `${t(data.has_version ? "version" : "device")}  ${data.place}`),
      ...(data.has_version ? [] : [el("br"), t("without a version: nothing is measured, times are ranges at the rates of the device")])],
  });
  const causes = { computing: series[0], communication: series[1], waiting: series[2], host: series[3], unknown: series[6] };
  const causeNames = { computing: t("computing"), communication: t("communication"), waiting: t("waiting for other ranks"), host: t("host"), unknown: t("time not known") };

  opmeter.facts(main, data.passes.flatMap((one) => [
    ...(one.simulated ? [[`${phaseOf(one)}: ${one.simulated.metric}, ${t(one.simulated.mode)}`, us(one.simulated.time_us), `${us(one.simulated.low_us)} – ${us(one.simulated.high_us)}, 95 %`]] : []),
    [`${phaseOf(one)}: ${isMeasured(one) ? t("time of the kernels") : t("estimated time of the kernels")}`, us(sum(one.times)), `${count(one.launches)} ${t("launches")}`],
    [`${phaseOf(one)}: ${t("known from the database")}`, percent(known(one.times)), one.unknown ? `${count(one.unknown)} ${t("launches")}: ${t("time not known")}` : `${t("exactly")} ${percent(one.times.exact / (sum(one.times) || 1))}`],
  ]));
  for (const one of data.passes) pass(one, data.passes.indexOf(one));

  function pass(one, place) {
    const whole = sum(one.times);
    const made = opmeter.section(main, phaseOf(one), one.title, `pass-${place + 1}`);
    made.append(
      opmeter.bar(data.sources.map((name) => [one.times[name] / (whole || 1), colours[name], labels[name]])),
      opmeter.legend(data.sources.filter((name) => one.times[name] > 0 || (name === "unknown" && one.unknown)).map((name) => [`${labels[name]} ${name === "unknown" ? `${count(one.unknown)} ${t("launches")}` : percent(one.times[name] / (whole || 1))}`, colours[name]])));
    if (one.simulated) simulated(made, one.simulated);
    slow(made, one, whole);
    const measured = one.times.exact + one.times.imported + one.times.interpolated;
    if (measured) {
      made.append(el("p", { class: "small muted" },
        `${t("Of the launches with a duration:")} ${us(measured)}; ${t("sums of the ends of their 95 % intervals:")} ${us(one.low_us)} – ${us(one.high_us)}.`));
    }
    const grid = el("div", { class: "grid two", style: { marginTop: "14px" } });
    made.append(grid);
    bars(grid, t("By layer"), one.layers);
    bars(grid, t("By kernel type"), one.kernels);
    const table = el("div", { class: "launches", style: { marginTop: "14px" } });
    made.append(table);
    opmeter.table(table, {
      name: `${phaseOf(one)}: ${t("launches")}`, search: t("search layers, kernel types, shapes"), rows: one.rows, size: 20,
      searched: (row) => [row[0], row[1], row[3], row[4], row[8], row[9], labels[row[12]]].join(" "),
      columns: [
        { label: t("kernel type"), value: (row) => row[1] },
        { label: t("layer"), kind: "word", wide: true, value: (row) => row[0], text: (row) => t(row[0]) },
        { label: t("launches"), kind: "number", wide: true, value: (row) => row[2], text: (row) => count(row[2]) },
        { label: t("input shapes or message"), wide: true, value: (row) => row[3], text: (row) => row[3].split(";").filter(Boolean).join("; ") || NONE },
        { label: t("duration"), unit: "µs", kind: "number", value: (row) => row[5] ?? row[11], text: (row) => (isNumber(row[5]) ? number(row[5]) : row[11] ? `(${number(row[11])})` : NONE) },
        { label: t("95 % interval"), kind: "number", wide: true, value: (row) => row[6], text: (row) => (isNumber(row[6]) ? `${number(row[6])} – ${number(row[7])}` : NONE) },
        { label: t("least"), unit: "µs", kind: "number", wide: true, value: (row) => row[14], text: (row) => (row[14] ? number(row[14]) : NONE) },
        { label: t("together"), kind: "number", value: (row) => row[13], text: (row) => us(row[13]) },
        { label: t("known by"), value: (row) => data.sources.indexOf(row[12]), text: (row) => [labels[row[12]], row[9] && t(row[9])].filter(Boolean).join(": ") },
        { label: t("share"), kind: "number", wide: true, value: (row) => row[13], text: (row) => percent(row[13] / (whole || 1)) },
      ],
    });
    made.append(el("p", { class: "small muted" }, t("In brackets: an estimate at the rates that kernels usually reach on the device, where no duration was measured. The least time is the bound below which no measurement is accepted.")));
  }

  // What is slow, what is not known, and the command that writes what to measure.
  function slow(parent, one, whole) {
    const rows = d3.groups(one.rows, (row) => row[1]).map(([kernel, rows]) => {
      const timed = rows.filter((row) => isNumber(row[5]));
      const total = d3.sum(rows, (row) => row[13]);
      const bounded = timed.filter((row) => row[14]);
      return {
        kernel, total, share: total / (whole || 1), launches: d3.sum(rows, (row) => row[2]),
        roofline: bounded.length ? d3.sum(bounded, (row) => row[2] * row[14]) / d3.sum(bounded, (row) => row[13]) : null,
        halfWidth: timed.length ? d3.sum(timed, (row) => row[2] * (row[7] - row[6])) / 2 / d3.sum(timed, (row) => row[13]) : null,
        known: data.sources.map((name) => [d3.sum(rows.filter((row) => row[12] === name), (row) => row[2]), colours[name], labels[name]]),
        measured: d3.sum(rows.filter((row) => row[12] === "exact"), (row) => row[2]),
      };
    });
    const made = el("div", { class: "slow" }, el("h3", {}, t("Time by kernel type")));
    parent.append(made);
    opmeter.table(made, {
      name: `${phaseOf(one)}: ${t("Time by kernel type")}`, rows, size: 12, sort: [1, true],
      columns: [
        { label: t("kernel type"), value: (row) => row.kernel },
        { label: t("share of time"), kind: "number", value: (row) => row.share, text: (row) => percent(row.share) },
        { label: t("of roofline"), kind: "number", value: (row) => row.roofline, text: (row) => (isNumber(row.roofline) ? percent(row.roofline) : NONE) },
        { label: t("half-width"), kind: "number", value: (row) => row.halfWidth, text: (row) => (isNumber(row.halfWidth) ? percent(row.halfWidth) : NONE) },
        { label: t("known by"), value: (row) => row.measured / row.launches, node: (row) => opmeter.bar(row.known.map(([n, ...rest]) => [n / row.launches, ...rest])) },
        { label: t("launches"), kind: "number", wide: true, value: (row) => row.launches, text: (row) => count(row.launches) },
      ],
    });
    if (one.narrow) opmeter.next(made, t("Write the cases that narrow this time most, to measure them:"), one.narrow);
  }

  function simulated(parent, found) {
    const shown = Object.keys(found.parts).filter((cause) => found.parts[cause] > 0);
    parent.append(
      el("h3", {}, `${found.metric}: ${us(found.time_us)}`),
      opmeter.bar(shown.map((cause) => [found.parts[cause] / (found.time_us || 1), causes[cause], causeNames[cause]])),
      opmeter.legend(shown.map((cause) => [`${causeNames[cause]} ${us(found.parts[cause])}`, causes[cause]])),
      el("p", { class: "small muted" }, `${t("Work of the streams beside the critical path:")} ${us(found.hidden_us)}. ${t("Order of the calls:")} ${t(found.order)}. ${t("Host costs and waits without data are ranges, as `opmeter step` prints them.")}`));
  }

  function bars(parent, title, times) {
    const names = Object.keys(times).filter((name) => sum(times[name]) > 0).sort((a, b) => sum(times[b]) - sum(times[a]));
    if (!names.length) return;
    const most = d3.max(names, (name) => sum(times[name]));
    const rows = names.flatMap((name) => {
      let from = 0;
      return data.sources.filter((source) => times[name][source] > 0).map((source) => {
        const row = { name: t(name), source, from: from / 1000, to: (from + times[name][source]) / 1000, us: times[name][source] };
        from += times[name][source];
        return row;
      });
    });
    opmeter.chart(parent, {
      title, label: title,
      draw: (width) => {
        const left = Math.min(14 + 6.8 * d3.max(names, (name) => t(name).length), width * 0.48);
        const letters = Math.floor((left - 10) / 6.8);
        return {
          width, height: 22 * names.length + 44, marginLeft: left, marginRight: 70, marginBottom: 36, marginTop: 2,
          x: { label: `${t("time")} (ms)`, domain: [0, most / 1000], grid: true, nice: true, ticks: Math.max(2, Math.floor(width / 150)), labelAnchor: "center", labelArrow: "none" },
          y: { label: null, domain: names.map((name) => t(name)), tickSize: 0, tickFormat: (name) => (name.length > letters ? `${name.slice(0, letters - 1)}…` : name) },
          marks: [
            Plot.barX(rows, { x1: "from", x2: "to", y: "name", fill: (d) => colours[d.source], insetTop: 3, insetBottom: 3, title: (d) => `${d.name}\n${labels[d.source]}: ${us(d.us)}`, tip: true }),
            Plot.text(names, { x: (name) => sum(times[name]) / 1000, y: (name) => t(name), text: (name) => us(sum(times[name])), textAnchor: "start", dx: 5, fill: "currentColor" }),
          ],
        };
      },
    });
  }
});
