// A step: its time in the profile, next to the times measured apart and in context.
"use strict";

opmeter.view((data, main) => {
  const { t, el, count, number, percent, us, isNumber, NONE, series } = opmeter;
  const parts = data.parts;
  const whole = parts.measured;
  const hasStep = isNumber(whole) && whole > 0;
  const inProfile = d3.sum(data.kernels, (row) => row[3]);
  const compared = d3.sum(data.kernels, (row) => row[4]);
  const apart = d3.sum(data.kernels, (row) => row[5]);
  const names = {
    isolated: [t("kernels, measured apart"), t("isolated durations times launches")],
    neighbours: [t("neighbours"), t("additional time of the same kernels in context, as measured")],
    context: [t("rest of the context"), t("remaining additional time of the same kernels in the run")],
    unknown: [t("kernels not measured"), t("their time in the profile")],
    overlap: [t("overlap"), t("computing time minus the time of the kernels: some ran concurrently")],
    messages: [t("messages, measured apart"), t("isolated durations of the collectives")],
    waiting: [t("waiting for other ranks"), t("other communication that was not overlapped")],
    host: [t("idle device"), t("nothing ran: the host was late")],
  };

  opmeter.head(main, {
    title: t("A step of a profile"),
    sub: [el("span", {}, `${t("profile")}  ${data.profile}`), el("br"), el("span", {}, `${t("version")}  ${data.place}`)],
  });
  if (data.other_device) {
    main.append(el("p", { class: "small" }, el("span", { class: "tag" }, t("other device")), ` ${data.other_device}`));
  }
  opmeter.facts(main, [
    [t("step in the profile"), hasStep ? us(whole / data.steps) : NONE, hasStep ? `${t("mean of steps")}: ${count(data.steps)}` : t("the profile has no step_trace_time.csv")],
    [t("time of its kernels"), us(inProfile / Math.max(1, data.steps)), t("in the profile")],
    [t("measured"), percent(compared / (inProfile || 1)), t("of the time of its kernels")],
    [t("the same kernels apart"), us(apart / Math.max(1, data.steps)), compared ? `× ${number(compared / apart)} ${t("in the profile")}` : ""],
    [t("cases"), count(data.compared), `${t("of")} ${count(data.cases)} ${t("measured")}${data.warned ? `; ${t("with warnings")}: ${count(data.warned)}` : ""}`],
    ...(data.m6.length ? [["M6", data.m6.map((one) => one.toFixed(2)).join(" / "), t("covered, with rooflines, isolated")]] : []),
  ]);
  bars();
  if (hasStep) causes();
  ratios();
  kernels();
  cases();

  function bars() {
    const made = opmeter.section(main, t("The step, three times"), hasStep ? t("per step") : "", "bars");
    const labels = { apart: t("measured apart"), context: t("measured in context"), profile: t("in the profile") };
    const special = {
      "#unmeasured": [t("kernels not measured: their time in the profile"), series[6], 0.75],
      "#messages": [t("messages"), series[4], 0.95], "#waiting": [t("communication, not overlapped"), series[4], 0.95],
      "#idle": [t("idle device"), "var(--line)", 1], "": [t("other kernels"), series[5], 0.5],
    };
    const kernelNames = [...new Set(data.bars.map((one) => one.part))].filter((name) => !special[name]);
    const shades = series.slice(0, 4);
    // Beyond four kernel types the colours repeat, lighter; each part is labelled as well.
    const place = (part) => kernelNames.indexOf(part);
    const colour = (part) => special[part]?.[1] ?? shades[place(part) % shades.length];
    const opacity = (part) => special[part]?.[2] ?? (place(part) < shades.length ? 0.95 : 0.55);
    const per = Math.max(1, data.steps) * 1000;
    const ends = {};
    const rows = data.bars.map((one) => {
      const from = ends[one.bar] || 0;
      ends[one.bar] = from + one.us / per;
      return { part: one.part, name: special[one.part]?.[0] ?? one.part, ms: one.us / per, bar: labels[one.bar], from, to: ends[one.bar] };
    });
    if (!rows.length) {
      made.append(el("p", { class: "muted" }, t("no durations")));
      return;
    }
    const most = d3.max(Object.values(ends));
    opmeter.chart(made, {
      label: t("The step, three times"),
      draw: (width) => {
        const left = Math.min(150, Math.max(126, width * 0.2));
        const letters = (d) => Math.floor(((d.to - d.from) / most) * (width - left - 16) / 7) - 1;
        return {
          width, height: 210, marginLeft: left, marginBottom: 38, marginRight: 16, marginTop: 6,
          x: { label: hasStep ? `${t("time of a step")} (ms)` : `${t("time")} (ms)`, grid: true, nice: true, domain: [0, most], ticks: Math.max(3, Math.floor(width / 110)), labelAnchor: "center", labelArrow: "none" },
          y: { label: null, domain: Object.values(labels).filter((name) => rows.some((d) => d.bar === name)), tickSize: 0 },
          marks: [
            Plot.barX(rows, { x1: "from", x2: "to", y: "bar", fill: (d) => colour(d.part), fillOpacity: (d) => opacity(d.part), stroke: "var(--surface)", strokeWidth: 0.8, insetTop: 6, insetBottom: 6, title: (d) => `${d.name}\n${us(1000 * d.ms)}`, tip: true }),
            Plot.text(rows.filter((d) => letters(d) > 4), { x: (d) => (d.from + d.to) / 2, y: "bar", text: (d) => (d.name.length > letters(d) ? `${d.name.slice(0, letters(d) - 1)}…` : d.name), fill: "white", stroke: "#0009", strokeWidth: 2, fontSize: 11, pointerEvents: "none" }),
          ],
        };
      },
      keys: [...kernelNames.slice(0, shades.length).map((name) => [name, colour(name)]), [t("other kernels"), series[5]], ...(hasStep ? [[t("communication"), series[4]], [t("idle device"), "var(--line)"]] : []), ...(rows.some((d) => d.part === "#unmeasured") ? [[t("kernels not measured: their time in the profile"), series[6]]] : [])],
    });
    if (!data.in_context) {
      made.append(el("p", { class: "small muted" }, t("No case of this step was measured in context: a campaign with cache: context does that.")));
    }
  }

  function causes() {
    const made = opmeter.section(main, t("From the isolated times to the step"), us(whole / data.steps), "causes");
    let at = 0;
    const rows = Object.keys(names).map((name) => {
      const from = at;
      at += parts[name] / data.steps / 1000;
      const each = Math.abs(parts[name]) < 1e-6 * whole ? 0 : parts[name]; // rounding of the sums
      return { name: names[name][0], what: names[name][1], from, to: at, share: each / whole, us: each / data.steps };
    });
    rows.push({ name: t("the step"), what: t("in the profile"), from: 0, to: at, share: 1, us: whole / data.steps });
    const colour = (d) => (d.name === t("the step") ? "var(--muted)" : d.us < 0 ? series[2] : d.name === rows[0].name || d.name === names.messages[0] ? series[0] : "var(--warn)");
    opmeter.chart(made, {
      label: t("From the isolated times to the step"),
      draw: (width) => ({
        width, height: 30 * rows.length + 50, marginLeft: 168, marginRight: width < 560 ? 66 : 130, marginBottom: 38, marginTop: 4,
        x: { label: `${t("time of a step")} (ms)`, grid: true, nice: true, ticks: Math.max(2, Math.floor((width - 234) / 90)), labelAnchor: "center", labelArrow: "none" },
        y: { label: null, domain: rows.map((d) => d.name), tickSize: 0 },
        marks: [
          Plot.barX(rows, { x1: "from", x2: "to", y: "name", fill: colour, insetTop: 4, insetBottom: 4, rx: 2, title: (d) => `${d.what}\n${us(d.us)}`, tip: true }),
          Plot.text(rows, { x: (d) => Math.max(d.from, d.to), y: "name", text: (d) => `${d.us < 0 ? "−" : ""}${us(Math.abs(d.us))}${width < 560 ? "" : ` · ${d.us < 0 ? "−" : ""}${percent(Math.abs(d.share))}`}`, textAnchor: "start", dx: 6, fill: "currentColor" }),
          Plot.ruleX([0]),
        ],
      }),
      keys: [[t("measured"), series[0]], [t("residual"), "var(--warn)"], [t("residual, shorter"), series[2]]],
    });
  }

  function ratios() {
    const rows = data.rows.filter((row) => isNumber(row[10]) && row[10] > 0 && row[5] > 0).map((row) => ({ kernel: row[0], shapes: row[2], launches: row[3], inSitu: row[4], apart: row[5], total: row[9], ratio: row[10] }));
    if (!rows.length) return;
    const made = opmeter.section(main, t("Each case in the run"), t("above 1 the run takes longer than the case alone"), "ratios");
    const most = d3.max(rows, (d) => d.total);
    opmeter.chart(made, {
      label: t("Each case in the run"),
      draw: (width) => ({
        width, height: 340, marginLeft: 48, marginBottom: 40, marginTop: 18,
        x: { type: "log", label: `${t("measured apart")} (µs)`, ticks: Math.max(3, Math.floor(width / 130)), tickFormat: (v) => number(v), labelAnchor: "center", labelArrow: "none" },
        y: { type: "log", label: `${t("in the profile over apart")} (×)`, grid: true, ticks: 6, tickFormat: (v) => number(v), labelArrow: "none" },
        r: { type: "identity" },
        marks: [
          Plot.ruleY([1], { stroke: "currentColor", strokeOpacity: 0.6 }),
          Plot.dot(rows, { x: "apart", y: "ratio", r: (d) => 2 + 12 * Math.sqrt(d.total / most), fill: series[0], fillOpacity: 0.45, stroke: series[0], strokeWidth: 0.6, title: (d) => `${d.kernel} ${d.shapes}\n${us(d.inSitu)} ${t("in the profile")}, ${us(d.apart)} ${t("measured apart")}\n${count(d.launches)} ${t("launches")}, ${us(d.total)}`, tip: true }),
        ],
      }),
    });
    made.append(el("p", { class: "small muted" }, t("The area of a point is the time of its launches in the profile.")));
  }

  function kernels() {
    const made = opmeter.section(main, t("Kernel types"), "", "kernels");
    opmeter.table(made, {
      name: t("Kernel types"), search: t("search kernel types"), searched: (row) => row[0], rows: data.kernels, size: 25,
      columns: [
        { label: t("kernel type"), value: (row) => row[0] },
        { label: t("cases"), kind: "number", wide: true, value: (row) => row[1], text: (row) => count(row[1]) },
        { label: t("launches"), kind: "number", wide: true, value: (row) => row[2], text: (row) => count(row[2]) },
        { label: t("in the profile"), kind: "number", value: (row) => row[3], text: (row) => us(row[3]) },
        { label: t("of the kernels"), kind: "number", wide: true, value: (row) => row[3], text: (row) => percent(row[3] / (inProfile || 1)) },
        { label: t("measured"), kind: "number", value: (row) => row[4] / (row[3] || 1), text: (row) => percent(row[4] / (row[3] || 1)) },
        { label: t("in the profile over apart"), unit: "×", kind: "number", value: (row) => row[8], text: (row) => number(row[8]) },
        { label: t("10 % to 90 % of launches"), kind: "number", wide: true, value: (row) => row[7], text: (row) => (isNumber(row[7]) ? `${number(row[7])} – ${number(row[9])}` : NONE) },
      ],
    });
  }

  function cases() {
    const made = opmeter.section(main, t("Cases"), "", "cases");
    opmeter.table(made, {
      name: t("Cases"), search: t("search kernel types and shapes"), searched: (row) => `${row[0]} ${row[2]} ${row[11]}`, rows: data.rows, size: 25,
      columns: [
        { label: t("kernel type"), value: (row) => row[0] },
        { label: t("input shapes"), wide: true, value: (row) => row[2], text: (row) => row[2].split(";").filter(Boolean).join("; ") || NONE },
        { label: t("launches"), kind: "number", wide: true, value: (row) => row[3], text: (row) => count(row[3]) },
        { label: t("in the profile"), unit: "µs", kind: "number", value: (row) => row[4], text: (row) => number(row[4]) },
        { label: t("measured apart"), unit: "µs", kind: "number", value: (row) => row[5], text: (row) => (isNumber(row[5]) ? number(row[5]) : t(row[11] || "missing")) },
        { label: t("95 % interval"), kind: "number", wide: true, value: (row) => row[6], text: (row) => (isNumber(row[6]) ? `${number(row[6])} – ${number(row[7])}` : NONE) },
        { label: t("in context"), unit: "µs", kind: "number", wide: true, value: (row) => row[8], text: (row) => number(row[8]) },
        { label: t("ratio"), unit: "×", kind: "number", value: (row) => row[10], text: (row) => number(row[10]) },
        { label: t("warnings"), wide: true, value: (row) => row[12], text: (row) => row[12].replaceAll(";", "; ") },
      ],
    });
    if (data.cases > data.rows.length) {
      made.append(el("p", { class: "muted small" }, `${count(data.rows.length)} ${t("of")} ${count(data.cases)}; ${t("all are in")} index.csv`));
    }
  }
});
